//! What requests, completions and reports look like.

use super::handles::{Region, Remote};
use std::ffi::c_char;

/// Bytes of a device's name, with the 0 behind it.
pub const POLYRAIL_NAME_BYTES: usize = 64;

/// Bytes that a device's PCI path takes at most, with the 0 behind it.
pub const POLYRAIL_PATH_BYTES: usize = 128;

/// Devices of a domain at most, and rails of a connection.
pub const POLYRAIL_MAX_DEVICES: usize = 8;

/// Buffers of one message at most.
pub const POLYRAIL_MAX_BUFFERS: usize = 8;

/// Parts of one request at most.
pub const POLYRAIL_MAX_PARTS: usize = 16;

/// Bytes of a region for peers at most: see polyrail_region_export.
pub const POLYRAIL_REMOTE_BYTES: usize = 64;

/// Bytes of a connection card at most.
pub const POLYRAIL_CARD_BYTES: usize = 16384;

/// Bytes of the caller's that a hello carries at most.
pub const POLYRAIL_HELLO_BYTES: usize = 2048;

/// Bytes of the caller's that a message over a link carries at most.
pub const POLYRAIL_MESSAGE_BYTES: usize = 4096;

/// Bytes of words at most, with the 0 behind them.
pub const POLYRAIL_WORDS_BYTES: usize = 256;

/// What a machine or a domain has.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DeviceInfo {
    /// Its name.
    pub name: [c_char; POLYRAIL_NAME_BYTES],
    /// Its PCI function and the bridges above it, the nearest last; empty if it has none.
    pub pci_path: [c_char; POLYRAIL_PATH_BYTES],
    /// Its GUID.
    pub guid: u64,
    /// Megabits a second of all its ports that carry data; 0: unknown.
    pub mbps: u64,
    /// The NUMA node that it is nearest to; -1: unknown.
    pub numa_node: i32,
    /// Ports that carry data.
    pub ports: u32,
    /// 0; more later.
    pub reserved: [u64; 4],
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Opcode {
    /// Writes to the peer's memory.
    Write = 0,
    /// Writes to the peer's memory, and completes a receive there that brings the immediate. Without bytes, of a
    /// NULL region, it only does the latter.
    WriteWithImm = 1,
    /// Sends into the buffer of the peer's next receive.
    Send = 2,
    /// The same, with an immediate.
    SendWithImm = 3,
    /// Reads the peer's memory.
    Read = 4,
    /// Replaces 8 aligned bytes at the peer by `swap` if they are `compare_add`; their old value lands here.
    CompareSwap = 5,
    /// Adds `compare_add` to 8 aligned bytes at the peer; their old value lands here.
    FetchAdd = 6,
}

/// Requests of this side may write it: READs, receives, results of atomics.
pub const POLYRAIL_ACCESS_LOCAL_WRITE: u32 = 1 << 0;
/// Peers may write it. With POLYRAIL_ACCESS_LOCAL_WRITE only.
pub const POLYRAIL_ACCESS_REMOTE_WRITE: u32 = 1 << 1;
/// Peers may read it.
pub const POLYRAIL_ACCESS_REMOTE_READ: u32 = 1 << 2;
/// Peers may carry out atomics on it. With POLYRAIL_ACCESS_LOCAL_WRITE only.
pub const POLYRAIL_ACCESS_REMOTE_ATOMIC: u32 = 1 << 3;
/// Pages are not pinned: devices wait for those that are not there.
pub const POLYRAIL_ACCESS_ON_DEMAND: u32 = 1 << 6;
/// Devices may write it in another order.
pub const POLYRAIL_ACCESS_RELAXED_ORDERING: u32 = 1 << 20;

/// Starts only when all that was posted before is done.
pub const POLYRAIL_REQUEST_FENCE: u32 = 1 << 0;
/// Wakes a peer that waits for such only.
pub const POLYRAIL_REQUEST_SOLICITED: u32 = 1 << 2;
/// The bytes are copied before the call returns. WRITE and SEND of few bytes; not memory of a dma-buf.
pub const POLYRAIL_REQUEST_INLINE: u32 = 1 << 3;
/// Reported as soon as it is done.
pub const POLYRAIL_REQUEST_REPORT_WHEN_DONE: u32 = 1 << 16;
/// Reported in its order.
pub const POLYRAIL_REQUEST_REPORT_IN_ORDER: u32 = 1 << 17;

