//! The ring of posted receives.

use crate::growth::{first_slots, grow, next_slots};
use crate::lists::{Listed, Lists};
use polyrail_core::verbs::{RecvRequest, Sge};

/// The contents of an unused slot.
const EMPTY: Listed<RecvRequest> = Listed::recv(RecvRequest { wr_id: 0, sge: Sge::EMPTY });

/// Posted receives, oldest first. Positions count from the queue's beginning and never repeat. The
/// ring gets memory for more slots as they are needed.
#[derive(Debug)]
pub struct RecvRing {
    slots: Box<[Listed<RecvRequest>]>,
    lists: Lists,
    capacity: usize,
    taken: u64,
    posted: u64,
}

impl RecvRing {
    /// Makes a ring of at least `min` receives of up to `max_sge` buffers; without slots if `min`
    /// is 0.
    pub fn new(min: u32, max_sge: u32) -> Self {
        let capacity = if min == 0 { 0 } else { (min as usize).next_power_of_two() };
        let slots = first_slots(capacity);
        Self {
            slots: vec![EMPTY; slots].into_boxed_slice(),
            lists: Lists::new(slots, max_sge),
            capacity,
            taken: 0,
            posted: 0,
        }
    }

    /// Returns the number of receives that it can hold.
    pub fn capacity(&self) -> u32 {
        self.capacity as u32
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
        if self.posted - released >= self.slots.len() as u64 && !self.grow() {
            return false;
        }
        let index = self.index(self.posted);
        self.slots[index] = *request;
        self.lists.set(index, list);
        self.posted += 1;
        true
    }

    /// Gets memory for all slots and their lists.
    pub fn reserve(&mut self) {
        while self.grow() {}
        self.lists.reserve();
    }

    /// Gets memory for more slots. Returns whether there may be more.
    #[cold]
    #[inline(never)]
    fn grow(&mut self) -> bool {
        let before = self.slots.len();
        let Some(slots) = next_slots(before, self.capacity) else { return false };
        // Those that are taken too: `list_of_taken` reads the newest of them.
        let positions = self.posted.saturating_sub(before as u64)..self.posted;
        grow(&mut self.slots, 1, positions.clone(), slots, || EMPTY);
        self.lists.grow(positions, slots);
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
    use crate::pages::Pages;

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
    fn a_ring_grows_around_what_is_posted() {
        const CAPACITY: u64 = 256;
        let mut ring = RecvRing::new(CAPACITY as u32, 1);
        (0..10).for_each(|wr_id| assert!(push(&mut ring, wr_id, 0)));
        (0..5).for_each(|_| assert!(ring.pop().is_some()));
        (10..CAPACITY + 5).for_each(|wr_id| assert!(push(&mut ring, wr_id, 5)));
        assert!(!push(&mut ring, CAPACITY + 5, 5));
        let taken = std::iter::from_fn(|| ring.pop()).map(|(request, _)| request.wr_id);
        assert!(taken.eq(5..CAPACITY + 5));
    }

    /// Of what was taken last, too, which a device reads while the next receive is posted.
    #[test]
    fn lists_stay_while_a_ring_grows() {
        let pages = Pages::new(64).unwrap();
        let buffers = |wr_id: u64| {
            [(0, 1), (1, 1)].map(|(at, length)| pages.local(at, length).unwrap().sge(wr_id as u32))
        };
        let mut ring = RecvRing::new(256, 2);
        let post = |ring: &mut RecvRing, wr_id| {
            let buffers = buffers(wr_id);
            let request = RecvRequest { wr_id, sge: Sge::EMPTY };
            let (listed, list) = Listed::with(request, &buffers, 2).unwrap();
            assert!(ring.push(&listed, &list.collect::<Vec<_>>(), 0));
        };
        let first = ring.slots.len() as u64;
        (0..first).for_each(|wr_id| post(&mut ring, wr_id));
        assert!(ring.pop().is_some());
        post(&mut ring, first);
        assert!(ring.slots.len() as u64 > first, "it has grown");
        assert_eq!(ring.list_of_taken(), buffers(0));
        for wr_id in 1..=first {
            assert!(ring.pop().is_some());
            assert_eq!(ring.list_of_taken(), buffers(wr_id));
        }
    }

    #[test]
    fn a_ring_of_no_slots_takes_nothing() {
        let mut ring = RecvRing::new(0, 1);
        assert!(!push(&mut ring, 0, 0));
        assert!(ring.pop().is_none());
    }
}
