//! How a virtual queue pair is: what its owner learns of failures, and what it may do about them.

use super::error::{Failure, ProtocolError};
use super::qp::VirtualQp;
use crate::hardware::{QueuePair, Refusal};
use crate::rail::{PhysicalRail, Rail, RailError, RailId, RailSet};
use crate::verbs::Completion;

/// How a virtual queue pair is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpState {
    /// All rails are in service.
    Ready,
    /// Some rails are out of service, or failed while others go on.
    Degraded,
    /// It failed for good. What is in flight is reported with its real status, the rest as flushed,
    /// and new posts are refused. Receives count as in flight while a queue pair holds them, so
    /// SPRAY's are reported once their owner has moved the notify queue pair to the error state.
    /// (With one rail, the physical queue pair answers for itself.)
    Error,
}

impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize>
    VirtualQp<Q, RAILS, DEPTH, WRS>
{
    /// How the virtual queue pair is.
    pub fn state(&self) -> QpState {
        if self.health.failed {
            QpState::Error
        } else if self.all_rails().all(Rail::is_in_service) {
            QpState::Ready
        } else {
            QpState::Degraded
        }
    }

    /// Why it is in the error state; `None` if it is not.
    pub fn failure(&self) -> Option<Failure> {
        self.health.failure
    }

    /// The first failure of a rail: which one, which status, where. Stays.
    pub fn first_error(&self) -> Option<RailError> {
        self.health.first_error
    }

    /// The first thing that no correct NIC or peer produces, since the last call, if any.
    pub fn take_protocol_error(&mut self) -> Option<ProtocolError> {
        self.health.protocol_error.take()
    }

    /// Protocol errors in all.
    pub fn protocol_errors(&self) -> u64 {
        self.health.protocol_errors
    }

    /// The rails on which nothing was completed since the previous call although there was
    /// something to do: their oldest request is the same one as then, or their driver refuses, then
    /// as now, what they are to post, as a full queue does.
    ///
    /// Some drivers never complete a request whose peer is gone. The engine reads no clock: call
    /// this at a period longer than any request may take, and move the queue pairs that it names
    /// to the error state, which flushes them. With one rail nothing is tracked, so nothing is
    /// named.
    ///
    /// A driver that refuses and has nothing in flight that could make room, or only the front of a
    /// batch whose rest it has not taken, can no longer end by itself: then the virtual queue pair
    /// is in the error state too, and [`first_error`](Self::first_error) has ENOMEM for the
    /// refusal.
    pub fn check_stalled(&mut self) -> RailSet {
        // A request that was refused and forgotten is not waited for.
        let waits = self.sends.unacknowledged_count() > 0 || self.pass_through.is_waiting();
        let offers = self.offers;
        let mut stalled = RailSet::EMPTY;
        let mut never = None;
        for rail in self.all_rails_mut() {
            // Receives that are posted make room for more when they complete, even if that is late.
            let refuses_all = offers.receives.contains(rail.id) && rail.recvs.is_empty();
            let refuses = (waits && offers.sends.contains(rail.id)) || refuses_all;
            if !rail.check_stalled(refuses) {
                continue;
            }
            stalled.insert(rail.id);
            if refuses && rail.sends.waits_for_driver() {
                never = never.or(Some(rail.refusal_error(Refusal::QueueFull.errno_or_full(), 0)));
            }
        }
        // Behind the loop: a failure changes the rails that it walks over.
        if let Some(error) = never.filter(|_| !self.health.failed) {
            self.rail_failed(error);
        }
        stalled
    }

    /// Whether any rail in service has send requests in flight, as far as rails fail and return:
    /// what these wait for is the peer, and no rail.
    pub fn has_sends_in_flight(&self) -> bool {
        self.all_rails().any(|rail| rail.health.lifecycle.is_in_service() && !rail.sends.is_empty())
    }

    /// Takes a rail out of service, or back in: a rail out of service gets no new fragments, and
    /// what is in flight on it completes.
    ///
    /// For maintenance, or on a port event. The virtual queue pair is Degraded meanwhile. With rail
    /// 0 out of service, new pass-through requests are refused; those that were accepted before are
    /// carried out, on the queue pair that takes its place if it fails: no other rail can carry
    /// them. The last rail in service stays in service, since requests would wait for ever: then
    /// false is returned, as for a rail that does not exist, and nothing changes.
    pub fn set_rail_in_service(&mut self, rail: u8, in_service: bool) -> bool {
        let others =
            self.rails.iter().enumerate().any(|(at, r)| r.is_in_service() && at != rail as usize);
        let Some(chosen) = self.rails.get_mut(rail as usize) else { return false };
        if !in_service && !others {
            return false;
        }
        chosen.is_enabled = in_service;
        self.update_rail(RailId::Data(rail));
        // Requests that found no rail may find this one.
        self.pump_all();
        true
    }

    /// Reserves a rail for what no other rail can carry, or ends that: as long as others take
    /// fragments, it gets none. For rail 0 on a device that it shares with another rail, so that it
    /// does not halve that one's throughput. Returns whether there is such a rail.
    pub fn reserve_rail(&mut self, rail: u8, reserved: bool) -> bool {
        let Some(chosen) = self.rails.get_mut(rail as usize) else { return false };
        chosen.is_reserved = reserved;
        self.update_rail(RailId::Data(rail));
        // Requests that found no rail may find this one.
        self.pump_all();
        true
    }

    /// A completion failed, so its queue pair is in the error state, and nothing takes over:
    /// neither a request that is [lost](Self::send_lost) nor a receive that is.
    #[cold]
    pub(super) fn completion_failed(&mut self, id: RailId, completion: &Completion, offset: u32) {
        let Some(rail) = self.rail_mut(id) else { return };
        rail.errors += 1;
        let error = rail.completion_error(completion, offset);
        self.give_up(Failure::Rail(error));
    }

    /// A driver took everything, and complained all the same: its rail failed.
    #[cold]
    pub(super) fn driver_complained(&mut self, id: RailId, refusal: Refusal) {
        let Some(rail) = self.rail_mut(id) else { return };
        let error = rail.refusal_error(refusal.errno_or_full(), 0);
        self.rail_failed(error);
    }

    /// The rail or all of the virtual queue pair failed: what a driver took of a batch has no
    /// signaled request behind it, so the driver is offered one that moves nothing.
    #[cold]
    pub(super) fn mark_end(&mut self, id: RailId) {
        let Some((batch, ..)) = self.rail_mut(id).and_then(|rail| rail.sends.partial()) else {
            return;
        };
        let slot = *self.sends.slot(batch.wr);
        let Some(rail) = self.rail_mut(id) else { return };
        let rkey = match id {
            RailId::Data(_) => slot.keys[rail.keys_at as usize].rkey,
            RailId::Notify => slot.notify_rkey,
        };
        // The queue may be full. It has room again after the flushes that the error state brings.
        if !rail.post_marker(slot.remote_addr, rkey) {
            self.offers.sends.insert(id);
        }
    }

    /// Completions of the only rail passed straight through, some of them failed.
    #[cold]
    pub(super) fn note_passed_failures(&mut self, completions: &[Completion]) {
        let rail = &mut self.rails[0];
        for completion in completions.iter().filter(|completion| !completion.status.is_success()) {
            rail.errors += 1;
            let error = rail.completion_error(completion, 0);
            // Without `give_up`: a single rail tracks no requests, and its caller has their
            // completions.
            self.health.fail(Failure::Rail(error));
        }
    }
}
