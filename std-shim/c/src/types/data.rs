//! Structures of requests, completions and reports.

use super::handles::{Region, Remote};
use super::limits::{
    POLYRAIL_MAX_BUFFERS, POLYRAIL_NAME_BYTES, POLYRAIL_PATH_BYTES, POLYRAIL_WORDS_BYTES,
};
use std::ffi::c_char;

/// A device of a machine or a domain.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DeviceInfo {
    /// Its name.
    pub name: [c_char; POLYRAIL_NAME_BYTES],
    /// Its PCI function and the bridges above it, with the nearest bridge last; empty if it is not
    /// on PCI.
    pub pci_path: [c_char; POLYRAIL_PATH_BYTES],
    /// Its GUID; 0 over TCP.
    pub guid: u64,
    /// Sum of the rates of its active ports in Mbit/s, or the rate of its PCI link if that is less;
    /// 0: unknown.
    pub mbps: u64,
    /// The nearest NUMA node; -1: unknown.
    pub numa_node: i32,
    /// Number of active ports; over TCP 1 if the interface is up and has carrier, otherwise 0.
    pub ports: u32,
    /// Its IP address in network order over TCP, otherwise 0. IPv4: ::ffff:10.0.0.1.
    pub address: [u8; 16],
    /// Reserved; 0.
    pub reserved: [u64; 2],
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum Opcode {
    /// Writes to the peer's memory.
    Write = 0,
    /// Writes to the peer's memory, and completes a receive there, which contains the immediate.
    /// With length 0 and a NULL region, nothing is written.
    WriteWithImm = 1,
    /// Sends into the buffer of the peer's next receive.
    Send = 2,
    /// Like SEND, with an immediate.
    SendWithImm = 3,
    /// Reads the peer's memory.
    Read = 4,
    /// Replaces 8 aligned bytes at the peer with `swap` if they equal `compare_add`, and stores
    /// their old value in the local memory.
    CompareSwap = 5,
    /// Adds `compare_add` to 8 aligned bytes at the peer, and stores their old value in the local
    /// memory.
    FetchAdd = 6,
}

/// Starts after all requests posted before have ended.
pub const POLYRAIL_REQUEST_FENCE: u32 = 1 << 0;
/// Solicited event: also wakes a peer that waits only for such completions.
pub const POLYRAIL_REQUEST_SOLICITED: u32 = 1 << 2;
/// The bytes are copied before the call returns. Only for WRITE and SEND up to `max_inline_data`;
/// not from a dma-buf.
pub const POLYRAIL_REQUEST_INLINE: u32 = 1 << 3;
/// Reported as soon as it is done, even before earlier requests.
pub const POLYRAIL_REQUEST_REPORT_WHEN_DONE: u32 = 1 << 16;
/// Reported in posting order.
pub const POLYRAIL_REQUEST_REPORT_IN_ORDER: u32 = 1 << 17;

/// A request for a peer.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Request {
    /// Chosen by the caller, and returned in the completion.
    pub id: u64,
    /// A polyrail_opcode.
    pub opcode: u32,
    /// POLYRAIL_REQUEST_ bits.
    pub flags: u32,
    /// The local memory. It must stay registered, and must not be used otherwise, until the request
    /// is reported.
    pub region: *mut Region,
    /// Where in it.
    pub offset: u64,
    /// Bytes.
    pub length: u32,
    /// The immediate of opcodes that have one.
    pub imm: u32,
    /// The peer's memory; unused by SENDs.
    pub remote: *mut Remote,
    /// Where in it.
    pub remote_offset: u64,
    /// The operand that is compared or added.
    pub compare_add: u64,
    /// The new value of a compare-and-swap.
    pub swap: u64,
}

/// A part of a request's local memory.
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

