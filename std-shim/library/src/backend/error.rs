//! Errors of devices, for all backends.

use polyrail_core::verbs::AccessFlags;
use polyrail_process::Forked;
use polyrail_software_nic::{ModifyError, NicError, OutOfMemory};
use std::time::Duration;

/// A device, or the operating system, refused an operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// An error of the software NIC.
    #[error(transparent)]
    Nic(#[from] NicError),
    /// The software NIC refused to change the state of a queue pair.
    #[error(transparent)]
    Modify(#[from] ModifyError),
    /// The device has no port of this number.
    #[error("the device has no port {port}")]
    NoPort {
        /// The port number.
        port: u8,
    },
    /// [`exact_mtu`](crate::backend::ConnectOptions::exact_mtu) requires a larger MTU than the port
    /// supports.
    #[error("port {port} supports an MTU of at most {most} bytes, not {asked}")]
    Mtu {
        /// The port number.
        port: u8,
        /// The required MTU in bytes.
        asked: u32,
        /// The supported MTU in bytes.
        most: u32,
    },
    /// [`exact_mtu`](crate::backend::ConnectOptions::exact_mtu) requires a larger MTU than the
    /// peer's port supports.
    #[error("the peer's port supports an MTU of at most {most} bytes, not {asked}")]
    PeerMtu {
        /// The required MTU in bytes.
        asked: u32,
        /// The supported MTU in bytes.
        most: u32,
    },
    /// The device creates queue pairs, but not with the requested inline data.
    #[error("{asked} bytes of inline data exceed what the device supports")]
    InlineData {
        /// The requested bytes of inline data.
        asked: u32,
        /// The device's error.
        source: Box<DeviceError>,
    },
    /// A port is down.
    #[error("port {port} is down")]
    PortDown {
        /// The port number.
        port: u8,
    },
    /// Real verbs: a port lost the address that it had when it was opened.
    #[cfg(feature = "verbs")]
    #[error("port {port} has no address")]
    NoAddress {
        /// The port number.
        port: u8,
    },
    /// Over TCP: there was no connection to the peer's new queue pair in time.
    #[error("no connection to the peer's new queue pair within {within:?}")]
    NotReached {
        /// The time that the connection had.
        within: Duration,
    },
    /// The operating system has no memory.
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
    /// An error of real verbs.
    #[cfg(feature = "verbs")]
    #[error(transparent)]
    Verbs(Box<polyrail_ffi::VerbsError>),
    /// Real verbs refused to change the state of a queue pair.
    #[cfg(feature = "verbs")]
    #[error(transparent)]
    Transition(Box<polyrail_ffi::ModifyError>),
    /// Real verbs refused to register memory.
    #[cfg(feature = "verbs")]
    #[error("cannot register memory with device {device}")]
    Register {
        /// Name of the device.
        device: Box<str>,
        /// The device's error.
        source: Box<polyrail_ffi::VerbsError>,
    },
    /// The device refused memory that is longer than its regions may be. Memory that is registered
    /// in several parts has other keys in each part: see
    /// [`Registration`](crate::memory::Registration#long-memory).
    #[error(
        "device {device} cannot register {length} bytes as one region: its limit is {limit}, so \
         register the memory in parts"
    )]
    RegionTooLong {
        /// Name of the device.
        device: Box<str>,
        /// The length in bytes.
        length: u64,
        /// [Maximum length](crate::backend::Domain::max_region_bytes) of a region in bytes.
        limit: u64,
        /// The device's error.
        source: Box<DeviceError>,
    },
    /// Memory could not be deregistered, so the device may still access it.
    #[error(
        "device {device} may still access memory, because deregistering it failed: {}",
        std::io::Error::from_raw_os_error(*errno)
    )]
    Deregister {
        /// Name of the device.
        device: Box<str>,
        /// Errno of the driver.
        errno: i32,
    },
    /// The backend keeps memory, although it deregistered it.
    #[error("the backend keeps memory, although it deregistered it")]
    OwnerInUse,
    /// Memory that the program reads while it is registered was to be registered with access to
    /// write it.
    #[error("memory of a SharedBuffer cannot be registered with {access:?}: devices only read it")]
    SharedAccess {
        /// The flags that permit writing.
        access: AccessFlags,
    },
    /// The backend does not support dma-bufs.
    #[error("device {device} does not support dma-bufs")]
    NoDmaBuf {
        /// Name of the device.
        device: Box<str>,
    },
    /// The device does not support on-demand paging for all requests of endpoints.
    #[error("device {device} does not support on-demand paging: register memory without ON_DEMAND")]
    NoOnDemandPaging {
        /// Name of the device.
        device: Box<str>,
    },
    /// `ZERO_BASED` is refused, because requests name buffers by their addresses, which are equal
    /// on all devices.
    #[error("memory cannot be registered with ZERO_BASED: requests name it by its address")]
    ZeroBased,
    /// Real verbs: the two ports of a rail have different link layers.
    #[cfg(feature = "verbs")]
    #[error("{}", link_layers(*infiniband))]
    LinkLayers {
        /// Whether the local port is InfiniBand.
        infiniband: bool,
    },
    /// The thread that connects a queue pair panicked.
    #[error("connecting a queue pair did not finish: its thread panicked")]
    Unfinished,
    /// The system could not start a thread that connects a queue pair.
    #[error("cannot start a thread that connects a queue pair: {}", std::io::Error::from_raw_os_error(*errno))]
    Thread {
        /// Errno of the system: EAGAIN for a limit of the user, the container (`pids.max`) or the
        /// system, or for lack of memory.
        errno: i32,
    },
    /// The system gave no random bytes for the first packet sequence number of a queue pair.
    #[error("cannot draw a packet sequence number: {}", std::io::Error::from_raw_os_error(*errno))]
    NoRandom {
        /// Errno of the system: EPERM or ENOSYS where a filter of system calls refuses
        /// getrandom(2).
        errno: i32,
    },
    /// A virtual queue pair was moved to a set that has not opened its devices.
    #[error("the set that owns the queue pair has not opened the device")]
    NotOpened,
    /// A device cannot use an object of another backend: see [`any`](crate::any).
    #[error("device {device} cannot use a {object} of another backend")]
    OtherBackend {
        /// Name of the device.
        device: Box<str>,
        /// The object: a completion queue, or a shared receive queue.
        object: &'static str,
    },
    /// Memory must be registered with at least one device.
    #[error("memory cannot be registered without a device")]
    NoDevice,
    /// The object belongs to the process that this one is a fork of.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// The link layers of two ports that have different ones.
