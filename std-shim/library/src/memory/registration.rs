//! Memory registered with devices, owned or foreign: its description for requests, here and at a
//! peer.

use super::range::OutOfRange;
use super::remote::{DeviceCountMismatch, RemoteBuffer};
use crate::backend::{DeviceError, Domain, Region};
use crate::trace;
use polyrail_core::verbs::{AccessFlags, DeviceId, DeviceKeys};
use polyrail_core::virtual_qp::MAX_RAILS;
use polyrail_software_nic::RegionKeys;
use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;

/// From this length on, devices that pin memory register it at the same time. To pin 1 MiB in pages
/// of 4 KiB takes at least as long as to start a thread, some 20 us.
const SLOW_BYTES: usize = 1 << 20;

/// Address, length and keys of a registered buffer.
///
/// # Long memory
///
/// A registration is one region on each device, so it is at most as long as the shortest
/// [limit](Domain::max_region_bytes) of its devices. Longer memory is
/// [`DeviceError::RegionTooLong`]. Few devices have such a limit: the drivers mlx4, mlx5 and rxe
/// report none.
///
/// Longer memory needs several registrations with different keys, and a request has to stay within
/// one of them at each end. The library does not hide the parts. A request has one pair of keys for
/// each device, and the engine cuts it into fragments by length alone. If the engine looked for the
/// keys and the border of a part in each fragment, every request would pay for what only long
/// memory needs. If the library split requests, a request that crosses a border would lose its one
/// report and its place in the order.
///
/// # Devices that are gone
///
/// A device that was removed, or has failed for good ([`Domain::is_gone`]), registers nothing. The
/// memory is then registered with the other devices, at least one, and the keys of the device are
/// zeros. If rails are re-routed, requests go on with the rails that are left: those of the device are
/// out of service, and do not return. Without re-routing, a connection with such a device fails at
/// its next request there, because the keys are invalid. A registration without a device is
/// [reported](crate::trace).
///
/// A device that was removed, but has not reported that yet, refuses, and the registration fails. Try
/// again: [`Domain::is_gone`] is true once the device has reported it.
#[derive(Debug)]
pub struct Registration<R> {
    held: Arc<Held<R>>,
    addr: u64,
    length: usize,
}

/// The regions of a buffer, one per device, and their keys.
#[derive(Debug)]
struct Held<R> {
    regions: Vec<R>,
    keys: Vec<RegionKeys>,
}

impl<R: Region> Registration<R> {
    /// Registers with every domain. `addr` is the address by which requests name the first of
    /// `length` bytes.
    ///
    /// Devices that [pin memory](Domain::pins_memory) register long memory at the same time,
    /// because that takes each of them seconds for some ten GiB.
    ///
    /// If a device refuses, the other registrations are undone, unless the device is
    /// [gone](Self#devices-that-are-gone) and another one is not. If that fails, too, the error is
    /// [`DeviceError::Deregister`].
    pub(super) fn new<D: Domain<Region = R>>(
        (addr, length): (u64, usize),
        access: AccessFlags,
        domains: &[&D],
        register: impl Fn(&D) -> Result<(R, RegionKeys), DeviceError> + Sync,
    ) -> Result<Self, DeviceError> {
        if domains.is_empty() {
            return Err(DeviceError::NoDevice);
        }
        let permitted =
            |domain: &&D| permits(*domain, access).or_else(|error| without(*domain, error));
        domains.iter().try_for_each(permitted)?;
        let is_slow = |domain: &&&D| length >= SLOW_BYTES && domain.pins_memory();
        let registered = match domains.iter().filter(is_slow).count() {
            0 | 1 => one_by_one(domains, register),
            _ => at_the_same_time(domains, register),
        };
        // A device may report its end after `one_by_one` stopped at it. The domains behind it were
        // not asked, so the error stays.
        let is_whole = registered.len() == domains.len();
        let mut regions = Vec::with_capacity(domains.len());
        let mut keys = Vec::with_capacity(domains.len());
        let mut refused = None;
        let mut gone = None;
        for (registered, domain) in registered.into_iter().zip(domains) {
            match registered {
                Ok((region, its_keys)) => {
                    regions.push(region);
                    keys.push(its_keys);
                }
                Err(error) if is_whole && domain.is_gone() => {
                    trace::not_registered(domain.device_name(), &error);
                    gone.get_or_insert(error);
                    keys.push(RegionKeys { device: domain.device_id(), lkey: 0, rkey: 0 });
                }
                Err(error) => _ = refused.get_or_insert_with(|| explained(*domain, length, error)),
            }
        }
        if let Some(error) = refused.or(gone.filter(|_| regions.is_empty())) {
            return Err(close_all(regions).err().unwrap_or(error));
        }
        Ok(Self { held: Arc::new(Held { regions, keys }), addr, length })
    }

