//! What a peer, a rail or a caller can get wrong.

use super::entry::EntryError;
use super::mask::Mask;
use super::record::RecordError;
use crate::hardware::Refusal;
use crate::rail::{ControlError, RailError};
use crate::verbs::{DeviceId, WcOpcode};

/// Something came from the peer that no correct peer sends. The connection failed, and no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// Something else than a WRITE_WITH_IMM took a receive.
    #[error("a receive on rail {rail} completed with {opcode:?}, not with an immediate")]
    NoImmediate {
        /// Where it came.
        rail: u8,
        /// What it was.
        opcode: WcOpcode,
    },
    /// No receive waits in this slot.
    #[error("an immediate for slot {slot}, in which no receive waits")]
    NoReceive {
        /// The slot.
        slot: u8,
    },
    /// A message over no rail at all.
    #[error("an immediate of slot {slot} with an empty mask")]
    EmptyMask {
        /// The slot.
        slot: u8,
    },
    /// The share of a rail that the message is not spread over.
    #[error("an immediate of slot {slot} for rail {rail}, which is not in its {mask:?}")]
    ForeignMask {
        /// The slot.
        slot: u8,
        /// The rail that the share is of.
        rail: u8,
        /// The mask.
        mask: Mask,
    },
    /// The immediates of one message have different masks.
    #[error("{now:?} in an immediate of slot {slot}, after {before:?}")]
    MaskChanged {
        /// The slot.
        slot: u8,
        /// The mask that was learned.
        before: Mask,
        /// The other one.
        now: Mask,
    },
    /// A rail's share came twice.
    #[error("a second immediate of slot {slot} for rail {rail}")]
    Twice {
        /// The slot.
        slot: u8,
        /// The rail.
        rail: u8,
    },
    /// A share was moved though its rail was not fenced here.
    #[error("the share of rail {rail} of slot {slot} was moved, though that rail is not fenced")]
    NotFenced {
        /// The slot.
        slot: u8,
        /// The rail.
        rail: u8,
    },
    /// The immediates of one message say different sizes, or the size is not what arrived.
    #[error("slot {slot}: sizes disagree, {said} bytes at most were said and {came} came")]
    SizesDisagree {
        /// The slot.
        slot: u8,
        /// What an immediate said, rounded up to multiples of 128.
        said: u64,
        /// What arrived, or another immediate said.
        came: u64,
    },
    /// More arrived than the buffer holds.
    #[error("slot {slot}: {size} bytes for a buffer of {capacity}")]
    TooLong {
        /// The slot.
        slot: u8,
        /// Bytes that came.
        size: u64,
        /// Bytes that the buffer holds.
        capacity: u32,
    },
    /// A record that cannot be.
    #[error("the record of slot {slot}: {source}")]
    Record {
        /// The slot.
        slot: u8,
        /// What is wrong with it.
        source: RecordError,
    },
    /// A clear-to-send entry that cannot be.
    #[error("the entries of receive {number}: {source}")]
    Entry {
        /// Number of the receive.
        number: u64,
        /// What is wrong with them.
        source: EntryError,
    },
}

/// Why a connection failed. What comes later is a consequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// A rail failed.
    #[error("a rail failed")]
    Rail(#[source] RailError),
    /// The peer broke the protocol.
    #[error("the peer broke the protocol")]
    Protocol(#[source] ProtocolError),
    /// The peer told of a queue pair what no correct peer tells.
    #[error("the peer's messages make no sense")]
    Control(#[source] ControlError),
    /// Fewer rails are in service than there must be.
    #[error("only {in_service} rails are in service, but min_rails is {min_rails}")]
    TooFewRails {
        /// Rails left.
        in_service: u8,
        /// The least.
        min_rails: u8,
    },
    /// Rails did not come back in time, or came back again and again and carried nothing in between.
    #[error("rails did not come back in time, or came back and carried nothing")]
    NotHealed,
    /// The peer did not report in time what arrived on a rail that failed.
    #[error("the peer did not report in time what arrived on a rail that failed")]
    NotFenced,
    /// The owner gave it up.
    #[error("its owner gave it up")]
    Owner,
    /// The peer's end failed for good.
    #[error("the peer's end failed")]
    Peer,
}

/// Why a call changed nothing, and may be made again later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotNow {
    /// The peer offers no buffer yet.
    #[error("the peer offers no buffer yet")]
    NoEntry,
    /// The buffers that the peer offers next have other tags, or have found their sends.
    #[error("none of the buffers that the peer offers next has this tag and no send")]
    NoSuchTag,
    /// The request that has the slot is not done, or its caller has not been told so.
    #[error("the slot is taken by request {number}")]
    SlotTaken {
        /// Its number.
        number: u64,
    },
    /// No rail in service has credits.
    #[error("no rail in service has credits")]
    NoCredits,
    /// More receives would be promised than the account may have.
    #[error("more receives would be needed than the account of device {} may have", device.0)]
    PoolFull {
        /// The device.
        device: DeviceId,
    },
    /// The driver of a shared receive queue did not take what is needed.
    #[error("the shared receive queue of device {} refused: {refusal}", device.0)]
    PoolRefused {
        /// Its device.
        device: DeviceId,
        /// What the driver says.
        refusal: Refusal,
    },
    /// The driver of a queue pair did not take the request.
    #[error("the queue pair of rail {rail} refused: {refusal}")]
    Refused {
        /// Whose queue pair.
        rail: u8,
        /// What the driver says.
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
    /// The peer's card was not given yet.
    #[error("the connection is not connected yet")]
    NotConnected,
    /// A receive has 1 to 8 buffers, of 64 bytes each in the longest message of every port.
    #[error(
        "a receive of {buffers} buffers, where 1 to 8 are possible, if a message of the port has room for their entries"
    )]
    Buffers {
        /// What was given.
        buffers: usize,
    },
    /// The message is longer than the buffer that the peer offers. Others clip silently.
    #[error("{length} bytes for a buffer of {capacity}")]
    TooLong {
        /// Bytes to send.
        length: u32,
        /// Bytes that the peer's buffer holds.
        capacity: u32,
    },
    /// The buffer has no keys for a device that the connection uses.
    #[error("the buffer has no keys for device {}", device.0)]
    MissingKeys {
        /// The device.
        device: DeviceId,
    },
    /// An endpoint that only sends, or only receives, was to do the other. A [`Sender`](super::Sender) or
    /// [`Receiver`](super::Receiver) by itself never says so.
    #[error("the connection goes the other way only")]
    OneWay,
    /// A handle of no request: its caller was told that it is done, or it is of another connection.
    #[error("there is no request {number}")]
    NoRequest {
        /// The number in the handle.
        number: u64,
    },
    /// A device over which a message came has no queue pair to flush with, or that one failed.
    #[error("device {} cannot be flushed", device.0)]
    CannotFlush {
        /// The device.
        device: DeviceId,
    },
}

