//! Errors of posting and of peers, and the end of a virtual queue pair.

use super::scheme::dqplb::OutsideWindow;
use super::tracker::TrackerFull;
use crate::hardware::Refusal;
use crate::rail::{ControlError, RailError, RailId};
use crate::verbs::{DeviceId, Opcode};

/// A send request was refused. The virtual queue pair is as it was before: a request refused is a
/// request forgotten.
///
/// ```
/// use polyrail_core::virtual_qp::{PostSendError, RailId};
///
/// assert!(PostSendError::QueueFull(RailId::Data(0)).is_back_pressure());
/// assert!(!PostSendError::InErrorState.is_back_pressure());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostSendError {
    /// The virtual queue pair is in the error state.
    #[error("the virtual queue pair is in the error state")]
    InErrorState,
    /// The ring is full: poll, then try again.
    #[error(transparent)]
    Full(#[from] TrackerFull),
    /// The physical queue is full: poll, then try again.
    #[error("the queue of {0} is full")]
    QueueFull(RailId),
    /// The driver refused the request.
    #[error("the driver of {rail} refused the request with errno {errno}{}", hint(*errno))]
    Driver {
        /// Where.
        rail: RailId,
        /// Its code.
        errno: i32,
    },
    /// A WRITE or READ of no bytes over several rails. A WRITE_WITH_IMM of none is a
    /// [signal](crate::verbs::SendWr::signal).
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
    /// INLINE data is gone when the post returns, and could not be posted again.
    #[error("an inline request could not be posted again when its rail fails")]
    InlineRerouted,
    /// The request takes one buffer, and no list.
    #[error("{0:?} with a list of buffers: it takes one")]
    List(Opcode),
    /// A list without buffers.
    #[error("a list of no buffers")]
    NoBuffers,
    /// A buffer of a list has no key for a device that it is needed on.
    #[error(
        "buffer {buffer} of the list has no keys for device {}: register it with every device that rails are on",
        device.0
    )]
    BufferKeys {
        /// Its place in the list, from 0 on.
        buffer: usize,
        /// The device.
        device: DeviceId,
    },
    /// Together the buffers of a list are longer than a request can be.
    #[error("{bytes} bytes in a list of buffers, where a request has less than 4 GiB")]
    ListTooLong {
        /// Bytes of all buffers.
        bytes: u64,
    },
    /// A list has more buffers than the ring has places, or, if it is not split, than the queue pair takes.
    #[error("{count} buffers with bytes in a list, where {max} fit")]
    TooManyBuffers {
        /// Buffers that are not empty.
        count: usize,
        /// Buffers that a request can have.
        max: usize,
    },
    /// Pass-through requests use rail 0, which was taken out of service.
    #[error("rail 0 is out of service")]
    RailDown,
}

impl PostSendError {
    /// Whether there is no room now: poll, then try again.
    pub const fn is_back_pressure(&self) -> bool {
        matches!(self, Self::Full(_) | Self::QueueFull(_))
    }
}

/// Not all of several requests were posted. Those that were are as any others; the first that was not, and
/// those behind it, are forgotten. Where a driver takes all of a batch or none, the one that it objects to may be
/// behind the first.
///
/// ```
/// use polyrail_core::virtual_qp::{PostManyError, PostSendError};
///
/// let error = PostManyError { posted: 3, error: PostSendError::InErrorState };
/// assert_eq!(error.to_string(), "3 requests were posted, and the next one was refused");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{posted} requests were posted, and the next one was refused")]
pub struct PostManyError {
    /// Requests that were posted, from the first on.
    pub posted: usize,
    /// Why the next one was not.
    #[source]
    pub error: PostSendError,
}

