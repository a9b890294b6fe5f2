//! What becomes of queue pairs that fail, at the sending end.
//!
//! 1. A completion failed, a driver refused, the owner or the peer said so: the queue pair is moved to the
//!    error state, and drained.
//! 2. The peer tells how many immediates arrived on it, once nothing of it can be carried out any more. A
//!    reliable connection carries requests out in order, and each share has one immediate, so of the shares
//!    that the queue pair was given, those at positions below that number have arrived, and no others.
//! 3. Those that did not arrive are sent again by other queue pairs: the payload, then the sizes with an
//!    immediate that says whose share it is.
//!
//! The number may be less than what was acknowledged, if the receiver's device died with completions that
//! nobody had taken: the payload is there, and nobody knows. So shares keep their positions when they are
//! acknowledged, and when their callers were told, until the entries of the slot's next receive come; their
//! signals can go out again without payload.

use super::end::Sender;
use super::slot::{Share, Slot, Stage, State};
use crate::hardware::{CompletionQueue, QueuePair};
use crate::p2p::control::Control;
use crate::p2p::error::Failure;
use crate::p2p::lane::Lane;
use crate::p2p::lanes::Changed;
use crate::p2p::memory::Words;
use crate::rail::{ControlError, FailedBecause, RailEvent, RailEventKind, RailState};
use crate::virtual_cq::VirtualCq;
use crate::virtual_qp::Rejected;

