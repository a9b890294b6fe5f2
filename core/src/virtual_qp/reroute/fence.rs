//! What arrived of what a rail lost counts as done, once nothing else of it can happen.

use crate::hardware::QueuePair;
use crate::rail::{Batch, Content, PhysicalRail, RailEventKind, RailId, Rails};
use crate::verbs::{Opcode, WcStatus};
use crate::virtual_qp::error::Failure;
use crate::virtual_qp::parts::front_bytes;
use crate::virtual_qp::qp::VirtualQp;
use crate::virtual_qp::scheme::dqplb::SendNumbers;
use crate::virtual_qp::scheme::{Numbering, notified_first};
use crate::virtual_qp::slot::SlotState;

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
        for at in 0..self.rails.len() as u8 {
            self.settle(RailId::Data(at));
        }
        self.settle(RailId::Notify);
        self.update_fence();
        self.post_again();
        let recovers = self
            .all_rails()
            .any(|rail| rail.health.lifecycle.awaits_fence() || rail.sends.has_lost());
        let reports = self.pass_through.has_complete()
            || self.data_receives.has_report(false)
            || self.has_ahead();
        self.health.needs_recovery = recovers || reports || self.health.failed;
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
    pub(super) fn blames_request(&mut self, id: RailId) -> bool {
        let Some(rail) = self.rail(id) else { return false };
        let suspects = rail.health.suspects_requests;
        let flushed = rail.flush_error();
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
                is_fatal |= usize::from(slot.rail_failures) > most;
            }
        });
        self.for_each_unresolved(id, |qp, batch| {
            // The mark is of this failure only: the next one may count the request again.
            qp.sends.slot(batch.wr).state.remove(SlotState::BLAMED);
        });
        if is_fatal {
            self.give_up(Failure::Rail(self.health.first_error.unwrap_or(flushed)));
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

    /// The queue pair of this `generation` is Down now: `arrived` of the requests that the peer
    /// counts had arrived. The rail itself may have gone on to the next generation.
    #[cold]
    pub(super) fn rail_fenced(&mut self, id: RailId, generation: u16, arrived: u32) {
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
        rail.sends.resolve();
        let kind = RailEventKind::Fenced { arrived: unacknowledged, again: lost - unacknowledged };
        rail.note_event(generation, kind);
    }

    /// The first `arrived` requests of a lost batch arrived, the others did not.
    fn lost_is_known(&mut self, id: RailId, number: u64, batch: &Batch, arrived: u32) {
        let all = arrived == u32::from(batch.count);
        let mut rest = None;
        match batch.content {
            // The peer does not count plain fragments: they are posted again in any case.
            Content::Fragments => return,
            Content::Numbered if all => self.sends.slot(batch.wr).batches_in_flight -= 1,
            Content::Numbered if arrived == 0 => return,
            Content::Numbered => {
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
            Content::PassThrough | Content::Unsignaled | Content::Gone => {}
        }
        if let Some(rail) = self.rail_mut(id) {
            rail.sends.take_lost(number, rest);
        }
    }
}
