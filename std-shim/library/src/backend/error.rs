//! What devices refuse, whichever backend they belong to.

use polyrail_software_nic::{ModifyError, NicError, OutOfMemory};

/// A device, or the system beneath it, refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
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
    /// Real verbs.
    #[cfg(feature = "verbs")]
    #[error(transparent)]
    Verbs(Box<polyrail_ffi::VerbsError>),
    /// Real verbs, to change the state of a queue pair.
    #[cfg(feature = "verbs")]
    #[error(transparent)]
    Transition(Box<polyrail_ffi::ModifyError>),
    /// Real verbs, to register memory.
    #[cfg(feature = "verbs")]
    #[error("device {device}")]
    Register {
        /// Name of the device.
        device: Box<str>,
        /// Why.
        source: Box<polyrail_ffi::VerbsError>,
    },
    /// Real verbs: the two ports of a rail cannot be joined.
    #[cfg(feature = "verbs")]
    #[error(
        "the port here is {}",
        if *infiniband { "InfiniBand, the peer's Ethernet" } else { "Ethernet, the peer's InfiniBand" }
    )]
    LinkLayers {
        /// The port here is InfiniBand.
        infiniband: bool,
    },
    /// Memory is registered with a device, at least.
    #[error("memory is to be registered, and no device is given")]
    NoDevice,
}

// Boxed: they hold a device's name, and most results are no errors.
#[cfg(feature = "verbs")]
impl From<polyrail_ffi::VerbsError> for DeviceError {
    fn from(error: polyrail_ffi::VerbsError) -> Self {
        Self::Verbs(Box::new(error))
    }
}

#[cfg(feature = "verbs")]
impl From<polyrail_ffi::ModifyError> for DeviceError {
    fn from(error: polyrail_ffi::ModifyError) -> Self {
        Self::Transition(Box::new(error))
    }
}
