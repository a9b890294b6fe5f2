//! What the receiving end keeps: the ring of posted receives, and what a queue pair knows of its peer.

use crate::address::{Gid, Mtu};
use polyrail_core::verbs::{AccessFlags, RecvRequest, Sge};

/// Posted receives, oldest first. Positions count from the queue's beginning and never repeat.
#[derive(Debug)]
pub(crate) struct RecvRing {
    slots: Box<[RecvRequest]>,
    taken: u64,
    posted: u64,
    /// Somebody wanted one when there was none.
    was_missed: bool,
}

impl RecvRing {
    /// A ring of at least `min` receives; none if `min` is 0.
    pub(crate) fn new(min: u32) -> Self {
        let size = if min == 0 { 0 } else { (min as usize).next_power_of_two() };
        let empty = RecvRequest { wr_id: 0, sge: Sge::EMPTY };
        Self { slots: vec![empty; size].into_boxed_slice(), taken: 0, posted: 0, was_missed: false }
    }

    pub(crate) fn capacity(&self) -> u32 {
        self.slots.len() as u32
    }

    pub(crate) fn len(&self) -> u32 {
        (self.posted - self.taken) as u32
    }

    /// Receives posted since the beginning.
    pub(crate) fn posted(&self) -> u64 {
        self.posted
    }

    /// Adds a receive, unless slots up to `released` are all that is free.
    pub(crate) fn push(&mut self, request: &RecvRequest, released: u64) -> bool {
        if self.posted - released >= self.slots.len() as u64 {
            return false;
        }
        let index = self.index(self.posted);
        self.slots[index] = *request;
        self.posted += 1;
        true
    }

    /// Whether somebody wanted a receive when there was none, since the last call.
    pub(crate) fn was_missed(&mut self) -> bool {
        std::mem::take(&mut self.was_missed)
    }

    /// Takes the oldest receive, and returns it with how many were taken since the beginning.
    pub(crate) fn pop(&mut self) -> Option<(RecvRequest, u64)> {
        if self.taken == self.posted {
            self.was_missed = true;
            return None;
        }
        let request = self.slots[self.index(self.taken)];
        self.taken += 1;
        Some((request, self.taken))
    }

    /// Forgets all receives.
    pub(crate) fn clear(&mut self) {
        self.taken = self.posted;
    }

    fn index(&self, position: u64) -> usize {
        position as usize & (self.slots.len() - 1)
    }

    /// Receives taken since the beginning.
    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }
}

/// What a shared receive queue holds.
#[derive(Debug)]
pub(crate) struct SrqInner {
    pub(crate) ring: RecvRing,
    /// Falling below raises the event; 0 is disarmed.
    pub(crate) limit: u32,
    pub(crate) limit_reached: bool,
}

/// How the receives of a queue pair with a shared receive queue come to an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The queue pair is not in ERR, or nobody has noticed yet.
    NotBegun,
    /// In ERR, it still takes one receive until that time.
    OneMore { until: u64 },
    /// It will take none any more.
    LastWqeReached,
}

/// The responder side of a queue pair.
#[derive(Debug)]
pub(crate) struct Responder {
    pub(crate) ring: RecvRing,
    /// The peer that requests may come from.
    pub(crate) gid: Gid,
    pub(crate) dest_qp_num: u32,
    pub(crate) mtu: Mtu,
    pub(crate) expected_psn: u32,
    pub(crate) access: AccessFlags,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    /// With a shared receive queue only.
    pub(crate) ending: Ending,
}

impl Responder {
    pub(crate) fn new(max_recv_wr: u32) -> Self {
        Self {
            ring: RecvRing::new(max_recv_wr),
            gid: Gid::default(),
            dest_qp_num: 0,
            mtu: Mtu::default(),
            expected_psn: 0,
            access: AccessFlags::empty(),
            max_dest_rd_atomic: 0,
            min_rnr_timer: 0,
            ending: Ending::NotBegun,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receive(wr_id: u64) -> RecvRequest {
        RecvRequest { wr_id, sge: Sge::EMPTY }
    }

    #[test]
    fn receives_come_out_in_the_order_they_went_in() {
        let mut ring = RecvRing::new(3);
        assert_eq!(ring.capacity(), 4);
        for wr_id in 0..4 {
            assert!(ring.push(&receive(wr_id), 0));
        }
        assert!(!ring.push(&receive(4), 0));
        assert_eq!(ring.pop().map(|(request, taken)| (request.wr_id, taken)), Some((0, 1)));
    }

    #[test]
    fn a_slot_is_free_when_it_is_released_and_not_when_it_is_taken() {
        let mut ring = RecvRing::new(2);
        assert!(ring.push(&receive(0), 0) && ring.push(&receive(1), 0));
        ring.pop();
        assert!(!ring.push(&receive(2), 0));
        assert!(ring.push(&receive(2), 1));
    }

    #[test]
    fn a_ring_of_no_slots_takes_nothing() {
        let mut ring = RecvRing::new(0);
        assert!(!ring.push(&receive(0), 0));
        assert!(ring.pop().is_none());
    }
}
