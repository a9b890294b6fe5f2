//! What devices refuse, whichever backend they belong to.

use crate::memory::OutOfMemory;
use crate::nic::{ModifyError, NicError};

/// A device, or the system beneath it, refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The software NIC.
    #[error(transparent)]
    Nic(#[from] NicError),
    /// The software NIC, to change the state of a queue pair.
    #[error(transparent)]
    Modify(#[from] ModifyError),
    /// The operating system gave no memory.
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
    /// Memory is registered with a device, at least.
    #[error("memory is to be registered, and no device is given")]
    NoDevice,
}
