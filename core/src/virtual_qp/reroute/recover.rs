//! From the failure of a rail to its return: the virtual queue pair's part of the steps that every
//! end takes, in their order.

use crate::hardware::{QpLimits, QueuePair};
use crate::rail::{
    Batch, Content, FailedBecause, PhysicalRail, Rail, RailEventKind, RailId, RailSet, RailState,
    Rails, RailsFailure, Reroute,
};
use crate::verbs::{DeviceId, Opcode, WcStatus};
use crate::virtual_qp::dispatch::load;
use crate::virtual_qp::error::Failure;
use crate::virtual_qp::list::{post_rest_of, usable};
use crate::virtual_qp::parts::front_bytes;
use crate::virtual_qp::qp::VirtualQp;
use crate::virtual_qp::scheme::dqplb::SendNumbers;
use crate::virtual_qp::scheme::{Numbering, notified_first};
use crate::virtual_qp::slot::SlotState;

impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize> Rails
    for VirtualQp<Q, RAILS, DEPTH, WRS>
{
    type Rail = Rail<Q, DEPTH>;
    type Place = RailId;

    fn reroute(&self) -> &Reroute {
        &self.reroute
    }

    fn reroute_mut(&mut self) -> &mut Reroute {
        &mut self.reroute
    }

    fn rail_at(&self, id: RailId) -> Option<&Rail<Q, DEPTH>> {
        self.rail(id)
    }

    fn rail_at_mut(&mut self, id: RailId) -> Option<&mut Rail<Q, DEPTH>> {
        self.rail_mut(id)
    }

    fn places(&self) -> impl Iterator<Item = (RailId, &Rail<Q, DEPTH>)> {
        self.all_rails().map(|rail| (rail.id, rail))
    }

    fn places_mut(&mut self) -> impl Iterator<Item = (RailId, &mut Rail<Q, DEPTH>)> {
        self.all_rails_mut().map(|rail| (rail.id, rail))
    }

    fn id_of(&self, id: RailId) -> RailId {
        id
    }

    fn has_failed(&self) -> bool {
        self.health.failed
    }

    fn give_up_for(&mut self, why: RailsFailure) {
        self.give_up(why.into());
    }

    fn posted(rail: &Rail<Q, DEPTH>) -> u32 {
        rail.sends.receives_due()
    }

    fn has_atomics(rail: &Rail<Q, DEPTH>) -> bool {
        let mut in_flight = rail.sends.iter();
        in_flight.any(|batch| matches!(batch.opcode, Opcode::CompareSwap | Opcode::FetchAdd))
    }

    fn stop_using(&mut self, id: RailId, why: &FailedBecause) {
        if let FailedBecause::Error(error) = why {
            // The first error of a rail stays for the owner (`first_error`), though other rails
            // take over.
            self.health.note_error(*error);
        }
        let partial = self.rail(id).and_then(|rail| rail.sends.partial());
        let bytes_taken =
            partial.map(|(batch, index, _)| front_bytes(&self.sends, &batch, index, self.cut()));
        let Some(rail) = self.rail_mut(id) else { return };
        if let Some(bytes) = bytes_taken {
            rail.sends.withhold(bytes);
        }
        rail.sends.begin_loss();
        self.offers.sends.remove(id);
        if partial.is_some() {
            // The front that the driver took has no signaled request behind it, so the driver is
            // offered one.
            self.offers.sends.insert(id);
        }
        // A rail that is Draining takes no receives: they are posted to the next queue pair.
        self.offers.receives.remove(id);
        self.update_rail(id);
        // At once, and not with the next poll: from here on no request may be reported before the
        // peer's count.
        self.update_fence();
    }

    fn drain_rail(&mut self, id: RailId) -> Option<u32> {
        let rail = self.rail_mut(id)?;
        let is_complete = rail.sends.is_empty() && rail.recvs.is_empty();
        // Complete is not enough: a queue pair that answers may still carry out what is on its way.
        if rail.enter_error().is_some() || !is_complete {
            return None;
        }
        rail.sends.end_loss();
        Some(rail.recvs.arrived())
    }

    fn note_fenced(&mut self, id: RailId) -> bool {
        if id == RailId::Notify {
            // The receives that took nothing wait for the next queue pair.
            self.recvs.unpost();
        }
        // Behind the drain, when it is known which requests the rail lost.
        !self.blames_request(id)
    }

    #[cold]
    fn fenced(&mut self, id: RailId, generation: u16, arrived: u32) {
        let Some(rail) = self.rail(id) else { return };
        let acknowledged = rail.sends.receives_acknowledged();
        let unacknowledged = arrived.wrapping_sub(acknowledged);
        // The peer's NIC acknowledged more than its software counted, so completions were lost with
        // its completion queue. Notifications may be missing that nothing can reconstruct.
        if (unacknowledged as i32) < 0 {
            return self.give_up(Failure::CompletionsLost { rail: id, arrived, acknowledged });
        }
        let lost = rail.sends.requests_lost();
        let mut left = unacknowledged;
        let mut next = rail.sends.next_lost(rail.sends.first_unresolved());
        while let Some((number, batch)) = next {
            // A reliable connection executes requests in posting order, so what arrived is a prefix
            // of the lost ones. Batches that consume no receive take nothing of the count.
            let arrived = batch.receives().min(left);
            left -= arrived;
            self.lost_is_known(id, number, &batch, arrived);
            let behind = number + u64::from(batch.count);
            next = self.rail(id).and_then(|rail| rail.sends.next_lost(behind));
        }
        let Some(rail) = self.rail_mut(id) else { return };
        rail.sends.resolve(unacknowledged);
        let kind = RailEventKind::Fenced { arrived: unacknowledged, again: lost - unacknowledged };
        rail.note_event(generation, kind);
    }

    fn returned(&mut self, id: RailId) {
        self.update_rail(id);
    }

    fn request_recovery(&mut self) {
        self.health.needs_recovery = true;
    }

    fn go_on(&mut self) {
        self.pump_all();
    }

    fn device_at(&self, id: RailId, device: DeviceId) -> Option<usize> {
        self.devices.contains(device).then(|| self.devices.place_of(id, device))
    }

    fn limits(
        &self,
        id: RailId,
        granted: &QpLimits,
    ) -> impl IntoIterator<Item = (&'static str, u32, u32)> {
        let rail = self.rail(id);
        let max_send_wr = rail.map_or(0, |rail| rail.sends.limit());
        let max_recv_wr = rail.map_or(0, |rail| rail.recvs.limit());
        // What a notify queue pair lost with its data goes out again on its replacement, and was no
        // longer than its own messages can be.
        let longest = rail.filter(|rail| rail.id == RailId::Notify);
        let longest = longest.map_or(u32::MAX, |notify| notify.qp.limits().max_msg_size);
        let message = self.config.max_msg_size.min(longest);
        // Lists are cut, and receives remembered, for what all queue pairs took when they were
        // built.
        let send_sge = if id == RailId::Notify { 1 } else { self.max_sge };
        let recv_sge = if id == RailId::Data(0) { self.max_recv_sge } else { 1 };
        [
            ("max_send_wr", granted.max_send_wr, max_send_wr),
            ("max_recv_wr", granted.max_recv_wr, max_recv_wr),
            ("max_msg_size", granted.max_msg_size, message),
            ("max_send_sge", usable(granted.max_send_sge), send_sge),
            ("max_recv_sge", usable(granted.max_recv_sge), recv_sge),
        ]
    }
}

