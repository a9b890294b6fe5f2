//! The state of a virtual queue pair: which rails may take requests, reports of failures, and the
//! calls that handle both.

use super::config::{BuildError, RailChoice};
use super::error::{Failure, ProtocolError};
use super::qp::VirtualQp;
use super::slot::{SendSlot, SlotState};
use crate::hardware::{QueuePair, Refusal};
use crate::rail::{Batch, PhysicalRail, Rail, RailError, RailId, RailSet};
use crate::verbs::Completion;

/// How a virtual queue pair is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpState {
    /// All rails are in service.
    Ready,
    /// Some rails are out of service, or failed while others go on.
    Degraded,
    /// It failed permanently. Requests in flight are reported with their real status, the rest as
    /// flushed, and new posts are refused. Receives count as in flight while a queue pair holds
    /// them, so SPRAY's are reported once their owner has moved the notify queue pair to the error
    /// state. (With one rail, the physical queue pair reports its own requests.)
    Error,
}

impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize>
    VirtualQp<Q, RAILS, DEPTH, WRS>
{
    /// Returns the state of the virtual queue pair.
    pub fn state(&self) -> QpState {
        if self.health.failed {
            QpState::Error
        } else if self.all_rails().all(Rail::is_in_service) {
            QpState::Ready
        } else {
            QpState::Degraded
        }
    }

    /// Returns why it is in the error state; `None` if it is not.
    pub fn failure(&self) -> Option<Failure> {
        self.health.failure
    }

    /// Returns the first failure of a rail, with its rail, status and place. It is never cleared.
    pub fn first_error(&self) -> Option<RailError> {
        self.health.first_error
    }

    /// Takes the first protocol error since the last call: an event that no correct NIC or peer
    /// produces.
    pub fn take_protocol_error(&mut self) -> Option<ProtocolError> {
        self.health.protocol_error.take()
    }

    /// Returns the total number of protocol errors.
    pub fn protocol_errors(&self) -> u64 {
        self.health.protocol_errors
    }

    /// Returns the rails without progress since the previous call, although they have work: their
    /// oldest request is the same as at that call, or their driver refused new requests at both
    /// calls, as a full queue does.
    ///
    /// Some drivers never complete a request whose peer has ended. The engine reads no clock: call
    /// this at a period longer than any request may take, and move the queue pairs of the returned
    /// rails to the error state, which flushes them. With one rail nothing is tracked, so the set
    /// is empty.
    ///
    /// A rail cannot recover if its driver refuses requests and has nothing in flight that could
    /// make room, or only the front of a batch whose rest it has not taken. Then the virtual queue
    /// pair is in the error state too, and [`first_error`](Self::first_error) has ENOMEM for the
    /// refusal.
    pub fn check_stalled(&mut self) -> RailSet {
        // Refused requests do not count: they were removed.
        let waits = self.sends.unacknowledged_count() > 0 || self.pass_through.is_waiting();
        let offers = self.offers;
        let mut stalled = RailSet::EMPTY;
        let mut never = None;
        for rail in self.all_rails_mut() {
            // Posted receives make room when they complete, even if that is late.
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
        // After the loop, because a failure changes the rails that the loop iterates over.
        if let Some(error) = never.filter(|_| !self.health.failed) {
            self.rail_failed(error);
        }
        stalled
    }

    /// Whether a rail that has not failed has send requests in flight, even if its owner [took it
    /// out of service](Self::set_rail_in_service). With one rail nothing is tracked, so it has
    /// none.
    pub fn has_sends_in_flight(&self, rail: RailId) -> bool {
        let rail = self.rail(rail).filter(|rail| rail.health.lifecycle.is_in_service());
        rail.is_some_and(|rail| !rail.sends.is_empty())
    }

    /// Returns the payload bytes in flight on a rail. Adds them up, so it is for owners that measure
    /// rails from time to time. With one rail nothing is tracked, so this is 0.
    pub fn bytes_in_flight(&self, rail: RailId) -> u64 {
        self.rail(rail).map_or(0, |rail| rail.sends.bytes())
    }

    /// Whether the oldest send request in flight on a rail takes a receive of the peer's. Such a
    /// request waits until the peer has posted the receive. All other requests need only the peer's
    /// device. With one rail nothing is tracked, so this is false.
    pub fn may_wait_for_receive(&self, rail: RailId) -> bool {
        let front = self.rail(rail).and_then(|rail| rail.sends.front());
        front.is_some_and(|batch| batch.receives() > 0)
    }

    /// Whether fragments of WRITEs and READs, or atomics that a queue pair has, are not
    /// acknowledged. They take no receive of the peer's, so they need only devices. But on a rail
    /// they wait behind requests that [may wait for a receive](Self::may_wait_for_receive).
    /// Requests that wait for their FENCE do not count. With one rail nothing is tracked, so this
    /// is false.
    pub fn has_requests_without_receive(&self) -> bool {
        const NO_FRAGMENTS: SlotState = SlotState::PASS_THROUGH
            .union(SlotState::NO_DATA)
            .union(SlotState::PART)
            .union(SlotState::TAKEN_BACK);
        let takes_none = |batch: &Batch| batch.receives() == 0;
        let has_any = |rail: &Rail<Q, DEPTH>| {
            rail.sends.iter().chain(rail.sends.lost_batches()).any(takes_none)
        };
        let pending = || self.sends.pending_ids().filter_map(|id| self.sends.find(id));
        // Those behind a fence wait with it, because fragments are posted in order.
        let are_fenced = pending().next().is_some_and(|front| front.is_fenced());
        let is_pending = |slot: &SendSlot<RAILS>| {
            !slot.state.intersects(NO_FRAGMENTS) && !slot.is_numbered() && slot.unposted() > 0
        };
        self.all_rails().any(has_any) || (!are_fenced && pending().any(is_pending))
    }

    /// Returns the number of a rail's send requests that have ended and were not lost, and of those
    /// that were lost, but had arrived according to the peer. It grows only if something gets
    /// through to the peer and is acknowledged. 0 if there is no such rail, and with one rail,
    /// where nothing is tracked.
    pub fn acknowledged(&self, rail: RailId) -> u64 {
        self.rail(rail).map_or(0, |rail| rail.sends.requests_acknowledged())
    }

    /// Takes a rail out of service, or back in. A rail out of service gets no new fragments, and
    /// requests in flight on it complete.
    ///
    /// For maintenance, or on a port event. The virtual queue pair is Degraded meanwhile. With rail
    /// 0 out of service, new pass-through requests are refused. Pass-through requests that were
    /// accepted before are still executed, on a replacement queue pair if it fails, because no
    /// other rail can carry them. The last rail in service stays in service, because requests would
    /// otherwise wait without end: then this returns false and changes nothing, as for a rail that
    /// does not exist.
    pub fn set_rail_in_service(&mut self, rail: u8, in_service: bool) -> bool {
        let others =
            self.rails.iter().enumerate().any(|(at, r)| r.is_in_service() && at != rail as usize);
        let Some(chosen) = self.rails.get_mut(rail as usize) else { return false };
        if !in_service && !others {
            return false;
        }
        chosen.is_enabled = in_service;
        self.update_rail(RailId::Data(rail));
        // Requests that waited for a rail may use this one.
        self.pump_all();
        true
    }

    /// Reserves a rail for requests that no other rail can carry, or ends the reservation. A
    /// reserved rail gets no fragments while other rails take them. This is for a rail 0 that
    /// shares its device with another rail, so that it does not halve the throughput of that rail.
    /// Returns whether the rail exists.
    pub fn reserve_rail(&mut self, rail: u8, reserved: bool) -> bool {
        let Some(chosen) = self.rails.get_mut(rail as usize) else { return false };
        chosen.is_reserved = reserved;
        self.update_rail(RailId::Data(rail));
        // Requests that waited for a rail may use this one.
        self.pump_all();
        true
    }

    /// Makes a rail a standby rail or a home rail, in place of what
    /// [`Config::standby`](super::Config::standby) says. This is for a rail whose new queue pair is on
    /// another device, for example a rail 0 that moves to the device of a standby rail: call it
    /// before [`replace_rail`](Self::replace_rail), which may post waiting requests to the rail. (Rail
    /// 0 keeps the requests that no other rail can carry.) Returns whether the rail exists.
    pub fn set_standby(&mut self, rail: u8, standby: bool) -> bool {
        let Some(chosen) = self.rails.get_mut(rail as usize) else { return false };
        chosen.is_standby = standby;
        self.update_rail(RailId::Data(rail));
        // Requests that waited for a rail may use this one, or the rails that it kept closed.
        self.pump_all();
        true
    }

    /// Sets which rail gets the next fragments, in place of
    /// [`Config::rail_choice`](super::Config::rail_choice), for example because a port has another
    /// rate now. Fragments that were posted before stay where they are.
    ///
    /// # Errors
    ///
    /// Nothing changed: [`BuildError::Bandwidth`], if a bandwidth is 0.
    pub fn set_rail_choice(&mut self, choice: RailChoice) -> Result<(), BuildError> {
        self.chooser.set_choice(choice, self.rails.len())?;
        self.config.rail_choice = choice;
        Ok(())
    }

    /// Takes note of what may have changed whether a rail takes requests.
    pub(super) fn update_rail(&mut self, id: RailId) {
        if let Some(rail) = self.rail_mut(id) {
            rail.update_carries();
        }
        if let RailId::Data(at) = id {
            self.update_availability(usize::from(at));
        }
        // Those that leave fragments to the others take them if there are no others. For a standby
        // rail this is the only place where it opens and closes, because all changes of which home
        // rails are in service end here.
        for at in 0..self.rails.len() {
            if self.rails[at].leaves_fragments() {
                self.update_availability(at);
            }
        }
    }

    /// Updates the chooser after a change of whether a data rail takes fragments.
    #[inline]
    pub(super) fn update_availability(&mut self, at: usize) {
        let accepts = self.may_accept(at);
        let rail = &mut self.rails[at];
        rail.set_accepts(accepts);
        let has_credit = rail.sends.credits() > 0;
        self.chooser.set_available(rail.turn_bit, rail.accepts() && has_credit);
    }

    /// Returns whether a data rail may take requests, apart from credits. A rail that has lost
    /// fragments must post those first, because they occupy its ring.
    #[inline]
    fn may_carry(&self, at: usize) -> bool {
        self.rails[at].carries && !self.is_owed(at)
    }

    /// Returns whether the driver of a data rail refused requests that must be offered again before
    /// anything else is posted to the rail.
    #[inline]
    pub(super) fn is_owed(&self, at: usize) -> bool {
        let rail = &self.rails[at];
        rail.sends.is_partial() || self.offers.sends.contains(rail.id)
    }

    /// Returns whether a data rail may take fragments, apart from credits.
    #[inline]
    pub(super) fn may_accept(&self, at: usize) -> bool {
        self.may_carry(at) && (!self.rails[at].leaves_fragments() || self.is_needed(at))
    }

    /// Returns whether a rail that leaves fragments to others may take them, because there are no
    /// others.
    #[cold]
    fn is_needed(&self, at: usize) -> bool {
        let Rail { is_reserved, is_standby, .. } = self.rails[at];
        let takes = |(other, rail): (usize, &Rail<Q, DEPTH>)| {
            // A standby rail does not relieve a reserved home rail: it is closed, since that rail
            // is in service.
            other != at && rail.carries && !rail.is_reserved && rail.is_standby == is_standby
        };
        let others_take = is_reserved && self.rails.iter().enumerate().any(takes);
        !others_take && !self.is_standing_by(at)
    }

    /// Returns whether a data rail is a standby rail and a home rail is in service, so that nothing
    /// may be posted to it that another rail can carry.
    pub(super) fn is_standing_by(&self, at: usize) -> bool {
        // In service, and not `carries`: a home rail without credits, or with lost fragments to
        // post first, keeps the standby rails closed.
        self.rails[at].is_standby
            && self.rails.iter().any(|rail| !rail.is_standby && rail.is_in_service())
    }

    /// Whether rail 0 takes a new pass-through request now.
    #[inline]
    pub(super) fn rail_0_has_room(&self) -> bool {
        let rail = &self.rails[0];
        // A rail that accepts fragments may carry requests. It may also leave fragments to others.
        rail.sends.credits() > 0 && (rail.accepts() || self.may_carry(0))
    }

    /// Returns whether rail 0 can take a pass-through request that was accepted before. Only rail 0
    /// can carry it, so it goes out even if the owner has taken rail 0 out of service since.
    pub(super) fn rail_0_has_room_for_accepted(&self) -> bool {
        let Rail { health, sends, .. } = &self.rails[0];
        health.lifecycle.is_in_service()
            && !sends.has_lost()
            && !self.is_owed(0)
            && sends.credits() > 0
    }

    /// Fails the virtual queue pair after a failed completion, whose queue pair is in the error
    /// state. No rail takes over: neither its [lost](Self::send_lost) requests nor its lost
    /// receives.
    #[cold]
    pub(super) fn completion_failed(&mut self, id: RailId, completion: &Completion, offset: u32) {
        let Some(rail) = self.rail_mut(id) else { return };
        rail.errors += 1;
        let error = rail.completion_error(completion, offset);
        self.give_up(Failure::Rail(error));
    }

    /// Fails a rail whose driver accepted all requests and still returned an error.
    #[cold]
    pub(super) fn driver_complained(&mut self, id: RailId, refusal: Refusal) {
        let Some(rail) = self.rail_mut(id) else { return };
        let error = rail.refusal_error(refusal.errno_or_full(), 0);
        self.rail_failed(error);
    }

    /// Posts a marker, which moves no data, after a rail or the virtual queue pair failed: if a
    /// driver accepted only a part of a batch, that part has no signaled request behind it.
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
        // The queue may be full. It has room again after the flushes of the error state.
        if !rail.post_marker(slot.remote_addr, rkey) {
            self.offers.sends.insert(id);
        }
    }

    /// Handles completions of the only rail, which were passed straight through, and of which some
    /// failed.
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
