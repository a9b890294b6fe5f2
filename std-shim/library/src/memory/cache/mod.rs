//! A cache of registrations: memory of the caller's own is registered when a request first needs it, and stays
//! registered for the next.
//!
//! `state` decides what is answered and what goes, `shared` does it among threads, `cached` is what users hold.

mod cached;
mod limits;
mod shared;
mod state;

pub use cached::CachedBuffer;
pub use limits::{CacheCounters, CacheLimits, StillRegistered};

use super::foreign::ForeignBuffer;
use crate::backend::{DeviceError, Domain};
use polyrail_core::verbs::AccessFlags;
use shared::Shared;
use std::ops::Range;
use std::sync::Arc;

/// Registrations of the caller's memory with one or more devices, by their ranges. Registering pins pages and
/// tells devices of them, which takes microseconds to seconds; a look-up takes less than one.
///
/// # Rules
///
/// - **An answer** is a registration that has all of the range, and exactly the access that is asked for: more
///   would let peers do more, and the rest of the flags changes what the device promises. Otherwise the range,
///   and nothing around it, is registered; what it contains of the same access is not answered with any more.
/// - **What stays.** A registration that a [`CachedBuffer`] uses stays, whatever the limits. Of the others, the
///   one that was handed out longest ago goes first, as soon as there are more than the
///   [limits](CacheLimits) allow. Where a device runs out of regions or memory, all of the others go, and it is
///   tried once more.
/// - **Invalidation is the caller's duty.** The cache does not see that memory is freed, unmapped or mapped
///   anew; it would answer with a registration of pages that are no longer there. So
///   [`invalidate`](Self::invalidate) comes before that, after the last buffer of the range was dropped.
/// - **Keys** open the whole registration, and go on to until it goes, even if no buffer uses it any more: give
///   them to peers who may reach all of it.
/// - **Threads** share it by reference. None waits while another registers or deregisters, except who
///   invalidates what another one is deregistering.
///
/// ```
/// use polyrail::memory::{CacheLimits, RegistrationCache};
/// use polyrail::nic::{DeviceConfig, Fabric};
/// use polyrail::verbs::AccessFlags;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = Fabric::threaded().create_device(DeviceConfig::named("soft0"));
/// let cache = RegistrationCache::new(&[&device.alloc_pd()?], CacheLimits::default());
/// let mut tensor = vec![0u8; 1 << 20];
/// let start = tensor.as_mut_ptr();
///
/// // SAFETY: `tensor` is freed after it is invalidated, and no request names it.
/// let whole = unsafe { cache.get(start, 1 << 20, AccessFlags::LOCAL_WRITE) }?;
/// // SAFETY: as above.
/// let part = unsafe { cache.get(start.wrapping_add(4096), 100, AccessFlags::LOCAL_WRITE) }?;
/// assert_eq!(part.addr(), whole.addr() + 4096);
/// assert_eq!((part.len(), part.keys()), (100, whole.keys()));
/// assert_eq!(device.memory_regions(), 1);
///
/// drop((whole, part));
/// assert_eq!(device.memory_regions(), 1, "it stays for the next request");
/// cache.invalidate(start, tensor.len())?;
/// assert_eq!(device.memory_regions(), 0);
/// drop(tensor);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct RegistrationCache<D: Domain> {
    domains: Vec<D>,
    shared: Arc<Shared<D::Region>>,
}

impl<D: Domain> RegistrationCache<D> {
    /// An empty cache of registrations with each of the domains.
    pub fn new(domains: &[&D], limits: CacheLimits) -> Self {
        let domains = domains.iter().map(|&domain| domain.clone()).collect();
        Self { domains, shared: Arc::new(Shared::new(limits)) }
    }

    /// `length` bytes from `start` on, registered with this access; see the [rules](Self#rules).
    ///
    /// # Errors
    ///
    /// As [`ForeignBuffer::new`]. After [`DeviceError::Deregister`], invalidating the range fails for good.
    ///
    /// # Safety
    ///
    /// As [`ForeignBuffer::new`]; the memory counts as registered until [`invalidate`](Self::invalidate) or
    /// [`close`](Self::close) says that it is not any more, or nothing that was asked of the cache overlaps it.
    pub unsafe fn get(
        &self,
        start: *mut u8,
        length: usize,
        access: AccessFlags,
    ) -> Result<CachedBuffer<D::Region>, DeviceError> {
        let range = range(start, length);
        // Not in a `match`: the lock would be held in its arms.
        let found = self.shared.lock().find(access, &range);
        if let Some(found) = found {
            return Ok(CachedBuffer::new(found, &self.shared));
        }
        // SAFETY: the caller's promise.
        let made = unsafe { self.register(start, length, access) }.inspect_err(|error| {
            if matches!(error, DeviceError::Deregister { .. }) {
                self.shared.lock().keep(range);
            }
        })?;
        let part = self.shared.change(|state| state.insert(access, made));
        Ok(CachedBuffer::new(part, &self.shared))
    }

    /// Registers, and once more if what nobody uses can make room.
    ///
    /// # Safety
    ///
    /// As [`get`](Self::get).
    unsafe fn register(
        &self,
        start: *mut u8,
        length: usize,
        access: AccessFlags,
    ) -> Result<ForeignBuffer<D::Region>, DeviceError> {
        let domains: Vec<&D> = self.domains.iter().collect();
        // SAFETY: the caller's promise.
        let made = unsafe { ForeignBuffer::new(start, length, access, &domains) };
        let is_exhausted = made.as_ref().is_err_and(DeviceError::is_exhaustion);
        if !is_exhausted || !self.shared.change(|state| state.forget_idle()) {
            return made;
        }
        // SAFETY: the caller's promise.
        unsafe { ForeignBuffer::new(start, length, access, &domains) }
    }

    /// Forgets all registrations that overlap `length` bytes from `start` on, and deregisters them. To be
    /// called before any of the memory is freed, unmapped, or mapped anew.
    ///
    /// # Errors
    ///
    /// Some of the memory is still registered, since a [`CachedBuffer`] uses it or a device did not deregister
    /// it: it must stay as it is. The cache does not answer with it any more; who has dropped the buffers
    /// can invalidate again.
    pub fn invalidate(&self, start: *const u8, length: usize) -> Result<(), StillRegistered> {
        self.shared.forget(&range(start.cast_mut(), length))
    }

    /// Forgets and deregisters everything. A drop does that as well, but cannot say what is still registered.
    ///
    /// # Errors
    ///
    /// As [`invalidate`](Self::invalidate), of all memory that the cache was asked for.
    pub fn close(self) -> Result<(), StillRegistered> {
        self.shared.forget(&(0..u64::MAX))
    }

    /// What it has done, and what it keeps.
    pub fn counters(&self) -> CacheCounters {
        self.shared.lock().counters()
    }
}

impl<D: Domain> Drop for RegistrationCache<D> {
    fn drop(&mut self) {
        self.shared.change(state::State::shut);
    }
}

/// Ranges that wrap around are refused by devices; until then they end with the address space.
fn range(start: *mut u8, length: usize) -> Range<u64> {
    let start = start.expose_provenance() as u64;
    start..start.saturating_add(length as u64)
}
