//! Registered memory of a peer.

use super::range::OutOfRange;
use serde::{Deserialize, Serialize};

/// A buffer of the peer, as sent over a connection: its address, length and keys.
///
/// It is safe to use: a device checks every access against the key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteBuffer {
    /// Address of the first byte in the peer's memory.
    pub addr: u64,
    /// Length in bytes.
    pub length: u64,
    /// Remote keys, in the order of the peer's devices.
    pub rkeys: Vec<u32>,
}

impl RemoteBuffer {
    /// Returns the address of `length` bytes from `offset`.
    ///
    /// # Errors
    ///
    /// The range is not within the buffer.
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

/// The devices of two buffers cannot be paired, because one buffer is registered with none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the buffers cannot be paired: registered with {local} devices here and {remote} at the peer"
)]
pub struct DeviceCountMismatch {
    /// Number of devices here.
    pub local: usize,
    /// Number of devices at the peer.
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