impl CallError {
    /// Whether to poll, and try again.
    pub const fn is_not_now(&self) -> bool {
        matches!(self, Self::NotNow(_))
    }
}

impl From<NotNow> for CallError {
    fn from(not_now: NotNow) -> Self {
        Self::NotNow(not_now)
    }
}

/// An end of a connection cannot be made of what was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// Rails are 1 to 8.
    #[error("{rails} rails, where 1 to 8 are possible")]
    Rails {
        /// What was asked for.
        rails: u8,
    },
    /// One rail alone cannot be re-routed.
    #[error("one rail alone cannot be re-routed")]
    NothingToRerouteTo,
    /// More rails must be in service than there are.
    #[error("min_rails is {min_rails} of {rails} rails")]
    MinRails {
        /// What was asked for.
        min_rails: u8,
        /// Rails.
        rails: u8,
    },
    /// Not the same number of queue pairs for each rail, or more than the type holds.
    #[error("{given} queue pairs for {rails} rails, at most {max}: each rail has the same number")]
    QueuePairs {
        /// Queue pairs given; if there are too many, one more than the type holds.
        given: usize,
        /// Rails.
        rails: u8,
        /// The const parameter `QPS`.
        max: usize,
    },
    /// The queue pairs of one rail are all on one device.
    #[error("the queue pairs of rail {rail} are on different devices")]
    Devices {
        /// The rail.
        rail: u8,
    },
    /// A queue pair that could carry nothing.
    #[error("{what} of queue pair {qp_num} is {given}, {needed} is the least")]
    Limit {
        /// Which limit, as verbs name it.
        what: &'static str,
        /// The queue pair.
        qp_num: u32,
        /// What it was granted.
        given: u32,
        /// What is needed.
        needed: u32,
    },
    /// A receiver's queue pair that takes no receives from a shared queue.
    #[error("queue pair {qp_num} has receives of its own, where it is to take shared ones")]
    OwnReceives {
        /// The queue pair.
        qp_num: u32,
    },
    /// A region of other words than are needed, or not aligned to 64 bytes.
    #[error("a region of {given} words, where {needed}, aligned to 64 bytes, are needed")]
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
    /// There must be one account for each device of the queue pairs.
    #[error("device {} has no account, or another one", device.0)]
    Account {
        /// The device.
        device: DeviceId,
    },
}

/// The card of the peer does not fit this end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CardError {
    /// Both ends have the same number of rails.
    #[error("the peer has {theirs} rails, this end {ours}")]
    Rails {
        /// Its rails.
        theirs: u8,
        /// This end's.
        ours: u8,
    },
    /// Both ends have the same number of slots.
    #[error("the peer has {theirs} slots, this end {ours}")]
    Slots {
        /// Its slots.
        theirs: u16,
        /// This end's.
        ours: u16,
    },
    /// Both ends re-route, or none.
    #[error("the peer {} re-route, this end {}", does(*theirs), does(!*theirs))]
    Reroutes {
        /// Whether it does.
        theirs: bool,
    },
    /// A rail of the peer's is on a device that it has not told of.
    #[error("rail {rail} of the peer's is on its device {device}, which is not there")]
    Device {
        /// The rail.
        rail: u8,
        /// The place of the device.
        device: u8,
    },
    /// A port that carries no useful message.
    #[error("rail {rail} of the peer's carries messages of {bytes} bytes only")]
    MessageSize {
        /// The rail.
        rail: u8,
        /// The longest message.
        bytes: u32,
    },
    /// Memory that ends beyond the address space, or is not aligned to 64 bytes.
    #[error("the peer's memory at {addr:#x} is not aligned, or passes the end of memory")]
    Memory {
        /// Where it begins.
        addr: u64,
    },
    /// The card was given before.
    #[error("the connection is connected already")]
    Connected,
}

const fn does(it: bool) -> &'static str {
    if it { "does" } else { "does not" }
}
