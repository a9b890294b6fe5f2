//! Asynchronous events of a device (`ibv_get_async_event`).

use polyrail_core::hardware::CqId;
use std::collections::VecDeque;

/// Something that happened without a request's completion to report it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A port went down.
    PortError {
        /// Its number, from 1 on.
        port: u8,
    },
    /// A port came up.
    PortActive {
        /// Its number, from 1 on.
        port: u8,
    },
    /// A completion queue overran and is broken.
    CqError {
        /// The queue.
        cq: CqId,
    },
    /// A queue pair in SQD has nothing under way any more.
    SqDrained {
        /// The queue pair.
        qp_num: u32,
    },
    /// A peer's request broke the rules, and the queue pair is in ERR.
    QpAccessError {
        /// The queue pair.
        qp_num: u32,
    },
    /// A shared receive queue fell below its limit; the limit is disarmed.
    SrqLimitReached,
    /// The device is gone.
    DeviceFatal,
}

/// Events that were not read yet. Bounded, so that an owner that never reads costs nothing: the oldest
/// are dropped.
#[derive(Debug)]
pub(crate) struct EventQueue(VecDeque<AsyncEvent>);

impl EventQueue {
    const CAPACITY: usize = 256;

    pub(crate) fn new() -> Self {
        Self(VecDeque::with_capacity(Self::CAPACITY))
    }

    pub(crate) fn push(&mut self, event: AsyncEvent) {
        if self.0.len() == Self::CAPACITY {
            self.0.pop_front();
        }
        self.0.push_back(event);
    }

    pub(crate) fn pop(&mut self) -> Option<AsyncEvent> {
        self.0.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unread_events_are_bounded_and_the_newest_are_kept() {
        let mut events = EventQueue::new();
        for port in 0..=255 {
            events.push(AsyncEvent::PortError { port });
        }
        events.push(AsyncEvent::DeviceFatal);
        assert_eq!(events.pop(), Some(AsyncEvent::PortError { port: 1 }));
        assert_eq!(std::iter::from_fn(|| events.pop()).last(), Some(AsyncEvent::DeviceFatal));
    }
}
