//! What callers choose. In all of these 0 means the default, so that a structure of zeros with its
//! size is the default itself.

use super::limits::POLYRAIL_MAX_DEVICES;
use std::ffi::{c_char, c_void};

/// How much is logged: events of this level and of lower ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
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

/// Receives log lines: the context passed to polyrail_log, a polyrail_log_level, and a text without
/// a newline, which is valid during the call. Called by any thread that is in a call or drives a
/// link, also by several at a time. It must return, and must not call the library, because the
/// objects that the line is about are in a call.
pub type Logger =
    Option<unsafe extern "C" fn(context: *mut c_void, level: u32, words: *const c_char)>;

/// A kind of hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum Backend {
    /// Real NICs.
    Default = 0,
    /// Real NICs through libibverbs, which is loaded on first use.
    Verbs = 1,
    /// NICs in software, within this process, for tests and first tries. All of them reach each
    /// other.
    Software = 2,
    /// Network interfaces: queue pairs are TCP connections. Between any two Linux hosts or
    /// processes, without RDMA devices. Bytes on the network are not encrypted.
    Tcp = 3,
}

/// Options of a domain. `size` is sizeof; everything else may be 0.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DomainOptions {
    /// sizeof(polyrail_domain_options).
    pub size: u32,
    /// A polyrail_backend.
    pub backend: u32,
    /// Names of devices, separated by commas, such as "mlx5_0,mlx5_1:2,mlx5_2:1@3", where 2 and 1
    /// are ports, and 3 is an index in the port's GID table, instead of `gid_index`. Over TCP,
    /// interfaces or their addresses, with the address for peers behind @ if it is another one
    /// (NAT): "eth0,tcp:eth1,10.0.2.1,eth2@192.0.2.1:7500"; "eth0:99" is a label of an address of
    /// eth0, not a port, and means eth0 whether the label exists or not. Rails are distributed over
    /// them in turn. NULL: with verbs, all usable devices, at most 8; with the software NIC,
    /// "soft0"; over TCP, the interfaces with carrier at which other hosts reach this one, at most
    /// 8. Software devices of different domains are different devices, even under the same name.
    pub devices: *const c_char,
    /// With POLYRAIL_DOMAIN_GID_INDEX: index of the address in every port's GID table. Otherwise
    /// chosen automatically, among the addresses of this network namespace.
    pub gid_index: u32,
    /// POLYRAIL_DOMAIN_ bits.
    pub flags: u32,
    /// Software NIC only: rate of each device in bytes per second; 0: unlimited.
    pub software_bytes_per_second: u64,
    /// Over TCP only: the TCP port at which each device accepts connections of queue pairs, 1 to
    /// 65535, for firewalls. 0: the system chooses one. An address and port belong to one domain at
    /// a time.
    pub tcp_port: u32,
    /// Reserved; 0.
    pub reserved: u32,
    /// RDMA devices only, without `devices`: what the first devices are to be near to. "thread": the
    /// processors that the calling thread may use, unless they are those of all NUMA nodes; or the
    /// PCI address of a GPU, such as "0000:3b:00.0", in any notation of lspci, nvidia-smi and CUDA;
    /// or "nothing", so that devices are in the order of their names. NULL: "thread". The two ends
    /// may have different orders if one of them calls polyrail_peers_add_toward, which pairs devices
    /// by their networks; otherwise name the devices, or choose "nothing", at both ends. Do so, too,
    /// where networks do not show the pairs: each device has a network of its own, such as a /31 or
    /// /32; devices have link-local addresses only; several InfiniBand fabrics have the same subnet
    /// prefix; or a host has more than 8 usable devices, of which each end opens its nearest.
    pub near: *const c_char,
}

/// `gid_index` of the domain's options is used.
pub const POLYRAIL_DOMAIN_GID_INDEX: u32 = 1;

/// Requests of this side may write the memory: READs, receives, results of atomics.
pub const POLYRAIL_ACCESS_LOCAL_WRITE: u32 = 1 << 0;

/// Peers may write the memory. Requires POLYRAIL_ACCESS_LOCAL_WRITE.
pub const POLYRAIL_ACCESS_REMOTE_WRITE: u32 = 1 << 1;

/// Peers may read the memory.
pub const POLYRAIL_ACCESS_REMOTE_READ: u32 = 1 << 2;

/// Peers may execute atomics on the memory. Requires POLYRAIL_ACCESS_LOCAL_WRITE.
pub const POLYRAIL_ACCESS_REMOTE_ATOMIC: u32 = 1 << 3;

