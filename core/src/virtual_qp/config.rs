//! The configuration of a virtual queue pair, and the errors of building one.

use super::scheme::Scheme;
use crate::rail::{MAX_RAILS, RailId, RailSet};
use crate::verbs::{DeviceId, ImmOrder, ReportOrder};

/// Fragment boundaries fall on multiples of this many bytes: a cache line pair, and the
/// granularity of lengths in the p2p protocol.
pub const FRAGMENT_ALIGN: u32 = 128;

/// Which rail gets the next fragments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RailChoice {
    /// Round robin in an order that interleaves devices. A rail whose completion has just arrived
    /// comes first.
    #[default]
    RoundRobin,
    /// The rail with the earliest predicted finish time: outstanding bytes divided by bandwidth.
    LeastFinishTime {
        /// Bandwidth of each rail in Mbit/s. Only the ratios matter.
        bandwidth_mbps: [u32; MAX_RAILS],
    },
}

/// What happens to SENDs and atomics that are posted behind unfinished fragmented requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PassThroughOrder {
    /// They wait until earlier fragmented requests are acknowledged, as on a single reliable
    /// connection. Notifications of later requests wait for them; other later requests do not (see
    /// [Order](super::VirtualQp#order)).
    #[default]
    Ordered,
    /// They go to rail 0 at once and may overtake fragments on other rails. Notifications do not
    /// wait for them.
    Unordered,
}

/// What an error on one rail does to the virtual queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RailFailure {
    /// It puts the virtual queue pair into the error state, as it would a single connection.
    #[default]
    Fatal,
    /// The other rails post again what was lost, and a new queue pair may replace the failed one.
    /// Nothing is lost, and nothing is reported before the peer's queue pair is known to execute
    /// nothing more (see [Rails that fail](super::VirtualQp#rails-that-fail)). It needs several
    /// rails, and both ends must choose it.
    Reroute,
}

/// The configuration of a virtual queue pair. The defaults are those of the reference
/// implementation: SPRAY, and 100 messages for each queue pair.
///
/// ```
/// use polyrail_core::virtual_qp::{Config, Scheme};
///
/// let config = Config { scheme: Scheme::Dqplb, max_msg_size: 1 << 20, ..Config::default() };
/// assert_eq!(config.max_msgs_per_qp, 100);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The `qp_num` of its completions; unique among the virtual queue pairs of one virtual
    /// completion queue.
    pub virtual_qp_num: u32,
    /// How receivers are notified.
    pub scheme: Scheme,
    /// Longest fragment, in bytes; a multiple of [`FRAGMENT_ALIGN`]. 64 KiB by default: long
    /// enough that a NIC reaches its line rate, short enough that 1 MiB keeps 8 rails busy.
    pub max_msg_size: u32,
    /// Limit of the requests, and of the receives, that are outstanding on one physical queue pair.
    /// The depth of the queue pair and `DEPTH` limit them too, so `u32::MAX` means "the depth of
    /// the queue pair".
    pub max_msgs_per_qp: u32,
    /// Which rail gets the next fragments.
    pub rail_choice: RailChoice,
    /// Whether SENDs and atomics wait for earlier fragmented requests; by default they do.
    pub pass_through: PassThroughOrder,
    /// What an error on one rail does.
    pub rail_failure: RailFailure,
    /// With [`RailFailure::Reroute`]: the virtual queue pair enters the error state when fewer data
    /// rails than this are in service. With 0, requests wait for a rail, and the owner decides how
    /// long.
    pub min_rails: u8,
    /// Data rails that carry fragments only while no other data rail is in service, for example
    /// rails over a slower network. None by default. See [Standby
    /// rails](super::VirtualQp#standby-rails).
    pub standby: RailSet,
    /// The report order of requests that do not set [their
    /// own](crate::verbs::SendWr::report_order).
    pub report_order: ReportOrder,
    /// Byte order of users' immediates on the wire; both ends must agree. Sequence numbers of DQPLB
    /// are always little endian.
    pub imm_order: ImmOrder,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            virtual_qp_num: 0,
            scheme: Scheme::default(),
            max_msg_size: 64 << 10,
            max_msgs_per_qp: 100,
            rail_choice: RailChoice::default(),
            pass_through: PassThroughOrder::default(),
            rail_failure: RailFailure::default(),
            min_rails: 1,
            standby: RailSet::default(),
            report_order: ReportOrder::default(),
            imm_order: ImmOrder::default(),
        }
    }
}