/// Messages, events and queue pairs.
impl<Q: QueuePair, M: Words, const QPS: usize, const DEPTH: usize, const SLOTS: usize>
    Sender<Q, M, QPS, DEPTH, SLOTS>
{
    /// The next message for the peer, if there is one: after every poll and every other call, its owner
    /// carries all there are, in order, to [`control`](crate::p2p::Receiver::control) of the other end.
    pub fn next_control(&mut self) -> Option<Control> {
        self.lanes.next_control()
    }

    /// Takes a message of the peer's.
    ///
    /// # Errors
    ///
    /// No correct peer says that: the connection failed. Or it does not re-route: nothing changed.
    pub fn control(&mut self, control: Control) -> Result<(), ControlError> {
        if !self.lanes.reroutes() {
            return Err(ControlError::NotRerouting);
        }
        match self.lanes.hear(&control, true) {
            Ok(Some(changed)) => self.heard(changed),
            Ok(None) => {}
            Err(failure) => {
                self.give_up(failure);
                if let Failure::Control(error) = failure {
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn heard(&mut self, Changed { place, generation, heard }: Changed) {
        if heard.stopped {
            self.owed[place] = None;
            if let Err(failure) = self.lanes.stopped(place, FailedBecause::Peer) {
                return self.give_up(failure);
            }
        }
        if let Some(arrived) = heard.fenced {
            self.fenced((place, generation), arrived);
        }
        if heard.adopted
            && let Some(adopted) = self.lanes.adopt(place)
        {
            self.fenced((place, adopted), 0);
        }
        self.recover();
    }

    /// The link that carried messages broke, and both owners have a new one: **both** ends tell everything
    /// again that may have been lost.
    pub fn control_lost(&mut self) {
        self.lanes.control_lost();
    }

    /// Messages of the peer's that told nothing new: of queue pairs that are gone, or said twice.
    pub fn ignored_controls(&self) -> u64 {
        self.lanes.ignored()
    }

    /// The oldest event of a queue pair that was not taken yet, with the place of the queue pair.
    pub fn take_rail_event(&mut self) -> Option<(usize, RailEvent)> {
        self.lanes.take_rail_event()
    }

    /// Where a queue pair stands between failure and return, and which one in its place it is: 0 for the
    /// first.
    pub fn queue_pair_state(&self, queue_pair: usize) -> Option<(RailState, u16)> {
        self.lanes.state(queue_pair)
    }

    /// The owner says that a queue pair has failed: its port went down, it makes no headway. Returns whether
    /// that changed anything: not without [`reroutes`](super::SenderConfig::reroutes), nor if it has failed
    /// already.
    pub fn fail_queue_pair(&mut self, queue_pair: usize) -> bool {
        let works = |lane: &Lane<Q, DEPTH>| lane.lifecycle.takes_receives();
        let works = self.lanes.get(queue_pair).is_some_and(works);
        let stops = works && self.lanes.reroutes() && self.lanes.failure.is_none();
        if stops {
            self.lane_failed(queue_pair, FailedBecause::Owner);
            self.recover();
        }
        stops
    }

    /// Names the places of queue pairs whose oldest request is still the one that it was at the previous call:
    /// some drivers never end a request whose peer is gone. The engine reads no clock; its owner calls this at
    /// its own period, and [fails](Self::fail_queue_pair) those that it takes for dead.
    ///
    /// A receiver whose pool ran dry makes its sender wait, and that is no dead rail: it says "receiver not
    /// ready", and nothing is lost. With its retries endless, as they should be, only the receiver's owner can
    /// tell the one from the other.
    pub fn check_stalled(&mut self, mut each: impl FnMut(usize)) {
        for (place, lane) in self.lanes.iter_mut().enumerate() {
            if lane.check_stalled() {
                each(place);
            }
        }
    }

    /// Puts an end to a queue pair that is no more: it has failed, and what was in flight on it has ended.
    /// For devices that are gone, and completion queues that broke. Returns whether there is such a queue
    /// pair.
    ///
    /// # Safety
    ///
    /// The device accesses no memory through this queue pair any more: it was destroyed, or the device was
    /// removed.
    #[allow(unsafe_code, reason = "a contract for the caller")]
    pub unsafe fn lose_queue_pair(&mut self, queue_pair: usize) -> bool {
        let Some(lane) = self.lanes.get_mut(queue_pair) else { return false };
        lane.lose();
        self.lane_failed(queue_pair, FailedBecause::Lost);
        self.recover();
        true
    }

    /// Puts a new queue pair in the place of one that failed, and routes its completions: `index` is where
    /// this end is attached to `cq`. The old one is Down, and the new one is connected to the peer's of the
    /// same `generation`, the one after [`queue_pair_state`](Self::queue_pair_state)'s, on the peer's device
    /// at place `peer_device` of its list.
    ///
    /// The old queue pair is returned, to be destroyed. The place carries messages once the peer's queue pair
    /// is there too.
    ///
    /// # Errors
    ///
    /// Nothing changed, and the queue pair is given back: see
    /// [`ReplaceError`](crate::virtual_qp::ReplaceError).
    pub fn replace_queue_pair<C: CompletionQueue, const CQS: usize, const ROUTES: usize>(
        &mut self,
        (cq, index): (&mut VirtualCq<C, CQS, ROUTES>, u16),
        place: usize,
        generation: u16,
        queue_pair: Q,
        peer_device: u8,
    ) -> Result<Q, Rejected<Q>> {
        let Self { lanes, devices, .. } = self;
        let old = lanes.replace((cq, index), place, generation, queue_pair, devices)?;
        lanes[place].peer_at = peer_device;
        lanes.replaced(place);
        self.recover();
        Ok(old)
    }
}

/// Steps.
impl<Q: QueuePair, M: Words, const QPS: usize, const DEPTH: usize, const SLOTS: usize>
    Sender<Q, M, QPS, DEPTH, SLOTS>
{
    /// A queue pair failed. If others may do better they take over, else the connection has failed.
    #[cold]
    pub(super) fn lane_failed(&mut self, place: usize, why: FailedBecause) {
        if self.lanes.failure.is_some() {
            return;
        }
        self.owed[place] = None;
        if let Err(failure) = self.lanes.stop(place, why) {
            self.give_up(failure);
        }
    }

    /// Whether a poll has something to do here even without a completion.
    #[cold]
    pub(super) fn has_something_to_do(&self) -> bool {
        if self.lanes.failure.is_some() {
            return self.lanes.iter().any(Lane::needs_poll);
        }
        // What waits for credits goes on with a completion.
        let takes_more = |(owed, lane): (&Option<_>, &Lane<Q, DEPTH>)| {
            (owed.is_some() || self.has_lost) && lane.has_room(1)
        };
        let drains = |lane: &Lane<Q, DEPTH>| lane.lifecycle.state() == RailState::Draining;
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
        if self.has_lost {
            self.send_again();
        }
        self.lanes.needs_care = self.lanes.awaits_fence() || self.has_lost;
    }

    /// If everything that was given to a queue pair that failed has ended, the peer is told so.
    fn settle(&mut self, place: usize) {
        let lane = &mut self.lanes[place];
        let is_draining = lane.lifecycle.state() == RailState::Draining;
        if !is_draining || self.lanes.failure.is_some() || !self.lanes[place].drain(false) {
            return;
        }
        let generation = self.lanes[place].lifecycle.generation();
        // Nothing arrives at this end.
        if let Some(arrived) = self.lanes[place].lifecycle.drained(0) {
            self.fenced((place, generation), arrived);
        }
    }

    /// The queue pair that a place had in this generation is Down now, and so many of its immediates had
    /// arrived: those shares have, the others are lost. The place may be at the next generation already, so
    /// which one it is comes from whoever knows.
    fn fenced(&mut self, (place, generation): (usize, u16), arrived: u32) {
        let lane = &self.lanes[place];
        let (suspects, error) = (lane.suspects_requests, lane.flush_error());
        let (mut done, mut again, mut is_fatal) = (0, 0, false);
        for at in 0..SLOTS {
            let before = again;
            for rail in self.slots[at].mask {
                let share = self.slots[at].shares[usize::from(rail)];
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
            is_fatal |= suspects && again > before && self.blames(at);
        }
        let kind = RailEventKind::Fenced { arrived: done, again };
        self.lanes[place].note_event(generation, kind);
        self.has_lost |= again > 0;
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

    /// A message lost a share to a failure that it may be the cause of. Returns whether that is one too many.
    fn blames(&mut self, at: usize) -> bool {
        let slot = &mut self.slots[at];
        if slot.state != State::Sending {
            return false;
        }
        slot.failures = slot.failures.saturating_add(1);
        slot.failures > 2 * self.config.rails
    }

    /// Sends what was lost again, as far as queue pairs have room.
    fn send_again(&mut self) {
        self.has_lost = false;
        for at in 0..SLOTS {
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
        let carrier = self.split.one(available, &self.outstanding);
        let lane = chosen[usize::from(carrier)];
        let generation = self.lanes[usize::from(lane)].lifecycle.generation();
        // Of a message that is done, the payload is there, and the buffer may be its caller's again.
        let is_bare = self.slots[at].state != State::Sending;
        let slot = &mut self.slots[at];
        let payload = if is_bare { 0 } else { slot.bytes(rail) };
        let (stage, is_moved) = (Stage::Posting, true);
        slot.shares[usize::from(rail)] =
            Share { stage, lane, generation, payload, is_moved, is_bare, ..Slot::NO_SHARE };
        self.stage_sizes(at);
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
    const fn is_with(&self, place: usize, generation: u16) -> bool {
        let was_given = matches!(self.stage, Stage::Posting | Stage::Posted | Stage::Arrived);
        was_given && self.lane as usize == place && self.generation == generation
    }

    /// Whether it is among the first `arrived` of its queue pair.
    const fn has_arrived(&self, arrived: u32) -> bool {
        let is_whole = !matches!(self.stage, Stage::Posting);
        // Modulo 2^32, of which far less than half can be between a slot's message and its next.
        is_whole && (arrived.wrapping_sub(self.position) as i32) > 0
    }
}
