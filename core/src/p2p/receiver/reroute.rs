//! What becomes of queue pairs that fail, at the receiving end.
//!
//! 1. A completion failed, or the owner or the peer reported a failure: the queue pair is moved to
//!    the error state. Its completions are taken until its own requests have ended, its driver
//!    reports that it takes no more receives, and its completion queue was seen empty after that
//!    report: one more message may complete in between.
//! 2. The pools are filled up for the shares that may be moved now; then the peer is sent the
//!    number of immediates that arrived. Later completions of this queue pair are ignored.
//! 3. When the peer's queue pair is fenced as well, entries that this queue pair wrote, and that
//!    the sender has not answered, are written again by another one. Before that, the old ones
//!    might land over newer ones. The slot takes no other receive while that is under way.

use super::end::{DevicePool, FlushLane, Receiver};
use super::slot::State;
use crate::hardware::{CqId, QpLimits, QueuePair, ReceiveQueue};
use crate::p2p::control::{Control, End};
use crate::p2p::entry::entry_word;
use crate::p2p::error::NotNow;
use crate::p2p::lane::{Lane, Purpose};
use crate::p2p::memory::Words;
use crate::p2p::pool::Account;
use crate::rail::{
    ControlError, FailedBecause, PhysicalRail, RailEventKind, RailId, RailState, Rails,
    RailsFailure, Reroute,
};
use crate::verbs::DeviceId;

impl<
    Q: QueuePair,
    S: ReceiveQueue,
    M: Words,
    const QPS: usize,
    const DEPTH: usize,
    const SLOTS: usize,
