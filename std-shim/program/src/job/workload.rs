//! What is measured, as far as both ends have to know.

use super::plan::MAX_WINDOW;
use super::ring::Ring;
use polyrail::virtual_qp::Scheme;
use serde::Serialize;

/// Size of the longest request in bytes: either end keeps at least one in memory.
pub const MAX_MESSAGE_SIZE: u32 = 256 << 20;

/// Largest size of either ring in bytes. If a window needs more, requests share slots.
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
}

impl Operation {
    /// All operations.
    pub const ALL: [Self; 5] = [Self::Write, Self::WriteImm, Self::Read, Self::Send, Self::P2p];

    /// Returns its name, on the command line and between two hosts.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::WriteImm => "write-imm",
            Self::Read => "read",
            Self::Send => "send",
            Self::P2p => "p2p",
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
}

/// Numbers that are not valid for a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WorkloadError {
    /// A message size out of range.
    #[error("requests of {0} bytes: the size must be from 1 to {MAX_MESSAGE_SIZE}")]
    MessageSize(u32),
    /// A window out of range.
    #[error("a window of {0} requests: it must be from 1 to {MAX_WINDOW}")]
    Window(u32),
    /// An answer to what the other side does not notice.
    #[error("the other side does not notice a {}, and so answers none", .0.name())]
    Unnoticed(Operation),
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
}

impl Workload {
    /// Makes a workload without answers, if the numbers are valid.
    ///
    /// # Errors
    ///
    /// A size or window is 0 or too large.
    pub fn new(
        operation: Operation,
        message_size: u32,
        window: u32,
    ) -> Result<Self, WorkloadError> {
        if !(1..=MAX_MESSAGE_SIZE).contains(&message_size) {
            return Err(WorkloadError::MessageSize(message_size));
        }
        if !(1..=MAX_WINDOW).contains(&window) {
            return Err(WorkloadError::Window(window));
        }
        Ok(Self { operation, message_size, window, answered: false })
    }

    /// Returns the ring at either end: a slot for each request in flight, as far as there is memory.
    const fn ring(&self) -> Ring {
        Ring::new(self.message_size as usize, self.window as usize, MAX_RING_BYTES)
    }

    /// Returns how many slots either ring has.
    pub const fn slots(&self) -> usize {
        self.ring().slots()
    }

    /// Returns the size of either ring in bytes.
    pub const fn ring_bytes(&self) -> usize {
        self.ring().bytes()
    }

    /// Returns the offset of a request's slot in the ring, in bytes.
    pub const fn slot(&self, request: u64) -> usize {
        self.ring().slot(request)
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
        assert!(matches!(new(1, 129), Err(WorkloadError::Window(129))));
    }

    #[test]
    fn names_lead_back() {
        for operation in Operation::ALL {
            assert_eq!(Operation::from_name(operation.name()), Some(operation));
        }
        assert_eq!(Operation::from_name("writes"), None);
    }
}
