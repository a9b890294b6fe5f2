//! Registered memory and dma-bufs.

use super::error::DeviceError;
use std::any::Any;
use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Memory registered with a device. Dropping it deregisters the memory.
pub trait Region: Debug + Send + Sync + 'static {
    /// Deregisters the memory.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Deregister`]: the device may still access the memory, and keeps its owner.
    fn close(self) -> Result<(), DeviceError>;
}

/// Owns memory: the memory stays allocated until this is dropped.
pub type MemoryOwner = Arc<dyn Any + Send + Sync>;

/// Memory of this process that is to be registered.
#[derive(Clone, Copy, Debug)]
pub struct MemoryRange {
    /// First byte. Backends expose its provenance.
    pub start: *mut u8,
    /// Length in bytes.
    pub length: usize,
    /// Address by which requests name the first byte. It equals the address of `start` modulo the
    /// page size, and usually in full.
    pub iova: u64,
}

// SAFETY: it describes memory, and only unsafe functions access the bytes, whose callers promise
// that this may happen.
unsafe impl Send for MemoryRange {}
// SAFETY: as above.
unsafe impl Sync for MemoryRange {}

impl MemoryRange {
    /// Describes `length` bytes from `start`, which requests name by their address.
    pub fn new(start: *mut u8, length: usize) -> Self {
        Self { start, length, iova: start.expose_provenance() as u64 }
    }
}

/// A part of a dma-buf: memory of another device, such as a GPU, that the kernel shares as a file.
///
/// The registration keeps the dma-buf alive; the file may be closed.
#[derive(Clone, Copy, Debug)]
pub struct DmaBuf<'f> {
    /// File of the dma-buf.
    pub fd: BorrowedFd<'f>,
    /// Offset of the first byte in the dma-buf.
    pub offset: u64,
    /// Length in bytes.
    pub length: usize,
    /// Address by which requests name the first byte. It equals `offset` modulo the page size. For
    /// GPU memory it is usually the address on the GPU.
    pub iova: u64,
}
