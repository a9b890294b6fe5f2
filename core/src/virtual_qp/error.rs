//! Errors of posting and of peers, and the end of a virtual queue pair.

use super::scheme::dqplb::OutsideWindow;
use super::tracker::TrackerFull;
use crate::hardware::Refusal;
use crate::rail::{ControlError, RailError, RailId, RailSet, RailsFailure};
use crate::verbs::{DeviceId, Opcode};

/// A send request was refused. Nothing changed: the virtual queue pair keeps nothing of the
/// request.
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
    #[error("the send queue of {0} is full")]
    QueueFull(RailId),
    /// The driver refused the request.
    #[error("the driver of {rail} refused the request with errno {errno}{}", hint(*errno))]
    Driver {
        /// The rail.
        rail: RailId,
        /// The code that the driver returned.
        errno: i32,
    },
    /// A WRITE or READ of 0 bytes over several rails. A WRITE_WITH_IMM of 0 bytes is a
    /// [signal](crate::verbs::SendWr::signal), which is allowed.
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
        "the request has no keys for device {}: register its buffer with the device of every rail",
        device.0
    )]
    MissingKeys {
        /// The device.
        device: DeviceId,
    },
    /// SPRAY needs a notify queue pair for a WRITE_WITH_IMM, and none was given.
    #[error("WRITE_WITH_IMM with SPRAY needs a notify queue pair")]
    NoNotifyQp,
    /// The remote range ends beyond the 64-bit address space.
    #[error("{length} bytes at remote address {addr:#x} exceed the address space")]
    RemoteRange {
        /// First byte.
        addr: u64,
        /// Bytes.
        length: u32,
    },
    /// The data of an INLINE request must fit one inline request of the driver.
    #[error("an inline request has {length} bytes, but at most {max} fit")]
    InlineTooLong {
        /// Bytes given.
        length: u32,
        /// Bytes that fit.
        max: u32,
    },
    /// An INLINE request must be posted at once, because its buffer is free when the post returns.
    /// This one would have to wait.
    #[error("an inline request cannot wait for rails or for earlier requests")]
    InlineMustWait,
    /// INLINE needs an opcode that sends bytes.
    #[error("{0:?} cannot be inline")]
    InlineOpcode(Opcode),
    /// INLINE with a buffer at a [device address](crate::verbs::DEVICE_ADDRESSES), which the CPU
    /// cannot copy. An endpoint of one rail reports [`Driver`](Self::Driver) with EINVAL instead.
    #[error("an inline request cannot use memory at {addr:#x}, an address that only devices read")]
    InlineDeviceAddress {
        /// First byte of the buffer.
        addr: u64,
    },
    /// INLINE with [`RailFailure::Reroute`](super::RailFailure::Reroute): the data may change once
    /// the post returns, so it could not be posted again if its rail failed.
    #[error("an inline request cannot be posted with re-routing, which may have to post it again")]
    InlineRerouted,
    /// The opcode takes one buffer, not a list.
    #[error("{0:?} takes one buffer, not a list of buffers")]
    List(Opcode),
    /// A list without buffers.
    #[error("the list of buffers is empty")]
    NoBuffers,
    /// A buffer of a list has no key for a device that it is needed on.
    #[error(
        "buffer {buffer} of the list has no keys for device {}: register it with the device of every rail",
        device.0
    )]
    BufferKeys {
        /// Its place in the list, from 0 on.
        buffer: usize,
        /// The device.
        device: DeviceId,
    },
    /// The sum of the buffers is larger than the largest request.
    #[error("the buffers of the list have {bytes} bytes, but a request has less than 4 GiB")]
    ListTooLong {
        /// Bytes of all buffers.
        bytes: u64,
    },
    /// The list has more buffers than the ring has places or, if the request is not split, more
    /// than the queue pair accepts in one request.
    #[error("the request has {count} non-empty buffers, but the queue pair accepts at most {max}")]
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

/// Only the first requests of a call were posted. The posted requests proceed as usual; the virtual
/// queue pair keeps nothing of the others. If a driver accepts either a whole batch or nothing, the
/// request that it refused may be behind the first one that was not posted.
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

