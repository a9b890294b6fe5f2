//! Buffers that a cache hands out.

use super::shared::Shared;
use crate::backend::Region;
use crate::memory::foreign::ForeignBuffer;
use polyrail_software_nic::MemoryRegion;
use std::ops::Deref;
use std::sync::Arc;

/// A range of memory that a [`RegistrationCache`](super::RegistrationCache) has registered, perhaps as a part
/// of a longer one; its addresses and lengths are those of the range, its keys those of the registration.
///
/// As long as it lives, the registration stays.
#[derive(Debug)]
pub struct CachedBuffer<R: Region = MemoryRegion> {
    // Dropped before the cache is told.
    buffer: ForeignBuffer<R>,
    _release: Release<R>,
}

/// Tells the cache that a buffer was dropped: it may have been the last thing that kept too much.
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
        self.0.change(|_| ());
    }
}
