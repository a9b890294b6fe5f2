//! Registered memory of the peer.

use super::range::OutOfRange;
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

/// The devices of the two ends of a transfer cannot be paired: one is registered with none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the buffer is registered with {local} devices here and {remote} there")]
pub struct DeviceCountMismatch {
    /// Devices here.
    pub local: usize,
    /// Devices there.
    pub remote: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remote_ranges_are_checked() {
        let buffer = RemoteBuffer { addr: 1000, length: 100, rkeys: vec![] };
        assert_eq!(buffer.at(90, 10), Ok(1090));
        let outside = OutOfRange { offset: 90, length: 11, size: 100 };
        assert_eq!(buffer.at(90, 11), Err(outside));
        assert!(buffer.at(usize::MAX, 1).is_err());
    }
}
