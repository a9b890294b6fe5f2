//! DQPLB: every fragment of a WRITE_WITH_IMM is itself a WRITE_WITH_IMM, whose immediate is a
//! sequence number.
//!
//! - [`sequence`]: the numbers, and how they travel;
//! - `numbers`: the sender, which gives them out and does not run too far ahead;
//! - [`window`]: the receiver, which notes what arrives ahead of its turn.
//!
//! Here both are a scheme: what waits for what, the receives that fragments consume, and
//! notifications.

mod numbers;
pub(crate) mod sequence;
pub(crate) mod window;

pub(in crate::virtual_qp) use numbers::SendNumbers;
pub use numbers::{PeerWindow, PeerWindowError};
pub use window::OutsideWindow;
pub(in crate::virtual_qp) use window::SequenceWindow;

use super::shared::{Notification, Receiving};
use crate::hardware::{QueuePair, Refusal};
use crate::rail::{PhysicalRail, Rail, RailError, RailSet};
use crate::verbs::SendFlags;
use crate::virtual_qp::error::{PostRecvError, ProtocolError, RefusedBy};
use crate::virtual_qp::slot::{RecvSlot, Recvs, SendSlot};
use sequence::SequenceImm;
use window::Arrival;

/// Both ends of the protocol.
#[derive(Debug)]
pub(in crate::virtual_qp) struct Dqplb<const RAILS: usize, const DEPTH: usize> {
    numbers: SendNumbers,
    /// The id behind the newest request without numbers that is with the rails. A later
    /// notification covers that request, too.
    unnumbered_until: u64,
    /// The id behind the newest request with numbers that is not SOLICITED.
    unsolicited_until: u64,
    window: SequenceWindow<RAILS, DEPTH>,
    /// Notifications that arrived before their receives were posted.
    early_notifications: u64,
    duplicates: u64,
    /// The rails' receive queues have receives of the scheme, or will get them in the next poll.
    prepared: bool,
}

impl<const RAILS: usize, const DEPTH: usize> Dqplb<RAILS, DEPTH> {
    pub(super) fn new(peer: PeerWindow, rails: usize) -> Self {
        Self {
            numbers: SendNumbers::new(peer, rails),
            unnumbered_until: 0,
            unsolicited_until: 0,
            window: SequenceWindow::new(),
            early_notifications: 0,
            duplicates: 0,
            prepared: false,
        }
    }

    /// Returns the numbers for a request's fragments, unless the request has to wait for earlier
    /// ones.
    #[inline]
    pub(super) fn numbers_for(
        &mut self,
        slot: &SendSlot<RAILS>,
        oldest_in_flight: Option<u64>,
        pass_through_ahead: bool,
    ) -> Option<&mut SendNumbers> {
        let waits = self.holds_back(slot, oldest_in_flight, pass_through_ahead);
        (!waits).then_some(&mut self.numbers)
    }

    /// Whether a request with numbers has to wait for earlier requests.
    #[inline]
    fn holds_back(
        &self,
        slot: &SendSlot<RAILS>,
        oldest_in_flight: Option<u64>,
        pass_through_ahead: bool,
    ) -> bool {
        let in_flight_before = |until| oldest_in_flight.is_some_and(|oldest| oldest < until);
        let solicited = slot.flags.contains(SendFlags::SOLICITED);
        // Nothing without a number is counted by the receiver. It could be notified of what follows
        // before a WRITE is in place, or before a READ has read its memory.
        in_flight_before(self.unnumbered_until)
            || pass_through_ahead
            // The last fragment to arrive completes both requests. If it is not SOLICITED, a
            // receiver that waits for the solicited request is not woken.
            || solicited && in_flight_before(self.unsolicited_until)
    }

    pub(super) fn take_back_numbers(&mut self, count: u32) {
        self.numbers.take_back(count);
    }

    #[inline]
    pub(super) fn dispatched(&mut self, id: u64, slot: &SendSlot<RAILS>) {
        if !slot.is_numbered() {
            self.unnumbered_until = id + 1;
        } else if !slot.flags.contains(SendFlags::SOLICITED) {
            self.unsolicited_until = id + 1;
        }
    }

    /// Limits how far this side runs ahead of the peer.
    pub(in crate::virtual_qp) fn set_peer_window(
        &mut self,
        peer: PeerWindow,
        rails: usize,
    ) -> Result<(), PeerWindowError> {
        self.numbers.set_peer(peer, rails)
    }

    /// Fragments that arrived twice.
    pub(in crate::virtual_qp) fn duplicates(&self) -> u64 {
        self.duplicates
    }

