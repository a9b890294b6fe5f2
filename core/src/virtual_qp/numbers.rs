//! The sequence numbers that a DQPLB sender gives out, and how far it may run ahead.

use super::config::PeerWindow;
use crate::sequence::SequenceNumber;

/// The next number, and the span that the receiver's window allows.
///
/// The receiver may lag: its NIC can have taken, and acknowledged, as many fragments as there are
/// receives posted, before its software sees the first. So the sender stays within the window less
/// those of its *oldest unacknowledged* number.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SendNumbers {
    next: SequenceNumber,
    /// No unacknowledged number is older; refreshed when the span seems used up.
    oldest: SequenceNumber,
    span: u32,
}

impl SendNumbers {
    pub(super) fn new((peer, rails): (PeerWindow, usize)) -> Self {
        Self { span: Self::span(peer, rails).unwrap_or(1), ..Self::default() }
    }

    /// Numbers that may be unacknowledged at once, or `None` if the window is too small for any.
    pub(super) fn span(peer: PeerWindow, rails: usize) -> Option<u32> {
        let unseen = peer.receives_per_rail.checked_mul(rails as u32)?;
        let window = peer.window.min(PeerWindow::REFERENCE.window);
        window.checked_sub(unseen).filter(|span| *span > 0)
    }

    pub(super) fn set_span(&mut self, span: u32) {
        self.span = span;
    }

    /// The next number.
    #[inline]
    pub(super) const fn next(&self) -> SequenceNumber {
        self.next
    }

    /// `count` numbers go to the driver.
    #[inline]
    pub(super) fn consume(&mut self, count: u32) {
        self.next = self.next.advance(count);
    }

    /// The driver took none of the last `count` numbers: they are given out again.
    pub(super) fn take_back(&mut self, count: u32) {
        self.next = self.next.retreat(count);
    }

    /// How many of `wanted` numbers may be given out now. `unacknowledged` lists, if needed, the oldest
    /// unacknowledged number of each rail that has any.
    #[inline]
    pub(super) fn room<I: Iterator<Item = SequenceNumber>>(
        &mut self,
        wanted: u32,
        unacknowledged: impl FnOnce() -> I,
    ) -> u32 {
        // The peer's window may turn out smaller than what is in flight already.
        if self.span.saturating_sub(self.next.distance_from(self.oldest)) < wanted {
            let ages = unacknowledged().map(|number| self.next.distance_from(number));
            let oldest_age = ages.max().unwrap_or(0);
            // After the peer's window turned out smaller, numbers in flight can be older than the span.
            let used = oldest_age.min(self.span);
            self.oldest = self.next.retreat(used);
            return wanted.min(self.span - used);
        }
        wanted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(n: u32) -> SequenceNumber {
        SequenceNumber::new(n).unwrap()
    }

    #[test]
    fn the_span_leaves_room_for_what_the_receiver_has_not_seen() {
        let peer = PeerWindow { window: 512, receives_per_rail: 100 };
        assert_eq!(SendNumbers::span(peer, 4), Some(112));
        assert_eq!(SendNumbers::span(peer, 6), None);
    }

    #[test]
    fn whatever_the_peer_says_numbers_in_flight_can_be_told_apart() {
        use crate::sequence::MODULUS;
        let peer = PeerWindow { window: u32::MAX, receives_per_rail: 0 };
        let span = SendNumbers::span(peer, 1);
        assert!(span.is_some_and(|span| span > 1 << 20 && span < MODULUS / 2), "{span:?}");
    }

    #[test]
    fn numbers_run_out_at_the_span_and_come_back_with_acknowledgements() {
        let peer = PeerWindow { window: 20, receives_per_rail: 5 };
        let mut numbers = SendNumbers::new((peer, 2));
        assert_eq!(numbers.room(8, || [].into_iter()), 8);
        numbers.consume(8);
        assert_eq!(numbers.room(8, || [number(0), number(4)].into_iter()), 2);
        numbers.consume(2);
        assert_eq!(numbers.room(1, || [number(0)].into_iter()), 0);
        assert_eq!(numbers.room(8, || [number(4)].into_iter()), 4);
        assert_eq!(numbers.room(8, || [].into_iter()), 8);
    }
}
