//! Registered memory, and what it is made of.

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
    /// [`DeviceError::Deregister`]: the device may still access it, and goes on keeping its owner.
    fn close(self) -> Result<(), DeviceError>;
}

/// What keeps memory allocated for as long as it is not dropped.
pub type MemoryOwner = Arc<dyn Any + Send + Sync>;

/// A part of a dma-buf: memory of another device, such as a GPU, as the kernel hands it around.
///
/// The registration keeps the dma-buf; the file may be closed.
#[derive(Clone, Copy, Debug)]
pub struct DmaBuf<'f> {
    /// The dma-buf.
    pub fd: BorrowedFd<'f>,
    /// Its first byte within the dma-buf.
    pub offset: u64,
    /// Bytes.
    pub length: usize,
    /// Address by which requests name the first byte: anything that has the same place in its page as `offset`
    /// has. Of a GPU usually the address that it has there.
    pub iova: u64,
}
