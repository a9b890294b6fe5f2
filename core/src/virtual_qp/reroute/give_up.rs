//! The end of a virtual queue pair that cannot go on.

use crate::hardware::QueuePair;
use crate::rail::{Content, PhysicalRail, RailId, RailSet};
use crate::verbs::WcStatus;
use crate::virtual_qp::error::Failure;
use crate::virtual_qp::parts::front_bytes;
use crate::virtual_qp::qp::VirtualQp;
use crate::virtual_qp::scheme::{notified, notify_failed};
use crate::virtual_qp::slot::SlotState;

impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize>
    VirtualQp<Q, RAILS, DEPTH, WRS>
{
    /// Gives the virtual queue pair up: everything that is not complete is reported as flushed,
    /// once the queue pairs are drained. With
    /// [`RailFailure::Reroute`](super::super::RailFailure::Reroute) they are moved to the error
    /// state, and the peer is sent a message.
    pub fn fail(&mut self) {
        self.give_up(Failure::Owner);
        self.pump_all();
    }

    /// Rails through which the peer's memory may still be written, of a virtual queue pair that is
    /// in the error state: something was in flight on them, and the peer has not reported that its
    /// queue pair executes nothing more. Empty without re-routing, where no peer reports that.
    pub fn unfenced(&self) -> RailSet {
        self.health.unfenced
    }

    /// Puts the virtual queue pair into the error state: what no rail has is cancelled.
    #[cold]
    pub(in crate::virtual_qp) fn give_up(&mut self, failure: Failure) {
        if self.health.fail(failure) {
            self.forget_taken_back();
            self.withhold_rests();
            if self.reroute.is_on {
                self.abandon();
            }
        }
        self.pass_through.forget_fence();
        while let Some(id) = self.sends.front_pending() {
            self.sends.slot(id).state.insert(SlotState::CANCELLED);
            self.sends.pop_pending();
        }
    }

    /// No rail is waited for any more, and all are drained.
    fn abandon(&mut self) {
        // Without it, the peer would wait for messages that never come.
        self.reroute.sends_error = true;
        if core::mem::take(&mut self.health.awaits_fence) {
            // What was posted again and is acknowledged may still be written by what was lost.
            for id in self.sends.in_flight_ids() {
                self.sends.slot(id).state.insert(SlotState::CANCELLED);
            }
        }
        let mut all = RailSet::EMPTY;
        self.all_rails().for_each(|rail| all.insert(rail.id));
        for id in all {
            let Some(rail) = self.rail_mut(id) else { continue };
            let awaits = rail.health.lifecycle.awaits_fence() && rail.sends.requests_lost() > 0;
            if rail.health.lifecycle.takes_receives() {
                // If the driver refuses, only the owner can end what is in flight.
                let _ = rail.enter_error();
            }
            // What was in flight may still be executed by the peer's queue pair, which no message
            // of the peer has excluded.
            if awaits || !rail.sends.is_empty() {
                self.health.unfenced.insert(id);
            }
            self.fail_front(id);
            self.abandon_lost(id);
        }
    }

    /// Fails the front batch of a rail if a part of it is lost: the completions to come are of the
    /// rest only.
    fn fail_front(&mut self, id: RailId) {
        let front = self.rail(id).and_then(|rail| {
            let batch = rail.sends.front()?;
            Some((*batch, rail.sends.front_failed()?))
        });
        let Some((batch, first)) = front else { return };
        match batch.content {
            Content::Fragments | Content::Numbered | Content::WithNotify => {
                self.sends.slot(batch.wr).fail(WcStatus::WR_FLUSH_ERR);
            }
            Content::Notifies => {
                for index in first..u32::from(batch.count) {
                    notify_failed(&mut self.sends, &batch, index, WcStatus::WR_FLUSH_ERR);
                }
            }
            _ => {}
        }
    }

    /// What a rail has lost fails.
    pub(super) fn abandon_lost(&mut self, id: RailId) {
        let mut from = 0;
        while let Some((number, batch)) = self.rail(id).and_then(|rail| rail.sends.next_lost(from))
        {
            from = number + u64::from(batch.count);
            match batch.content {
                Content::Fragments | Content::Numbered | Content::WithNotify | Content::Gap => {
                    let slot = self.sends.slot(batch.wr);
                    slot.fail(WcStatus::WR_FLUSH_ERR);
                    slot.batches_in_flight -= 1;
                }
                Content::Notifies => {
                    for index in 0..u32::from(batch.count) {
                        notify_failed(&mut self.sends, &batch, index, WcStatus::WR_FLUSH_ERR);
                    }
                    notified(&mut self.sends, &batch);
                }
                Content::Deferred => {
                    self.deferred_is_complete(batch.wr, WcStatus::WR_FLUSH_ERR);
                }
                Content::PassThrough | Content::Unsignaled | Content::Gone => {}
            }
        }
        if let Some(rail) = self.rail_mut(id) {
            rail.sends.forget_lost();
        }
        self.update_rail(id);
    }

    /// The rest of batches that drivers took in part is not offered any more: nothing is sent for
    /// a request that was given up, nor past it.
    fn withhold_rests(&mut self) {
        let cut = self.cut();
        for rail in &mut self.rails {
            let Some((batch, index, _)) = rail.sends.partial() else { continue };
            // Of a rail that failed, they are withheld already.
            if !rail.sends.is_losing() {
                rail.sends.withhold(front_bytes(&self.sends, &batch, index, cut));
            }
            self.sends.slot(batch.wr).state.insert(SlotState::CANCELLED);
        }
        self.scheme.withhold(&mut self.sends);
    }
}
