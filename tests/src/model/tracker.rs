//! The ring beside the map and the queues that the reference implementation has for it.

use crate::choices::{Bytes, Choices};
use polyrail_core::internals::WrTracker;
use polyrail_core::virtual_qp::TrackerFull;
use std::collections::{HashMap, VecDeque};

/// The reference's tracker: a map of the active requests and queues of their ids.
#[derive(Debug)]
pub struct ReferenceTracker<T> {
    active: HashMap<u64, T>,
    pending: VecDeque<u64>,
    in_flight: VecDeque<u64>,
    outstanding: VecDeque<u64>,
    next_id: u64,
}

impl<T> Default for ReferenceTracker<T> {
    fn default() -> Self {
        Self {
            active: HashMap::new(),
            pending: VecDeque::new(),
            in_flight: VecDeque::new(),
            outstanding: VecDeque::new(),
            next_id: 0,
        }
    }
}

impl<T> ReferenceTracker<T> {
    /// Appends a request and gives it the next id.
    pub fn add(&mut self, request: T) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.active.insert(id, request);
        self.pending.push_back(id);
        id
    }

    /// Takes the newest request back if it still waits for rails.
    pub fn take_back(&mut self) -> Option<T> {
        let id = self.pending.pop_back()?;
        self.next_id = id;
        self.active.remove(&id)
    }

    fn pop_pending(&mut self) {
        self.in_flight.extend(self.pending.pop_front());
    }

    fn pop_in_flight(&mut self) {
        self.outstanding.extend(self.in_flight.pop_front());
    }

    fn pop_finished(&mut self) {
        if let Some(id) = self.outstanding.pop_front() {
            self.active.remove(&id);
        }
    }
}

const SLOTS: usize = 8;

/// Runs the operations that `bytes` choose on both trackers.
///
/// # Panics
///
/// If they disagree.
pub fn tracker(bytes: &[u8]) {
    let mut bytes = Bytes::new(bytes);
    let mut ring = WrTracker::<u32, SLOTS>::new(0);
    let mut seed = ReferenceTracker::default();
    let mut request = 0;
    while !bytes.is_empty() {
        request += 1;
        match bytes.below(6) {
            0 | 1 => add(&mut ring, &mut seed, request),
            2 => assert_eq!(ring.take_back(), seed.take_back()),
            3 if ring.front_pending().is_some() => {
                ring.pop_pending();
                seed.pop_pending();
            }
            4 if ring.front_in_flight().is_some() => {
                ring.pop_in_flight();
                seed.pop_in_flight();
            }
            5 if ring.front_finished().is_some() => {
                ring.pop_finished();
                seed.pop_finished();
            }
            _ => {}
        }
        compare(&mut ring, &seed);
    }
}

fn add(ring: &mut WrTracker<u32, SLOTS>, seed: &mut ReferenceTracker<u32>, request: u32) {
    if seed.active.len() == SLOTS {
        assert_eq!(ring.add(request), Err(TrackerFull { capacity: SLOTS }));
    } else {
        assert_eq!(ring.add(request), Ok(seed.add(request)));
    }
}

fn compare(ring: &mut WrTracker<u32, SLOTS>, seed: &ReferenceTracker<u32>) {
    ring.invariants();
    assert_eq!(ring.front_pending(), seed.pending.front().copied());
    assert_eq!(ring.front_in_flight(), seed.in_flight.front().copied());
    assert_eq!(ring.front_finished(), seed.outstanding.front().copied());
    assert_eq!(ring.unreported_count(), seed.active.len());
    assert_eq!(ring.pending_count(), seed.pending.len());
    assert_eq!(ring.unacknowledged_count(), seed.pending.len() + seed.in_flight.len());
    assert_eq!(ring.is_full(), seed.active.len() == SLOTS);
    let newest = seed.next_id + 2;
    for id in newest.saturating_sub(2 * SLOTS as u64)..newest {
        assert_eq!(ring.find(id), seed.active.get(&id), "request {id}");
        assert_eq!(ring.find_mut(id).copied(), seed.active.get(&id).copied(), "request {id}");
    }
    let mut ids: Vec<_> = seed.active.iter().collect();
    ids.sort_unstable_by_key(|(id, _)| **id);
    assert!(ring.iter().eq(ids.into_iter().map(|(_, request)| request)));
}