/// How a request ended, with the numbers of enum ibv_wc_status, except for the last one. Drivers may
/// return others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum Status {
    /// It was carried out.
    Success = 0,
    /// A local buffer is shorter than the message.
    LocalLength = 1,
    /// An internal error of the local queue pair.
    LocalQp = 2,
    /// A local key does not permit the access.
    LocalProtection = 4,
    /// The connection failed before the request was executed.
    Flushed = 5,
    /// The peer sent an invalid response.
    BadResponse = 7,
    /// A local buffer became inaccessible while data was arriving.
    LocalAccess = 8,
    /// The peer's device found the request invalid.
    RemoteInvalid = 9,
    /// The peer's memory does not permit the access, or is shorter.
    RemoteAccess = 10,
    /// The peer's device could not execute the request.
    RemoteOperation = 11,
    /// The peer's device never answered, or over TCP its process or device is gone (vendor code
    /// 0x41; 0x45: nothing was acknowledged in time).
    RetriesExceeded = 12,
    /// The peer posted no receive in time.
    ReceiverNotReady = 13,
    /// The device failed.
    Fatal = 19,
    /// The peer's device did not answer in time.
    ResponseTimeout = 20,
    /// An error that no other code describes.
    General = 21,
    /// The caller took the request back. Its first `bytes` bytes may have been written, and no
    /// others; nothing is written for it any more. Its receiver was not notified and will not be.
    Cancelled = 0x10000,
}

/// Whether the memory of a request may still be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum Memory {
    /// The request is done. Nothing accesses the memory of either end for it any more.
    Done = 0,
    /// The request failed. Nothing accesses the memory of either end for it any more. How much of
    /// it was carried out is unknown.
    Quiet = 1,
    /// The request failed, and nothing accesses the local memory for it any more. The peer's memory
    /// may still be written until the peer has removed the connection at its end.
    RemoteMayChange = 2,
    /// Devices may still access the memory: the request is in progress, or its state is unknown.
    UnderWay = 3,
}

/// `imm` is valid.
pub const POLYRAIL_COMPLETION_IMM: u32 = 1 << 0;
/// The completion is of a receive. Unknown for requests that failed over a single rail.
pub const POLYRAIL_COMPLETION_RECEIVE: u32 = 1 << 1;

/// A completed request.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Completion {
    /// The `id` of the request.
    pub id: u64,
    /// The peer's number.
    pub peer: u64,
    /// A polyrail_status.
    pub status: u32,
    /// A polyrail_opcode. For a receive, the opcode of the peer's request, without "with
    /// immediate". Undefined if `status` is not 0.
    pub opcode: u32,
    /// Length of the request in bytes; of a request that was taken back, those that may have been
    /// written; for a receive, of the SEND that arrived. Over one rail, the
    /// value of the device, which is often 0 for a WRITE or SEND.
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

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum State {
    /// Not connected.
    New = 0,
    /// The two sides are connecting over a link.
    Meeting = 1,
    /// Connected.
    Ready = 2,
    /// Connected, with at least one failed rail.
    Degraded = 3,
    /// The connection failed: pending requests are flushed, and new ones are refused.
    Failed = 4,
}

/// The state of a connection.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PeerInfo {
    /// sizeof(polyrail_peer_info).
    pub size: u32,
    /// A polyrail_state.
    pub state: u32,
    /// Number of rails.
    pub rails: u32,
    /// Number of rails in service; 0 if the connection failed.
    pub rails_in_service: u32,
    /// Requests and notification receives that were accepted and not yet reported. 0 over a single
    /// rail, where only the device counts them. For messages: requests that no test has reported as
    /// done.
    pub unreported: u32,
    /// 1 if the peer has a link, otherwise 0.
    pub has_link: u32,
    /// Why the connection failed, or else the text of the first event
    /// POLYRAIL_EVENT_KIND_RAIL_FAILED; empty if there was none.
    pub words: [c_char; POLYRAIL_WORDS_BYTES],
}

/// State of a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum RailState {
    /// The rail carries requests.
    InService = 0,
    /// The rail failed, and its last completions are awaited.
    Draining = 1,
    /// This side has learned which requests arrived.
    Fenced = 2,
    /// Both sides have learned which requests arrived; a new queue pair may replace the old one.
    Down = 3,
    /// A new queue pair is being connected.
    Joining = 4,
}

