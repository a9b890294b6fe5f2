//! Memory for rings and records.

use crate::memory::Pages;
use stable_deref_trait::StableDeref;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Pages as words, which the peer's NIC writes while this process reads them.
#[derive(Clone, Debug)]
pub struct PageWords(pub(super) Arc<Pages>);

impl Deref for PageWords {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        self.0.words()
    }
}

// SAFETY: the pages are where they are for as long as anybody holds them, wherever the handle is moved.
unsafe impl StableDeref for PageWords {}