/// On-demand paging: pages are not pinned, and devices wait for missing pages.
pub const POLYRAIL_ACCESS_ON_DEMAND: u32 = 1 << 6;

/// Relaxed ordering: devices may write the memory in any order.
pub const POLYRAIL_ACCESS_RELAXED_ORDERING: u32 = 1 << 20;

/// For times in options: never.
pub const POLYRAIL_NEVER: u64 = u64::MAX;

/// How a receiver is notified that a WRITE_WITH_IMM has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum Scheme {
    /// SPRAY.
    Default = 0,
    /// A separate notification, which carries the immediate, once all data is acknowledged.
    Spray = 1,
    /// Numbered fragments. Over several rails, immediates of the user, SENDs and atomics are not
    /// supported.
    Dqplb = 2,
}

/// What the failure of a rail does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum RailFailure {
    /// It ends the connection.
    Default = 0,
    /// It ends the connection.
    Fatal = 1,
    /// Other rails take over, and no request is lost. The rail gets new queue pairs until it is
    /// back in service.
    Reroute = 2,
}

/// What decides how much of the data each rail carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum RailWeights {
    /// As POLYRAIL_RAIL_WEIGHTS_AUTO.
    Default = 0,
    /// As POLYRAIL_RAIL_WEIGHTS_RATES, if the rates of all ports that rails use are known and
    /// differ, else as POLYRAIL_RAIL_WEIGHTS_EQUAL.
    Auto = 1,
    /// Rails take turns, so each carries the same.
    Equal = 2,
    /// The rail that would finish first comes next: its outstanding bytes are divided by the rate of
    /// its port. If a rate is unknown, all rates count as equal.
    Rates = 3,
    /// As POLYRAIL_RAIL_WEIGHTS_RATES, with rates that are measured: the bytes that a rail completes
    /// in the time in which it has requests in flight. Only connections that reroute rails measure;
    /// others keep the rates of ports.
    Measured = 4,
}

/// Options of connections, for requests and for messages. Both ends need the same values, except
/// for options marked "May differ". `size` is sizeof; everything else may be 0. The call that takes
/// the options refuses values that cannot work on its devices.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct EndpointOptions {
    /// sizeof(polyrail_endpoint_options).
    pub size: u32,
    /// Rails, 1 to 8. 0: 4 for requests, 2 for messages. They use the devices of the domain in
    /// turn; devices beyond the number of rails carry nothing.
    pub rails: u32,
    /// A polyrail_scheme: 0 (SPRAY), POLYRAIL_SCHEME_SPRAY or POLYRAIL_SCHEME_DQPLB. Requests only.
    pub scheme: u32,
    /// Maximum length of a fragment in bytes, a multiple of 128. 0: 65536. Requests only. The
    /// smaller value of the two ends applies.
    pub max_msg_size: u32,
    /// Maximum number of outstanding requests on one queue pair. 0: 100. Requests only. May differ.
    pub max_msgs_per_qp: u32,
    /// A polyrail_rail_failure.
    pub rail_failure: u32,
    /// With rerouting: the connection fails if fewer rails are in service. 0: 1;
    /// POLYRAIL_NO_RAIL_NEEDED: without rails, it waits until one returns. May differ.
    pub min_rails: u32,
    /// Requests only, without rerouting: maximum length of an inline request in bytes. 0: 64. May
    /// differ.
    pub max_inline_data: u32,
    /// Path MTU in bytes: 256, 512, 1024, 2048 or 4096. 0: the MTU of the ports. May differ.
    pub path_mtu: u32,
    /// The acknowledgement timeout is 4.096 us * 2^timeout, 1 to 31. 0: 18. May differ.
    pub timeout: u32,
    /// Retries before an unanswered request fails, 1 to 7; POLYRAIL_NO_RETRY: none. 0: 7. May
    /// differ.
    pub retry_cnt: u32,
    /// Maximum number of outstanding READs and atomics in either direction. 0: 16. May differ.
    pub max_rd_atomic: u32,
    /// Index of the partition key in the port's table. May differ.
    pub pkey_index: u32,
    /// Service level, 0 to 15. May differ.
    pub service_level: u32,
    /// Traffic class, 0 to 255: on RoCE v2 the DSCP times 4, plus two bits for congestion marks.
    /// May differ.
    pub traffic_class: u32,
    /// Flow label, 20 bits. May differ.
    pub flow_label: u32,
    /// Hop limit of packets, 1 to 255. 0: 64. May differ.
    pub hop_limit: u32,
    /// POLYRAIL_ENDPOINT_ bits.
    pub flags: u32,
    /// Messages only: queue pairs of each rail and direction. 0: 1.
    pub queue_pairs_per_rail: u32,
    /// Messages only: longer buffers are split over rails, in bytes. 0: 65536. May differ.
    pub split_threshold: u32,
    /// With rerouting: a failed rail gets a new queue pair at once. If that fails, it is tried
    /// again after this many milliseconds, then at growing intervals. 0: 10. This and all following
    /// options may differ.
    pub heal_first_ms: u64,
    /// Maximum of these intervals, which double. 0: 5000.
    pub heal_longest_ms: u64,
    /// A rail fails that completes nothing for this time, with something in flight. If its oldest
    /// request takes a receive of the peer's (a SEND, a notification, a fragment of DQPLB), the
    /// peer may be late: then the rail fails only while other rails complete requests or have none.
    /// If the connection would fail without the rail, it stays until other requests have waited for
    /// rail_timeout_ms, too. 0: 10000; POLYRAIL_NEVER.
    pub stall_timeout_ms: u64,
    /// The connection fails after requests or messages have waited this long for rails that do not
    /// return, or that return but carry nothing. 0: 60000; POLYRAIL_NEVER.
    pub rail_timeout_ms: u64,
    /// The connection fails if the peer does not report within this time what arrived on a rail
    /// that failed. 0: 60000; POLYRAIL_NEVER.
    pub fence_timeout_ms: u64,
    /// A polyrail_rail_weights, for what this side sends.
    pub rail_weights: u32,
    /// With rerouting: how long what is in flight of a request that is taken back is awaited before
    /// the rails that carry it are fenced, in microseconds. 0: 500; POLYRAIL_NO_GRACE: not at all.
    pub cancel_grace_us: u32,
    /// Rates in Mbit/s of each port of the domain's devices, in the devices' order, that replace
    /// those of the ports; 0: the port's own. polyrail_domain_devices reports the sum over the
    /// ports of a device. Only the ratios matter.
    pub device_mbps: [u32; POLYRAIL_MAX_DEVICES],
}

