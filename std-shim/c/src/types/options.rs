//! What callers choose. In all of these 0 means the default, so that a structure of zeros with its size is the
//! default itself.

use std::ffi::{c_char, c_void};

/// How much a logger is told: what is of this level or a lower one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum LogLevel {
    /// Nothing.
    None = 0,
    /// A connection failed for good.
    Error = 1,
    /// A rail failed, a link broke, two ends do not match.
    Warn = 2,
    /// A connection is made, a rail or a link is back.
    Info = 3,
    /// An attempt to bring a rail back failed; there will be others.
    Debug = 4,
}

/// Is told what happens: with the context that it was given with, a polyrail_log_level, and words, without a newline,
/// that are valid during the call. Any thread may call it that is in a call, or that looks after a link, and several at
/// a time. It returns, and does not call the library: objects that it is told of are in a call.
pub type Logger =
    Option<unsafe extern "C" fn(context: *mut c_void, level: u32, words: *const c_char)>;

/// A kind of hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Backend {
    /// Real NICs.
    Default = 0,
    /// Real NICs, by libibverbs, which is loaded when it is asked for.
    Verbs = 1,
    /// NICs in software, within this process: for tests and first tries. All of a process reach each other.
    Software = 2,
}

/// Options of a domain. `size` is sizeof; everything else may be 0.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DomainOptions {
    /// sizeof(polyrail_domain_options).
    pub size: u32,
    /// A polyrail_backend.
    pub backend: u32,
    /// Names of devices, separated by commas, such as "mlx5_0,mlx5_1:2", where the number is a port; rails take
    /// them in turn. NULL: with verbs, all that can be used, 8 at most; with the software NIC, "soft0". Every
    /// domain has software devices of its own, whatever their names.
    pub devices: *const c_char,
    /// With POLYRAIL_DOMAIN_GID_INDEX: place of the address in every port's table. Chosen otherwise.
    pub gid_index: u32,
    /// POLYRAIL_DOMAIN_ bits.
    pub flags: u32,
    /// Software NIC only: bytes that a device sends in a second; 0: as fast as memory is.
    pub software_bytes_per_second: u64,
}

/// `gid_index` of the domain's options counts.
pub const POLYRAIL_DOMAIN_GID_INDEX: u32 = 1;

/// For times in options: never.
pub const POLYRAIL_NEVER: u64 = u64::MAX;

/// How a receiver learns that a WRITE_WITH_IMM is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Scheme {
    /// SPRAY.
    Default = 0,
    /// A notification of its own, with the immediate, once all data is acknowledged.
    Spray = 1,
    /// Numbered fragments; no immediate of the user's, no SEND, no atomics over several rails.
    Dqplb = 2,
}

/// What a rail's failure does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum RailFailure {
    /// It ends the connection.
    Default = 0,
    /// It ends the connection.
    Fatal = 1,
    /// Other rails take over, nothing is lost, and the rail is given new queue pairs until it is back.
    Reroute = 2,
}

