//! Events of a device, kept for any number of readers.

use crate::sync::lock;
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// The position of a reader in an [`EventLog`]. The default position is the oldest kept event.
///
/// A cursor belongs to one log. With another log, it returns some of that log's newest events.
#[derive(Clone, Debug, Default)]
pub struct EventCursor {
    /// Number of the event that is next, from 0 on.
    next: u64,
}

/// The newest events of a device, in the same order for every reader.
///
/// The log is bounded, so a program that never reads costs nothing. A reader that falls too far
/// behind misses the oldest events. Nothing allocates after creation.
#[derive(Debug)]
pub struct EventLog<E> {
    kept: Mutex<VecDeque<E>>,
    capacity: usize,
    /// Number of events so far. Written with `kept` locked, but read without the lock, because
    /// usually there is no new event.
    pushed: AtomicU64,
}

impl<E: Copy> EventLog<E> {
    /// Makes an empty log that keeps this many events, at least one.
    pub fn new(capacity: usize) -> Self {
        let capacity = capacity.max(1);
        let kept = Mutex::new(VecDeque::with_capacity(capacity));
        Self { kept, capacity, pushed: AtomicU64::new(0) }
    }

    /// Adds the newest event.
    pub fn push(&self, event: E) {
        let mut kept = lock(&self.kept);
        if kept.len() == self.capacity {
            kept.pop_front();
        }
        kept.push_back(event);
        self.pushed.fetch_add(1, Ordering::Release);
    }

    /// Returns a cursor behind all events so far.
    pub fn cursor(&self) -> EventCursor {
        EventCursor { next: self.pushed.load(Ordering::Acquire) }
    }

    /// Returns the oldest event that this reader has not seen. Never waits.
    pub fn next(&self, cursor: &mut EventCursor) -> Option<E> {
        if cursor.next == self.pushed.load(Ordering::Acquire) {
            return None;
        }
        let kept = lock(&self.kept);
        let end = self.pushed.load(Ordering::Relaxed);
        let oldest = end - kept.len() as u64;
        let at = cursor.next.clamp(oldest, end);
        let event = kept.get((at - oldest) as usize).copied();
        cursor.next = at + u64::from(event.is_some());
        event
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rest(log: &EventLog<u32>, cursor: &mut EventCursor) -> Vec<u32> {
        std::iter::from_fn(|| log.next(cursor)).collect()
    }

    #[test]
    fn every_reader_sees_what_happens_since_it_began() {
        let log = EventLog::new(8);
        let mut first = log.cursor();
        assert_eq!(log.next(&mut first), None);
        log.push(1);
        let mut second = log.cursor();
        log.push(2);
        assert_eq!(log.next(&mut first), Some(1));
        let mut copy = first.clone();
        assert_eq!(rest(&log, &mut second), [2]);
        assert_eq!(rest(&log, &mut first), [2]);
        assert_eq!(rest(&log, &mut copy), [2]);
        assert_eq!(rest(&log, &mut EventCursor::default()), [1, 2]);
        log.push(3);
        assert_eq!([&mut first, &mut second].map(|cursor| log.next(cursor)), [Some(3); 2]);
    }

    #[test]
    fn who_falls_far_behind_misses_the_oldest() {
        let log = EventLog::new(4);
        let mut behind = log.cursor();
        let mut in_time = log.cursor();
        let read: Vec<u32> = (0..11)
            .filter_map(|event| {
                log.push(event);
                log.next(&mut in_time)
            })
            .collect();
        assert_eq!(read, (0..11).collect::<Vec<_>>());
        assert_eq!(rest(&log, &mut behind), [7, 8, 9, 10]);
        log.push(11);
        assert_eq!(rest(&log, &mut behind), [11]);
    }

    #[test]
    fn a_cursor_of_another_log_reads_only_what_there_is() {
        let busy = EventLog::new(4);
        (0..9).for_each(|event| busy.push(event));
        let mut ahead = busy.cursor();
        let log = EventLog::new(0);
        assert_eq!(log.next(&mut ahead), None);
        (0..2).for_each(|event| log.push(event));
        assert_eq!(rest(&log, &mut ahead), [1], "a log keeps one event at least");
    }

    #[test]
    fn readers_on_other_threads_see_every_event_in_order() {
        const EVENTS: u32 = 10_000;
        let log = EventLog::new(EVENTS as usize);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                let mut cursor = log.cursor();
                let log = &log;
                scope.spawn(move || {
                    for event in 0..EVENTS {
                        let mut reads = std::iter::repeat_with(|| log.next(&mut cursor));
                        assert_eq!(reads.find_map(|read| read), Some(event));
                    }
                });
            }
            (0..EVENTS).for_each(|event| log.push(event));
        });
    }
}