/// A virtual queue pair could not be built. The physical ones given are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// No rail was given.
    #[error("a virtual queue pair needs at least one rail")]
    NoRails,
    /// More rails than the type holds.
    #[error("too many rails: the limit is {max}")]
    TooManyRails {
        /// The const parameter `RAILS`.
        max: usize,
    },
    /// The fragment size is not a positive multiple of [`FRAGMENT_ALIGN`].
    #[error("max_msg_size {bytes} is not a positive multiple of {FRAGMENT_ALIGN} bytes")]
    MaxMsgSize {
        /// The requested value.
        bytes: u32,
    },
    /// The fragment size exceeds the longest message of a rail.
    #[error("max_msg_size {bytes} exceeds the {limit} bytes that rail {rail} can carry")]
    RailMsgSize {
        /// The rail.
        rail: u8,
        /// The requested value.
        bytes: u32,
        /// The rail's limit.
        limit: u32,
    },
    /// [`Config::max_msgs_per_qp`] is 0.
    #[error("max_msgs_per_qp is 0, so no request could be posted")]
    NoMessages,
    /// A send queue or receive queue has depth 0.
    #[error("{} of queue pair {qp_num} has depth 0", if *.send { "the send queue" } else { "the receive queue" })]
    NoRoom {
        /// The physical queue pair.
        qp_num: u32,
        /// True: its send queue. False: its receive queue.
        send: bool,
    },
    /// The same physical queue pair was given twice.
    #[error("queue pair {qp_num} of device {} was given twice", device.0)]
    Duplicate {
        /// Its device.
        device: DeviceId,
        /// Its number.
        qp_num: u32,
    },
    /// A notify queue pair where none is used: DQPLB, or a single rail.
    #[error("only SPRAY over several rails uses a notify queue pair")]
    UnexpectedNotify,
    /// [`RailFailure::Reroute`] over one rail.
    #[error("a single rail cannot be re-routed: there is no other rail")]
    NothingToRerouteTo,
    /// [`Config::min_rails`] exceeds the number of rails.
    #[error("min_rails is {min_rails}, but there are only {rails} rails")]
    MinRails {
        /// The requested value.
        min_rails: u8,
        /// Rails given.
        rails: usize,
    },
    /// Rail 0 is in [`Config::standby`]: no other rail carries SENDs, atomics and receives with
    /// buffers, so rail 0 cannot be kept free.
    #[error("rail 0 cannot be a standby rail, because only rail 0 carries SENDs and atomics")]
    StandbyRail0,
    /// A rail in [`Config::standby`] is not a data rail of this virtual queue pair.
    #[error("{rail} cannot be a standby rail: there are {rails} data rails, counted from 0")]
    StandbyRail {
        /// The rail.
        rail: RailId,
        /// Number of data rails.
        rails: usize,
    },
    /// [`RailFailure::Reroute`] with a queue pair that uses a shared receive queue: without
    /// receives of the queue pair itself, a flush does not show that all its completions have been
    /// polled.
    #[error("queue pair {qp_num} uses a shared receive queue, so it cannot be re-routed")]
    SharedReceives {
        /// The physical queue pair.
        qp_num: u32,
    },
    /// Least finish time needs to know every rail's bandwidth.
    #[error("the bandwidth of rail {rail} is 0")]
    Bandwidth {
        /// The rail.
        rail: u8,
    },
}

/// The fragment size of the peer cannot be used here; nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FragmentSizeError {
    /// The size is below [`FRAGMENT_ALIGN`].
    #[error("a fragment size of {bytes} bytes is less than the smallest, {FRAGMENT_ALIGN} bytes")]
    TooShort {
        /// Fragment size of the peer.
        bytes: u32,
    },
    /// Unreported requests were cut with the old size.
    #[error(
        "the fragment size cannot change while requests are unreported: poll until all are reported"
    )]
    InUse,
}
