//! Growth of a queue's memory. A queue begins with [`FIRST`] slots, and gets more when as many
//! requests are outstanding, up to its capacity: with thousands of queue pairs, most never fill
//! their queues.

use std::ops::Range;

/// Slots that a queue begins with, if its capacity is not smaller.
const FIRST: usize = 8;

/// The factor by which a queue grows. Large, so that traffic soon reaches a size at which nothing
/// allocates any more: the usual queue of 128 slots grows twice.
const FACTOR: usize = 8;

/// Returns the slots that a queue of this capacity begins with.
pub(crate) fn first_slots(capacity: usize) -> usize {
    capacity.min(FIRST)
}

/// Returns the slots that follow `slots`, or `None` if these are the capacity.
pub(crate) fn next_slots(slots: usize, capacity: usize) -> Option<usize> {
    (slots < capacity).then(|| slots.saturating_mul(FACTOR).min(capacity))
}

/// Moves the slots at these positions into memory of `slots` slots of `per` elements each. A
/// position has the slot of its number modulo the number of slots, a power of two. Memory that was
/// not needed so far stays empty.
pub(crate) fn grow<T>(
    elements: &mut Box<[T]>,
    per: usize,
    positions: Range<u64>,
    slots: usize,
    empty: impl FnMut() -> T,
) {
    let before = elements.len().checked_div(per).unwrap_or_default();
    if before == 0 {
        return;
    }
    let mut grown = new_slots(per, slots, empty);
    let start = |position: u64, slots: usize| (position as usize & (slots - 1)) * per;
    for position in positions {
        let (from, to) = (start(position, before), start(position, slots));
        grown[to..to + per].swap_with_slice(&mut elements[from..from + per]);
    }
    *elements = grown;
}

/// Makes memory of `slots` slots of `per` elements each.
pub(crate) fn new_slots<T>(per: usize, slots: usize, empty: impl FnMut() -> T) -> Box<[T]> {
    std::iter::repeat_with(empty).take(slots * per).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_keep_their_contents_when_their_queue_grows() {
        // Positions 6 to 9 are at 6, 7, 0 and 1 of 8 slots.
        let mut elements: Box<[u64]> = [8, 80, 9, 90, 0, 0, 0, 0, 0, 0, 0, 0, 6, 60, 7, 70].into();
        grow(&mut elements, 2, 6..10, 16, || 0);
        assert_eq!(elements[12..20], [6, 60, 7, 70, 8, 80, 9, 90]);
        assert_eq!(elements.iter().filter(|element| **element != 0).count(), 8);
    }

    #[test]
    fn a_queue_grows_up_to_its_capacity() {
        assert_eq!([0, 4, 128].map(first_slots), [0, 4, 8]);
        assert_eq!(next_slots(8, 128), Some(64));
        assert_eq!(next_slots(64, 128), Some(128));
        assert_eq!(next_slots(128, 128), None);
        assert_eq!(next_slots(0, 0), None);
    }
}