/// A request for a peer.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Request {
    /// The caller's name for it; comes back in its completion.
    pub id: u64,
    /// A polyrail_opcode.
    pub opcode: u32,
    /// POLYRAIL_REQUEST_ bits.
    pub flags: u32,
    /// The memory here; it stays registered, and is left alone, until the request is reported.
    pub region: *mut Region,
    /// Where in it.
    pub offset: u64,
    /// Bytes.
    pub length: u32,
    /// The immediate of opcodes that have one.
    pub imm: u32,
    /// The memory there; unused by SENDs.
    pub remote: *mut Remote,
    /// Where in it.
    pub remote_offset: u64,
    /// What is compared with, or added.
    pub compare_add: u64,
    /// What is swapped in.
    pub swap: u64,
}

/// A part of the memory here of one request.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Part {
    /// The memory.
    pub region: *mut Region,
    /// Where in it.
    pub offset: u64,
    /// Bytes.
    pub length: u32,
    /// 0.
    pub reserved: u32,
}

/// How a request ended: the numbers of enum ibv_wc_status. Others may come from drivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Status {
    /// It was carried out.
    Success = 0,
    /// A local buffer is shorter than the message.
    LocalLength = 1,
    /// A fault of the local queue pair.
    LocalQp = 2,
    /// A local key does not permit the access.
    LocalProtection = 4,
    /// The connection had failed before it ran.
    Flushed = 5,
    /// The peer's answer makes no sense.
    BadResponse = 7,
    /// A local buffer was refused while data was arriving.
    LocalAccess = 8,
    /// The peer's device found it invalid.
    RemoteInvalid = 9,
    /// The peer's memory does not permit the access, or is not that long.
    RemoteAccess = 10,
    /// The peer's device could not carry it out.
    RemoteOperation = 11,
    /// The peer's device never answered.
    RetriesExceeded = 12,
    /// The peer had no receive posted, for too long.
    ReceiverNotReady = 13,
    /// The device failed.
    Fatal = 19,
    /// The peer's device did not answer in time.
    ResponseTimeout = 20,
    /// An error without a code of its own.
    General = 21,
}

/// Whether the memory of a request may still be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Memory {
    /// The request is done: nothing accesses the memory here, nor the memory there, for it any more.
    Done = 0,
    /// It failed, and nothing accesses the memory of either end for it any more. What of it had been carried out is
    /// not known.
    Quiet = 1,
    /// It failed, and nothing accesses the memory here for it any more; but the peer's memory may still be written,
    /// until the peer has removed the connection at its end.
    RemoteMayChange = 2,
    /// Devices may access it: the request is under way, or nothing is known of it.
    UnderWay = 3,
}

/// There is an immediate.
pub const POLYRAIL_COMPLETION_IMM: u32 = 1 << 0;
/// It was a receive. Of requests that failed over a single rail this is not known.
pub const POLYRAIL_COMPLETION_RECEIVE: u32 = 1 << 1;

/// A request that was reported.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Completion {
    /// The caller's name for it.
    pub id: u64,
    /// Whose it is.
    pub peer: u64,
    /// A polyrail_status.
    pub status: u32,
    /// A polyrail_opcode; of a receive, that of the peer's request, without "with immediate". Means nothing where
    /// `status` is not 0.
    pub opcode: u32,
    /// Bytes of the request; of a receive, those that a SEND brought. Over one rail, what the device says: of a WRITE
    /// or SEND that is often 0.
    pub bytes: u32,
    /// The immediate.
    pub imm: u32,
    /// POLYRAIL_COMPLETION_ bits.
    pub flags: u32,
    /// A polyrail_memory.
    pub memory: u32,
    /// 0.
    pub reserved: [u64; 2],
}

/// Where a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum State {
    /// Not connected.
    New = 0,
    /// The two sides meet over a link.
    Meeting = 1,
    /// It works.
    Ready = 2,
    /// It works, though rails have failed.
    Degraded = 3,
    /// It failed: requests come back as flushed, and new ones are refused.
    Failed = 4,
}