/// A receive was refused. Nothing changed: the virtual queue pair keeps nothing of the receive.
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
        /// The rail.
        rail: RailId,
        /// The code that the driver returned.
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
    #[error("the list of buffers is empty")]
    NoBuffers,
    /// The list has more buffers than the receive queue accepts in one receive.
    #[error("the request has {count} non-empty buffers, but the queue pair accepts at most {max}")]
    TooManyBuffers {
        /// Buffers that are not empty.
        count: usize,
        /// Buffers that a receive can have.
        max: usize,
    },
    /// A buffer of the list has no key for the device of rail 0. With re-routing it needs a key for
    /// every device that rail 0 may move to.
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
    /// SPRAY needs a notify queue pair for a notification receive, and none was given.
    #[error("a notification receive with SPRAY needs a notify queue pair")]
    NoNotifyQp,
    /// DQPLB's notification receives and data receives cannot share rail 0's receive queue.
    #[error("DQPLB: rail 0 already serves {} receives", if *.serves_data { "data" } else { "notification" })]
    MixedReceives {
        /// Which kind came first.
        serves_data: bool,
    },
    /// The queue pair that needs this receive has no receive queue: it uses a shared one.
    #[error("{0} has no receive queue: its queue pair uses a shared one")]
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
    /// A completion has another tag than the expected one. It was ignored; the state did not
    /// change.
    #[error("a completion on {rail} has wr_id {wr_id:#x}, expected {expected:x?}")]
    Tag {
        /// The rail.
        rail: RailId,
        /// What came.
        wr_id: u64,
        /// The expected `wr_id`; `None` if nothing is in flight.
        expected: Option<u64>,
    },
    /// A notification arrived without an immediate. The virtual queue pair failed.
    #[error("a notification on {rail} carries no immediate")]
    NoImm {
        /// The rail.
        rail: RailId,
    },
    /// DQPLB: an immediate that is not a sequence number. The virtual queue pair failed.
    #[error("DQPLB: immediate bytes {imm:02x?} on {rail} are not a sequence number")]
    MalformedImm {
        /// The rail.
        rail: RailId,
        /// The bytes on the wire.
        imm: [u8; 4],
    },
    /// DQPLB: a sequence number outside the receive window. The virtual queue pair failed.
    #[error("DQPLB: an invalid sequence number arrived on {rail}")]
    OutsideWindow {
        /// The rail.
        rail: RailId,
        /// The number that arrived, and the window.
        source: OutsideWindow,
    },
}

/// Why a virtual queue pair is in the error state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// A rail failed for good.
    #[error(transparent)]
    Rail(RailError),
    /// Fewer data rails are in service than [`Config::min_rails`](super::Config::min_rails).
    #[error("only {in_service} rails are in service, but min_rails is {min_rails}")]
    TooFewRails {
        /// Rails in service.
        in_service: u8,
        /// [`Config::min_rails`](super::Config::min_rails).
        min_rails: u8,
    },
    /// The peer reported that its virtual queue pair failed.
    #[error("the peer's virtual queue pair failed")]
    Peer,
    /// The peer sent a control message that no correct peer sends.
    #[error(transparent)]
    Control(ControlError),
    /// The peer lost completions of requests that its NIC acknowledged.
    #[error(
        "the peer reported that {arrived} requests arrived on {rail}, but its NIC acknowledged {acknowledged}"
    )]
    CompletionsLost {
        /// The rail.
        rail: RailId,
        /// Number of requests that the peer reports, modulo 2^32.
        arrived: u32,
        /// Number of requests that the peer's queue pair acknowledged, modulo 2^32.
        acknowledged: u32,
    },
    /// The owner called [`fail`](super::VirtualQp::fail).
    #[error("the application gave up the virtual queue pair")]
    Owner,
}

impl From<RailsFailure> for Failure {
    fn from(why: RailsFailure) -> Self {
        match why {
            RailsFailure::Rail(error) => Self::Rail(error),
            RailsFailure::TooFewRails { in_service, min_rails } => {
                Self::TooFewRails { in_service, min_rails }
            }
            RailsFailure::Peer => Self::Peer,
            RailsFailure::Control(error) => Self::Control(error),
        }
    }
}

/// The error state, and the first of each kind of error.
#[derive(Clone, Copy, Debug)]
pub(super) struct Health {
    /// An error put the virtual queue pair into the error state.
    pub(super) failed: bool,
    /// The virtual queue pair is in the error state, or recovers from the failure of a rail. The
    /// data path checks this one flag. Separate checks cost up to 11% of the instructions of a
    /// request.
    pub(super) needs_recovery: bool,
    /// It is unknown which requests of a failed rail arrived: nothing moves past `posted`.
    pub(super) awaits_fence: bool,
    /// Rails whose late requests may still write the peer's memory after the virtual queue pair
    /// failed.
    pub(super) unfenced: RailSet,
    /// Why it entered the error state.
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
        needs_recovery: false,
        awaits_fence: false,
        unfenced: RailSet::EMPTY,
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
        self.needs_recovery = true;
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
