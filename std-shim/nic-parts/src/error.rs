//! Errors outside of completions, and the meaning of `vendor_err` in failed completions.

use polyrail_core::verbs::AccessFlags;
use polyrail_process::Forked;

/// `errno` values that drivers return; Linux numbers.
pub mod errno {
    /// The object belongs to the process that this one is a fork of.
    pub const EPERM: i32 = 1;
    /// An I/O error: a completion queue that overran.
    pub const EIO: i32 = 5;
    /// No memory left.
    pub const ENOMEM: i32 = 12;
    /// The device is gone.
    pub const ENODEV: i32 = 19;
    /// An argument or a state does not permit the operation.
    pub const EINVAL: i32 = 22;
    /// The device does not support the operation.
    pub const EOPNOTSUPP: i32 = 95;
    /// The peer's address was not resolved in time.
    pub const ETIMEDOUT: i32 = 110;
    /// No path leads to the peer's address.
    pub const EHOSTUNREACH: i32 = 113;
}

/// Why a resource could not be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NicError {
    /// The device went away.
    #[error("the device is gone")]
    DeviceGone,
    /// A size or count is 0.
    #[error("{what} must not be 0")]
    Zero {
        /// What is 0.
        what: &'static str,
    },
    /// A value is over the device's limit.
    #[error("{what} is {asked}, but the device allows at most {limit}")]
    Limit {
        /// What was asked for.
        what: &'static str,
        /// How much.
        asked: u64,
        /// How much the device can do.
        limit: u64,
    },
    /// A completion queue holds more completions than its new capacity.
    #[error("the completion queue holds {held} completions, more than {asked}")]
    Holds {
        /// What was asked for.
        asked: u32,
        /// Completions that it holds.
        held: u32,
    },
    /// The system has no file descriptor left for an object.
    #[error("cannot create a {what}: errno {errno}")]
    NoDescriptor {
        /// The object.
        what: &'static str,
        /// The system's code.
        errno: i32,
    },
    /// The system has no random bytes.
    #[error("cannot draw random bytes: errno {errno}")]
    NoRandom {
        /// The system's code.
        errno: i32,
    },
    /// A region that peers may write must be writable locally too, as verbs demands.
    #[error("remote write and remote atomic access need local write access, which {0:?} lacks")]
    AccessWithoutLocalWrite(AccessFlags),
    /// Memory windows, zero based addresses and huge pages are not supported, and on-demand paging
    /// only where the device [has it](crate::options::DeviceLimits::on_demand_paging).
    #[error("access flags {0:?} are not supported")]
    UnsupportedAccess(AccessFlags),
    /// The range wraps around the end of the address space.
    #[error("{length} bytes from address {addr:#x} wrap around the address space")]
    AddressWraps {
        /// Address of the first byte.
        addr: u64,
        /// Length in bytes.
        length: u64,
    },
    /// Objects of different devices do not match.
    #[error("the {what} belongs to another device")]
    OtherDevice {
        /// The object that does not belong here.
        what: &'static str,
    },
    /// This process is a fork of the process that made the fabric or opened the device.
    #[error(transparent)]
    Forked(#[from] Forked),
}

impl NicError {
    /// Returns the `errno` that a verbs driver would have returned.
    pub const fn errno(&self) -> i32 {
        match self {
            Self::DeviceGone => errno::ENODEV,
            Self::Forked(_) => errno::EPERM,
            Self::UnsupportedAccess(_) => errno::EOPNOTSUPP,
            Self::NoDescriptor { errno, .. } | Self::NoRandom { errno } => *errno,
            _ => errno::EINVAL,
        }
    }
}

