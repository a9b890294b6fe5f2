//! Locks that outlive a panic.

use crate::sync::{Mutex, MutexGuard};
use std::sync::PoisonError;

/// Locks, whatever happened to an earlier holder.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
