//! Errors of peers, rails and callers.

use super::entry::EntryError;
use super::mask::Mask;
use super::record::RecordError;
use crate::hardware::Refusal;
use crate::rail::{ControlError, RailError, RailsFailure};
use crate::verbs::{DeviceId, WcOpcode};

/// The peer sent something that no correct peer sends. Only this connection failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// A receive completed with another opcode than WRITE_WITH_IMM.
    #[error("a receive on rail {rail} completed with {opcode:?} instead of an immediate")]
    NoImmediate {
        /// The rail of the completion.
        rail: u8,
        /// The opcode of the completion.
        opcode: WcOpcode,
    },
    /// An immediate arrived for a slot without a waiting receive.
    #[error("an immediate arrived for slot {slot}, which has no waiting receive")]
    NoReceive {
        /// The slot.
        slot: u8,
    },
    /// The mask of an immediate names no rail.
    #[error("an immediate for slot {slot} has an empty mask")]
    EmptyMask {
        /// The slot.
        slot: u8,
    },
    /// An immediate arrived on a rail that is not in its mask.
    #[error(
        "the immediate for slot {slot} on rail {rail} has {mask:?}, which does not contain that rail"
    )]
    ForeignMask {
        /// The slot.
        slot: u8,
        /// The rail of the share.
        rail: u8,
        /// The mask.
        mask: Mask,
    },
    /// The immediates of one message have different masks.
    #[error("an immediate for slot {slot} has {now:?}, but an earlier one had {before:?}")]
    MaskChanged {
        /// The slot.
        slot: u8,
        /// The mask of the first immediate.
        before: Mask,
        /// The mask of the later immediate.
        now: Mask,
    },
    /// The share of a rail arrived twice.
    #[error("a second immediate for slot {slot} arrived on rail {rail}")]
    Twice {
        /// The slot.
        slot: u8,
        /// The rail.
        rail: u8,
    },
    /// The peer moved a share of a rail that is not fenced at this end.
    #[error(
        "the peer moved the share of rail {rail} of slot {slot} to another rail, but rail {rail} is not fenced"
    )]
    NotFenced {
        /// The slot.
        slot: u8,
        /// The rail.
        rail: u8,
    },
    /// The immediates of one message have different lengths, or another length arrived.
    #[error(
        "slot {slot}: the immediate states a size of up to {said} bytes, but {came} bytes arrived"
    )]
    SizesDisagree {
        /// The slot.
        slot: u8,
        /// Length in an immediate, in bytes, rounded up to a multiple of 128.
        said: u64,
        /// Length that arrived, or that another immediate has, in bytes.
        came: u64,
    },
    /// The message is longer than its buffer.
    #[error("the message in slot {slot} has {size} bytes, but its buffer only {capacity}")]
    TooLong {
        /// The slot.
        slot: u8,
        /// Bytes that arrived.
        size: u64,
        /// Capacity of the buffer in bytes.
        capacity: u32,
    },
    /// The record of a slot is invalid.
    #[error("the record of message sizes in slot {slot} is invalid")]
    Record {
        /// The slot.
        slot: u8,
        /// The reason.
        source: RecordError,
    },
    /// The peer sent that it writes nothing more of a receive, and then a message for it.
    #[error("a message arrived in slot {slot}, whose receive the peer had given back")]
    GivenBack {
        /// The slot.
        slot: u8,
    },
    /// An entry of a receive is invalid.
    #[error("the entries of receive {number} are invalid")]
    Entry {
        /// Number of the receive.
        number: u64,
        /// The reason.
        source: EntryError,
    },
}

