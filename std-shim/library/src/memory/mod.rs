//! Memory that devices may access: owned pages, registered with one or more of them, and what a
//! peer has to know to reach them.
//!
//! `buffer` is what users hold, on pages that the software NIC's crate owns and touches; `remote` is
//! the peer's side of it.

mod buffer;
mod remote;

pub use buffer::RegisteredBuffer;
pub use polyrail_software_nic::{OutOfMemory, Pages, RegionKeys};
pub use remote::{DeviceCountMismatch, RemoteBuffer};

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
