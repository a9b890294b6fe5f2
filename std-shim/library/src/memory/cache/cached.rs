//! Buffers of a cache.

use super::shared::Shared;
use crate::backend::Region;
use crate::memory::foreign::ForeignBuffer;
use polyrail_software_nic::MemoryRegion;
use std::ops::Deref;
use std::sync::Arc;

/// A range of memory that a [`RegistrationCache`](super::RegistrationCache) has registered,
/// possibly as a part of a longer one. Its addresses and lengths are those of the range; its keys
/// are those of the registration.
///
/// The registration exists while a buffer uses it.
#[derive(Debug)]
pub struct CachedBuffer<R: Region = MemoryRegion> {
    // Dropped before the cache is notified.
    buffer: ForeignBuffer<R>,
    _release: Release<R>,
}

/// Notifies the cache that a buffer was dropped, since its registration may now exceed the limits.
#[derive(Debug)]
struct Release<R: Region>(Arc<Shared<R>>);

impl<R: Region> CachedBuffer<R> {
    pub(super) fn new(buffer: ForeignBuffer<R>, shared: &Arc<Shared<R>>) -> Self {
        Self { buffer, _release: Release(Arc::clone(shared)) }
    }
}

impl<R: Region> Deref for CachedBuffer<R> {
    type Target = ForeignBuffer<R>;

    fn deref(&self) -> &ForeignBuffer<R> {
        &self.buffer
    }
}

impl<R: Region> Drop for Release<R> {
    fn drop(&mut self) {
        // In a fork of the process, the registrations are the parent's.
        _ = self.0.change(|_| ());
    }
}
