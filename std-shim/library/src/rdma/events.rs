//! Distributes the events of a device to many readers: a context has one event queue, which returns
//! each event once.

use crate::backend::{DeviceEvent, EventCursor, EventLog};
use polyrail_ffi::{AsyncEvent, Context};
use polyrail_process::Process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};

/// Number of events kept for slow readers. If many queue pairs fail together, each may raise an
/// event, and these should not displace the event of the failed port.
const KEPT: usize = 1024;

/// An event, with the `user_context` of the object that it names.
pub(super) type Event = (AsyncEvent, usize);

/// The events of one context. Each reader also takes events from the context's queue for the other
/// readers.
#[derive(Debug)]
pub(super) struct Events {
    log: EventLog<Event>,
    /// Held from taking an event until it is in the log, so that the log has the order of the
    /// queue.
    order: Mutex<()>,
    /// Whether the log has had an event that the device is gone.
    is_gone: AtomicBool,
    /// A fork takes no lock, which another thread may have held, and sees no events.
    process: Process,
}

impl Events {
    pub(super) fn new() -> Self {
        Self {
            log: EventLog::new(KEPT),
            order: Mutex::default(),
            is_gone: AtomicBool::new(false),
            process: Process::current(),
        }
    }

    /// Returns a cursor after all queued events, since these happened earlier.
    pub(super) fn cursor(&self, mut queue: impl FnMut() -> Option<Event>) -> EventCursor {
        let _order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(event) = queue() {
            self.push(event);
        }
        self.log.cursor()
    }

    /// Whether the device has reported its end, by an event that was read or by one that is queued.
    pub(super) fn is_gone(&self, queue: impl FnMut() -> Option<Event>) -> bool {
        if !self.process.is_current() {
            return false;
        }
        self.cursor(queue);
        self.is_gone.load(Ordering::Relaxed)
    }

    fn push(&self, event: Event) {
        if event.0 == AsyncEvent::DeviceFatal {
            self.is_gone.store(true, Ordering::Relaxed);
        }
        self.log.push(event);
    }

    /// Returns the oldest event that this reader has not read. `queue` takes the context's next
    /// event.
    pub(super) fn next(
        &self,
        reader: &mut EventCursor,
        queue: impl FnOnce() -> Option<Event>,
    ) -> Option<Event> {
        if !self.process.is_current() {
            return None;
        }
        self.log.next(reader).or_else(|| {
            self.take(queue);
            self.log.next(reader)
        })
    }

    /// Moves one event to the log, unless another thread does so already: a reader does not block.
    fn take(&self, queue: impl FnOnce() -> Option<Event>) {
        let order = self.order.try_lock();
        if matches!(order, Err(TryLockError::WouldBlock)) {
            return;
        }
        if let Some(event) = queue() {
            self.push(event);
        }
    }
}

/// Takes the next event of a context's queue. A read error counts as no event: if the device was
/// removed, an event has reported that.
pub(super) fn take_event(context: &Context) -> Option<Event> {
    context.next_event_and_user_context().ok().flatten()
}

/// Translates an event. Events of queues are left out, since their completions fail as well.
pub(super) fn meaning((event, _): Event) -> Option<DeviceEvent> {
    match event {
        AsyncEvent::PortError { port } => Some(DeviceEvent::PortDown { port }),
        // Queue pairs that were connected before a change of address or partition cannot reach
        // their peers; new ones may.
        AsyncEvent::PortActive { port }
        | AsyncEvent::GidChange { port }
        | AsyncEvent::LidChange { port }
        | AsyncEvent::PkeyChange { port } => Some(DeviceEvent::PortUp { port }),
        AsyncEvent::DeviceFatal => Some(DeviceEvent::Gone),
        AsyncEvent::DeviceSpeedChange => Some(DeviceEvent::SpeedChange),
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
    fn a_device_that_has_reported_its_end_is_gone_for_good() {
        let mut queue = VecDeque::from([DOWN]);
        let events = Events::new();
        let mut reader = EventCursor::default();
        assert!(!events.is_gone(|| queue.pop_front()));
        let end = (AsyncEvent::DeviceFatal, 0);
        queue.extend([UP, end, DOWN]);
        assert!(events.is_gone(|| queue.pop_front()));
        assert!(events.is_gone(|| None));
        let seen: Vec<_> = from_fn(|| events.next(&mut reader, || None)).collect();
        assert_eq!(seen, [DOWN, UP, end, DOWN], "readers miss none");
        // A reader may have taken the event first.
        let other = Events::new();
        assert_eq!(other.next(&mut EventCursor::default(), || Some(end)), Some(end));
        assert!(other.is_gone(|| None));
    }

    #[test]
    fn events_stay_in_order_however_many_take_them() {
        let source = AtomicU8::new(0);
        let take = || {
            let port = source.fetch_update(Relaxed, Relaxed, |port| port.checked_add(1)).ok()?;
            // A reader that took an event may be slow to log it.
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
            (AsyncEvent::DeviceSpeedChange, Some(DeviceEvent::SpeedChange)),
            (AsyncEvent::SmChange { port }, None),
            (AsyncEvent::ClientReregister { port }, None),
            (AsyncEvent::QpFatal { qp_num: 17 }, None),
            (AsyncEvent::Other(99), None),
        ] {
            assert_eq!(meaning((event, 7)), expected, "{event:?}");
        }
    }
}