> Rails for Receiver<Q, S, M, QPS, DEPTH, SLOTS>
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

    fn posted(_lane: &Lane<Q, DEPTH>) -> u32 {
        // The sender takes no receives.
        0
    }

    fn stop_using(&mut self, place: usize, _why: &FailedBecause) {
        let lane = &mut self.lanes[place];
        lane.is_stopped = true;
        // Shares of this rail may be moved from now on.
        self.failed |= lane.own;
        self.lanes.update_open();
        // Before the rail's Failed is sent: the peer may then move shares, and the pools must have
        // receives for them (`prepare_message`).
        self.count_rails();
    }

    fn drain_rail(&mut self, place: usize) -> Option<u32> {
        let lane = &mut self.lanes[place];
        // Seen empty after the driver's word that it takes no more receives: one more message may
        // complete in between, and it counts.
        (lane.drain(true) && lane.is_seen_empty).then_some(lane.immediates)
    }

    fn note_fenced(&mut self, place: usize) -> bool {
        self.fenced |= self.lanes[place].own;
        self.count_rails();
        true
    }

    fn fenced(&mut self, place: usize, generation: u16, _arrived: u32) {
        self.lane_fenced(place, generation);
    }

    fn returned(&mut self, place: usize) {
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

impl<
    Q: QueuePair,
    S: ReceiveQueue,
    M: Words,
    const QPS: usize,
    const DEPTH: usize,
    const SLOTS: usize,
> End for Receiver<Q, S, M, QPS, DEPTH, SLOTS>
{
    /// Receives come before messages, because the peer may move shares as soon as it knows that a
    /// rail failed.
    fn prepare_message(&mut self) -> bool {
        self.refill();
        // No message goes out as long as receives are missing. The next poll asks the driver again
        // (`has_something_to_do`).
        !self.lacks_receives()
    }

    fn find_stalled(&mut self, mut each: impl FnMut(usize)) {
        self.lanes.find_stalled(&mut each);
        for (at, FlushLane { lane, .. }) in (self.lanes.len()..).zip(&mut self.flushes) {
            if !lane.is_stopped && lane.check_stalled() {
                each(at);
            }
        }
    }

    fn fail_place(&mut self, place: usize) -> bool {
        let Some(at) = place.checked_sub(self.lanes.len()) else { return self.fail_rail(place) };
        let flush = self.flushes.get_mut(at).filter(|flush| !flush.lane.is_stopped);
        flush.map(|flush| flush.lane.stop()).is_some()
    }

    fn lose(&mut self, place: usize) -> bool {
        if let Some(lane) = self.lanes.get_mut(place) {
            lane.lose();
            let device_at = lane.device_at;
            self.slots.iter_mut().for_each(|slot| slot.note_lost(device_at));
            self.rail_failed(place, FailedBecause::Lost);
            return true;
        }
        let flush = self.flushes.get_mut(place - self.lanes.len());
        flush.map(|flush| flush.lane.lose()).is_some()
    }

    fn replaced(&mut self, place: usize, peer_device: u8) {
        self.lanes[place].peer_at = peer_device;
        self.count_rails();
    }

    fn next_withdrawal(&mut self) -> Option<Control> {
        self.ask_for_receive()
    }

    fn withdrawn(&mut self, number: u64) -> Result<(), ControlError> {
        self.given_back(number)
    }

    fn repeat_withdrawals(&mut self) {
        self.ask_again();
    }
}

/// Accounts and completion queues.
impl<
    Q: QueuePair,
    S: ReceiveQueue,
    M: Words,
    const QPS: usize,
    const DEPTH: usize,
    const SLOTS: usize,
> Receiver<Q, S, M, QPS, DEPTH, SLOTS>
{
    /// Puts a new account in the place of one whose shared receive queue is no more, with its
    /// device or its completion queue: on its device, no queue pair of this end takes receives. The
    /// old one is returned; its pool's count means nothing any more.
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

    /// For runtimes that poll completion queues themselves: this one was found empty by a poll that
    /// began after the one before it. (A virtual completion queue that owns it says so by itself.)
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
    /// A driver did not take the entries of receives that are held. If it refuses for good, its
    /// queue pair failed, with or without re-routing: no caller is left to be told.
    #[cold]
    pub(super) fn held_refused(&mut self, place: usize, refused: NotNow) {
        if let NotNow::Refused { refusal, .. } = refused
            && let Some(errno) = refusal.errno()
        {
            let error = self.lanes[place].refusal_error(errno, 0);
            self.rail_failed(place, FailedBecause::Error(error));
        }
    }

    /// A driver did not take entries. If it refuses for good, its queue pair failed.
    pub(super) fn entries_refused(&mut self, place: usize, refused: NotNow) {
        if let NotNow::Refused { refusal, .. } = refused
            && let Some(errno) = refusal.errno().filter(|_| self.lanes.reroutes())
        {
            let error = self.lanes[place].refusal_error(errno, 0);
            self.rail_failed(place, FailedBecause::Error(error));
        }
    }

    /// Whether a poll has something to do here even without a completion.
    #[cold]
    pub(super) fn has_something_to_do(&self) -> bool {
        if self.lanes.failure.is_some() {
            let owes = self.pools.iter().any(|pool| !pool.account.covers(0));
            return owes || !self.is_drained();
        }
        let drains = |lane: &Lane<Q, DEPTH>| lane.health.lifecycle.state() == RailState::Draining;
        let held = self.unwritten < self.next;
        if held && self.entry_lane(Self::slot_at(self.unwritten)).is_some() {
            return true;
        }
        let rewrites =
            || (0..SLOTS).any(|at| self.slots[at].wants_entries && self.entry_lane(at).is_some());
        self.lanes.iter().any(drains) || rewrites() || self.lacks_receives()
    }

    /// Whether receives are missing that were promised, because a driver did not take them: it is
    /// asked again.
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
        self.lanes.needs_recovery = self.lanes.awaits_fence()
            || self.lanes.failure.is_some()
            || wants_entries
            || self.lacks_receives();
    }

    /// The queue pair that a place had in this generation is Down now: entries that it may have
    /// written late cannot land any more. The place may be at the next generation already.
    fn lane_fenced(&mut self, place: usize, generation: u16) {
        let mut again = 0;
        for slot in &mut self.slots {
            if slot.rewriting == Some(place as u8) {
                // The write has ended, and cannot land later, so the slot may be taken for another
                // receive.
                slot.rewriting = None;
            }
            // A share or signal that came proves that the sender has the entries.
            let is_unanswered = slot.state == State::Waiting && slot.seen.is_empty();
            let is_lost = is_unanswered && usize::from(slot.entries_lane) == place;
            // Entries that wait to be written again were counted in the event of the queue pair
            // before.
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
            // The sender may have answered since, which proves that it has the entries.
            slot.wants_entries &= slot.state == State::Waiting && slot.seen.is_empty();
            if !slot.wants_entries || slot.rewriting.is_some() {
                continue;
            }
            let purpose = Purpose::EntriesAgain { number: slot.number };
            // All queue pairs for entries may be full or failed. `has_something_to_do` has the next
            // poll try again.
            let Some(lane) = self.entry_lane(at) else { continue };
            let count = usize::from(self.slots[at].count);
            self.stage(at, self.slots[at].entries());
            match self.post_entries(entry_word(SLOTS, at, count), lane, count, purpose) {
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