/// What is known of a connection.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PeerInfo {
    /// sizeof(polyrail_peer_info).
    pub size: u32,
    /// A polyrail_state.
    pub state: u32,
    /// Its rails.
    pub rails: u32,
    /// Those in service.
    pub rails_in_service: u32,
    /// Requests and notification receives that were accepted and not reported; over a single rail the device keeps
    /// that count, and this is 0. Of messages: not done, or not told to be.
    pub unreported: u32,
    /// 1 if it has a link.
    pub has_link: u32,
    /// Why it failed, or words of its first failure; empty if there was none.
    pub words: [c_char; POLYRAIL_WORDS_BYTES],
}

/// Where a rail stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum RailState {
    /// It carries requests.
    InService = 0,
    /// It failed, and its last completions are awaited.
    Draining = 1,
    /// This side knows what arrived.
    Fenced = 2,
    /// Both sides know; a new queue pair may take its place.
    Down = 3,
    /// A new queue pair is being connected.
    Joining = 4,
}

/// The number of the rail that carries notifications only.
pub const POLYRAIL_RAIL_NOTIFY: u32 = 255;

/// What one rail did. Of messages: one queue pair, those that send first, then those that receive.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RailInfo {
    /// The name of its device.
    pub device: [c_char; POLYRAIL_NAME_BYTES],
    /// Its number; POLYRAIL_RAIL_NOTIFY.
    pub rail: u32,
    /// A polyrail_rail_state.
    pub state: u32,
    /// Its queue pair.
    pub qp_num: u32,
    /// Which queue pair in its place: 0 for the first one.
    pub generation: u32,
    /// Bytes handed to the device.
    pub bytes: u64,
    /// Requests handed to the device.
    pub requests: u64,
    /// Batches of those.
    pub doorbells: u64,
    /// Completions seen.
    pub completions: u64,
    /// Failed ones among them.
    pub errors: u64,
    /// Times that it failed and others took over. Of messages 0: events tell.
    pub failures: u64,
    /// Requests that were in flight then, and posted again. Of messages 0: events tell.
    pub posted_again: u64,
    /// 0.
    pub reserved: [u64; 2],
}

/// What happened to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum EventKind {
    /// It is connected over its link, at both ends. The bytes are those of the other side's hello.
    Connected = 1,
    /// A message came over its link. The bytes are the message.
    Message = 2,
    /// The link was made anew. Messages that were said before may be lost, either way.
    LinkResumed = 3,
    /// The link is gone: the other side closed it, or it broke for good. What was connected works on, but heals no
    /// more. The bytes are words.
    LinkLost = 4,
    /// The two sides did not come together. The bytes are words, and `code` is why.
    NotConnected = 5,
    /// A rail failed. The bytes are words.
    RailFailed = 6,
    /// What was in flight on a rail that failed was posted again. The bytes are words.
    RailFenced = 7,
    /// A rail is back in service. The bytes are words.
    RailReturned = 8,
    /// The connection failed. The bytes are words.
    Failed = 9,
}

/// What happened to a peer.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Event {
    /// sizeof(polyrail_event).
    pub size: u32,
    /// A polyrail_event_kind.
    pub kind: u32,
    /// Whom.
    pub peer: u64,
    /// Bytes that came with it, in the memory given to the call.
    pub length: u64,
    /// Which rail, of events of rails; POLYRAIL_RAIL_NOTIFY.
    pub rail: u32,
    /// A polyrail_code: why, if something failed.
    pub code: i32,
}

/// A buffer that a message may land in.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Buffer {
    /// The memory; it stays registered, and is left alone, until the receive is tested to be done.
    pub region: *mut Region,
    /// Where in it.
    pub offset: u64,
    /// Bytes that it holds.
    pub length: u32,
    /// By which the sender finds it among the buffers of the receive.
    pub tag: u32,
}

/// A message that is done.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MessageInfo {
    /// sizeof(polyrail_message_info).
    pub size: u32,
    /// Buffers of a receive; 0 of a send or a flush.
    pub count: u32,
    /// Bytes that came for each.
    pub lengths: [u32; POLYRAIL_MAX_BUFFERS],
    /// A polyrail_memory, also if the call returned an error.
    pub memory: u32,
    /// 0.
    pub reserved: u32,
}

/// The receive stays, for a flush, until polyrail_messages_forget.
pub const POLYRAIL_TEST_KEEP: u32 = 1 << 0;
