//! Errors of posting, of rails and of peers.

use crate::hardware::Refusal;
use crate::tag::Tag;
use crate::tracker::TrackerFull;
use crate::verbs::{DeviceId, Opcode, WcStatus};
use crate::window::OutsideWindow;
use core::fmt;

/// One physical queue pair of a virtual one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RailId {
    /// A data rail, by number.
    Data(u8),
    /// The notify queue pair.
    Notify,
}

impl fmt::Display for RailId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Data(rail) => write!(f, "rail {rail}"),
            Self::Notify => f.write_str("the notify queue pair"),
        }
    }
}

/// A post was refused. The virtual queue pair is as it was before: a request refused is a request
/// forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The virtual queue pair is in the error state.
    #[error("the virtual queue pair is in the error state")]
    InErrorState,
    /// The ring is full: poll, then try again.
    #[error(transparent)]
    Full(#[from] TrackerFull),
    /// The physical queue is full: poll, then try again.
    #[error("the queue of rail 0 is full")]
    QueueFull,
    /// The driver refused the request.
    #[error("the driver of {rail} refused the request with errno {errno}{}", hint(*errno))]
    Driver {
        /// Where.
        rail: RailId,
        /// Its code.
        errno: i32,
    },
    /// RDMA of no bytes over several rails.
    #[error("{0:?} of 0 bytes cannot be spread over rails")]
    Empty(Opcode),
    /// An RDMA request over several rails must be signaled (WRITE_WITH_IMM excepted).
    #[error("{0:?} over several rails must be signaled")]
    Unsignaled(Opcode),
    /// The opcode has no meaning over several rails.
    #[error("{0:?} is not supported over several rails")]
    UnsupportedOpcode(Opcode),
    /// Over several rails, receives of a DQPLB peer have no buffers, so a SEND would break the
    /// connection.
    #[error("{0:?} over several rails needs SPRAY: with DQPLB the peer's receives have no buffers")]
    SendWithDqplb(Opcode),
    /// The request has no keys for a device that it needs.
    #[error(
        "the request has no keys for device {}: register its buffer with every device that rails are on",
        device.0
    )]
    MissingKeys {
        /// The device.
        device: DeviceId,
    },
    /// SPRAY notifies through a queue pair that was not given.
    #[error("WRITE_WITH_IMM with SPRAY needs a notify queue pair")]
    NoNotifyQp,
    /// The remote range ends beyond the address space.
    #[error("{length} bytes from remote address {addr:#x} on pass the end of the address space")]
    RemoteRange {
        /// First byte.
        addr: u64,
        /// Bytes.
        length: u32,
    },
    /// INLINE data must fit one inline request.
    #[error("{length} inline bytes where {max} fit")]
    InlineTooLong {
        /// Bytes given.
        length: u32,
        /// Bytes that fit.
        max: u32,
    },
    /// INLINE requests must be posted at once, and this one would have to wait.
    #[error("an inline request cannot wait for rails or for earlier requests")]
    InlineMustWait,
    /// INLINE is for requests that send bytes.
    #[error("{0:?} cannot be inline")]
    InlineOpcode(Opcode),
    /// DQPLB's notification receives and data receives cannot share rail 0's receive queue.
    #[error("DQPLB: rail 0 serves {} receives already", if *.serves_data { "data" } else { "notification" })]
    MixedReceives {
        /// Which kind came first.
        serves_data: bool,
    },
    /// The receive queue that this receive needs does not exist: its queue pair uses a shared one.
    #[error("{0} has no receive queue of its own")]
    NoReceiveQueue(RailId),
    /// Pass-through requests use rail 0, which was taken out of service.
    #[error("rail 0 is out of service")]
    RailDown,
}

impl PostError {
    pub(super) const fn refused(rail: RailId, refusal: Refusal) -> Self {
        match refusal {
            Refusal::QueueFull => Self::QueueFull,
            Refusal::Driver(errno) => Self::Driver { rail, errno },
        }
    }
}

/// What usually is the matter.
const fn hint(errno: i32) -> &'static str {
    const EINVAL: i32 = 22;
    match errno {
        EINVAL => " (EINVAL; if it is not connected: connect first)",
        _ => "",
    }
}

/// How a rail failed; kept for the first failure of a virtual queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RailError {
    /// Which rail.
    pub rail: RailId,
    /// Its device.
    pub device: DeviceId,
    /// Its queue pair.
    pub qp_num: u32,
    /// The completion's status; GENERAL_ERR if there was none because the driver refused a post.
    pub status: WcStatus,
    /// The completion's vendor code.
    pub vendor_err: u32,
    /// The driver's code, if it refused a post.
    pub errno: Option<i32>,
    /// First byte, within its request, of the fragment that failed; 0 for everything else.
    pub offset: u32,
}

impl fmt::Display for RailError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rail, device, qp_num, status, vendor_err, errno, offset } = self;
        write!(f, "{rail} (device {}, queue pair {qp_num}) failed: ", device.0)?;
        match errno {
            Some(errno) => write!(f, "the driver refused a post with errno {errno}")?,
            None => write!(f, "{status}, vendor code {vendor_err:#x}")?,
        }
        write!(f, ", at offset {offset}")
    }
}

impl core::error::Error for RailError {}

/// Something arrived that no correct NIC or peer produces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// A completion whose tag is not the one in turn. It was ignored; the state did not change.
    #[error("a completion on {rail} carries wr_id {wr_id:#x}, expected was {expected:x?}")]
    Tag {
        /// Where.
        rail: RailId,
        /// What came.
        wr_id: u64,
        /// What would have been in turn, if anything is in flight.
        expected: Option<Tag>,
    },
    /// DQPLB: a fragment arrived without a sequence number. The virtual queue pair failed.
    #[error("DQPLB: a notification on {rail} carries no immediate")]
    NoImm {
        /// Where.
        rail: RailId,
    },
    /// DQPLB: an immediate that is no sequence number. The virtual queue pair failed.
    #[error("DQPLB: immediate bytes {imm:02x?} on {rail} are no sequence number")]
    MalformedImm {
        /// Where.
        rail: RailId,
        /// The bytes on the wire.
        imm: [u8; 4],
    },
    /// DQPLB: a number outside the window. The virtual queue pair failed.
    #[error("DQPLB: on {rail}: {source}")]
    OutsideWindow {
        /// Where.
        rail: RailId,
        /// What came and what would have been in turn.
        source: OutsideWindow,
    },
}