pub(crate) const fn link_layers(here_is_infiniband: bool) -> &'static str {
    if here_is_infiniband {
        "the local port is InfiniBand, the peer's Ethernet"
    } else {
        "the local port is Ethernet, the peer's InfiniBand"
    }
}

impl DeviceError {
    /// Whether the same call may succeed later: a port is down, no path to the peer's address is
    /// found, an earlier attempt with another address has not ended, or the system can start no
    /// thread that connects a queue pair.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::PortDown { .. } | Self::Modify(ModifyError::NoPath) | Self::Thread { .. } => true,
            #[cfg(feature = "verbs")]
            Self::NoAddress { .. } => true,
            // Over RoCE the kernel resolves the peer's address (rdma_resolve_ip). EBUSY: an earlier
            // attempt is still doing so.
            #[cfg(feature = "verbs")]
            Self::Transition(error) => matches!(
                error.errno(),
                libc::EAGAIN
                    | libc::EBUSY
                    | libc::EINTR
                    | libc::EADDRNOTAVAIL
                    | libc::EHOSTDOWN
                    | libc::EHOSTUNREACH
                    | libc::ENETDOWN
                    | libc::ENETUNREACH
                    | libc::ETIMEDOUT
            ),
            _ => false,
        }
    }

    /// Whether the system has no file descriptor left for an object.
    pub(crate) const fn lacks_descriptor(&self) -> bool {
        match self {
            Self::Nic(error) => matches!(error, NicError::NoDescriptor { .. }),
            #[cfg(feature = "verbs")]
            Self::Verbs(error) => matches!(error.errno, libc::EMFILE | libc::ENFILE),
            _ => false,
        }
    }

    /// Whether deregistering other memory could make room for the registration.
    pub(crate) fn is_exhaustion(&self) -> bool {
        match self {
            Self::Nic(error) => matches!(error, NicError::Limit { .. }),
            #[cfg(feature = "verbs")]
            Self::Register { source, .. } => matches!(source.errno, libc::ENOMEM | libc::ENOSPC),
            _ => false,
        }
    }
}

// Boxed, because they contain a device name, which would make every result large.
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

    #[test]
    fn a_port_a_path_or_a_thread_may_come_back() {
        let unreachable = DeviceError::Modify(ModifyError::NoPath);
        assert!(unreachable.may_pass() && DeviceError::PortDown { port: 1 }.may_pass());
        assert!(DeviceError::Thread { errno: libc::EAGAIN }.may_pass());
        assert!(!DeviceError::Modify(ModifyError::DeviceGone).may_pass());
        assert!(!DeviceError::NoPort { port: 3 }.may_pass());
    }

    #[cfg(feature = "verbs")]
    #[test]
    fn drivers_that_find_no_path_may_find_one_later() {
        let refused = |errno| {
            let argument = polyrail_ffi::Argument::None;
            let error = polyrail_ffi::VerbsError { call: "ibv_modify_qp", errno, argument };
            DeviceError::from(polyrail_ffi::ModifyError::Verbs(error))
        };
        for errno in [libc::ETIMEDOUT, libc::ENETUNREACH, libc::EBUSY] {
            assert!(refused(errno).may_pass());
        }
        assert!(!refused(libc::EINVAL).may_pass() && !refused(libc::ENOMEM).may_pass());
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
