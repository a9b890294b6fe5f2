//! What becomes of queue pairs that fail, at the receiving end.
//!
//! 1. A completion failed, the owner or the peer said so: the queue pair is moved to the error state. What
//!    still comes is taken, until its own requests have ended, its driver says that it takes no receive any
//!    more, and its completion queue was seen empty after that word: one more message may complete in
//!    between.
//! 2. The pools are filled up for the shares that may be moved now; then the peer is told how many
//!    immediates arrived. What comes of it later is not looked at.
//! 3. When the peer's queue pair is fenced as well, entries that it wrote, and of which nothing has come, are
//!    written again by another one: before that, the old ones might land over newer ones. A slot is not taken
//!    anew while that is under way.

use super::end::{DevicePool, Receiver};
use super::slot::State;
use crate::hardware::{CompletionQueue, CqId, QueuePair, ReceiveQueue};
use crate::p2p::control::Control;
use crate::p2p::error::{Failure, NotNow};
use crate::p2p::lane::Lane;
use crate::p2p::lanes::Changed;
use crate::p2p::mask::Mask;
use crate::p2p::memory::Words;
use crate::p2p::pool::Account;
use crate::p2p::queue::Purpose;
use crate::rail::{ControlError, FailedBecause, RailEvent, RailEventKind, RailState};
use crate::virtual_cq::VirtualCq;
use crate::virtual_qp::Rejected;

/// Messages, events and queue pairs.
impl<
    Q: QueuePair,
    S: ReceiveQueue,
    M: Words,
    const QPS: usize,
    const DEPTH: usize,
    const SLOTS: usize,
