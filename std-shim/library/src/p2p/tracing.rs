//! What tells a connection from others in what `tracing` is told.

use super::message::End;
use crate::trace::MessageEnd;

/// What tells a connection from others, and what was told of it.
#[derive(Debug)]
pub(super) struct Tracing {
    /// Number of the first queue pair that it was made with.
    pub(super) qp: u32,
    /// That the end that sends failed, and the one that receives.
    pub(super) is_end_told: [bool; 2],
}

impl Tracing {
    pub(super) const fn new(qp: u32) -> Self {
        Self { qp, is_end_told: [false; 2] }
    }

    pub(super) const fn end(&self, end: End) -> MessageEnd {
        let name = match end {
            End::Sender => "sender",
            End::Receiver => "receiver",
        };
        MessageEnd { qp: self.qp, end: name }
    }
}
