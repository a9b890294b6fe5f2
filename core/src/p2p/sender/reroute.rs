//! What becomes of queue pairs that fail, at the sending end.
//!
//! 1. A completion failed, a driver refused, or the owner or the peer reported a failure: the queue
//!    pair is moved to the error state, and drained.
//! 2. The peer reports how many immediates arrived on it, once its queue pair can execute nothing
//!    more. A reliable connection executes requests in order, and each share has one immediate. So
//!    of the shares that the queue pair was given, those at positions below that number have
//!    arrived, and no others.
//! 3. Shares that did not arrive are sent again by other queue pairs: the payload, then the sizes
//!    with an immediate that names the rail of the share.
//!
//! The number may be less than what was acknowledged, if the receiver's device died with
//! completions that were not taken: the payload is there, and the receiver does not know it. So
//! shares keep their positions when they are acknowledged, and when their messages were reported,
//! until the entries of the slot's next receive come; their signals can go out again without
//! payload.

use super::end::Sender;
use super::slot::{Share, Slot, Stage, State};
use crate::hardware::{QpLimits, QueuePair};
use crate::p2p::control::{Control, End};
use crate::p2p::error::Failure;
use crate::p2p::lane::Lane;
use crate::p2p::memory::Words;
use crate::rail::{
    ControlError, FailedBecause, PhysicalRail, RailEventKind, RailId, RailState, Rails,
    RailsFailure, Reroute,
};
use crate::verbs::DeviceId;

impl<Q: QueuePair, M: Words, const QPS: usize, const DEPTH: usize, const SLOTS: usize> Rails
    for Sender<Q, M, QPS, DEPTH, SLOTS>
{
    type Rail = Lane<Q, DEPTH>;
    type Place = usize;

    fn reroute(&self) -> &Reroute {
        &self.lanes.reroute
    }

    fn reroute_mut(&mut self) -> &mut Reroute {
        &mut self.lanes.reroute
    }

    fn rail_at(&self, place: usize) -> Option<&Lane<Q, DEPTH>> {
        self.lanes.get(place)
    }

    fn rail_at_mut(&mut self, place: usize) -> Option<&mut Lane<Q, DEPTH>> {
        self.lanes.get_mut(place)
    }

    fn places(&self) -> impl Iterator<Item = (usize, &Lane<Q, DEPTH>)> {
        self.lanes.iter().enumerate()
    }

    fn places_mut(&mut self) -> impl Iterator<Item = (usize, &mut Lane<Q, DEPTH>)> {
        self.lanes.iter_mut().enumerate()
    }

    fn id_of(&self, place: usize) -> RailId {
        RailId::Data((place % usize::from(self.config.rails)) as u8)
    }

    fn has_failed(&self) -> bool {
        self.lanes.failure.is_some()
    }

    fn give_up_for(&mut self, why: RailsFailure) {
        self.give_up(why.into());
    }

    fn posted(lane: &Lane<Q, DEPTH>) -> u32 {
        lane.immediates
    }

    fn stop_using(&mut self, place: usize, _why: &FailedBecause) {
        // The rest of the share is not for this queue pair any more: the share is lost, and another
        // one sends all of it.
        self.owed[place] = None;
        self.lanes[place].is_stopped = true;
        self.lanes.update_open();
    }

    fn drain_rail(&mut self, place: usize) -> Option<u32> {
        // Nothing arrives at this end.
        self.lanes[place].drain(false).then_some(0)
    }

    fn note_fenced(&mut self, _place: usize) -> bool {
        true
    }

    fn fenced(&mut self, place: usize, generation: u16, arrived: u32) {
        self.lane_fenced((place, generation), arrived);
    }

    fn returned(&mut self, place: usize) {
        self.waits_for_rail = false;
        self.lanes[place].is_stopped = false;
        self.lanes.update_open();
    }

    fn request_recovery(&mut self) {
        self.lanes.needs_recovery = true;
    }

    fn go_on(&mut self) {
        self.recover();
    }

    fn device_at(&self, _place: usize, device: DeviceId) -> Option<usize> {
        self.devices.iter().position(|known| *known == device)
    }

    fn limits(
        &self,
        place: usize,
        granted: &QpLimits,
    ) -> impl IntoIterator<Item = (&'static str, u32, u32)> {
        self.lanes[place].limits(granted)
    }
}

