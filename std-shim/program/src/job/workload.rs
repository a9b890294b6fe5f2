//! The part of a measurement that both ends have to agree on.

use super::ring::Ring;
use polyrail::endpoint::{DEPTH, WRS};
use polyrail::virtual_qp::Scheme;
use serde::Serialize;

/// Size of the longest request in bytes. Each end keeps at least one request in memory.
pub const MAX_MESSAGE_SIZE: u32 = 256 << 20;

/// Size of an atomic in bytes.
pub const ATOMIC_SIZE: u32 = 8;

/// Largest window over a single rail, if its device allows it.
pub const MAX_IN_FLIGHT: u32 = 16_384;

/// Largest window over several rails: the number of requests that the engine tracks.
pub const MAX_IN_FLIGHT_OVER_RAILS: u32 = WRS as u32;

/// Largest size of a request that is sent inline in bytes: above the limit of any device.
pub const MAX_INLINE: u32 = 4096;

/// Largest size of the ring of one direction in bytes. If a window needs more, requests share
/// slots.
const MAX_RING_BYTES: usize = 256 << 20;

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// RDMA WRITE.
    Write,
    /// RDMA WRITE with immediate: the receiver is notified.
    WriteImm,
    /// RDMA READ.
    Read,
    /// SEND into a receive that the peer posted.
    Send,
    /// Message into a buffer that the receiver offered.
    P2p,
    /// Atomic: adds to 8 bytes, and fetches their old value.
    FetchAdd,
    /// Atomic: replaces 8 bytes if they equal an expected value, and fetches their old value.
    CompareSwap,
}

impl Operation {
    /// All operations.
    pub const ALL: [Self; 7] = [
        Self::Write,
        Self::WriteImm,
        Self::Read,
        Self::Send,
        Self::P2p,
        Self::FetchAdd,
        Self::CompareSwap,
    ];

    /// Returns the name, on the command line and in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::WriteImm => "write-imm",
            Self::Read => "read",
            Self::Send => "send",
            Self::P2p => "p2p",
            Self::FetchAdd => "fetch-add",
            Self::CompareSwap => "compare-swap",
        }
    }

    /// Returns the operation of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|operation| operation.name() == name)
    }

    /// Returns whether the scheme makes a difference: whether a receiver is notified.
    pub const fn has_scheme(self) -> bool {
        matches!(self, Self::WriteImm)
    }

    /// Returns `scheme` if it makes a difference over this number of rails.
    pub fn scheme_of(self, scheme: Scheme, rails: usize) -> Option<Scheme> {
        (self.has_scheme() && rails > 1).then_some(scheme)
    }

    /// Returns whether the other side notices requests, since they consume receives or offered
    /// buffers.
    pub const fn is_received(self) -> bool {
        matches!(self, Self::WriteImm | Self::Send | Self::P2p)
    }

    /// Returns whether this is an atomic, of [`ATOMIC_SIZE`] bytes.
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd | Self::CompareSwap)
    }

    /// Returns whether requests fetch bytes from the other side, so that each is a round trip by
    /// itself and needs no answer.
    pub const fn fetches(self) -> bool {
        self.is_atomic() || matches!(self, Self::Read)
    }

    /// Returns whether requests can be sent inline: whether they send bytes.
    pub const fn has_inline(self) -> bool {
        matches!(self, Self::Write | Self::WriteImm | Self::Send | Self::P2p)
    }
}