    /// Deregisters with every device, unless another handle shares the regions.
    pub(super) fn close(self) -> Result<(), DeviceError> {
        Arc::into_inner(self.held).map_or(Ok(()), |held| close_all(held.regions))
    }
}

/// Registers with one domain after the other, until one refuses that is not gone.
fn one_by_one<D: Domain, T>(
    domains: &[&D],
    register: impl Fn(&D) -> Result<T, DeviceError>,
) -> Vec<Result<T, DeviceError>> {
    let mut all = Vec::with_capacity(domains.len());
    for domain in domains {
        all.push(register(domain));
        if all.last().is_some_and(Result::is_err) && !domain.is_gone() {
            break;
        }
    }
    all
}

/// Registers with all domains, each on a thread of its own, as far as there are threads. The
/// results have the order of the domains.
fn at_the_same_time<D: Sync, T: Send>(
    domains: &[&D],
    register: impl Fn(&D) -> Result<T, DeviceError> + Sync,
) -> Vec<Result<T, DeviceError>> {
    let register = &register;
    let Some((own, others)) = domains.split_first() else { return Vec::new() };
    thread::scope(|scope| {
        let mut threads = Vec::with_capacity(others.len());
        for &domain in others {
            let thread = thread::Builder::new().name("polyrail-register".into());
            threads.push(thread.spawn_scoped(scope, move || register(domain)));
        }
        let mut all = vec![register(own)];
        for (thread, domain) in threads.into_iter().zip(others) {
            all.push(match thread {
                Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
                Err(_) => register(domain),
            });
        }
        all
    })
}

/// Returns a device's refusal to register this length, with the limit if the length exceeds it. The
/// numbers by which drivers refuse have other meanings, too. The device is asked first, because a
/// driver may register more than it reports.
fn explained<D: Domain>(domain: &D, length: usize, error: DeviceError) -> DeviceError {
    let (length, limit) = (length as u64, domain.max_region_bytes());
    if length <= limit {
        return error;
    }
    let device = domain.device_name().into();
    DeviceError::RegionTooLong { device, length, limit, source: Box::new(error) }
}

/// Refuses access flags that the device does not support, or whose meaning depends on the device.
fn permits<D: Domain>(domain: &D, access: AccessFlags) -> Result<(), DeviceError> {
    if access.contains(AccessFlags::ZERO_BASED) {
        return Err(DeviceError::ZeroBased);
    }
    if access.contains(AccessFlags::ON_DEMAND) && !domain.has_on_demand_paging()? {
        return Err(DeviceError::NoOnDemandPaging { device: domain.device_name().into() });
    }
    Ok(())
}

/// Ignores the error of a device that is gone.
fn without<D: Domain>(domain: &D, error: DeviceError) -> Result<(), DeviceError> {
    if domain.is_gone() { Ok(()) } else { Err(error) }
}

/// Closes all regions, even if one fails; returns the first error.
fn close_all<R: Region>(regions: Vec<R>) -> Result<(), DeviceError> {
    let mut closed = Ok(());
    for region in regions {
        closed = closed.and(region.close());
    }
    closed
}

impl<R> Registration<R> {
    /// Returns the range of addresses.
    pub(super) const fn range(&self) -> Range<u64> {
        self.addr..self.addr + self.length as u64
    }

    /// Returns a handle of the same regions, for a range within this one.
    pub(super) fn part(&self, range: &Range<u64>) -> Self {
        let length = (range.end - range.start) as usize;
        Self { held: Arc::clone(&self.held), addr: range.start, length }
    }