/// Why a connection failed: the first cause, of which later errors are consequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// A rail failed.
    #[error("a rail failed")]
    Rail(#[source] RailError),
    /// The peer broke the protocol.
    #[error("the peer broke the protocol")]
    Protocol(#[source] ProtocolError),
    /// The peer sent a control message that no correct peer sends.
    #[error("the peer sent an invalid control message")]
    Control(#[source] ControlError),
    /// Fewer rails are in service than `min_rails`.
    #[error("only {in_service} rails are in service, but min_rails is {min_rails}")]
    TooFewRails {
        /// Rails in service.
        in_service: u8,
        /// The configured minimum.
        min_rails: u8,
    },
    /// Rails were not repaired in time, or failed again each time before they carried anything.
    #[error("failed rails were not repaired in time, or failed again before they carried data")]
    NotHealed,
    /// The peer did not report in time what arrived on a rail that failed.
    #[error("the peer did not report in time what arrived on a rail that failed")]
    NotFenced,
    /// The owner called `fail`.
    #[error("the application gave up the connection")]
    Owner,
    /// The peer reported that its end failed for good.
    #[error("the peer reported that its end of the connection failed")]
    Peer,
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

/// Why a call cannot proceed now. Nothing changed: poll, then try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotNow {
    /// The peer has not offered a buffer yet.
    #[error("the peer has not offered a buffer yet")]
    NoEntry,
    /// In the peer's next receive, all buffers with this tag are matched, or no buffer has it.
    #[error("the peer's next receive has no unmatched buffer with this tag")]
    NoSuchTag,
    /// The earlier request in this slot is not done, or `test` has not reported it yet.
    #[error("the slot is still used by request {number}")]
    SlotTaken {
        /// Its number.
        number: u64,
    },
    /// No rail in service has credits.
    #[error("no rail in service has credits")]
    NoCredits,
    /// The account of a device cannot reserve the receives that the call needs.
    #[error("the account of device {} cannot reserve more receives", device.0)]
    PoolFull {
        /// The device.
        device: DeviceId,
    },
    /// The driver of a shared receive queue refused receives that the call needs.
    #[error("the shared receive queue of device {} refused a receive: {refusal}", device.0)]
    PoolRefused {
        /// Its device.
        device: DeviceId,
        /// The reason that the driver gave.
        refusal: Refusal,
    },
    /// The driver of a queue pair refused the request.
    #[error("the queue pair of rail {rail} refused a request: {refusal}")]
    Refused {
        /// The rail of the queue pair.
        rail: u8,
        /// The reason that the driver gave.
        refusal: Refusal,
    },
}

/// A call was refused; nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// Poll, and try again.
    #[error("not now: {0}")]
    NotNow(NotNow),
    /// The connection failed.
    #[error("the connection failed")]
    Failed(#[source] Failure),
    /// `connect` was not called with the peer's card yet.
    #[error("the connection is not connected yet")]
    NotConnected,
    /// The number of buffers is not 1 to 8, or their entries, 64 bytes each, do not fit the longest
    /// message of every port.
    #[error(
        "a receive has {buffers} buffers, but must have 1 to 8, whose entries of 64 bytes fit the longest message of every port"
    )]
    Buffers {
        /// Number of buffers given.
        buffers: usize,
    },
    /// The message is longer than the peer's buffer. It is refused, because a clipped message would
    /// be silent corruption.
    #[error("the message has {length} bytes, but the peer's buffer only {capacity}")]
    TooLong {
        /// Bytes to send.
        length: u32,
        /// Capacity of the peer's buffer in bytes.
        capacity: u32,
    },
    /// The buffer has no keys for a device that the connection uses.
    #[error("the buffer has no keys for device {}", device.0)]
    MissingKeys {
        /// The device.
        device: DeviceId,
    },
    /// A receive was posted to an endpoint that only sends, or a send to one that only receives. A
    /// [`Sender`](super::Sender) or [`Receiver`](super::Receiver) alone never returns this.
    #[error("the connection carries messages only in the other direction")]
    OneWay,
    /// The handle belongs to no request: `test` has reported it, or it is of another connection.
    #[error("request {number} is unknown, or its result was already returned")]
    NoRequest {
        /// The number in the handle.
        number: u64,
    },
    /// The message was taken back, by this end or by the peer ([`Sender::cancel`],
    /// [`Receiver::cancel`]). The buffers belong to the caller again; those of a receive may have
    /// been written in part.
    ///
    /// [`Sender::cancel`]: super::Sender::cancel
    /// [`Receiver::cancel`]: super::Receiver::cancel
    #[error("message {number} was taken back")]
    TakenBack {
        /// The number in the handle.
        number: u64,
    },
    /// A device that carried a part of the message has no queue pair for a flush, or that queue
    /// pair failed.
    #[error("cannot flush device {}: its queue pair for flushes is missing or failed", device.0)]
    CannotFlush {
        /// The device.
        device: DeviceId,
    },
}

impl CallError {
    /// Returns whether to poll and try again.
    pub const fn is_not_now(&self) -> bool {
        matches!(self, Self::NotNow(_))
    }
}

impl From<NotNow> for CallError {
    fn from(not_now: NotNow) -> Self {
        Self::NotNow(not_now)
    }
}

