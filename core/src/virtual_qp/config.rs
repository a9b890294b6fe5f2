//! What a virtual queue pair is told when it is built.

use super::scheme::Scheme;
use crate::rail::MAX_RAILS;
use crate::verbs::{DeviceId, ImmOrder, ReportOrder};

/// Fragment boundaries fall on multiples of this many bytes: a cache line pair, and the
/// granularity of lengths in the p2p protocol.
pub const FRAGMENT_ALIGN: u32 = 128;

/// Which rail gets the next fragments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RailChoice {
    /// One after the other, a rail that was just freed first, devices interleaved.
    #[default]
    RoundRobin,
    /// The rail that would be done with them first: outstanding bytes over bandwidth.
    LeastFinishTime {
        /// Bandwidth of each rail in Mbit/s. Only the ratios matter.
        bandwidth_mbps: [u32; MAX_RAILS],
    },
}

/// What happens to SENDs and atomics that are posted behind unfinished fragmented requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PassThroughOrder {
    /// They wait until those are acknowledged, as a single reliable connection has it, and
    /// notifications of what is posted behind them wait for them. Other requests behind them do not
    /// wait: see [Order](super::VirtualQp#order).
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
    /// The other rails go on, and post what was lost again; a new queue pair may take the place of the one
    /// that failed. Nothing is lost, and nothing reported before the peer's queue pair is known to carry
    /// out nothing more: see [Rails that fail](super::VirtualQp#rails-that-fail). Over several rails, and
    /// both ends must choose it.
    Reroute,
}

/// Everything that can be chosen about a virtual queue pair, with the reference implementation's
/// defaults: SPRAY, 100 messages a queue pair.
///
/// ```
/// use polyrail_core::virtual_qp::{Config, Scheme};
///
/// let config = Config { scheme: Scheme::Dqplb, max_msg_size: 1 << 20, ..Config::default() };
/// assert_eq!(config.max_msgs_per_qp, 100);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The number that its completions carry; of those on one virtual completion queue, each has
    /// its own.
    pub virtual_qp_num: u32,
    /// How receivers are notified.
    pub scheme: Scheme,
    /// Longest fragment, in bytes; a multiple of [`FRAGMENT_ALIGN`]. 64 KiB by default: long
    /// enough that a NIC reaches its line rate, short enough that 1 MiB keeps 8 rails busy.
    pub max_msg_size: u32,
    /// Most requests, and most receives, that are outstanding on one physical queue pair. What
    /// it was granted and `DEPTH` bound it too, so `u32::MAX` means "the queue pair's own depth".
    pub max_msgs_per_qp: u32,
    /// Which rail gets the next fragments.
    pub rail_choice: RailChoice,
    /// Whether SENDs and atomics stay behind earlier fragmented requests.
    pub pass_through: PassThroughOrder,
    /// What an error on one rail does.
    pub rail_failure: RailFailure,
    /// With [`RailFailure::Reroute`]: with fewer data rails in service than this, the virtual queue pair is
    /// in the error state at once. With 0, requests wait for a rail for as long as its owner likes.
    pub min_rails: u8,
    /// When requests are reported that do not choose [themselves](crate::verbs::SendWr::report_order).
    pub report_order: ReportOrder,
    /// How users' immediates travel; the same at both ends. DQPLB's sequence numbers have an order of
    /// their own.
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
            report_order: ReportOrder::default(),
            imm_order: ImmOrder::default(),
        }
    }
}

/// A virtual queue pair could not be built. The physical ones given are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// There must be a rail.
    #[error("a virtual queue pair needs at least one rail")]
    NoRails,
    /// More rails than the type holds.
    #[error("more than {max} rails")]
    TooManyRails {
        /// The const parameter `RAILS`.
        max: usize,
    },
    /// A fragment size that cannot be.
    #[error("max_msg_size {bytes} is not a positive multiple of {FRAGMENT_ALIGN} bytes")]
    MaxMsgSize {
        /// What was asked for.
        bytes: u32,
    },
    /// A fragment size that a rail cannot carry.
    #[error("max_msg_size {bytes} exceeds the {limit} bytes that rail {rail} can carry")]
    RailMsgSize {
        /// The rail.
        rail: u8,
        /// What was asked for.
        bytes: u32,
        /// The rail's limit.
        limit: u32,
    },
    /// [`Config::max_msgs_per_qp`] lets no request through.
    #[error("max_msgs_per_qp is 0, so that no request could ever be posted")]
    NoMessages,
    /// No request could ever be posted.
    #[error("{} of queue pair {qp_num} may hold no request at all", if *.send { "the send queue" } else { "the receive queue" })]
    NoRoom {
        /// The physical queue pair.
        qp_num: u32,
        /// Its send queue, or its receive queue.
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
    #[error("a notify queue pair is for SPRAY over several rails only")]
    UnexpectedNotify,
    /// [`RailFailure::Reroute`] over one rail.
    #[error("one rail alone cannot be re-routed")]
    NothingToRerouteTo,
    /// [`Config::min_rails`] asks for more rails than there are.
    #[error("min_rails is {min_rails} of {rails} rails")]
    MinRails {
        /// What was asked for.
        min_rails: u8,
        /// Rails given.
        rails: usize,
    },
    /// [`RailFailure::Reroute`] with a queue pair whose receives come from a shared receive queue: nobody
    /// could tell what arrived.
    #[error("queue pair {qp_num} has no receives of its own, so it cannot be re-routed")]
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

/// Fragments cannot be as short as the peer's are; nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FragmentSizeError {
    /// There are no fragments as short.
    #[error("fragments of up to {bytes} bytes, where the shortest limit is {FRAGMENT_ALIGN} bytes")]
    TooShort {
        /// What the peer asks for.
        bytes: u32,
    },
    /// Requests that were posted before are cut already.
    #[error("there are requests that were posted before the peer's fragment size was known")]
    InUse,
}