/// What arrived of what a rail lost counts as done, once nothing else of it can happen.
impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize>
    VirtualQp<Q, RAILS, DEPTH, WRS>
{
    /// Does what completions and messages allow for rails that failed.
    #[cold]
    #[inline(never)]
    pub(in crate::virtual_qp) fn recover(&mut self) {
        if self.health.failed {
            return;
        }
        self.fence_all_on_purpose();
        let draining =
            |rail: &&Rail<Q, DEPTH>| rail.health.lifecycle.state() == RailState::Draining;
        let draining: RailSet = self.all_rails().filter(draining).map(|rail| rail.id).collect();
        for id in draining {
            self.settle(id);
        }
        self.update_fence();
        self.settle_taken_back();
        self.post_again();
        self.post_with_notify_again();
        let recovers = self
            .all_rails()
            .any(|rail| rail.health.lifecycle.awaits_fence() || rail.sends.has_lost());
        let takes_back = self.being_taken_back > 0
            || self.rails.iter().any(|rail| rail.health.lifecycle.awaits_atomics());
        self.has_taken_back = self.next_taken_back().is_some();
        let reports = self.pass_through.has_complete()
            || self.data_receives.has_report(false)
            || self.has_ahead();
        self.health.needs_recovery = recovers || reports || takes_back || self.health.failed;
    }

    /// Takes note of whether it is known what arrived of everything that was lost.
    pub(super) fn update_fence(&mut self) {
        let awaits = self.all_rails().any(|rail| {
            // A rail that had nothing in flight has no copy that could be executed late, so its
            // fence holds no report back.
            let lost = !rail.sends.is_empty() || rail.sends.requests_lost() > 0;
            rail.health.lifecycle.awaits_fence() && lost
        });
        self.health.awaits_fence = awaits && !self.health.failed;
    }

    /// Requests that a rail lost may be the cause of its failure, and it is unknown whether an
    /// atomic was executed. Returns whether the virtual queue pair failed for that.
    fn blames_request(&mut self, id: RailId) -> bool {
        let Some(rail) = self.rail(id) else { return false };
        let suspects = rail.health.suspects_requests;
        let most = 2 * self.rails.len();
        let mut is_fatal = false;
        self.for_each_unresolved(id, |qp, batch| {
            let is_atomic = matches!(batch.opcode, Opcode::CompareSwap | Opcode::FetchAdd);
            // It must not be executed twice, and the peer does not count it.
            is_fatal |= batch.content == Content::Deferred && is_atomic;
            let slot = qp.sends.slot(batch.wr);
            // Once, however many batches of it were lost.
            if suspects && !slot.state.contains(SlotState::BLAMED) {
                slot.state.insert(SlotState::BLAMED);
                slot.rail_failures = slot.rail_failures.saturating_add(1);
                is_fatal |= slot.rail_failures as usize > most;
            }
        });
        if suspects {
            self.for_each_unresolved(id, |qp, batch| {
                // The mark is of this failure only: the next one may count the request again.
                qp.sends.slot(batch.wr).state.remove(SlotState::BLAMED);
            });
        }
        if is_fatal && let Some(rail) = self.rail(id) {
            let error = self.health.first_error.unwrap_or_else(|| rail.flush_error());
            self.give_up(Failure::Rail(error));
        }
        is_fatal
    }

    /// Calls `each` for the lost batches of which it is not known what arrived.
    fn for_each_unresolved(&mut self, id: RailId, mut each: impl FnMut(&mut Self, &Batch)) {
        let Some(rail) = self.rail(id) else { return };
        let mut from = rail.sends.first_unresolved();
        while let Some((number, batch)) = self.rail(id).and_then(|rail| rail.sends.next_lost(from))
        {
            from = number + u64::from(batch.count);
            each(self, &batch);
        }
    }

    /// The first `arrived` requests of a lost batch arrived, the others did not.
    fn lost_is_known(&mut self, id: RailId, number: u64, batch: &Batch, arrived: u32) {
        let all = arrived == u32::from(batch.count);
        let mut rest = None;
        match batch.content {
            // The peer does not count plain fragments: they are posted again in any case.
            Content::Fragments => return,
            Content::Numbered | Content::Gap if all => {
                self.sends.slot(batch.wr).batches_in_flight -= 1;
            }
            Content::WithNotify if all => self.sends.slot(batch.wr).arrived_with_notify(),
            // The data is posted again together with the notify, as one request.
            Content::Numbered | Content::Gap | Content::WithNotify if arrived == 0 => return,
            Content::Numbered | Content::Gap => {
                let number = SendNumbers::number_of(batch, arrived).get();
                let bytes = front_bytes(&self.sends, batch, arrived, self.cut());
                rest = Some(batch.split(arrived, bytes, number).1);
            }
            Content::Notifies => {
                if let Some(first) = notified_first(&mut self.sends, batch, arrived) {
                    // Behind it nothing is notified, so all of them are again in flight.
                    self.sends.put_back_in_flight(first);
                }
            }
            Content::Deferred if all => self.deferred_is_complete(batch.wr, WcStatus::SUCCESS),
            // SENDs arrive in order, so a lost one goes out before newer ones: the cursor moves
            // back to it.
            Content::Deferred => self.pass_through.next = self.pass_through.next.min(batch.wr),
            Content::PassThrough
            | Content::Unsignaled
            // One request: all of it arrived, or nothing.
            | Content::WithNotify
            | Content::Gone => {}
        }
        if let Some(rail) = self.rail_mut(id) {
            rail.sends.take_lost(number, rest);
        }
    }
}