/// An end of a connection could not be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// The number of rails is not 1 to 8.
    #[error("a connection cannot have {rails} rails: 1 to 8 are possible")]
    Rails {
        /// What was asked for.
        rails: u8,
    },
    /// Re-routing needs a second rail.
    #[error("a single rail cannot be re-routed: there is no other rail")]
    NothingToRerouteTo,
    /// `min_rails` exceeds the number of rails.
    #[error("min_rails is {min_rails}, but there are only {rails} rails")]
    MinRails {
        /// What was asked for.
        min_rails: u8,
        /// Rails.
        rails: u8,
    },
    /// The standby rails are all rails, so none is left for them to stand by for, or some of them do
    /// not exist.
    #[error(
        "standby rails {standby} of {rails} rails: they have to be among these, counted from 0, and \
         leave another one"
    )]
    Standby {
        /// What was asked for.
        standby: Mask,
        /// Rails.
        rails: u8,
    },
    /// Without re-routing, the first rail that fails ends the connection, so no standby rail would
    /// ever be used.
    #[error("standby rails ({standby}) need re-routing, which is off")]
    StandbyNeedsReroute {
        /// What was asked for.
        standby: Mask,
    },
    /// The queue pairs cannot be divided evenly among the rails, or are more than the type holds.
    #[error(
        "{given} queue pairs for {rails} rails: each rail needs the same number, and {max} is the limit"
    )]
    QueuePairs {
        /// Queue pairs given; if there are too many, one more than the type holds.
        given: usize,
        /// Rails.
        rails: u8,
        /// The const parameter `QPS`.
        max: usize,
    },
    /// The queue pairs of one rail must be on one device.
    #[error("the queue pairs of rail {rail} are on different devices")]
    Devices {
        /// The rail.
        rail: u8,
    },
    /// A limit of a queue pair is too small.
    #[error("{what} of queue pair {qp_num} is {given}, but at least {needed} is required")]
    Limit {
        /// The limit, by its name in verbs.
        what: &'static str,
        /// The queue pair.
        qp_num: u32,
        /// The value of the limit.
        given: u32,
        /// The smallest value that works.
        needed: u32,
    },
    /// A queue pair of a receiver must use a shared receive queue.
    #[error("queue pair {qp_num} must use a shared receive queue")]
    OwnReceives {
        /// The queue pair.
        qp_num: u32,
    },
    /// The region is too small, or not aligned to 64 bytes.
    #[error("the region has {given} words, but {needed} words, aligned to 64 bytes, are required")]
    Region {
        /// Words given.
        given: usize,
        /// Words needed.
        needed: usize,
    },
    /// The region is not registered with a device.
    #[error("the region has no keys for device {}", device.0)]
    MissingKeys {
        /// The device.
        device: DeviceId,
    },
    /// Each device of the queue pairs needs exactly one account.
    #[error("device {} needs exactly one account", device.0)]
    Account {
        /// The device.
        device: DeviceId,
    },
}

/// The card of the peer does not fit this end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CardError {
    /// The ends have different numbers of rails.
    #[error("the peer has {theirs} rails, but this end has {ours}")]
    Rails {
        /// Rails of the peer.
        theirs: u8,
        /// Of this end.
        ours: u8,
    },
    /// The ends have different numbers of slots.
    #[error("the peer has {theirs} slots, but this end has {ours}")]
    Slots {
        /// Slots of the peer.
        theirs: u16,
        /// Of this end.
        ours: u16,
    },
    /// Only one end re-routes.
    #[error("the peer {} re-route failed rails, but this end {}", does(*theirs), does(!*theirs))]
    Reroutes {
        /// Whether the peer re-routes.
        theirs: bool,
    },
    /// The peer's card puts a rail on a device that it does not list.
    #[error("rail {rail} of the peer is on its device {device}, which its card does not list")]
    Device {
        /// The rail.
        rail: u8,
        /// Index of the device on the card.
        device: u8,
    },
    /// The longest message of a rail is too short.
    #[error(
        "rail {rail} of the peer carries at most {bytes} bytes in a message, which is too short"
    )]
    MessageSize {
        /// The rail.
        rail: u8,
        /// The longest message in bytes.
        bytes: u32,
    },
    /// The peer's memory is not aligned to 64 bytes, or exceeds the address space.
    #[error(
        "the peer's memory at {addr:#x} is not aligned to 64 bytes, or exceeds the address space"
    )]
    Memory {
        /// Address of the first byte.
        addr: u64,
    },
    /// `connect` was called before.
    #[error("the connection is already connected")]
    Connected,
}

const fn does(it: bool) -> &'static str {
    if it { "does" } else { "does not" }
}
