//! A cache of registrations: the caller's memory is registered when a request first needs it, and
//! stays registered for later requests.
//!
//! `state` decides which registrations are used and dropped, `shared` applies the decisions under a
//! lock, and `cached` is the buffer that users hold.

mod cached;
mod limits;
mod shared;
mod state;

pub use cached::CachedBuffer;
pub use limits::{CacheCounters, CacheLimits, StillRegistered};

use super::foreign::ForeignBuffer;
use crate::backend::{DeviceError, Domain, DomainRef, listed};
use polyrail_core::verbs::AccessFlags;
use shared::Shared;
use std::ops::Range;
use std::sync::Arc;

/// Registrations of the caller's memory with one or more devices, by their ranges. Registering pins
/// pages and passes them to devices, which takes microseconds to seconds; a look-up takes less than
/// a microsecond.
///
/// # Rules
///
/// - **Look-up**: a registration matches if it contains the range and has exactly the requested
///   access. More access would let peers do more, and other flags change the device's guarantees.
///   If none matches, exactly the range is registered; registrations that it contains, with the
///   same access, no longer match.
/// - **Eviction**: a registration that a [`CachedBuffer`] uses stays, whatever the limits. If the
///   [limits](CacheLimits) are exceeded, the least recently used of the others is deregistered
///   first. If a device runs out of regions or memory, all others are deregistered and the
///   registration is tried once more.
/// - **Invalidation is the caller's responsibility.** The cache does not notice that memory is
///   freed, unmapped or remapped, and would return a registration of the old pages. Call
///   [`invalidate`](Self::invalidate) before that, after the last buffer of the range was dropped.
/// - **Keys** give access to the whole registration until it is deregistered, even if no buffer
///   uses it. Only send them to peers that may access all of it.
/// - **Threads** share the cache by reference. No thread waits while another registers or
///   deregisters, except `invalidate`, which waits for deregistrations of its range.
/// - **Forks**: a child of `fork` cannot use its parent's cache. [`get`](Self::get) returns
///   [`DeviceError::Forked`] there; the other methods and drops do nothing, because devices access
///   the memory of the parent.
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
    /// Creates an empty cache of registrations with each of the domains.
    pub fn new<'d>(
        domains: impl IntoIterator<Item: DomainRef<'d, D>>,
        limits: CacheLimits,
    ) -> Self {
        let domains = listed(domains).into_iter().cloned().collect();
        Self { domains, shared: Arc::new(Shared::new(limits)) }
    }

    /// Returns `length` bytes from `start`, registered with this access; see the
    /// [rules](Self#rules).
    ///
    /// # Errors
    ///
    /// Those of [`ForeignBuffer::new`], and [`DeviceError::Forked`]. After
    /// [`DeviceError::Deregister`], invalidating the range always fails.
    ///
    /// # Safety
    ///
    /// As [`ForeignBuffer::new`]. The memory counts as registered until
    /// [`invalidate`](Self::invalidate) or [`close`](Self::close) succeeds, or until no range that
    /// was requested from the cache overlaps it.
    pub unsafe fn get(
        &self,
        start: *mut u8,
        length: usize,
        access: AccessFlags,
    ) -> Result<CachedBuffer<D::Region>, DeviceError> {
        let range = range(start, length);
        // Not in a `match`, whose arms would hold the lock.
        let found = self.shared.lock()?.find(access, &range);
        if let Some(found) = found {
            return Ok(CachedBuffer::new(found, &self.shared));
        }
        // SAFETY: guaranteed by the caller.
        let made = match unsafe { self.register(start, length, access) } {
            Err(error @ DeviceError::Deregister { .. }) => {
                self.shared.lock()?.keep(range);
                return Err(error);
            }
            made => made?,
        };
        let part = self.shared.change(|state| state.insert(access, made))?;
        Ok(CachedBuffer::new(part, &self.shared))
    }

    /// Registers memory, with a second attempt if deregistering unused memory can make room.
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
        // SAFETY: guaranteed by the caller.
        let made = unsafe { ForeignBuffer::new(start, length, access, &domains) };
        let is_exhausted = made.as_ref().is_err_and(DeviceError::is_exhaustion);
        if !is_exhausted || !self.shared.change(|state| state.forget_idle())? {
            return made;
        }
        // SAFETY: guaranteed by the caller.
        unsafe { ForeignBuffer::new(start, length, access, &domains) }
    }

    /// Drops all registrations that overlap `length` bytes from `start`, and deregisters them. Call
    /// this before any of the memory is freed, unmapped or remapped. Does nothing in a fork of the
    /// process.
    ///
    /// # Errors
    ///
    /// Some of the memory is still registered, because a [`CachedBuffer`] uses it or a device
    /// failed to deregister it, so it must not be freed. The cache no longer returns these
    /// registrations; call this again once the buffers are dropped.
    pub fn invalidate(&self, start: *const u8, length: usize) -> Result<(), StillRegistered> {
        self.shared.forget(&range(start.cast_mut(), length))
    }

    /// Drops and deregisters all registrations. Dropping the cache does the same, but cannot report
    /// memory that is still registered. Both do nothing in a fork of the process.
    ///
    /// # Errors
    ///
    /// As [`invalidate`](Self::invalidate), for all memory in the cache.
    pub fn close(self) -> Result<(), StillRegistered> {
        self.shared.forget(&(0..u64::MAX))
    }

    /// Returns the cache's counters; zeros in a fork of the process.
    pub fn counters(&self) -> CacheCounters {
        self.shared.lock().map(|state| state.counters()).unwrap_or_default()
    }

    /// Returns a function that reads the counters, and `None` once the cache and its buffers are
    /// gone.
    #[cfg(feature = "metrics")]
    pub(crate) fn watch(&self) -> impl Fn() -> Option<CacheCounters> + Send + Sync + use<D> {
        let shared = Arc::downgrade(&self.shared);
        move || Some(shared.upgrade()?.lock().ok()?.counters())
    }
}

impl<D: Domain> Drop for RegistrationCache<D> {
    fn drop(&mut self) {
        // In a fork of the process, the registrations are the parent's.
        _ = self.shared.change(state::State::shut);
    }
}

/// Returns the range of addresses. A range that wraps around ends at the end of the address space
/// here; devices refuse it.
fn range(start: *mut u8, length: usize) -> Range<u64> {
    let start = start.expose_provenance() as u64;
    start..start.saturating_add(length as u64)
}
