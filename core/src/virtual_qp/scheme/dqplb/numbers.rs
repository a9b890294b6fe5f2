//! The sequence numbers that a DQPLB sender assigns, and how far it may run ahead.

use super::sequence::{SequenceImm, SequenceNumber};
use crate::rail::{Batch, Content};
use crate::verbs::{Imm, Opcode, SendFlags};
use crate::virtual_qp::scheme::numbering::Numbering;
use crate::virtual_qp::slot::SendSlot;

/// The properties of a receiver that a DQPLB sender needs. The connection card states them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerWindow {
    /// Sequence numbers that the receiver's window holds.
    pub window: u32,
    /// Receives that it keeps posted on each rail.
    pub receives_per_rail: u32,
}

impl PeerWindow {
    /// The reference implementation: its map has no bound, so any span does that keeps numbers
    /// apart.
    pub const REFERENCE: Self =
        Self { window: super::sequence::MODULUS / 4, receives_per_rail: 100 };
}

/// The peer's window leaves a DQPLB sender no number to use; nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the peer's window of {} numbers does not exceed its {} receives on each of {rails} rails",
    peer.window, peer.receives_per_rail
)]
pub struct PeerWindowError {
    /// What the peer's card says.
    pub peer: PeerWindow,
    /// Rails of this queue pair.
    pub rails: usize,
}

/// The next number, and the span that the receiver's window allows.
///
/// The receiver may lag: its NIC can have taken, and acknowledged, as many fragments as there are
/// receives posted, before its software sees the first. So the sender stays within the window less
/// those of its *oldest unacknowledged* number.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::virtual_qp) struct SendNumbers {
    next: SequenceNumber,
    /// No unacknowledged number is older, unless the span shrank; refreshed when that seems used
    /// up.
    oldest: SequenceNumber,
    span: u32,
}

impl SendNumbers {
    pub(super) fn new(peer: PeerWindow, rails: usize) -> Self {
        Self { span: Self::span(peer, rails).unwrap_or(1), ..Self::default() }
    }

    /// Numbers that may be unacknowledged at once, or `None` if the window is too small for any.
    fn span(peer: PeerWindow, rails: usize) -> Option<u32> {
        let unseen = peer.receives_per_rail.checked_mul(rails as u32)?;
        // Within a quarter of the cycle, old numbers and new ones can be told apart.
        let window = peer.window.min(PeerWindow::REFERENCE.window);
        window.checked_sub(unseen).filter(|span| *span > 0)
    }

    /// Sets the span from the peer's card.
    pub(super) fn set_peer(
        &mut self,
        peer: PeerWindow,
        rails: usize,
    ) -> Result<(), PeerWindowError> {
        self.span = Self::span(peer, rails).ok_or(PeerWindowError { peer, rails })?;
        Ok(())
    }

    /// How many fragments may be numbered now; `unacknowledged` are the oldest unacknowledged
    /// number of each rail that has any.
    // Out of line, because it runs only when the numbers since the last refresh have used up the
    // span.
    #[cold]
    #[inline(never)]
    fn refreshed_room(&mut self, unacknowledged: impl Iterator<Item = u32>) -> u32 {
        let oldest = unacknowledged.filter_map(SequenceNumber::new);
        // By age and not by value, because numbers start again from 0.
        let oldest_age = oldest.map(|number| self.next.distance_from(number)).max();
        // After the peer's window turned out smaller, numbers in flight can be older than the span.
        let used = oldest_age.unwrap_or(0).min(self.span);
        self.oldest = self.next.retreat(used);
        self.span - used
    }

    /// Takes back the last `count` numbers, of which the driver took none. They are assigned again.
    pub(in crate::virtual_qp) fn take_back(&mut self, count: u32) {
        self.next = self.next.retreat(count);
    }
}

impl Numbering for SendNumbers {
    type Number = SequenceNumber;

    const CONTENT: Content = Content::Numbered;

    #[inline(always)]
    fn room<I: Iterator<Item = u32>>(
        &mut self,
        wanted: u32,
        unacknowledged: impl FnOnce() -> I,
    ) -> u32 {
        // The peer's window may turn out smaller than what is in flight already.
        // `oldest` is a lower bound that is refreshed only when it seems too low: most requests
        // need not look at every rail.
        if self.span.saturating_sub(self.next.distance_from(self.oldest)) < wanted {
            self.refreshed_room(unacknowledged()).min(wanted)
        } else {
            wanted
        }
    }

    #[inline(always)]
    fn take(&mut self, count: u32) -> SequenceNumber {
        let first = self.next;
        self.next = first.advance(count);
        first
    }

    #[inline(always)]
    fn remembered(number: SequenceNumber) -> u32 {
        number.get()
    }

    #[inline(always)]
    fn number_of(batch: &Batch, index: u32) -> SequenceNumber {
        SequenceNumber::new(batch.number).unwrap_or_default().advance(index)
    }

    #[inline(always)]
    fn after(number: SequenceNumber) -> SequenceNumber {
        number.next()
    }

    #[inline(always)]
    fn imm(number: SequenceNumber, is_last: bool) -> Imm {
        SequenceImm { number, last: is_last }.encode()
    }

    #[inline(always)]
    fn opcode<const RAILS: usize>(_: &SendSlot<RAILS>) -> Opcode {
        Opcode::RdmaWriteWithImm
    }

    /// Any numbered fragment can be the one whose arrival completes the request.
    #[inline(always)]
    fn inner_flags<const RAILS: usize>(slot: &SendSlot<RAILS>) -> SendFlags {
        slot.last_flags.intersection(SendFlags::SOLICITED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_span_leaves_room_for_what_the_receiver_has_not_seen() {
        let peer = PeerWindow { window: 512, receives_per_rail: 100 };
        assert_eq!(SendNumbers::span(peer, 4), Some(112));
        assert_eq!(SendNumbers::span(peer, 6), None);
    }

    #[test]
    fn whatever_the_peer_says_numbers_in_flight_can_be_told_apart() {
        use super::super::sequence::MODULUS;
        let peer = PeerWindow { window: u32::MAX, receives_per_rail: 0 };
        let span = SendNumbers::span(peer, 1);
        assert!(span.is_some_and(|span| span > 1 << 20 && span < MODULUS / 2), "{span:?}");
    }

    #[test]
    fn numbers_run_out_at_the_span_and_come_back_with_acknowledgements() {
        let peer = PeerWindow { window: 20, receives_per_rail: 5 };
        let mut numbers = SendNumbers::new(peer, 2);
        assert_eq!(numbers.room(8, || [].into_iter()), 8);
        numbers.take(8);
        assert_eq!(numbers.room(8, || [0, 4].into_iter()), 2);
        numbers.take(2);
        assert_eq!(numbers.room(1, || [0].into_iter()), 0);
        assert_eq!(numbers.room(8, || [4].into_iter()), 4);
        assert_eq!(numbers.room(8, || [].into_iter()), 8);
    }
}
