//! SPRAY in one trip: a short WRITE_WITH_IMM whose data is in its notify.
//!
//! A notify has to follow the acknowledgement of the data, because the two travel on different
//! queue pairs, which keep no order between each other. If all of the data fits the notify itself,
//! one queue pair carries both, and a reliable connection writes the data of a WRITE_WITH_IMM before
//! the receive completes (InfiniBand specification, o9-20). The request then takes one round trip
//! in place of two, and one physical request in place of two.
//!
//! It is possible only while everything that the notification would tell of is acknowledged, or is
//! ahead of it on the same queue pair in the same form. From the post to the acknowledgement the
//! request counts as a fragment in flight on the notify queue pair. If that fails, the peer's count
//! decides: either all of the request arrived, or it is posted again as it was, after the fence, on
//! the queue pair that replaces the notify queue pair.

use super::error::PostSendError;
use super::qp::VirtualQp;
use super::scheme::SchemeState;
use crate::hardware::{QueuePair, Refusal};
use crate::rail::{PhysicalRail, Rail, RailId};
use crate::verbs::{SendFlags, SendWr};

/// Bytes that go in one trip whatever the bandwidth of the notify queue pair's device: on a rail of
/// 10 Gb/s they take 3 us, about as long as the round trip that is saved.
const SHORT: u32 = 4096;

/// Bytes of a request that may follow others in flight in one trip. The notify queue pair has a
/// request for each of them in any case. Longer ones need the bandwidth of all rails.
const FOLLOWS: u32 = 512;

impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize>
    VirtualQp<Q, RAILS, DEPTH, WRS>
{
    /// Returns whether a WRITE_WITH_IMM with SPRAY is one fragment or a signal.
    // In line, so that longer requests and DQPLB pay for this test only.
    #[inline(always)]
    pub(super) fn is_short(&self, wr: &SendWr<'_>) -> bool {
        wr.local.length() <= self.config.max_msg_size
            && matches!(self.scheme, SchemeState::Spray(_))
    }

    /// Returns whether a WRITE_WITH_IMM of one fragment can be posted with its notify now.
    #[inline(never)]
    pub(super) fn goes_with_notify(&self, wr: &SendWr<'_>) -> bool {
        let length = wr.local.length();
        let Some(notify) = self.scheme.notify() else { return false };
        // A signal is only a notify in any case.
        length > 0
            && (self.is_settled(wr.flags) || self.follows_others(wr))
            && notify.carries
            && notify.sends.credits() > 0
            && !self.offers.sends.contains(RailId::Notify)
            && fits(notify, wr)
            && self.has_rail_beside(notify, length)
    }

    /// Returns whether everything is complete that has to be before a notify that is posted now.
    fn is_settled(&self, flags: SendFlags) -> bool {
        let none_before = self.sends.unacknowledged_count() == 0 && !self.scheme.is_notifying();
        let is_fenced = flags.contains(SendFlags::FENCE);
        none_before && self.is_not_behind() && (!is_fenced || self.pass_through.is_idle())
    }

    /// Returns whether a request may follow others in one trip: nothing else is in flight.
    fn follows_others(&self, wr: &SendWr<'_>) -> bool {
        let SchemeState::Spray(spray) = &self.scheme else { return false };
        // A fence waits for acknowledgements.
        let is_free = wr.local.length() <= FOLLOWS && !wr.flags.contains(SendFlags::FENCE);
        // Behind the first of them nothing else can be on the notify queue pair, because a notify
        // waits for the acknowledgement of everything before it.
        let in_flight = self.sends.in_flight_ids();
        let follows = !in_flight.is_empty() && spray.are_with_notify(&in_flight);
        is_free && follows && self.sends.front_pending().is_none() && self.is_not_behind()
    }

    /// Returns whether no SEND or atomic is before a notify that is posted now, and no rail's fence.
    fn is_not_behind(&self) -> bool {
        // Until the fence of a rail, what it lost may still be executed. The id of a new request is
        // above all others.
        !self.health.awaits_fence && !self.pass_through.is_ahead_of(u64::MAX)
    }

    /// Returns whether a data rail on the device of the notify queue pair takes fragments, and is
    /// not too slow for one of this length: the data leaves a device out that the rails leave out.
    fn has_rail_beside(&self, notify: &Rail<Q, DEPTH>, length: u32) -> bool {
        let is_beside = |(at, rail): (usize, &Rail<Q, DEPTH>)| {
            let is_fast = length <= SHORT || self.chooser.is_fastest(at);
            rail.device == notify.device && rail.accepts() && is_fast
        };
        self.rails.iter().enumerate().any(is_beside)
    }

    /// Posts a request that [goes with its notify](Self::goes_with_notify).
    #[inline(never)]
    pub(super) fn post_with_notify(&mut self, wr: &SendWr<'_>) -> Result<(), PostSendError> {
        self.check_fragmented(wr)?;
        let id = self.add_apart(wr)?;
        match self.send_with_notify(id) {
            Ok(complaint) => {
                self.went_with_notify(id, complaint);
                Ok(())
            }
            Err(_) => {
                // The data may go over the rails. If the driver refuses the notify as well, that is
                // reported then, as for any notify.
                self.offers.sends.insert(RailId::Notify);
                self.dispatch_newest::<true>(id, wr.flags.contains(SendFlags::INLINE))
            }
        }
    }

    /// Notes that the driver took the newest request. A `complaint` fails its rail.
    fn went_with_notify(&mut self, id: u64, complaint: Option<Refusal>) {
        let in_flight = self.sends.in_flight_ids();
        if let SchemeState::Spray(spray) = &mut self.scheme {
            spray.note_with_notify(&in_flight);
        }
        let slot = self.sends.slot(id);
        slot.offset = slot.local.length();
        slot.batches_in_flight = 1;
        self.sends.pop_pending();
        if let Some(complaint) = complaint {
            self.driver_complained(RailId::Notify, complaint);
        }
    }

    fn send_with_notify(&mut self, id: u64) -> Result<Option<Refusal>, Refusal> {
        let Self { scheme, sends, .. } = self;
        let SchemeState::Spray(spray) = scheme else { return Err(Refusal::QueueFull) };
        spray.post_with_data(id, sends.slot(id))
    }

    /// Posts what the notify queue pair lost with its data again, as it was: the peer's count is
    /// known, and another queue pair has taken the place.
    pub(super) fn post_with_notify_again(&mut self) {
        loop {
            let owed = self.offers.sends.contains(RailId::Notify);
            let Some(notify) = self.scheme.notify_mut() else { return };
            let Some((number, batch)) = notify.sends.next_lost(0) else { return };
            let is_known = notify.sends.is_resolved(number);
            if !is_known || !notify.is_in_service() || owed || notify.sends.credits() == 0 {
                return;
            }
            // Taken off first: it may move to the same place.
            notify.sends.take_lost(number, None);
            let posted = self.send_with_notify(batch.wr);
            if posted.is_err()
                && let Some(notify) = self.scheme.notify_mut()
            {
                notify.sends.put_back_lost(number, batch);
            }
            self.update_rail(RailId::Notify);
            match posted {
                Ok(None) => {}
                Ok(Some(complaint)) => self.driver_complained(RailId::Notify, complaint),
                Err(refusal) => {
                    self.offers.sends.insert(RailId::Notify);
                    let error = self.scheme.notify().zip(refusal.errno());
                    let error = error.map(|(notify, errno)| notify.refusal_error(errno, 0));
                    error.into_iter().for_each(|error| self.request_refused(batch.wr, error));
                    return;
                }
            }
        }
    }
}

/// Returns whether the notify queue pair takes all bytes of a request.
fn fits<Q: QueuePair, const DEPTH: usize>(notify: &Rail<Q, DEPTH>, wr: &SendWr<'_>) -> bool {
    let limits = notify.qp.limits();
    let is_inline = wr.flags.contains(SendFlags::INLINE);
    let longest = if is_inline {
        limits.max_inline_data.min(limits.max_msg_size)
    } else {
        limits.max_msg_size
    };
    wr.local.length() <= longest
}
