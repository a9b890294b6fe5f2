//! What events said of the end of a queue pair's receives.

use crate::event::AsyncEvent;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether events said that a queue pair took its last receive from a shared receive queue.
#[derive(Debug, Default)]
pub(crate) struct ReceiveEnd(AtomicBool);

impl ReceiveEnd {
    /// Takes note of an event of the queue pair.
    pub(crate) fn hear(&self, event: &AsyncEvent) {
        if matches!(event, AsyncEvent::LastWqeReached { .. }) {
            self.0.store(true, Ordering::Release);
        }
    }

    /// Whether the event was read.
    pub(crate) fn is_reached(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