    /// Posts the receives that the scheme needs on the data rails, before the peer may send.
    pub(in crate::virtual_qp) fn prepare_receives<Q: QueuePair>(
        &mut self,
        receiving: &mut Receiving<'_, Q, DEPTH>,
    ) -> Result<(), PostRecvError> {
        if receiving.failed {
            return Err(PostRecvError::InErrorState);
        }
        if receiving.serves_data {
            // A numbered fragment would take a receive of the caller, and the buffer with it.
            return Err(PostRecvError::MixedReceives { serves_data: true });
        }
        let mut posted = 0;
        let mut refused = None;
        let takes = |rail: &&mut Rail<Q, DEPTH>| {
            rail.recvs.room() > 0 && rail.health.lifecycle.takes_receives()
        };
        for rail in receiving.rails.iter_mut().filter(takes) {
            let taken = rail.post_empty_recvs(rail.recvs.room());
            posted += taken.count;
            let Some(refusal) = taken.refusal else { continue };
            receiving.offers.receives.insert(rail.id);
            if refusal != Refusal::QueueFull {
                refused = refused.or(Some(RefusedBy { rail: rail.id, refusal }.into()));
            }
        }
        // From the first one posted on, the queues serve notifications; polls post what is missing.
        if posted > 0 || refused.is_none() {
            self.prepared = true;
        } else if !self.prepared {
            receiving.offers.receives = RailSet::EMPTY;
        }
        refused.map_or(Ok(()), Err)
    }

    pub(super) fn is_prepared(&self) -> bool {
        self.prepared
    }

    /// Takes a user's receive for a notification. Prepares the rails first, if they are not.
    pub(in crate::virtual_qp) fn post_recv<Q: QueuePair, const WRS: usize>(
        &mut self,
        wr_id: u64,
        recvs: &mut Recvs<WRS>,
        receiving: &mut Receiving<'_, Q, DEPTH>,
    ) -> Result<(), PostRecvError> {
        if !self.prepared {
            self.prepare_receives(receiving)?;
        }
        recvs.add(RecvSlot::new(wr_id))?;
        recvs.pop_pending();
        // The notification of this receive arrived before it.
        if self.early_notifications > 0 {
            self.early_notifications -= 1;
            recvs.pop_in_flight();
        }
        Ok(())
    }

    /// Returns the window that records the numbers of arriving fragments.
    #[inline]
    pub(in crate::virtual_qp) fn window(&mut self) -> &mut SequenceWindow<RAILS, DEPTH> {
        &mut self.window
    }

    /// Takes the completion of a receive on a rail that is not the simple arrival of a new number.
    #[cold]
    pub(in crate::virtual_qp) fn arrived(
        &mut self,
        notification: Notification<'_>,
    ) -> Result<(), ProtocolError> {
        let Notification { rail, completion, .. } = notification;
        // Status first: a flushed receive is not data, whatever its immediate says.
        if !completion.status.is_success() {
            return Ok(());
        }
        let imm = completion.imm().ok_or(ProtocolError::NoImm { rail })?;
        let malformed = ProtocolError::MalformedImm { rail, imm: imm.wire() };
        let fragment = SequenceImm::decode(imm).ok_or(malformed)?;
        let outside = |source| ProtocolError::OutsideWindow { rail, source };
        if self.window.insert(fragment).map_err(outside)? == Arrival::Duplicate {
            self.duplicates += 1;
        }
        Ok(())
    }

    /// Completes the receives that arrivals allow, and posts receives again.
    ///
    /// An error is a driver's refusal for good: its rail fails with the error.
    #[inline]
    pub(in crate::virtual_qp) fn settle_receives<Q: QueuePair, const WRS: usize>(
        &mut self,
        recvs: &mut Recvs<WRS>,
        receiving: &mut Receiving<'_, Q, DEPTH>,
    ) -> Result<(), RailError> {
        if !self.prepared {
            return Ok(());
        }
        let mut ended = u64::from(self.window.advance());
        // Any receive serves any notification: the user's immediate does not travel with DQPLB.
        while ended > 0 && recvs.front_in_flight().is_some() {
            recvs.pop_in_flight();
            ended -= 1;
        }
        // The peer needs no receive of the user to send: the scheme's own receives take the
        // fragments.
        self.early_notifications += ended;
        for rail in &*receiving.rails {
            // At a low-water mark and not after each completion, so that a doorbell is for a batch.
            if rail.recvs.is_low() {
                receiving.offers.receives.insert(rail.id);
            }
        }
        if receiving.offers.receives.is_empty() { Ok(()) } else { Self::refill(receiving) }
    }

    /// Checks what must hold between any two calls.
    pub(in crate::virtual_qp) fn invariants(&self) {
        self.window.invariants();
    }

    /// Posts receives again on the rails that are at their low-water mark. A rail that failed
    /// gets none: they would only be flushed.
    fn refill<Q: QueuePair>(receiving: &mut Receiving<'_, Q, DEPTH>) -> Result<(), RailError> {
        let refill = core::mem::take(&mut receiving.offers.receives);
        if receiving.failed {
            return Ok(());
        }
        for id in refill {
            let Some(rail) = receiving.rails.get_mut(usize::from(id.number())) else { continue };
            if !rail.health.lifecycle.takes_receives() {
                continue;
            }
            match rail.post_empty_recvs(rail.recvs.room()).refusal {
                None => {}
                Some(Refusal::QueueFull) => receiving.offers.receives.insert(id),
                Some(Refusal::Driver(errno)) => return Err(rail.refusal_error(errno, 0)),
            }
        }
        Ok(())
    }
}