/// Number of the rail that carries only notifications.
pub const POLYRAIL_RAIL_NOTIFY: u32 = 255;

/// State and counters of one rail. For messages: of one queue pair; sending queue pairs come first,
/// then receiving ones.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RailInfo {
    /// Name of the device.
    pub device: [c_char; POLYRAIL_NAME_BYTES],
    /// Number of the rail, or POLYRAIL_RAIL_NOTIFY.
    pub rail: u32,
    /// A polyrail_rail_state.
    pub state: u32,
    /// Number of its present queue pair.
    pub qp_num: u32,
    /// How often the queue pair was replaced: 0 for the first one.
    pub generation: u32,
    /// Payload bytes posted.
    pub bytes: u64,
    /// Requests posted.
    pub requests: u64,
    /// Batches of requests passed to the driver, each with one write to a doorbell.
    pub doorbells: u64,
    /// Completions polled.
    pub completions: u64,
    /// Failed completions.
    pub errors: u64,
    /// How often it failed and other rails took over. 0 for messages, whose failures are events.
    pub failures: u64,
    /// Requests that were in flight at these failures and were posted again. 0 for messages, whose
    /// failures are events.
    pub posted_again: u64,
    /// 0.
    pub reserved: [u64; 2],
}

/// What happened to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum EventKind {
    /// Both ends are connected over the link. The bytes are the other side's hello.
    Connected = 1,
    /// A message arrived over the link. The bytes are the message.
    Message = 2,
    /// The link was reconnected. Messages sent before may be lost, in either direction.
    LinkResumed = 3,
    /// The link is gone: the other side removed or closed the peer, its process ended, or the link
    /// could not be reconnected. The event does not tell which: a program that ends in order sends
    /// a last message with polyrail_peers_say, whose event is before this one. The connection goes
    /// on, but failed rails do not return. The bytes are a text with the reason, and `code` is its
    /// code.
    LinkLost = 4,
    /// The two sides could not connect. The bytes are a text with the reason, and `code` is its
    /// code.
    NotConnected = 5,
    /// A rail failed. The bytes are a text with the reason, and `code` is POLYRAIL_CODE_DEVICE.
    RailFailed = 6,
    /// The requests in flight on a failed rail were posted again. The bytes are a text.
    RailFenced = 7,
    /// A rail is back in service. The bytes are a text.
    RailReturned = 8,
    /// The connection failed, for example because its other end was closed or its process ended.
    /// This event, and receives that fail, may come before a last message and
    /// POLYRAIL_EVENT_KIND_LINK_LOST. The bytes are a text with the reason, and `code` is
    /// POLYRAIL_CODE_FAILED.
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
    /// The peer's number.
    pub peer: u64,
    /// Length of the event's bytes, which the call stores in the memory passed to it.
    pub length: u64,
    /// For events of rails: number of the rail, or POLYRAIL_RAIL_NOTIFY.
    pub rail: u32,
    /// For events of failures, a polyrail_code; otherwise 0.
    pub code: i32,
}

/// A buffer for a received message.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Buffer {
    /// The memory. It must stay registered, and must not be used otherwise, until a test returns
    /// that the receive is done.
    pub region: *mut Region,
    /// Where in it.
    pub offset: u64,
    /// Its length in bytes.
    pub length: u32,
    /// The tag by which the sender selects the buffer among those of the receive.
    pub tag: u32,
}

/// A completed message.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MessageInfo {
    /// sizeof(polyrail_message_info).
    pub size: u32,
    /// Number of buffers of a receive; 0 for a send or a flush.
    pub count: u32,
    /// Bytes received into each buffer.
    pub lengths: [u32; POLYRAIL_MAX_BUFFERS],
    /// A polyrail_memory, also if the call returned an error.
    pub memory: u32,
    /// 0.
    pub reserved: u32,
}

/// Keeps the receive after it is done, for a flush, until polyrail_messages_forget.
pub const POLYRAIL_TEST_KEEP: u32 = 1 << 0;