    /// Whether other handles share the regions.
    pub(super) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.held) > 1
    }

    /// Returns the length in bytes; never 0.
    #[allow(clippy::len_without_is_empty, reason = "a registered buffer is never empty")]
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Returns the address of the first byte, for peers.
    pub const fn addr(&self) -> u64 {
        self.addr
    }

    /// Returns the keys on every device, in the order of the domains; zeros for devices that are
    /// [gone](Self#devices-that-are-gone).
    pub fn keys(&self) -> &[RegionKeys] {
        &self.held.keys
    }

    /// Returns the keys on one device: those of the first region there.
    pub fn keys_on(&self, device: DeviceId) -> Option<RegionKeys> {
        self.keys().iter().copied().find(|keys| keys.device == device)
    }

    /// Returns the local and remote keys of this buffer on every device, in the order of the
    /// domains. Messages ([`p2p`](crate::p2p)) take these, since their peers receive the keys with
    /// each buffer.
    pub fn own_keys(&self) -> Vec<DeviceKeys> {
        let keys = |keys: &RegionKeys| {
            let RegionKeys { device, lkey, rkey } = *keys;
            DeviceKeys { device, lkey, rkey }
        };
        self.keys().iter().map(keys).collect()
    }

    /// Returns the regions, in the order of the domains, without devices that are
    /// [gone](Self#devices-that-are-gone).
    pub fn regions(&self) -> &[R] {
        &self.held.regions
    }

    /// Returns the description that a peer needs to access this buffer.
    pub fn remote(&self) -> RemoteBuffer {
        RemoteBuffer {
            addr: self.addr(),
            length: self.len() as u64,
            rkeys: self.keys().iter().map(|keys| keys.rkey).collect(),
        }
    }

    /// Returns the keys of requests that move data between this buffer and a buffer of the peer,
    /// for every device. Rails connect the i-th device here with the i-th device of the peer.
    ///
    /// If the numbers of devices differ, rails use the devices of each end in turn, and there are
    /// keys for each pair of devices that a rail connects, in the order of the rails: with one
    /// device here and two at the peer, there are keys for rails 0, 2, .. and keys for rails 1, 3,
    /// .. Both buffers must then be registered with exactly the devices of the endpoints, in their
    /// order.
    ///
    /// # Errors
    ///
    /// One of the buffers is registered with no device.
    pub fn toward(&self, peer: &RemoteBuffer) -> Result<Vec<DeviceKeys>, DeviceCountMismatch> {
        let local = self.keys().len();
        let remote = peer.rkeys.len();
        if remote == 0 {
            return Err(DeviceCountMismatch { local, remote });
        }
        Ok(keys_toward(self.keys(), &peer.rkeys).collect())
    }

    /// Returns the keys of requests that access only this buffer: receives and SENDs.
    pub fn local_keys(&self) -> Vec<DeviceKeys> {
        self.keys().iter().map(|keys| keys.toward(0)).collect()
    }

    /// Returns the address of `length` bytes from `offset`.
    pub(super) fn at(&self, offset: usize, length: usize) -> Result<u64, OutOfRange> {
        match offset.checked_add(length) {
            Some(end) if end <= self.length => Ok(self.addr.wrapping_add(offset as u64)),
            _ => Err(OutOfRange { offset, length, size: self.length }),
        }
    }
}

/// Returns the keys of requests that move data between a buffer with these `keys` here and one with
/// these `rkeys` at the peer, like [`Registration::toward`], but without allocating. There are none
/// if either is empty.
pub fn keys_toward<'k>(
    keys: &'k [RegionKeys],
    rkeys: &'k [u32],
) -> impl Iterator<Item = DeviceKeys> + 'k {
    let pairs = keys.iter().cycle().zip(rkeys.iter().cycle());
    pairs.map(|(keys, rkey)| keys.toward(*rkey)).take(device_pairs(keys.len(), rkeys.len()))
}

/// Returns the number of different device pairs, if rails use the devices of each end in turn.
fn device_pairs(local: usize, remote: usize) -> usize {
    if local == remote || local == 0 || remote == 0 {
        return local.min(remote);
    }
    let of_all_rails = (1..=MAX_RAILS).find(|rails| rails % local == 0 && rails % remote == 0);
    of_all_rails.unwrap_or(MAX_RAILS)
}

#[cfg(test)]
mod tests;