/// A lost batch in the ring of the rail that lost it.
#[derive(Clone, Copy)]
struct Found {
    rail: usize,
    number: u64,
    batch: Batch,
}

/// What was lost is posted again, before anything else.
impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize>
    VirtualQp<Q, RAILS, DEPTH, WRS>
{
    /// Posts lost fragments again as far as rails have credits.
    fn post_again(&mut self) {
        for rail in 0..self.rails.len() {
            if self.rails[rail].sends.has_lost() {
                self.post_lost_of(rail);
            }
            self.update_rail(RailId::Data(rail as u8));
        }
    }

    /// Posts what one rail lost again, oldest first.
    fn post_lost_of(&mut self, rail: usize) {
        let mut from = 0;
        while let Some((number, batch)) = self.rails[rail].sends.next_lost(from) {
            from = number + u64::from(batch.count);
            let Some(batch) = self.goes_again_as(&batch) else { continue };
            let found = Found { rail, number, batch };
            if !self.may_go_again(&found) {
                continue;
            }
            // No rail can take fragments now, so the other batches of this rail find none either.
            let Some(target) = self.choose_again(&found) else { return };
            self.post_lost(&found, target);
            // What it did not take is next.
            from = number;
        }
    }

    /// Whether a lost batch may be posted again: plain fragments after the local drain, since they
    /// are reported only when the lost copies can no longer be executed; numbered ones when it is
    /// known that they did not arrive, since numbers must not arrive twice.
    fn may_go_again(&self, found: &Found) -> bool {
        let rail = &self.rails[found.rail];
        // Until the local drain is over, more of what this rail has in flight may complete with
        // success: `rails-that-fail.md`, "What happens to requests".
        let is_drained = !rail.sends.is_losing() || rail.health.lifecycle.is_drained();
        match found.batch.content {
            Content::Fragments => is_drained,
            Content::Numbered | Content::Gap => rail.sends.is_resolved(found.number),
            _ => false,
        }
    }

    /// The rail for a lost batch: its own rail if that is back and does not stand by, or any rail
    /// that may be given fragments.
    fn choose_again(&mut self, found: &Found) -> Option<usize> {
        let Found { rail: own, number, batch } = found;
        let (own, count) = (*own, u32::from(batch.count));
        let rail = &self.rails[own];
        // Lost batches keep their places in the ring of their rail, and while they do it carries
        // nothing else ("lost batches keep their places" in `lost_invariants`). A batch moves from
        // the front to the back: behind one that waits, because its request is being taken back,
        // none can.
        let is_front = rail.sends.next_lost(0).is_some_and(|(front, _)| front == *number);
        let is_open = rail.is_in_service() && !self.is_standing_by(own);
        if is_open && is_front && !self.is_owed(own) && rail.sends.credits() > 0 {
            return Some(own);
        }
        let Self { rails, chooser, .. } = self;
        let mut round = chooser.round();
        chooser.next(&mut round, count, count, || load(rails)).map(|(at, _)| at)
    }

    /// Posts as much of a lost batch to a rail as it has credits for.
    fn post_lost(&mut self, found: &Found, target: usize) {
        let Found { rail: own, number, batch } = *found;
        let cut = self.cut();
        let count = u32::from(batch.count).min(self.rails[target].sends.credits());
        let (piece, rest) = split(batch, count, front_bytes(&self.sends, &batch, count, cut));
        // Taken off first: on its own rail, it may move to the same place.
        self.rails[own].sends.take_lost(number, rest);
        // The batch is two from now on. Otherwise the request would look complete when this piece
        // is acknowledged.
        self.sends.slot(batch.wr).batches_in_flight += u32::from(rest.is_some());
        let rail = &mut self.rails[target];
        let tag = rail.sends.push_again(piece);
        let taken = post_rest_of(rail, &mut self.sends, &piece, 0, tag, cut);
        if taken.refusal.is_some() {
            rail.sends.truncate(count, taken.count);
            let id = rail.id;
            let error = taken.refusal.and_then(|refusal| refusal.errno());
            let error = error.map(|errno| rail.refusal_error(errno, piece.offset));
            // Nothing was posted, so the batch is whole again. Taken in part, the piece stays on
            // the target, whose driver is offered the rest.
            if taken.count == 0 {
                self.sends.slot(batch.wr).batches_in_flight -= u32::from(rest.is_some());
                self.rails[own].sends.put_back_lost(number, batch);
            }
            self.offers.sends.insert(id);
            if let Some(error) = error {
                self.request_refused(batch.wr, error);
            }
        }
        self.update_rail(RailId::Data(target as u8));
    }
}

/// Splits a lost batch into what goes out now, `bytes` of it, and the rest.
fn split(batch: Batch, count: u32, bytes: u32) -> (Batch, Option<Batch>) {
    if count == u32::from(batch.count) {
        return (batch, None);
    }
    let number = match batch.content {
        Content::Numbered | Content::Gap => SendNumbers::number_of(&batch, count).get(),
        _ => 0,
    };
    let (front, rest) = batch.split(count, bytes, number);
    (front, Some(rest))
}