/// A receive was refused. The virtual queue pair is as it was before: a receive refused is a receive
/// forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostRecvError {
    /// The virtual queue pair is in the error state.
    #[error("the virtual queue pair is in the error state")]
    InErrorState,
    /// The ring is full: poll, then try again.
    #[error(transparent)]
    Full(#[from] TrackerFull),
    /// The physical queue is full: poll, then try again.
    #[error("the receive queue of {0} is full")]
    QueueFull(RailId),
    /// The driver refused the receive.
    #[error("the driver of {rail} refused the receive with errno {errno}{}", hint(*errno))]
    Driver {
        /// Where.
        rail: RailId,
        /// Its code.
        errno: i32,
    },
    /// The receive has no keys for the device of rail 0.
    #[error(
        "the receive has no keys for device {}: register its buffer with the device of rail 0",
        device.0
    )]
    MissingKeys {
        /// The device.
        device: DeviceId,
    },
    /// A list without buffers.
    #[error("a list of no buffers")]
    NoBuffers,
    /// A list has more buffers than the receive queue takes with one receive.
    #[error("{count} buffers with bytes in a list, where {max} fit")]
    TooManyBuffers {
        /// Buffers that are not empty.
        count: usize,
        /// Buffers that a receive can have.
        max: usize,
    },
    /// A buffer of a list has no key for the device of rail 0, or, with re-routing, for one that rail 0 may
    /// move to.
    #[error(
        "buffer {buffer} of the list has no keys for device {}: register it with the device of rail 0",
        device.0
    )]
    BufferKeys {
        /// Its place in the list, from 0 on.
        buffer: usize,
        /// The device.
        device: DeviceId,
    },
    /// SPRAY's notifications arrive on a queue pair that was not given.
    #[error("a notification receive with SPRAY needs a notify queue pair")]
    NoNotifyQp,
    /// DQPLB's notification receives and data receives cannot share rail 0's receive queue.
    #[error("DQPLB: rail 0 serves {} receives already", if *.serves_data { "data" } else { "notification" })]
    MixedReceives {
        /// Which kind came first.
        serves_data: bool,
    },
    /// The receive queue that this receive needs does not exist: its queue pair uses a shared one.
    #[error("{0} has no receive queue of its own")]
    NoReceiveQueue(RailId),
}

impl PostRecvError {
    /// Whether there is no room now: poll, then try again.
    pub const fn is_back_pressure(&self) -> bool {
        matches!(self, Self::Full(_) | Self::QueueFull(_))
    }
}

/// A physical queue pair that refused a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct RefusedBy {
    pub(super) rail: RailId,
    pub(super) refusal: Refusal,
}

impl From<RefusedBy> for PostSendError {
    fn from(RefusedBy { rail, refusal }: RefusedBy) -> Self {
        match refusal.errno() {
            None => Self::QueueFull(rail),
            Some(errno) => Self::Driver { rail, errno },
        }
    }
}

impl From<RefusedBy> for PostRecvError {
    fn from(RefusedBy { rail, refusal }: RefusedBy) -> Self {
        match refusal.errno() {
            None => Self::QueueFull(rail),
            Some(errno) => Self::Driver { rail, errno },
        }
    }
}

