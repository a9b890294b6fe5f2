//! What devices of any backend refuse.

use polyrail_software_nic::{ModifyError, NicError, OutOfMemory};

/// A device, or the system beneath it, refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The software NIC.
    #[error(transparent)]
    Nic(#[from] NicError),
    /// The software NIC refused to change the state of a queue pair.
    #[error(transparent)]
    Modify(#[from] ModifyError),
    /// The device has no port of this number.
    #[error("there is no port {port}")]
    NoPort {
        /// Its number.
        port: u8,
    },
    /// A port takes only smaller packets than [exactly](crate::backend::ConnectOptions::exact_mtu) those that were
    /// asked for.
    #[error("port {port} takes packets of {most} bytes at most, not of {asked}")]
    Mtu {
        /// Its number.
        port: u8,
        /// Bytes of payload.
        asked: u32,
        /// As many are possible.
        most: u32,
    },
    /// The same of the peer's port.
    #[error("the peer's port takes packets of {most} bytes at most, not of {asked}")]
    PeerMtu {
        /// Bytes of payload.
        asked: u32,
        /// As many are possible.
        most: u32,
    },
    /// The device makes queue pairs, but not with room for so many bytes of an inline request.
    #[error("it takes no {asked} bytes inline")]
    InlineData {
        /// What was asked for.
        asked: u32,
        /// What it said.
        source: Box<DeviceError>,
    },
    /// A port carries no data.
    #[error("port {port} is down")]
    PortDown {
        /// Its number.
        port: u8,
    },
    /// Real verbs: a port that was used before has no address now.
    #[cfg(feature = "verbs")]
    #[error("port {port} has no address")]
    NoAddress {
        /// Its number.
        port: u8,
    },
    /// The operating system gave no memory.
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
    /// Real verbs.
    #[cfg(feature = "verbs")]
    #[error(transparent)]
    Verbs(Box<polyrail_ffi::VerbsError>),
    /// Real verbs refused to change the state of a queue pair.
    #[cfg(feature = "verbs")]
    #[error(transparent)]
    Transition(Box<polyrail_ffi::ModifyError>),
    /// Real verbs refused to register memory.
    #[cfg(feature = "verbs")]
    #[error("device {device}")]
    Register {
        /// Name of the device.
        device: Box<str>,
        /// Why.
        source: Box<polyrail_ffi::VerbsError>,
    },
    /// Memory could not be deregistered: the device may still access it.
    #[error(
        "device {device} may still access memory that it did not deregister: {}",
        std::io::Error::from_raw_os_error(*errno)
    )]
    Deregister {
        /// Name of the device.
        device: Box<str>,
        /// What its driver said.
        errno: i32,
    },
    /// The backend does not register dma-bufs.
    #[error("device {device} takes no dma-bufs")]
    NoDmaBuf {
        /// Name of the device.
        device: Box<str>,
    },
    /// The device has no on-demand paging, or not for all requests of endpoints.
    #[error("device {device} has no on-demand paging: its memory must be pinned")]
    NoOnDemandPaging {
        /// Name of the device.
        device: Box<str>,
    },
    /// Buffers are named by their addresses, on every device alike.
    #[error("memory cannot be registered to be named from 0 on")]
    ZeroBased,
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
    /// The thread that was to connect a queue pair could not be started, or panicked.
    #[error("connecting was not finished")]
    Unfinished,
    /// A virtual queue pair was moved to a set that does not have its devices.
    #[error("its owner has not opened the device")]
    NotOpened,
    /// Memory has to be registered with at least one device.
    #[error("memory cannot be registered without a device")]
    NoDevice,
}

impl DeviceError {
    /// Whether the device could take the memory if less were registered.
    pub(crate) fn is_exhaustion(&self) -> bool {
        match self {
            Self::Nic(error) => matches!(error, NicError::Limit { .. }),
            #[cfg(feature = "verbs")]
            Self::Register { source, .. } => matches!(source.errno, libc::ENOMEM | libc::ENOSPC),
            _ => false,
        }
    }
}

// Boxed: they hold a device's name, and most results are not errors.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_that_have_too_much_registered_are_told_from_others() {
        let limit = NicError::Limit { what: "the number of memory regions", asked: 3, limit: 2 };
        assert!(DeviceError::Nic(limit).is_exhaustion());
        assert!(!DeviceError::Nic(NicError::DeviceGone).is_exhaustion());
        assert!(!DeviceError::NoDevice.is_exhaustion());
    }

    #[cfg(feature = "verbs")]
    #[test]
    fn drivers_that_have_too_much_registered_are_told_from_others() {
        let refused = |errno| DeviceError::Register {
            device: "mlx5_0".into(),
            source: Box::new(polyrail_ffi::VerbsError {
                call: "ibv_reg_mr",
                errno,
                argument: polyrail_ffi::Argument::None,
            }),
        };
        assert!(refused(libc::ENOMEM).is_exhaustion());
        assert!(!refused(libc::EFAULT).is_exhaustion());
    }
}
