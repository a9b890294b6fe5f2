//! Events about the last receive of a queue pair.

use crate::event::AsyncEvent;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether an event reported that a queue pair took its last receive from a shared receive queue.
#[derive(Debug, Default)]
pub(crate) struct ReceiveEnd(AtomicBool);

impl ReceiveEnd {
    /// Records an event of the queue pair.
    pub(crate) fn record(&self, event: &AsyncEvent) {
        if matches!(event, AsyncEvent::LastWqeReached { .. }) {
            self.0.store(true, Ordering::Release);
        }
    }

    /// Whether the event was recorded.
    pub(crate) fn is_reached(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
