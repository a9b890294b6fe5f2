//! Memory registered with devices, owned or foreign: its description for requests, here and at a
//! peer.

use super::range::OutOfRange;
use super::remote::{DeviceCountMismatch, RemoteBuffer};
use crate::backend::{DeviceError, Domain, Region};
use polyrail_core::verbs::{AccessFlags, DeviceId, DeviceKeys};
use polyrail_core::virtual_qp::MAX_RAILS;
use polyrail_software_nic::RegionKeys;
use std::ops::Range;
use std::sync::Arc;

/// Address, length and keys of a registered buffer.
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
    /// If a device refuses, the other registrations are undone. If that fails, too, the error is
    /// [`DeviceError::Deregister`].
    pub(super) fn new<D: Domain<Region = R>>(
        (addr, length): (u64, usize),
        access: AccessFlags,
        domains: &[&D],
        register: impl Fn(&D) -> Result<(R, RegionKeys), DeviceError>,
    ) -> Result<Self, DeviceError> {
        if domains.is_empty() {
            return Err(DeviceError::NoDevice);
        }
        let mut regions = Vec::with_capacity(domains.len());
        let mut keys = Vec::with_capacity(domains.len());
        for &domain in domains {
            match permits(domain, access).and_then(|()| register(domain)) {
                Ok((region, its_keys)) => {
                    regions.push(region);
                    keys.push(its_keys);
                }
                Err(error) => return Err(close_all(regions).err().unwrap_or(error)),
            }
        }
        Ok(Self { held: Arc::new(Held { regions, keys }), addr, length })
    }

    /// Deregisters with every device, unless another handle shares the regions.
    pub(super) fn close(self) -> Result<(), DeviceError> {
        Arc::into_inner(self.held).map_or(Ok(()), |held| close_all(held.regions))
    }
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

    /// Returns the keys on every device, in the order of the domains.
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

    /// Returns the regions, in the order of the domains.
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
    if local == remote {
        return local;
    }
    let of_all_rails = (1..=MAX_RAILS).find(|rails| rails % local == 0 && rails % remote == 0);
    of_all_rails.unwrap_or(MAX_RAILS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::RegisteredBuffer;
    use polyrail_software_nic::{DeviceConfig, Fabric};

    #[test]
    fn keys_pair_up_by_the_place_of_the_device() {
        let fabric = Fabric::threaded();
        let domains: Vec<_> = ["a", "b", "c"]
            .map(|name| fabric.create_device(DeviceConfig::named(name)).alloc_pd().unwrap())
            .into();
        let access = AccessFlags::LOCAL_WRITE;
        let here = RegisteredBuffer::new(64, access, &[&domains[0]]).unwrap();
        let there = RegisteredBuffer::new(64, access, &[&domains[1], &domains[2]]).unwrap();
        let keys = there.toward(&there.remote()).unwrap();
        assert_eq!(keys[1].device, domains[2].device().id());
        assert_eq!(keys[1].rkey, there.keys()[1].rkey);
        let keys = here.toward(&there.remote()).unwrap();
        let pairs: Vec<_> = keys.iter().map(|keys| (keys.lkey, keys.rkey)).collect();
        let [own] = here.keys() else { panic!("one") };
        assert_eq!(pairs, [0, 1].map(|far| (own.lkey, there.keys()[far].rkey)));
        let back = there.toward(&here.remote()).unwrap();
        let pairs: Vec<_> = back.iter().map(|keys| (keys.lkey, keys.rkey)).collect();
        assert_eq!(pairs, [0, 1].map(|near| (there.keys()[near].lkey, own.rkey)));
        // Limited to the number of rails, whatever the peer sends.
        let many = RemoteBuffer { addr: 0, length: 1, rkeys: vec![0; 1000] };
        assert_eq!(there.toward(&many).unwrap().len(), MAX_RAILS);
        let none = RemoteBuffer { rkeys: vec![], ..many };
        let mismatch = DeviceCountMismatch { local: 1, remote: 0 };
        assert_eq!(here.toward(&none), Err(mismatch));
        assert_eq!(here.local_keys()[0].lkey, here.keys()[0].lkey);
    }
}