impl<Q: QueuePair, M: Words, const QPS: usize, const DEPTH: usize, const SLOTS: usize> End
    for Sender<Q, M, QPS, DEPTH, SLOTS>
{
    fn find_stalled(&mut self, each: impl FnMut(usize)) {
        self.lanes.find_stalled(each);
    }

    fn lose(&mut self, place: usize) -> bool {
        let Some(lane) = self.lanes.get_mut(place) else { return false };
        lane.lose();
        self.rail_failed(place, FailedBecause::Lost);
        true
    }

    fn replaced(&mut self, place: usize, peer_device: u8) {
        self.lanes[place].peer_at = peer_device;
    }

    fn next_withdrawal(&mut self) -> Option<Control> {
        self.next_answer()
    }

    fn withdraw(&mut self, number: u64) -> Result<(), ControlError> {
        self.withdraw_receive(number)
    }
}

/// Steps.
impl<Q: QueuePair, M: Words, const QPS: usize, const DEPTH: usize, const SLOTS: usize>
    Sender<Q, M, QPS, DEPTH, SLOTS>
{
    /// Whether a poll has something to do here even without a completion.
    #[cold]
    pub(super) fn has_something_to_do(&self) -> bool {
        if self.lanes.failure.is_some() {
            return self.lanes.iter().any(Lane::needs_poll);
        }
        // What waits for credits goes on with a completion.
        let takes_more = |(owed, lane): (&Option<(u64, u8)>, &Lane<Q, DEPTH>)| {
            // What a queue pair owes comes first there.
            let takes = match *owed {
                Some((number, _)) => self.may_be_posted(number),
                None => self.has_lost && self.lanes.is_open(lane),
            };
            takes && lane.has_room(1)
        };
        let drains = |lane: &Lane<Q, DEPTH>| lane.health.lifecycle.state() == RailState::Draining;
        if self.withdrawn > 0 && self.lanes.any_in_service() {
            // Its entries come without a completion.
            return true;
        }
        self.owed.iter().zip(self.lanes.iter()).any(takes_more) || self.lanes.iter().any(drains)
    }

    /// Does what completions and messages allow for queue pairs that failed.
    #[cold]
    pub(super) fn recover(&mut self) {
        for place in 0..self.lanes.len() {
            self.settle(place);
        }
        if self.lanes.failure.is_some() {
            return self.drain();
        }
        // Behind `settle`, which may have found shares that did not arrive.
        self.take_back_further();
        if self.has_lost {
            self.send_again();
        }
        self.lanes.needs_recovery = self.lanes.awaits_fence()
            || self.lanes.failure.is_some()
            || self.has_lost
            || self.being_taken_back > 0
            || self.withdrawn > 0;
    }

    /// The queue pair that a place had in this generation is Down now, and `arrived` of its
    /// immediates had arrived: those shares have, the others are lost. The place may be at the next
    /// generation already, so the caller passes the generation.
    fn lane_fenced(&mut self, (place, generation): (usize, u16), arrived: u32) {
        let lane = &self.lanes[place];
        let (suspects, error) = (lane.health.suspects_requests, lane.flush_error());
        let (mut done, mut again, mut is_fatal) = (0, 0, false);
        for at in 0..SLOTS {
            let before = again;
            for rail in self.slots[at].mask {
                let share = self.slots[at].shares[usize::from(rail)];
                // The place may carry shares of the next generation, which this count is not about.
                if !share.is_with(place, generation) {
                    continue;
                }
                if !share.has_arrived(arrived) {
                    self.lose_share(at, rail);
                    again += 1;
                } else if share.stage == Stage::Posted {
                    let carrier = usize::from(self.lanes[place].rail);
                    let slot = &mut self.slots[at];
                    self.outstanding[carrier] -= slot.arrived(slot.number, rail, place);
                    done += 1;
                }
            }
            // Once for a message, however many of its shares this queue pair lost.
            is_fatal |= suspects && again > before && self.blames(at);
        }
        let kind = RailEventKind::Fenced { arrived: done, again };
        self.lanes[place].note_event(generation, kind);
        self.has_lost |= again > 0;
        // Behind the loop, so that the shares of all messages are settled, and behind the event.
        if is_fatal {
            self.give_up(Failure::Rail(error));
        }
    }

    /// A share did not arrive.
    fn lose_share(&mut self, at: usize, rail: u8) {
        let slot = &mut self.slots[at];
        slot.arrived = slot.arrived.without(rail);
        let share = &mut slot.shares[usize::from(rail)];
        // What was acknowledged is not outstanding any more.
        if core::mem::replace(&mut share.stage, Stage::Lost) != Stage::Arrived {
            let carrier = self.lanes[usize::from(share.lane)].rail;
            self.outstanding[usize::from(carrier)] -= share.payload;
        }
    }

    /// A message lost a share to a failure that it may be the cause of. Returns whether that is one
    /// too many.
    fn blames(&mut self, at: usize) -> bool {
        let slot = &mut self.slots[at];
        // A message whose payload has arrived was not the cause; only its signal is sent again.
        if slot.state != State::Sending {
            return false;
        }
        slot.failures = slot.failures.saturating_add(1);
        slot.failures > 2 * self.config.rails
    }

    /// Sends what was lost again, as far as queue pairs have room.
    fn send_again(&mut self) {
        // Set again by each share that finds no queue pair, so one pass is enough.
        self.has_lost = false;
        for at in 0..SLOTS {
            // What becomes of the message is decided when nothing of it is in flight.
            if self.slots[at].state == State::TakingBack {
                continue;
            }
            for rail in self.slots[at].mask {
                if self.slots[at].shares[usize::from(rail)].stage == Stage::Lost {
                    self.has_lost |= !self.send_share_again(at, rail);
                }
            }
        }
    }

    /// Gives a lost share to another queue pair. Returns whether there is one.
    fn send_share_again(&mut self, at: usize, rail: u8) -> bool {
        let (available, chosen) = self.available(1);
        if available.is_empty() || self.lanes.failure.is_some() {
            return false;
        }
        // On one rail: a share has one immediate, and its position in one queue pair decides
        // whether it arrived.
        let carrier = self.split.one(available, &self.outstanding);
        let lane = chosen[usize::from(carrier)];
        let generation = self.lanes[usize::from(lane)].health.lifecycle.generation();
        // Of a message that is done, the payload is there, and the buffer may be its caller's
        // again.
        let is_bare = self.slots[at].state != State::Sending;
        let slot = &mut self.slots[at];
        let payload = if is_bare { 0 } else { slot.bytes(rail) };
        let (stage, is_moved) = (Stage::Posting, true);
        slot.shares[usize::from(rail)] =
            Share { stage, lane, generation, payload, is_moved, is_bare, ..Slot::NO_SHARE };
        if slot.is_void() {
            self.stage_void(at);
        } else {
            self.stage_sizes(at);
        }
        self.outstanding[usize::from(carrier)] += payload;
        let taken = self.post_share(self.slots[at].number, rail);
        if let Some(errno) = taken.refusal.and_then(|refusal| refusal.errno()) {
            self.refused(usize::from(lane), errno);
        }
        true
    }
}

impl Share {
    /// Whether this queue pair was given it, or a part of it.
    pub(super) const fn is_with(&self, place: usize, generation: u16) -> bool {
        let was_given = matches!(self.stage, Stage::Posting | Stage::Posted | Stage::Arrived);
        was_given && self.lane as usize == place && self.generation == generation
    }

    /// Whether it is among the first `arrived` of its queue pair.
    const fn has_arrived(&self, arrived: u32) -> bool {
        // The immediate is the last request of a share, so a share that was posted in part has no
        // position and cannot be counted.
        let is_whole = !matches!(self.stage, Stage::Posting);
        // Modulo 2^32, of which far less than half can be between a slot's message and its next.
        is_whole && (arrived.wrapping_sub(self.position) as i32) > 0
    }
}