/// For `min_rails`: no rail has to be in service.
pub const POLYRAIL_NO_RAIL_NEEDED: u32 = u32::MAX;

/// For `cancel_grace_us`: rails are fenced at once.
pub const POLYRAIL_NO_GRACE: u32 = u32::MAX;

/// For `retry_cnt`: no retries.
pub const POLYRAIL_NO_RETRY: u32 = u32::MAX;

/// Immediates are little endian on the wire, as the reference implementation sends them.
pub const POLYRAIL_ENDPOINT_LITTLE_ENDIAN_IMM: u32 = 1 << 0;

/// WRITEs and READs are reported as soon as they are done, not in posting order. May differ.
pub const POLYRAIL_ENDPOINT_REPORT_WHEN_DONE: u32 = 1 << 1;

/// SENDs and atomics may overtake WRITEs and READs that were posted before them. May differ.
pub const POLYRAIL_ENDPOINT_UNORDERED: u32 = 1 << 2;

/// Requests only: completions make a file descriptor readable, which waiting requires. The first
/// connection on a device decides for all connections there. May differ.
pub const POLYRAIL_ENDPOINT_EVENTS: u32 = 1 << 3;

/// Messages only: received messages can be flushed, which takes one more queue pair on each device.
/// May differ.
pub const POLYRAIL_ENDPOINT_FLUSHES: u32 = 1 << 4;

/// Options of links. `size` is sizeof; everything else may be 0.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct LinkOptions {
    /// sizeof(polyrail_link_options).
    pub size: u32,
    /// Milliseconds within which the TCP connection has to be established, also while this host has
    /// no file descriptor or thread for it. 0: 10000.
    pub connect_ms: u32,
    /// Milliseconds that the peer may take for one message, and for its part of connecting; this
    /// side begins to connect for four fifths of them while a port is down or no path to the peer
    /// is found. If the link breaks while the peer connects, the peer has up to `reconnect_ms`
    /// more. 0: 10000.
    pub message_ms: u32,
    /// Milliseconds within which a broken link has to be reconnected, at the address that answered
    /// or another one of the peer. Between two calls that drive the link, at most 500 ms are
    /// counted: a program that drives it once a second waits twice as long. 0: 60000.
    pub reconnect_ms: u32,
    /// A secret of at least 16 bytes that both sides must have; NULL: none is required. It is never
    /// sent.
    pub token: *const c_char,
}
