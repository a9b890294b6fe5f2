//! What is measured, as far as both ends have to know.

use super::ring::Ring;
use polyrail::endpoint::{DEPTH, WRS};
use polyrail::virtual_qp::Scheme;
use serde::Serialize;

/// Size of the longest request in bytes: either end keeps at least one in memory.
pub const MAX_MESSAGE_SIZE: u32 = 256 << 20;

/// Size of an atomic in bytes.
pub const ATOMIC_SIZE: u32 = 8;

/// Requests that may be in flight at once over a single rail, if its device takes them.
pub const MAX_IN_FLIGHT: u32 = 16_384;

/// Requests that may be in flight at once over several rails: as many as the engine keeps count of.
pub const MAX_IN_FLIGHT_OVER_RAILS: u32 = WRS as u32;

/// Bytes that a request can carry inline: more than any device takes.
pub const MAX_INLINE: u32 = 4096;

/// Largest size of the ring of either way in bytes. If a window needs more, requests share slots.
const MAX_RING_BYTES: usize = 256 << 20;

/// What a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// RDMA WRITE.
    Write,
    /// RDMA WRITE with immediate, notification received.
    WriteImm,
    /// RDMA READ.
    Read,
    /// SEND, received into a buffer.
    Send,
    /// A message between endpoints for messages, sent to a buffer that the receiver has offered.
    P2p,
    /// Atomic: adds to 8 bytes, and fetches what they were.
    FetchAdd,
    /// Atomic: compares 8 bytes, replaces them if they are equal, and fetches what they were.
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

    /// Returns its name, on the command line and between two hosts.
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

    /// Returns whether the scheme, which is how a receiver is notified, makes a difference.
    pub const fn has_scheme(self) -> bool {
        matches!(self, Self::WriteImm)
    }

    /// Returns the scheme of requests over this number of rails, if it makes a difference.
    pub fn scheme_of(self, scheme: Scheme, rails: usize) -> Option<Scheme> {
        (self.has_scheme() && rails > 1).then_some(scheme)
    }

    /// Returns whether the other side posts receives for it, or offers buffers, and so notices it.
    pub const fn is_received(self) -> bool {
        matches!(self, Self::WriteImm | Self::Send | Self::P2p)
    }

    /// Returns whether it is an atomic, which has [`ATOMIC_SIZE`] bytes.
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd | Self::CompareSwap)
    }

    /// Returns whether it fetches bytes from the other side: then a request is a round trip by itself, and is not
    /// answered by another one.
    pub const fn fetches(self) -> bool {
        self.is_atomic() || matches!(self, Self::Read)
    }

    /// Returns whether its bytes can be inline: those of a request, or of messages, that send some.
    pub const fn has_inline(self) -> bool {
        matches!(self, Self::Write | Self::WriteImm | Self::Send | Self::P2p)
    }
}

/// Numbers that are not valid for a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WorkloadError {
    /// A message size out of range.
    #[error("requests of {0} bytes: the size must be from 1 to {MAX_MESSAGE_SIZE}")]
    MessageSize(u32),
    /// A window out of range.
    #[error(
        "a window of {0} requests: it must be from 1 to {MAX_IN_FLIGHT}, and over several rails to \
         {MAX_IN_FLIGHT_OVER_RAILS}"
    )]
    Window(u32),
    /// Atomics of another size than they have.
    #[error("a {} of {size} bytes: it always has {ATOMIC_SIZE}", .operation.name())]
    AtomicSize {
        /// Which.
        operation: Operation,
        /// What was asked for.
        size: u32,
    },
    /// The latency of WRITEs that are split: nobody knows when all of one is there.
    #[error(
        "a write of {size} bytes over {rails} rails is split into fragments of up to {max_msg_size}, which arrive in \
         any order: its receiver cannot see that all are there; measure write-imm, one rail or longer fragments"
    )]
    SplitWrite {
        /// Bytes of a request.
        size: u32,
        /// Rails.
        rails: usize,
        /// Bytes of the longest fragment.
        max_msg_size: u32,
    },
    /// Inline bytes of requests that may have to be posted again.
    #[error(
        "requests inline over {rails} rails: bytes that are gone when a request is posted cannot be posted again \
         when a rail fails; let a rail's failure end it (fatal), or take one rail"
    )]
    InlineReroutes {
        /// Rails.
        rails: usize,
    },
    /// More inline bytes than any device takes.
    #[error("{0} bytes inline: no device takes more than {MAX_INLINE}")]
    Inline(u32),
    /// Both directions, of what is measured in one.
    #[error("both directions at once are measured by their throughput only, in rounds")]
    OneDirection,
}

/// Requests that are all alike, with a window of them in flight. Both ends compute their rings from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Workload {
    /// What they are.
    pub operation: Operation,
    /// Size of each in bytes.
    pub message_size: u32,
    /// Requests in flight; if each is answered, one is, and this is how many an end has room for.
    pub window: u32,
    /// Whether the other side answers each with one of its own, before the next.
    pub answered: bool,
    /// Whether the other side sends as well, at the same time.
    pub bidirectional: bool,
    /// Requests of at most so many bytes carry them inline, if they can; 0: none.
    pub inline: u32,
}

impl Workload {
    /// Makes a workload in one direction, without answers and nothing inline, if the numbers are valid.
    ///
    /// # Errors
    ///
    /// A size or window is 0 or too large, or an atomic has another size than 8.
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

    /// Returns the ring of one way: a slot for each request in flight, as far as there is memory.
    const fn ring(&self) -> Ring {
        Ring::new(self.message_size as usize, self.window as usize, MAX_RING_BYTES)
    }

    /// Returns how many slots either ring has.
    pub const fn slots(&self) -> usize {
        self.ring().slots()
    }

    /// Returns whether both sides post requests: then either has a ring for its own, and one behind it for those
    /// of the other.
    const fn goes_both_ways(&self) -> bool {
        self.answered || self.bidirectional
    }

    /// Returns the size of all rings of either side in bytes.
    pub const fn ring_bytes(&self) -> usize {
        self.ring().bytes() * if self.goes_both_ways() { 2 } else { 1 }
    }

    /// Returns the offset of the slot of a request of this side in this side's memory, in bytes.
    pub const fn slot(&self, request: u64) -> usize {
        self.ring().slot(request)
    }

    /// Returns the offset of a request's slot in the memory of the side that does not post it, in bytes.
    pub const fn far_slot(&self, request: u64) -> usize {
        let begin = if self.goes_both_ways() { self.ring().bytes() } else { 0 };
        begin + self.ring().slot(request)
    }

    /// Returns what the last byte of an answered request is: not that of the one before it in its slot, nor what the
    /// rings are filled with.
    pub const fn stamp(&self, request: u64) -> u8 {
        const FIRST: u8 = 3;
        FIRST + (request / self.slots() as u64 % 250) as u8
    }

    /// Returns whether its requests carry their bytes inline.
    pub const fn is_inline(&self) -> bool {
        self.operation.has_inline() && self.message_size <= self.inline
    }

    /// Returns whether the other side counts the requests of the side that asks.
    pub const fn is_noticed(&self) -> bool {
        self.answered || self.operation.is_received()
    }

    /// Returns how many requests a queue pair of a single rail has to hold, either way.
    pub const fn queue_depth(&self) -> u32 {
        if self.window > DEPTH as u32 { self.window } else { DEPTH as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_hold_a_window_or_what_there_is_memory_for() {
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
    fn requests_of_either_way_have_places_of_their_own() {
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