/// Options of connections, for requests and for messages; the same at both ends, where not said otherwise. `size` is
/// sizeof; everything else may be 0.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct EndpointOptions {
    /// sizeof(polyrail_endpoint_options).
    pub size: u32,
    /// Rails, 1 to 8. 0: 4 for requests, 2 for messages.
    pub rails: u32,
    /// A polyrail_scheme. Requests only.
    pub scheme: u32,
    /// Bytes of the longest fragment, a multiple of 128. 0: 65536. Requests only. Of two ends, the lesser one counts.
    pub max_msg_size: u32,
    /// Requests outstanding on one queue pair at most. 0: 100. Requests only. May differ.
    pub max_msgs_per_qp: u32,
    /// A polyrail_rail_failure.
    pub rail_failure: u32,
    /// With rerouting: with fewer rails in service the connection has failed. 0: 1; POLYRAIL_NO_RAIL_NEEDED: it waits
    /// for as long as there is none. May differ.
    pub min_rails: u32,
    /// Bytes of the longest inline request. 0: 64. May differ.
    pub max_inline_data: u32,
    /// Bytes of a packet: 256, 512, 1024, 2048 or 4096. 0: as the ports have it. May differ.
    pub path_mtu: u32,
    /// The acknowledgement timeout is 4.096 us * 2^timeout, 1 to 31. 0: 18. May differ.
    pub timeout: u32,
    /// Retries before an unanswered request fails, 1 to 7; POLYRAIL_NO_RETRY: none. 0: 7. May differ.
    pub retry_cnt: u32,
    /// READs and atomics outstanding in either direction. 0: 16. May differ.
    pub max_rd_atomic: u32,
    /// Place of the partition key in the port's table. May differ.
    pub pkey_index: u32,
    /// Service level, 0 to 15. May differ.
    pub service_level: u32,
    /// Traffic class, 0 to 255: on RoCE v2 the DSCP times 4, plus two bits for congestion marks. May differ.
    pub traffic_class: u32,
    /// Flow label, 20 bits. May differ.
    pub flow_label: u32,
    /// Routers that a packet may pass, 1 to 255. 0: 64. May differ.
    pub hop_limit: u32,
    /// POLYRAIL_ENDPOINT_ bits.
    pub flags: u32,
    /// Messages only: queue pairs of each rail and direction. 0: 1.
    pub queue_pairs_per_rail: u32,
    /// Messages only: buffers up to this many bytes go over one rail. 0: 65536. May differ.
    pub split_threshold: u32,
    /// With rerouting, milliseconds: a rail is given new queue pairs at once, and, if that fails, again after so long, then
    /// at growing intervals. 0: 10. May differ, as all that follow.
    pub heal_first_ms: u64,
    /// And at the longest, since the time doubles. 0: 5000.
    pub heal_longest_ms: u64,
    /// Requests are in flight on a rail, and it makes no headway, though others do: it is failed. 0: 10000;
    /// POLYRAIL_NEVER.
    pub stall_timeout_ms: u64,
    /// Requests or messages wait for rails that do not come back, or that come back and carry nothing: the connection
    /// has failed. 0: 60000; POLYRAIL_NEVER.
    pub rail_timeout_ms: u64,
    /// The peer does not say what arrived on a rail that failed: the connection has failed. 0: 60000;
    /// POLYRAIL_NEVER.
    pub fence_timeout_ms: u64,
}

/// `min_rails`: none has to be in service.
pub const POLYRAIL_NO_RAIL_NEEDED: u32 = u32::MAX;

/// `retry_cnt`: none.
pub const POLYRAIL_NO_RETRY: u32 = u32::MAX;

/// Immediates travel least significant byte first, as programs of the reference implementation send them. Both ends.
pub const POLYRAIL_ENDPOINT_LITTLE_ENDIAN_IMM: u32 = 1 << 0;

/// WRITEs and READs are reported as soon as they are done, not in their order. May differ.
pub const POLYRAIL_ENDPOINT_REPORT_WHEN_DONE: u32 = 1 << 1;

/// SENDs and atomics may overtake WRITEs and READs that were posted before them. May differ.
pub const POLYRAIL_ENDPOINT_UNORDERED: u32 = 1 << 2;

/// Completion queues tell a file descriptor when they have something: needed to wait. Of the connections on a
/// device, the first one decides. May differ.
pub const POLYRAIL_ENDPOINT_EVENTS: u32 = 1 << 3;

/// Messages only: received messages can be flushed, which takes one more queue pair on each device. May differ.
pub const POLYRAIL_ENDPOINT_FLUSHES: u32 = 1 << 4;

/// Options of links. `size` is sizeof; everything else may be 0.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct LinkOptions {
    /// sizeof(polyrail_link_options).
    pub size: u32,
    /// Milliseconds until a connection is made. 0: 10000.
    pub connect_ms: u32,
    /// Milliseconds that the other side may take for one message, and for its part of the meeting. 0: 10000.
    pub message_ms: u32,
    /// Milliseconds until a link that broke is made anew. 0: 60000.
    pub anew_ms: u32,
    /// A secret of 16 bytes or more that both sides have to know; NULL: nobody is asked. It never travels.
    pub token: *const c_char,
}