/// Options that are not valid for a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WorkloadError {
    /// A message size out of range.
    #[error("the request size is {0} bytes, but must be from 1 to {MAX_MESSAGE_SIZE}")]
    MessageSize(u32),
    /// A window out of range.
    #[error(
        "the window is {0} requests, but must be from 1 to {MAX_IN_FLIGHT} over one rail, and to \
         {MAX_IN_FLIGHT_OVER_RAILS} over several"
    )]
    Window(u32),
    /// The size of an atomic is not [`ATOMIC_SIZE`].
    #[error("the request size is {size} bytes, but {} always has {ATOMIC_SIZE}", .operation.name())]
    AtomicSize {
        /// The atomic.
        operation: Operation,
        /// The size that was requested.
        size: u32,
    },
    /// The latency of WRITEs that are split over rails cannot be measured.
    #[error(
        "cannot measure the latency of a write of {size} bytes over {rails} rails: it is split into \
         fragments of up to {max_msg_size} bytes, which arrive in any order, so the receiver cannot detect \
         the last one; choose write-imm, one rail or a larger --max-msg-size"
    )]
    SplitWrite {
        /// Bytes of a request.
        size: u32,
        /// Rails.
        rails: usize,
        /// Bytes of the longest fragment.
        max_msg_size: u32,
    },
    /// Requests that may have to be posted again cannot be inline.
    #[error(
        "cannot send requests inline over {rails} rails and reroute them: after posting, inline bytes are \
         no longer in memory to be posted again; choose --rail-failure fatal or one rail"
    )]
    InlineReroutes {
        /// Rails.
        rails: usize,
    },
    /// Only repair steps of rails that are rerouted measure rates.
    #[error(
        "cannot weigh rails by measured rates: only rails that are rerouted are measured, but p2p and \
         --rail-failure fatal do not reroute; choose another value of --rail-weights"
    )]
    MeasuredWeights,
    /// More inline bytes than any device supports.
    #[error("cannot send {0} bytes inline: the limit is {MAX_INLINE}")]
    Inline(u32),
    /// A measurement that is made in one direction only.
    #[error(
        "cannot measure latency or a timeline in both directions: --bidirectional measures throughput"
    )]
    OneDirection,
}

/// Equal requests, with a window of them in flight. Both ends compute their rings from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Workload {
    /// Kind of the requests.
    pub operation: Operation,
    /// Size of each request in bytes.
    pub message_size: u32,
    /// Requests in flight. If requests are answered, one is in flight, and this is the number of
    /// slots.
    pub window: u32,
    /// Whether the other side answers each request with an equal one before the next is posted.
    pub answered: bool,
    /// Whether both sides send at the same time.
    pub bidirectional: bool,
    /// Requests of up to this number of bytes are sent inline, if the operation allows it; 0: none.
    pub inline: u32,
}

impl Workload {
    /// Makes a workload in one direction, without answers and not inline.
    ///
    /// # Errors
    ///
    /// The size or window is 0 or too large, or the size of an atomic is not 8.
    pub fn new(
        operation: Operation,
        message_size: u32,
        window: u32,
    ) -> Result<Self, WorkloadError> {
        if !(1..=MAX_MESSAGE_SIZE).contains(&message_size) {
            return Err(WorkloadError::MessageSize(message_size));
        }
        if !(1..=MAX_IN_FLIGHT).contains(&window) {
            return Err(WorkloadError::Window(window));
        }
        if operation.is_atomic() && message_size != ATOMIC_SIZE {
            return Err(WorkloadError::AtomicSize { operation, size: message_size });
        }
        let (answered, bidirectional) = (false, false);
        Ok(Self { operation, message_size, window, answered, bidirectional, inline: 0 })
    }

    /// Returns the ring of one direction: a slot for each request in flight, within the limit of
    /// memory.
    const fn ring(&self) -> Ring {
        Ring::new(self.message_size as usize, self.window as usize, MAX_RING_BYTES)
    }

    /// Returns the number of slots of each ring.
    pub const fn slots(&self) -> usize {
        self.ring().slots()
    }

    /// Returns whether both sides post requests. If so, each side has a ring for its own requests,
    /// followed by a ring for the requests of the other side.
    const fn goes_both_ways(&self) -> bool {
        self.answered || self.bidirectional
    }

    /// Returns the size of all rings of a side in bytes.
    pub const fn ring_bytes(&self) -> usize {
        self.ring().bytes() * if self.goes_both_ways() { 2 } else { 1 }
    }

    /// Returns the offset of a request's slot in the memory of the side that posts it, in bytes.
    pub const fn slot(&self, request: u64) -> usize {
        self.ring().slot(request)
    }

    /// Returns the offset of a request's slot in the memory of the side that does not post it, in
    /// bytes.
    pub const fn far_slot(&self, request: u64) -> usize {
        let begin = if self.goes_both_ways() { self.ring().bytes() } else { 0 };
        begin + self.ring().slot(request)
    }

    /// Returns the last byte of an answered request. It differs from the last byte of the request
    /// before it in the same slot, and from the initial bytes of the rings, so a change shows that
    /// it has arrived.
    pub const fn stamp(&self, request: u64) -> u8 {
        const FIRST: u8 = 3;
        FIRST + (request / self.slots() as u64 % 250) as u8
    }