/// A request was refused, for code that treats sends and receives alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// A send request.
    #[error(transparent)]
    Send(#[from] PostSendError),
    /// A receive.
    #[error(transparent)]
    Recv(#[from] PostRecvError),
}

impl PostError {
    /// Whether there is no room now: poll, then try again.
    pub const fn is_back_pressure(&self) -> bool {
        match self {
            Self::Send(error) => error.is_back_pressure(),
            Self::Recv(error) => error.is_back_pressure(),
        }
    }

    /// Whether the virtual queue pair is in the error state.
    pub const fn is_in_error_state(&self) -> bool {
        matches!(
            self,
            Self::Send(PostSendError::InErrorState) | Self::Recv(PostRecvError::InErrorState)
        )
    }

    /// The rail whose driver refused the request, and its code, if that is what happened.
    pub const fn driver_refusal(&self) -> Option<(RailId, i32)> {
        match *self {
            Self::Send(PostSendError::Driver { rail, errno })
            | Self::Recv(PostRecvError::Driver { rail, errno }) => Some((rail, errno)),
            Self::Send(_) | Self::Recv(_) => None,
        }
    }

    /// The device that the request has no keys for, if that is what is wrong.
    pub const fn missing_keys(&self) -> Option<DeviceId> {
        match *self {
            Self::Send(
                PostSendError::MissingKeys { device } | PostSendError::BufferKeys { device, .. },
            )
            | Self::Recv(
                PostRecvError::MissingKeys { device } | PostRecvError::BufferKeys { device, .. },
            ) => Some(device),
            Self::Send(_) | Self::Recv(_) => None,
        }
    }
}

/// The usual reason for a driver's code.
const fn hint(errno: i32) -> &'static str {
    const EINVAL: i32 = 22;
    match errno {
        EINVAL => " (EINVAL; if it is not connected: connect first)",
        _ => "",
    }
}

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
        /// The `wr_id` that would have been in turn, if anything is in flight.
        expected: Option<u64>,
    },
    /// A notification arrived without an immediate. The virtual queue pair failed.
    #[error("a notification on {rail} carries no immediate")]
    NoImm {
        /// Where.
        rail: RailId,
    },
    /// DQPLB: an immediate that is not a sequence number. The virtual queue pair failed.
    #[error("DQPLB: immediate bytes {imm:02x?} on {rail} are not a sequence number")]
    MalformedImm {
        /// Where.
        rail: RailId,
        /// The bytes on the wire.
        imm: [u8; 4],
    },
    /// DQPLB: a number outside the window. The virtual queue pair failed.
    #[error("DQPLB: a sequence number on {rail} that no correct sender gives out now")]
    OutsideWindow {
        /// Where.
        rail: RailId,
        /// What came and what would have been in turn.
        source: OutsideWindow,
    },
}

/// Why a virtual queue pair is in the error state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// A rail failed for good.
    #[error(transparent)]
    Rail(RailError),
    /// Fewer data rails are in service than there have to be.
    #[error("only {in_service} rails are in service, but min_rails is {min_rails}")]
    TooFewRails {
        /// Rails in service.
        in_service: u8,
        /// [`Config::min_rails`](super::Config::min_rails).
        min_rails: u8,
    },
    /// The peer failed for good, and said so.
    #[error("the peer gave the connection up")]
    Peer,
    /// The peer said what no correct peer says.
    #[error(transparent)]
    Control(ControlError),
    /// The peer lost completions of requests that are known to have arrived.
    #[error(
        "the peer took {arrived} completions of what arrived on {rail}, {acknowledged} are acknowledged"
    )]
    CompletionsLost {
        /// The rail.
        rail: RailId,
        /// What the peer said, modulo 2^32.
        arrived: u32,
        /// What its queue pair acknowledged, modulo 2^32.
        acknowledged: u32,
    },
    /// Its owner gave it up.
    #[error("the virtual queue pair was given up")]
    Owner,
}

/// The error state, and the first of each kind of error.
#[derive(Clone, Copy, Debug)]
pub(super) struct Health {
    /// An error put the virtual queue pair into the error state.
    pub(super) failed: bool,
    /// It is in the error state, or recovers from the failure of a rail: one look tells all that goes well
    /// that there is nothing else to do.
    pub(super) needs_care: bool,
    /// Why it did.
    pub(super) failure: Option<Failure>,
    /// The first failure of a rail.
    pub(super) first_error: Option<RailError>,
    /// The first protocol error that was not read yet.
    pub(super) protocol_error: Option<ProtocolError>,
    /// Protocol errors in all.
    pub(super) protocol_errors: u64,
}

impl Health {
    pub(super) const GOOD: Self = Self {
        failed: false,
        needs_care: false,
        failure: None,
        first_error: None,
        protocol_error: None,
        protocol_errors: 0,
    };

    /// Enters the error state. Returns whether it is new.
    pub(super) fn fail(&mut self, failure: Failure) -> bool {
        self.failure = self.failure.or(Some(failure));
        if let Failure::Rail(error) = failure {
            self.note_error(error);
        }
        self.needs_care = true;
        !core::mem::replace(&mut self.failed, true)
    }

    /// A rail failed.
    pub(super) fn note_error(&mut self, error: RailError) {
        self.first_error = self.first_error.or(Some(error));
    }

    #[cold]
    pub(super) fn note_protocol_error(&mut self, error: ProtocolError) {
        self.protocol_error = self.protocol_error.or(Some(error));
        self.protocol_errors += 1;
    }
}
