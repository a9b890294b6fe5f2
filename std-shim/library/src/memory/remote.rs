//! Registered memory between two ends: which keys lead from a buffer here to a buffer there.

use super::buffer::RegisteredBuffer;
use super::range::OutOfRange;
use polyrail_core::verbs::DeviceKeys;
use polyrail_software_nic::RegionKeys;
use serde::{Deserialize, Serialize};

/// A buffer of the peer, as it travels over a connection: where it is, and the keys to it.
///
/// Safe to hand around: a device checks every access against the key that comes with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteBuffer {
    /// Address of the first byte in the peer's memory.
    pub addr: u64,
    /// Bytes.
    pub length: u64,
    /// Remote keys, in the order of the peer's devices.
    pub rkeys: Vec<u32>,
}

impl RemoteBuffer {
    /// Address of `length` bytes from `offset` on.
    ///
    /// # Errors
    ///
    /// The range does not lie within the buffer.
    pub fn at(&self, offset: usize, length: u32) -> Result<u64, OutOfRange> {
        let end = (offset as u64).checked_add(length.into());
        if end.is_none_or(|end| end > self.length) {
            let length = length as usize;
            let size = self.length as usize;
            return Err(OutOfRange { offset, length, size });
        }
        Ok(self.addr.wrapping_add(offset as u64))
    }
}

/// The two ends of a transfer are registered with different numbers of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the buffer is registered with {local} devices here and {remote} there")]
pub struct DeviceCountMismatch {
    /// Devices here.
    pub local: usize,
    /// Devices there.
    pub remote: usize,
}

impl<R> RegisteredBuffer<R> {
    /// What a peer has to know to reach this buffer.
    pub fn remote(&self) -> RemoteBuffer {
        RemoteBuffer {
            addr: self.addr(),
            length: self.len() as u64,
            rkeys: self.keys().iter().map(|keys| keys.rkey).collect(),
        }
    }

    /// The keys of requests that move data between this buffer and one of the peer's, for every
    /// device. The i-th device here has its rails connected to the i-th device there.
    ///
    /// # Errors
    ///
    /// The numbers of devices differ.
    pub fn toward(&self, peer: &RemoteBuffer) -> Result<Vec<DeviceKeys>, DeviceCountMismatch> {
        let local = self.keys().len();
        let remote = peer.rkeys.len();
        if local != remote {
            return Err(DeviceCountMismatch { local, remote });
        }
        Ok(self.keys().iter().zip(&peer.rkeys).map(|(keys, rkey)| keys.toward(*rkey)).collect())
    }

    /// The keys of requests that touch this buffer only: receives and SENDs.
    pub fn local_keys(&self) -> Vec<DeviceKeys> {
        self.keys().iter().map(|keys: &RegionKeys| keys.toward(0)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyrail_core::verbs::AccessFlags;
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
        let mismatch = DeviceCountMismatch { local: 1, remote: 2 };
        assert_eq!(here.toward(&there.remote()), Err(mismatch));
        assert_eq!(here.local_keys()[0].lkey, here.keys()[0].lkey);
    }

    #[test]
    fn remote_ranges_are_checked() {
        let buffer = RemoteBuffer { addr: 1000, length: 100, rkeys: vec![] };
        assert_eq!(buffer.at(90, 10), Ok(1090));
        let outside = OutOfRange { offset: 90, length: 11, size: 100 };
        assert_eq!(buffer.at(90, 11), Err(outside));
        assert!(buffer.at(usize::MAX, 1).is_err());
    }
}
