//! Ranges of buffers.

/// A range that is not within its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{length} bytes at offset {offset} are not within the buffer of {size} bytes")]
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