/// What `vendor_err` of a failed completion means on this device. It is more precise than the
/// status, and meant for users and logs, as on any device.
pub mod vendor {
    /// The request was flushed.
    pub const FLUSHED: u32 = 0x01;
    /// The key names no region: never issued, or deregistered since.
    pub const KEY_UNKNOWN: u32 = 0x10;
    /// The key's region belongs to another protection domain, or to another device.
    pub const KEY_DOMAIN: u32 = 0x11;
    /// The range does not lie within the key's region.
    pub const KEY_BOUNDS: u32 = 0x12;
    /// The key's region does not permit the access.
    pub const KEY_ACCESS: u32 = 0x13;
    /// TCP NIC: the system cannot access memory of a region: it is not mapped any more.
    pub const MEMORY_FAULT: u32 = 0x14;
    /// The message is longer than the device can send.
    pub const MESSAGE_TOO_LONG: u32 = 0x20;
    /// The message is longer than its receive.
    pub const RECEIVE_TOO_SHORT: u32 = 0x21;
    /// The local buffer of an atomic is shorter than 8 bytes.
    pub const ATOMIC_TOO_SHORT: u32 = 0x22;
    /// The remote address of an atomic is not a multiple of 8.
    pub const ATOMIC_MISALIGNED: u32 = 0x23;
    /// The responder's queue pair does not permit the operation.
    pub const QP_ACCESS: u32 = 0x24;
    /// The path MTUs of the two ends differ.
    pub const MTU_MISMATCH: u32 = 0x25;
    /// The queue pair was set up for no outstanding READ or atomic.
    pub const NO_READ_RESOURCES: u32 = 0x26;
    /// The peer's receive queue was empty, and all retries are used up.
    pub const NO_RECEIVE: u32 = 0x30;
    /// The peer's receive names memory that it must not write.
    pub const RECEIVE_MEMORY: u32 = 0x31;
    /// A port of the path was down.
    pub const LINK_DOWN: u32 = 0x40;
    /// The peer does not exist, or its device is gone.
    pub const PEER_GONE: u32 = 0x41;
    /// The peer is not ready to receive: in RESET, INIT or ERR.
    pub const PEER_STATE: u32 = 0x42;
    /// The peer is connected to another queue pair.
    pub const PEER_DESTINATION: u32 = 0x43;
    /// The peer expects another packet sequence number.
    pub const PEER_PSN: u32 = 0x44;
    /// The acknowledgement was lost after the request was executed.
    pub const ACK_LOST: u32 = 0x45;
    /// The request, or an answer that refuses it, was dropped on arrival.
    pub const DROPPED: u32 = 0x46;
    /// TCP NIC: no connection to the peer was made.
    pub const NO_CONNECTION: u32 = 0x47;
    /// TCP NIC: the peer sent what no queue pair of its version sends.
    pub const PEER_PROTOCOL: u32 = 0x48;
    /// TCP NIC: the peer speaks another version of the protocol.
    pub const PEER_VERSION: u32 = 0x49;
    /// An internal error of the device at either end, although the request was executed.
    pub const INTERNAL: u32 = 0x50;

    /// Returns what a code means, for error messages; `None` for unknown codes, and for
    /// [`FLUSHED`], which the status says as well.
    pub const fn meaning(code: u32) -> Option<&'static str> {
        Some(match code {
            KEY_UNKNOWN => "the key names no registered memory",
            KEY_DOMAIN => "the memory belongs to another protection domain",
            KEY_BOUNDS => "outside the registered memory",
            KEY_ACCESS => "the registered memory does not permit this access",
            MEMORY_FAULT => "the registered memory is not mapped any more",
            MESSAGE_TOO_LONG => "longer than the device can send",
            RECEIVE_TOO_SHORT => "longer than its receive",
            ATOMIC_TOO_SHORT => "the local buffer of the atomic is too short",
            ATOMIC_MISALIGNED => "the remote address of the atomic is not a multiple of 8",
            QP_ACCESS => "the peer's queue pair does not permit this operation",
            MTU_MISMATCH => "the path MTUs of the two ends differ",
            NO_READ_RESOURCES => "no outstanding READ or atomic is permitted",
            NO_RECEIVE => "the peer posted no receive",
            RECEIVE_MEMORY => "the peer's receive names memory that it must not write",
            LINK_DOWN => "a port of the path was down",
            PEER_GONE => "the peer ended, or its device is gone",
            PEER_STATE => "the peer's queue pair is not ready, or in ERR",
            PEER_DESTINATION => "the peer is connected to another queue pair",
            PEER_PSN => "the peer expects another packet sequence number",
            ACK_LOST => "the acknowledgement was lost",
            DROPPED => "dropped on arrival",
            NO_CONNECTION => "no connection to the peer was made",
            PEER_PROTOCOL => "the peer broke the protocol",
            PEER_VERSION => "the peer has another version of the protocol",
            INTERNAL => "an internal error of a device",
            _ => return None,
        })
    }
}
