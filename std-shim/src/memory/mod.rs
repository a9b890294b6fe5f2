//! Memory that devices may access: owned pages, registered with one or more of them, and what a
//! peer has to know to reach them.
//!
//! `pages` owns the bytes, `dma` is the only file that touches them, `buffer` is what users hold,
//! `remote` is the peer's side of it.

mod buffer;
mod dma;
mod pages;
mod remote;

pub use buffer::RegisteredBuffer;
pub(crate) use dma::Span;
pub use pages::Pages;
pub use remote::{DeviceCountMismatch, RemoteBuffer};

use polyrail_core::verbs::{DeviceId, DeviceKeys};

/// The keys of one region on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionKeys {
    /// The device that the region is registered with.
    pub device: DeviceId,
    /// Key for requests of the device's own queue pairs.
    pub lkey: u32,
    /// Key for requests of their peers.
    pub rkey: u32,
}

impl RegionKeys {
    /// The keys of a request that moves data between this region and one that the peer calls
    /// `remote_rkey`.
    pub const fn toward(self, remote_rkey: u32) -> DeviceKeys {
        DeviceKeys { device: self.device, lkey: self.lkey, rkey: remote_rkey }
    }
}

/// The operating system gave no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no memory for {bytes} bytes")]
pub struct OutOfMemory {
    /// How much was asked for.
    pub bytes: usize,
}

/// A range that does not lie within its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{length} bytes from offset {offset} on do not lie within a buffer of {size} bytes")]
pub struct OutOfRange {
    /// First byte of the range.
    pub offset: usize,
    /// Bytes in the range.
    pub length: usize,
    /// Bytes in the buffer.
    pub size: usize,
}

impl From<OutOfRange> for std::io::Error {
    fn from(range: OutOfRange) -> Self {
        Self::new(std::io::ErrorKind::InvalidInput, range)
    }
}
