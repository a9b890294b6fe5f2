//! What happens to a device, for many readers, although a context has one queue of events and gives each
//! event once.

use crate::backend::{DeviceEvent, EventCursor, EventLog};
use polyrail_ffi::{AsyncEvent, Context};
use std::sync::{Mutex, PoisonError, TryLockError};

/// Events kept for readers who have not asked for a while. When many queue pairs fail together, each may have
/// one of its own, and they should not push out that the port went down.
const KEPT: usize = 1024;

/// An event, with the `user_context` of the object that it names.
pub(super) type Event = (AsyncEvent, usize);

/// The events of one context. Whoever reads takes from the context's queue what others read later.
#[derive(Debug)]
pub(super) struct Events {
    log: EventLog<Event>,
    /// Held from taking an event until it is in the log: the log's order is the queue's.
    order: Mutex<()>,
}

impl Events {
    pub(super) fn new() -> Self {
        Self { log: EventLog::new(KEPT), order: Mutex::default() }
    }

    /// Behind what is in the queue: it happened before.
    pub(super) fn cursor(&self, mut queue: impl FnMut() -> Option<Event>) -> EventCursor {
        let _order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(event) = queue() {
            self.log.push(event);
        }
        self.log.cursor()
    }

    /// The oldest event that this reader has not seen. `queue` takes the context's next event.
    pub(super) fn next(
        &self,
        reader: &mut EventCursor,
        queue: impl FnOnce() -> Option<Event>,
    ) -> Option<Event> {
        self.log.next(reader).or_else(|| {
            self.take(queue);
            self.log.next(reader)
        })
    }

    /// Moves one event to the log, unless somebody else is at it: a reader does not wait.
    fn take(&self, queue: impl FnOnce() -> Option<Event>) {
        let order = self.order.try_lock();
        if matches!(order, Err(TryLockError::WouldBlock)) {
            return;
        }
        if let Some(event) = queue() {
            self.log.push(event);
        }
    }
}

/// The next event of a context's queue. One that cannot be read has none: if its device was removed, an
/// event has said so.
pub(super) fn take_event(context: &Context) -> Option<Event> {
    context.next_event_and_user_context().ok().flatten()
}

/// What an event means to endpoints. What breaks queues, they learn from completions.
pub(super) fn meaning((event, _): Event) -> Option<DeviceEvent> {
    match event {
        AsyncEvent::PortError { port } => Some(DeviceEvent::PortDown { port }),
        // Queue pairs made before a change of address or partition reach nobody; new ones may.
        AsyncEvent::PortActive { port }
        | AsyncEvent::GidChange { port }
        | AsyncEvent::LidChange { port }
        | AsyncEvent::PkeyChange { port } => Some(DeviceEvent::PortUp { port }),
        AsyncEvent::DeviceFatal => Some(DeviceEvent::Gone),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;
    use std::iter::from_fn;
    use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
    use std::thread;

    const DOWN: Event = (AsyncEvent::PortError { port: 1 }, 0);
    const UP: Event = (AsyncEvent::PortActive { port: 1 }, 0);

    #[test]
    fn a_reader_takes_from_the_queue_what_the_others_see_as_well() {
        let mut queue = VecDeque::from([DOWN]);
        let events = Events::new();
        let mut first = events.cursor(|| queue.pop_front());
        let mut second = first.clone();
        assert_eq!(events.next(&mut first, || queue.pop_front()), None, "it happened before");
        queue.extend([DOWN, UP]);
        let all = [Some(DOWN), Some(UP), None];
        assert_eq!([(); 3].map(|()| events.next(&mut first, || queue.pop_front())), all);
        assert_eq!([(); 3].map(|()| events.next(&mut second, || queue.pop_front())), all);
        queue.push_back(UP);
        let mut third = events.cursor(|| queue.pop_front());
        assert_eq!(events.next(&mut third, || queue.pop_front()), None);
        assert_eq!(events.next(&mut first, || queue.pop_front()), Some(UP));
    }

    #[test]
    fn who_reads_nothing_for_long_misses_the_oldest() {
        let mut queue: VecDeque<_> = (0..KEPT + 3).map(|n| (DOWN.0, n)).collect();
        let events = Events::new();
        let mut behind = EventCursor::default();
        events.cursor(|| queue.pop_front());
        let seen: Vec<_> = from_fn(|| events.next(&mut behind, || None)).map(|(_, n)| n).collect();
        assert_eq!(seen, (3..KEPT + 3).collect::<Vec<_>>());
    }

    #[test]
    fn events_stay_in_order_however_many_take_them() {
        let source = AtomicU8::new(0);
        let take = || {
            let port = source.fetch_update(Relaxed, Relaxed, |port| port.checked_add(1)).ok()?;
            // Whoever took an event may be slow to log it.
            thread::yield_now();
            Some((AsyncEvent::PortError { port }, 0))
        };
        let events = Events::new();
        let read = || {
            let mut reader = EventCursor::default();
            let mut ports = Vec::new();
            while ports.len() < 255 {
                match events.next(&mut reader, take) {
                    Some((AsyncEvent::PortError { port }, _)) => ports.push(port),
                    _ => thread::yield_now(),
                }
            }
            ports
        };
        thread::scope(|scope| {
            let readers = [(); 3].map(|()| scope.spawn(read));
            for reader in readers {
                assert_eq!(reader.join().unwrap(), (0..255).collect::<Vec<_>>());
            }
        });
    }

    #[test]
    fn who_takes_an_event_keeps_nobody_waiting() {
        let events = Events::new();
        let mut first = EventCursor::default();
        let mut second = EventCursor::default();
        let taken = events.next(&mut first, || {
            assert_eq!(events.next(&mut second, || panic!("two at the queue")), None);
            Some(DOWN)
        });
        assert_eq!((taken, events.next(&mut second, || None)), (Some(DOWN), Some(DOWN)));
    }

    #[test]
    fn ports_and_the_device_concern_endpoints() {
        let port = 2;
        let up = Some(DeviceEvent::PortUp { port });
        for (event, expected) in [
            (AsyncEvent::PortError { port }, Some(DeviceEvent::PortDown { port })),
            (AsyncEvent::PortActive { port }, up),
            (AsyncEvent::GidChange { port }, up),
            (AsyncEvent::LidChange { port }, up),
            (AsyncEvent::PkeyChange { port }, up),
            (AsyncEvent::DeviceFatal, Some(DeviceEvent::Gone)),
            (AsyncEvent::SmChange { port }, None),
            (AsyncEvent::ClientReregister { port }, None),
            (AsyncEvent::QpFatal { qp_num: 17 }, None),
            (AsyncEvent::Other(99), None),
        ] {
            assert_eq!(meaning((event, 7)), expected, "{event:?}");
        }
    }
}
