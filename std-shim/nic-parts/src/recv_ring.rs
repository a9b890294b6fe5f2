//! The ring of posted receives.

use crate::lists::{Listed, Lists};
use polyrail_core::verbs::{RecvRequest, Sge};

/// Posted receives, oldest first. Positions count from the queue's beginning and never repeat.
#[derive(Debug)]
pub struct RecvRing {
    slots: Box<[Listed<RecvRequest>]>,
    lists: Lists,
    taken: u64,
    posted: u64,
}

impl RecvRing {
    /// Makes a ring of at least `min` receives of up to `max_sge` buffers; without slots if `min`
    /// is 0.
    pub fn new(min: u32, max_sge: u32) -> Self {
        let size = if min == 0 { 0 } else { (min as usize).next_power_of_two() };
        let empty = Listed::recv(RecvRequest { wr_id: 0, sge: Sge::EMPTY });
        Self {
            slots: vec![empty; size].into_boxed_slice(),
            lists: Lists::new(size, max_sge),
            taken: 0,
            posted: 0,
        }
    }

    /// Returns the number of slots.
    pub fn capacity(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Returns the number of posted receives that were not taken.
    #[inline]
    pub fn len(&self) -> u32 {
        (self.posted - self.taken) as u32
    }

    /// Returns whether all posted receives were taken.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.taken == self.posted
    }

    /// Returns the number of receives posted since the beginning.
    #[inline]
    pub fn posted(&self) -> u64 {
        self.posted
    }

    /// Adds a receive with its list, if a slot is free. Slots below `released` are free. Returns
    /// whether the receive was added.
    #[inline]
    pub fn push(&mut self, request: &Listed<RecvRequest>, list: &[Sge], released: u64) -> bool {
        if self.posted - released >= self.slots.len() as u64 {
            return false;
        }
        let index = self.index(self.posted);
        self.slots[index] = *request;
        self.lists.set(index, list);
        self.posted += 1;
        true
    }

    /// Takes the oldest receive, and returns it with the number of receives taken since the
    /// beginning.
    #[inline]
    pub fn pop(&mut self) -> Option<(Listed<RecvRequest>, u64)> {
        if self.is_empty() {
            return None;
        }
        let request = self.slots[self.index(self.taken)];
        self.taken += 1;
        Some((request, self.taken))
    }

    /// Returns the oldest receive.
    #[inline]
    pub fn first(&self) -> Option<&Listed<RecvRequest>> {
        (!self.is_empty()).then(|| &self.slots[self.index(self.taken)])
    }

    /// Returns the list of the receive that was taken last, if it has one.
    #[inline]
    pub fn list_of_taken(&self) -> &[Sge] {
        let index = self.index(self.taken.wrapping_sub(1));
        self.lists.get(index, self.slots[index].buffers)
    }

    /// Drops all receives.
    pub fn clear(&mut self) {
        self.taken = self.posted;
    }

    #[inline]
    fn index(&self, position: u64) -> usize {
        position as usize & (self.slots.len() - 1)
    }

    /// Returns the number of receives taken since the beginning.
    #[inline]
    pub fn taken(&self) -> u64 {
        self.taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(ring: &mut RecvRing, wr_id: u64, released: u64) -> bool {
        ring.push(&Listed::recv(RecvRequest { wr_id, sge: Sge::EMPTY }), &[], released)
    }

    #[test]
    fn receives_come_out_in_the_order_they_went_in() {
        let mut ring = RecvRing::new(3, 1);
        assert_eq!(ring.capacity(), 4);
        for wr_id in 0..4 {
            assert!(push(&mut ring, wr_id, 0));
        }
        assert!(!push(&mut ring, 4, 0));
        assert_eq!(ring.pop().map(|(request, taken)| (request.wr_id, taken)), Some((0, 1)));
    }

    #[test]
    fn a_slot_is_free_when_it_is_released_and_not_when_it_is_taken() {
        let mut ring = RecvRing::new(2, 1);
        assert!(push(&mut ring, 0, 0) && push(&mut ring, 1, 0));
        ring.pop();
        assert!(!push(&mut ring, 2, 0));
        assert!(push(&mut ring, 2, 1));
    }

    #[test]
    fn a_ring_of_no_slots_takes_nothing() {
        let mut ring = RecvRing::new(0, 1);
        assert!(!push(&mut ring, 0, 0));
        assert!(ring.pop().is_none());
    }
}