    /// Returns whether requests are sent inline.
    pub const fn is_inline(&self) -> bool {
        self.operation.has_inline() && self.message_size <= self.inline
    }

    /// Returns whether the far end notices and counts the requests of the near end.
    pub const fn is_noticed(&self) -> bool {
        self.answered || self.operation.is_received()
    }

    /// Returns the number of requests that the queues of a single rail have to hold.
    pub const fn queue_depth(&self) -> u32 {
        if self.window > DEPTH as u32 { self.window } else { DEPTH as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_hold_a_window_within_the_limit_of_memory() {
        let of = |message_size, window| {
            let workload = Workload::new(Operation::Write, message_size, window).unwrap();
            (workload.slots(), workload.ring_bytes())
        };
        assert_eq!(of(1, 128), (128, 128 * 128));
        assert_eq!(of(70_000, 8), (8, 8 * 70_016));
        assert_eq!(of(100 << 20, 8), (2, 200 << 20));
        assert_eq!(of(MAX_MESSAGE_SIZE, 8), (1, 256 << 20));
        let workload = Workload::new(Operation::Read, 129, 3).unwrap();
        assert_eq!([0, 1, 2, 3].map(|request| workload.slot(request)), [0, 256, 512, 0]);
    }

    #[test]
    fn impossible_numbers_are_refused() {
        let new = |size, window| Workload::new(Operation::Send, size, window);
        assert!(matches!(new(0, 8), Err(WorkloadError::MessageSize(0))));
        assert!(matches!(new(MAX_MESSAGE_SIZE + 1, 8), Err(WorkloadError::MessageSize(_))));
        assert!(matches!(new(1, 0), Err(WorkloadError::Window(0))));
        assert!(new(1, MAX_IN_FLIGHT).is_ok());
        let over = MAX_IN_FLIGHT + 1;
        assert_eq!(new(1, over), Err(WorkloadError::Window(over)));
        for operation in [Operation::FetchAdd, Operation::CompareSwap] {
            assert!(Workload::new(operation, 8, 1).is_ok());
            let refused = Err(WorkloadError::AtomicSize { operation, size: 16 });
            assert_eq!(Workload::new(operation, 16, 1), refused);
        }
    }

    #[test]
    fn requests_of_both_directions_use_different_memory() {
        let one_way = Workload::new(Operation::Write, 100, 3).unwrap();
        for answered in [false, true] {
            let bidirectional = !answered;
            let both_ways = Workload { answered, bidirectional, ..one_way };
            assert_eq!(both_ways.ring_bytes(), 2 * one_way.ring_bytes());
            for request in 0..7 {
                assert_eq!(one_way.far_slot(request), one_way.slot(request));
                assert_eq!(both_ways.slot(request), one_way.slot(request));
                let own = one_way.ring_bytes() + one_way.slot(request);
                assert_eq!(both_ways.far_slot(request), own);
            }
        }
    }

    /// A receiver that looks at memory takes nothing old for the request that it waits for.
    #[test]
    fn stamps_differ_from_those_before_them() {
        let workload = Workload::new(Operation::Write, 8, 3).unwrap();
        let filled = [1, 2];
        for request in 0..2000 {
            let stamp = workload.stamp(request);
            assert!(!filled.contains(&stamp));
            assert_ne!(stamp, workload.stamp(request + 3), "{request}");
        }
    }

    #[test]
    fn what_can_be_inline_is_if_it_is_short_enough() {
        for (operation, inline, expected) in [
            (Operation::Write, 64, true),
            (Operation::Send, 63, false),
            (Operation::WriteImm, 0, false),
            (Operation::Read, 64, false),
            (Operation::P2p, 64, true),
            (Operation::P2p, 63, false),
        ] {
            let workload = Workload::new(operation, 64, 1).unwrap();
            assert_eq!(Workload { inline, ..workload }.is_inline(), expected, "{operation:?}");
        }
    }

    #[test]
    fn names_lead_back() {
        for operation in Operation::ALL {
            assert_eq!(Operation::from_name(operation.name()), Some(operation));
        }
        assert_eq!(Operation::from_name("writes"), None);
    }
}