> Receiver<Q, S, M, QPS, DEPTH, SLOTS>
{
    /// The next message for the peer, if there is one: after every poll and every other call, its owner
    /// carries all there are, in order, to [`control`](crate::p2p::Sender::control) of the other end.
    pub fn next_control(&mut self) -> Option<Control> {
        // Whatever the peer is told, it may make use of at once: receives are there first.
        if self.lanes.failure.is_none() && !self.covers_promises() {
            return None;
        }
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
        match self.lanes.hear(&control, false) {
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
            self.note_failed(place);
            if let Err(failure) = self.lanes.stopped(place, FailedBecause::Peer) {
                return self.give_up(failure);
            }
        }
        if heard.fenced.is_some() {
            self.fenced(place, generation);
        }
        if heard.adopted
            && let Some(adopted) = self.lanes.adopt(place)
        {
            self.fenced(place, adopted);
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

    /// The owner says that a queue pair has failed. Returns whether that changed anything: not without
    /// [`reroutes`](super::ReceiverConfig::reroutes), nor if it has failed already.
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
    pub fn check_stalled(&mut self, mut each: impl FnMut(usize)) {
        for (place, lane) in self.lanes.iter_mut().enumerate() {
            if lane.check_stalled() {
                each(place);
            }
        }
    }

    /// Puts an end to a queue pair that is no more: it has failed, what was in flight on it has ended, and
    /// what arrived is what was taken so far. For devices that are gone, and completion queues that broke.
    /// Returns whether there is such a queue pair; those for flushes are counted behind the others.
    ///
    /// Poll until nothing comes before, if the completion queue can still be polled. The sender sends again
    /// what it knows to have arrived and this end does not, without payload.
    ///
    /// # Safety
    ///
    /// The device accesses no memory through this queue pair any more, neither for this end nor for the
    /// peer: it was destroyed, or the device was removed.
    #[allow(unsafe_code, reason = "a contract for the caller")]
    pub unsafe fn lose_queue_pair(&mut self, queue_pair: usize) -> bool {
        if let Some(lane) = self.lanes.get_mut(queue_pair) {
            lane.lose();
            let device_at = lane.device_at;
            self.slots.iter_mut().for_each(|slot| slot.note_lost(device_at));
            self.lane_failed(queue_pair, FailedBecause::Lost);
        } else {
            let place = queue_pair - self.lanes.len();
            let Some(flush) = self.flushes.get_mut(place) else { return false };
            flush.lane.lose();
        }
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
        self.count_rails();
        self.recover();
        Ok(old)
    }

    /// Puts a new account in the place of one whose shared receive queue is no more, with its device or its
    /// completion queue: on its device, no queue pair of this end takes receives. The old one is returned; its
    /// pool's count means nothing any more.
    ///
    /// # Errors
    ///
    /// There is no such account, or it is in use; the new one is given back.
    pub fn replace_account(&mut self, account: Account<S>) -> Result<Account<S>, Account<S>> {
        let device = account.device();
        let is_free = |pool: &&mut DevicePool<S>| pool.account.device() == device && pool.each == 0;
        match self.pools.iter_mut().find(is_free) {
            Some(pool) => Ok(core::mem::replace(&mut pool.account, account)),
            None => Err(account),
        }
    }

    /// For runtimes that poll completion queues themselves: this one was found empty by a poll that began
    /// after the one before it. (A virtual completion queue that owns it says so by itself.)
    pub fn queue_is_empty(&mut self, cq: CqId) {
        self.drained_on(cq).for_each(|lane| lane.is_seen_empty = true);
    }

    /// The queue pairs on a completion queue that is to be seen empty for them, or was.
    pub(super) fn drained_on(&mut self, cq: CqId) -> impl Iterator<Item = &mut Lane<Q, DEPTH>> {
        self.lanes.iter_mut().filter(move |lane| lane.is_drained && lane.qp.cq() == cq)
    }
}

/// Steps.
impl<
    Q: QueuePair,
    S: ReceiveQueue,
    M: Words,
    const QPS: usize,
    const DEPTH: usize,
    const SLOTS: usize,
> Receiver<Q, S, M, QPS, DEPTH, SLOTS>
{
    /// A queue pair failed. If others may do better they take over, else the connection has failed.
    #[cold]
    pub(super) fn lane_failed(&mut self, place: usize, why: FailedBecause) {
        if self.lanes.failure.is_some() {
            return;
        }
        self.note_failed(place);
        if let Err(failure) = self.lanes.stop(place, why) {
            self.give_up(failure);
        }
    }

    /// Shares of this rail may be moved from now on.
    fn note_failed(&mut self, place: usize) {
        self.failed |= Mask::of(self.lanes[place].rail);
        self.count_rails();
    }

    /// A driver did not take entries. If it refuses for good, its queue pair failed.
    pub(super) fn entries_refused(&mut self, place: usize, refused: NotNow) {
        if let NotNow::Refused { refusal, .. } = refused
            && let Some(errno) = refusal.errno().filter(|_| self.lanes.reroutes())
        {
            let error = self.lanes[place].refusal_error(errno);
            self.lane_failed(place, FailedBecause::Error(error));
        }
    }

    /// Whether a poll has something to do here even without a completion.
    #[cold]
    pub(super) fn has_something_to_do(&self) -> bool {
        if self.lanes.failure.is_some() {
            let owes = self.pools.iter().any(|pool| !pool.account.covers(0));
            return owes || !self.is_drained();
        }
        let drains = |lane: &Lane<Q, DEPTH>| lane.lifecycle.state() == RailState::Draining;
        let rewrites =
            || (0..SLOTS).any(|at| self.slots[at].wants_entries && self.entry_lane(at).is_some());
        self.lanes.iter().any(drains) || rewrites() || self.lacks_receives()
    }

    /// Whether receives are missing that were promised, because a driver did not take them: it is asked again.
    fn lacks_receives(&self) -> bool {
        let lacks = |pool: &DevicePool<S>| !pool.account.covers(self.waiting * pool.each);
        self.pools.iter().any(lacks)
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
        self.refill();
        self.rewrite();
        let wants_entries = self.slots.iter().any(|slot| slot.wants_entries);
        self.lanes.needs_care = self.lanes.awaits_fence() || wants_entries || self.lacks_receives();
    }

    /// If nothing of a queue pair that failed can complete any more, the peer is told what arrived.
    fn settle(&mut self, place: usize) {
        let is_draining = self.lanes[place].lifecycle.state() == RailState::Draining;
        if !is_draining || self.lanes.failure.is_some() || !self.lanes[place].drain(true) {
            return;
        }
        if !self.lanes[place].is_seen_empty {
            return;
        }
        let arrived = self.lanes[place].immediates;
        let generation = self.lanes[place].lifecycle.generation();
        let fenced = self.lanes[place].lifecycle.drained(arrived);
        self.fenced |= Mask::of(self.lanes[place].rail);
        self.count_rails();
        if fenced.is_some() {
            self.fenced(place, generation);
        }
    }

    /// Fills the pools up, and returns whether what may come of all waiting slots is there.
    fn covers_promises(&mut self) -> bool {
        self.refill();
        !self.lacks_receives()
    }

    /// The queue pair that a place had in this generation is Down now: entries that it may have written late
    /// cannot land any more. The place may be at the next generation already.
    fn fenced(&mut self, place: usize, generation: u16) {
        let mut again = 0;
        for slot in &mut self.slots {
            if slot.rewriting == Some(place as u8) {
                slot.rewriting = None;
            }
            let is_unanswered = slot.state == State::Waiting && slot.seen.is_empty();
            let is_lost = is_unanswered && usize::from(slot.entries_lane) == place;
            // What is to be written again already was told of with the queue pair before.
            again += u32::from(is_lost && !slot.wants_entries);
            slot.wants_entries |= is_lost;
        }
        let kind = RailEventKind::Fenced { arrived: 0, again };
        self.lanes[place].note_event(generation, kind);
    }

    /// Writes entries again that may never have arrived.
    fn rewrite(&mut self) {
        for at in 0..SLOTS {
            let slot = &mut self.slots[at];
            slot.wants_entries &= slot.state == State::Waiting && slot.seen.is_empty();
            if !slot.wants_entries || slot.rewriting.is_some() {
                continue;
            }
            let purpose = Purpose::EntriesAgain { number: slot.number };
            let Some(lane) = self.entry_lane(at) else { continue };
            let entries = self.stage(at, self.slots[at].entries());
            match self.post_entries(at, lane, entries, purpose) {
                Ok(()) => {
                    let slot = &mut self.slots[at];
                    slot.wants_entries = false;
                    slot.entries_lane = lane as u8;
                    slot.rewriting = Some(lane as u8);
                }
                Err(refused) => self.entries_refused(lane, refused),
            }
        }
    }
}
