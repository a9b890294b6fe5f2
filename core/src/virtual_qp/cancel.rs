//! Requests that are taken back.
//!
//! From [`cancel`](VirtualQp::cancel) on, nothing of the request is posted, the first time or
//! again. What is in flight is acknowledged, or lost with its rail; the owner decides how long it
//! waits before its rails are fenced on purpose ([`fence_cancelled`](VirtualQp::fence_cancelled)).
//! A fence on purpose takes the steps of a failure, and what other requests lose with it is posted
//! again. Once no queue pair can execute anything of the request, that is final:
//!
//! | | the request |
//! |---|---|
//! | all of it is acknowledged, and it sends no notification of its own | is done, as if nobody had wanted it back |
//! | DQPLB: its last number arrived | is posted to its end: the peer is notified of it in any case |
//! | otherwise | is reported as `CANCELLED`, ahead of its turn |
//!
//! With DQPLB, the numbers that did not arrive are posted without data then, and without the mark
//! of the last one, or no later number would count. Until they are acknowledged, the request keeps
//! its place in the ring and holds later reports back: the peer is not notified of those before.

use super::qp::VirtualQp;
use super::slot::{SendSlot, SlotState};
use crate::hardware::QueuePair;
use crate::rail::{Batch, Content, Rail, RailSet, Rails};
use crate::verbs::{Opcode, SendFlags, WcStatus};

/// How rails are fenced to take requests back. Both ends need the same version, since the messages
/// of one would otherwise be refused by the other.
pub const CANCEL_VERSION: u32 = 1;

/// A request that cannot be taken back; nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CancelError {
    /// The virtual queue pair is in the error state: everything is reported as flushed.
    #[error("the virtual queue pair is in the error state")]
    InErrorState,
    /// Rails are not re-routed, so they cannot be fenced.
    #[error("a request can be taken back only with re-routing, which fences its rails")]
    NotRerouting,
    /// The peer fences rails in another way, or does not know how.
    #[error("the peer has version {version} of cancel, but this end has {CANCEL_VERSION}")]
    Peer {
        /// The version on the peer's card; 0 if it has none.
        version: u32,
    },
    /// No request with this `wr_id` is under way: none was accepted, or it was reported. Its report
    /// may wait for the budget of a poll.
    #[error("no request with wr_id {wr_id:#x} is under way")]
    Unknown {
        /// The `wr_id` given.
        wr_id: u64,
    },
    /// Several requests under way have this `wr_id`.
    #[error("{count} requests under way have wr_id {wr_id:#x}")]
    NotUnique {
        /// The `wr_id` given.
        wr_id: u64,
        /// How many.
        count: usize,
    },
    /// Only WRITEs and READs can be taken back.
    #[error("{0:?} cannot be taken back")]
    Opcode(Opcode),
    /// It is being taken back already.
    #[error("the request is being taken back already")]
    AlreadyCancelled,
    /// It is done but for its report, or its receiver is being notified.
    #[error("it is too late: the request is done, or its receiver is being notified")]
    TooLate,
}

impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize>
    VirtualQp<Q, RAILS, DEPTH, WRS>
{
    /// Takes a WRITE or READ back: nothing of it is posted from now on. Its report comes out of a
    /// later poll, one completion like any other, also if the request is unsignaled:
    ///
    /// | status | |
    /// |---|---|
    /// | SUCCESS | the request is done, its notification included |
    /// | [`CANCELLED`](WcStatus::CANCELLED) | its first `byte_len` bytes may have been written, 0 if none; no byte behind them was, and none will be written any more. Its receiver was not notified and will not be, and no receive of the peer is consumed |
    /// | any other | the virtual queue pair failed. [`unfenced`](Self::unfenced) names the rails through which bytes may still be written |
    ///
    /// A `CANCELLED` report comes as soon as it is final, whatever was posted before. What a READ
    /// was to fill is local memory, which is final as soon as this end's queue pairs are drained;
    /// the peer's memory may be read until its own are.
    ///
    /// The request may be delivered yet. The engine reads no clock: for as long as its owner likes,
    /// which is best twice as long as a request usually takes, it waits for acknowledgements. Then
    /// it calls [`fence_cancelled`](Self::fence_cancelled). A request of which nothing is in flight
    /// needs no fence and is reported by the next poll.
    ///
    /// Both ends need the same [version](CANCEL_VERSION), which travels on their connection cards:
    /// see [`set_peer_cancel_version`](Self::set_peer_cancel_version).
    ///
    /// A later FENCE, and later notifications, promise nothing about the bytes of a request that
    /// was taken back.
    ///
    /// # Errors
    ///
    /// See [`CancelError`]; nothing changed.
    ///
    /// # Example
    ///
    /// ```
    /// use polyrail_core::hardware::{CompletionQueue, QueuePair};
    /// use polyrail_core::verbs::WcStatus;
    /// use polyrail_core::virtual_cq::{VirtualCq, VirtualWc};
    /// use polyrail_core::virtual_qp::{CancelError, VirtualQp};
    ///
    /// /// Takes a request back, and returns its report. `is_over` ends the time for
    /// /// acknowledgements; `carry` carries control messages and replaces rails that are Down.
    /// fn take_back<Q: QueuePair, C: CompletionQueue>(
    ///     qp: &mut VirtualQp<Q, 4, 128, 256>,
    ///     cq: &mut VirtualCq<C, 4, 16>,
    ///     wr_id: u64,
    ///     is_over: impl Fn() -> bool,
    ///     carry: impl Fn(&mut VirtualQp<Q, 4, 128, 256>, &mut VirtualCq<C, 4, 16>),
    /// ) -> Result<VirtualWc, CancelError> {
    ///     qp.cancel(wr_id)?;
    ///     let mut report = None;
    ///     while report.is_none() {
    ///         if is_over() {
    ///             qp.fence_cancelled();
    ///         }
    ///         let polled = cq.poll(&mut *qp, usize::MAX, |event| {
    ///             report = report.or(event.completion().filter(|wc| wc.wr_id == wr_id));
    ///         });
    ///         assert!(polled.error.is_none());
    ///         carry(qp, cq);
    ///     }
    ///     report.ok_or(CancelError::Unknown { wr_id })
    /// }
    /// ```
    #[cold]
    #[inline(never)]
    pub fn cancel(&mut self, wr_id: u64) -> Result<(), CancelError> {
        self.check_cancel()?;
        let mut found = self.sends.alive().filter(|id| self.is_under_way(*id, wr_id));
        let id = found.next().ok_or(CancelError::Unknown { wr_id })?;
        let count = 1 + found.count();
        if count > 1 {
            return Err(CancelError::NotUnique { wr_id, count });
        }
        self.may_take_back(id)?;
        self.take_back(id);
        self.health.needs_recovery = true;
        self.pump_all();
        Ok(())
    }

    /// Takes back all WRITEs and READs with this `wr_id` that [`cancel`](Self::cancel) would take
    /// back if they were the only ones: for callers that post the parts of a transfer with one
    /// `wr_id`. Returns how many are taken back; the others are reported as usual. With 0, nothing
    /// changed.
    ///
    /// # Errors
    ///
    /// No request could be taken back, whatever it is: see [`CancelError::InErrorState`],
    /// [`NotRerouting`](CancelError::NotRerouting) and [`Peer`](CancelError::Peer). Nothing changed.
    #[cold]
    #[inline(never)]
    pub fn cancel_all(&mut self, wr_id: u64) -> Result<usize, CancelError> {
        self.check_cancel()?;
        let mut count = 0;
        for id in self.sends.unreported_ids() {
            if self.is_under_way(id, wr_id) && self.may_take_back(id).is_ok() {
                self.take_back(id);
                count += 1;
            }
        }
        if count > 0 {
            self.health.needs_recovery = true;
            self.pump_all();
        }
        Ok(count)
    }

    /// Whether requests can be taken back at all.
    fn check_cancel(&self) -> Result<(), CancelError> {
        if self.health.failed {
            return Err(CancelError::InErrorState);
        }
        if !self.reroute.is_on {
            return Err(CancelError::NotRerouting);
        }
        if self.peer_cancel_version != CANCEL_VERSION {
            return Err(CancelError::Peer { version: self.peer_cancel_version });
        }
        Ok(())
    }

    /// Sets the [`CANCEL_VERSION`] on the peer's connection card. Until then it is 0, and no request
    /// can be taken back.
    pub fn set_peer_cancel_version(&mut self, version: u32) {
        self.peer_cancel_version = version;
    }

    /// Ends the time for acknowledgements of requests that are being
    /// [taken back](Self::cancel): the peer is asked to fence the rails that carry parts of them. A
    /// fence that is under way is joined, and what other requests lose is posted again. Rail 0 is
    /// fenced once neither end has atomics on it; new atomics wait meanwhile.
    ///
    /// Returns the rails whose acknowledgement or fence is awaited. With none, everything that was
    /// taken back is reported by the next poll, except requests of DQPLB whose last number arrived:
    /// they are done as usual, in their turn. If a peer does not answer, the owner may
    /// [fail](Self::fail_rail) these rails: then READs are reported, and WRITEs wait for the peer
    /// still.
    ///
    /// Between two calls, the owner lets the rails that returned work for a while: each fence loses
    /// what others have in flight, so with a call for each of many requests that are taken back,
    /// one after the other, others might never progress.
    ///
    /// The owner must call this in the end. Until then, a rail that lost numbers of such a request
    /// carries nothing after its return.
    ///
    /// Both owners see rails that are [fenced on purpose](super::FailedBecause::is_on_purpose), and
    /// replace them as if they had failed. For [`min_rails`](super::Config::min_rails), such a rail
    /// counts as in service at both ends, until its replacement fails.
    #[cold]
    #[inline(never)]
    pub fn fence_cancelled(&mut self) -> RailSet {
        for id in self.sends.unreported_ids() {
            let slot = self.sends.slot(id);
            if slot.is_being_taken_back() {
                slot.state.insert(SlotState::HURRIED);
            }
        }
        if self.being_taken_back > 0 {
            self.health.needs_recovery = true;
            self.pump_all();
        }
        self.awaited_rails()
    }

    /// Returns the number of requests that are being [taken back](Self::cancel): it is not final
    /// yet what becomes of them.
    pub const fn being_taken_back(&self) -> usize {
        self.being_taken_back
    }

    /// Whether a request has this `wr_id`, and is not reported.
    fn is_under_way(&self, id: u64, wr_id: u64) -> bool {
        let Some(slot) = self.sends.find(id).filter(|slot| slot.wr_id == wr_id) else {
            return false;
        };
        if slot.state.contains(SlotState::PASS_THROUGH) {
            // It is reported apart from the ring's cursors.
            return !self.pass_through.is_reported(id);
        }
        let is_over = SlotState::PART.union(SlotState::REPORTED);
        self.sends.unreported_ids().contains(&id) && !slot.state.intersects(is_over)
    }

    /// Whether a request that is under way can be taken back.
    fn may_take_back(&self, id: u64) -> Result<(), CancelError> {
        let Some(slot) = self.sends.find(id) else { return Err(CancelError::TooLate) };
        if slot.state.contains(SlotState::PASS_THROUGH) {
            return Err(CancelError::Opcode(slot.opcode));
        }
        if slot.state.contains(SlotState::TAKEN_BACK) {
            return Err(CancelError::AlreadyCancelled);
        }
        if self.is_too_late(id) { Err(CancelError::TooLate) } else { Ok(()) }
    }

    /// Nothing of a request is posted from now on.
    fn take_back(&mut self, id: u64) {
        let is_pending = self.sends.pending_ids().contains(&id);
        if self.sends.front_pending() == Some(id) {
            // Otherwise the next fence would compare with this mark.
            self.pass_through.forget_fence();
        }
        let slot = self.sends.slot(id);
        slot.state.insert(SlotState::TAKEN_BACK);
        if is_pending || slot.wants_notify() {
            slot.state.insert(SlotState::CANCELLED);
        }
        slot.state.remove(SlotState::WANTS_NOTIFY);
        // Its owner waits for the report.
        slot.flags.insert(SendFlags::SIGNALED);
        self.being_taken_back += 1;
    }

    /// Whether a request is delivered in any case.
    fn is_too_late(&self, id: u64) -> bool {
        let Some(slot) = self.sends.find(id) else { return true };
        if id < self.sends.in_flight_ids().start || self.is_with_notify(id) {
            return true;
        }
        let is_posted = !self.sends.pending_ids().contains(&id);
        let is_acknowledged = slot.batches_in_flight == 0 && !slot.wants_notify();
        is_posted && (is_acknowledged || self.last_number_arrived(id))
    }

    /// Whether the data of a request is in its notify, which is posted.
    fn is_with_notify(&self, id: u64) -> bool {
        let Some(notify) = self.scheme.notify() else { return false };
        let mut batches = notify.sends.iter().chain(notify.sends.lost_batches());
        batches.any(|batch| batch.wr == id && batch.content == Content::WithNotify)
    }

    /// Whether the last number of a request that is posted to its end is known to have arrived.
    fn last_number_arrived(&self, id: u64) -> bool {
        let Some(slot) = self.sends.find(id).filter(|slot| slot.is_numbered()) else {
            return false;
        };
        let ends = |batch: &Batch| {
            let is_end = batch.offset + batch.length == slot.local.length();
            batch.wr == id && batch.content == Content::Numbered && is_end
        };
        let on_rail =
            |rail: &Rail<Q, DEPTH>| rail.sends.iter().chain(rail.sends.lost_batches()).any(ends);
        !self.rails.iter().any(on_rail)
    }

    /// The cursor of posts passes a request that is taken back.
    pub(super) fn pass_taken_back(&mut self, id: u64) {
        let slot = self.sends.slot(id);
        if slot.offset > 0 || slot.batches_in_flight > 0 {
            // Its numbers count still: the last one to arrive may wake no receiver.
            self.scheme.dispatched(id, slot);
        }
    }

    /// Fences what has to be fenced on purpose, here or for the peer.
    pub(super) fn fence_all_on_purpose(&mut self) {
        let wanted = self.rails_to_fence();
        for at in 0..self.rails.len() {
            let id = self.rails[at].id;
            self.fence_on_purpose(id, wanted.contains(id));
        }
    }

    /// Returns the rails that have parts in flight of requests whose time is over.
    fn rails_to_fence(&self) -> RailSet {
        if self.being_taken_back == 0 {
            return RailSet::EMPTY;
        }
        let is_hurried = |batch: &Batch| {
            let slot = self.sends.find(batch.wr).filter(|_| batch.content.is_fragments());
            slot.is_some_and(|slot| {
                slot.is_being_taken_back() && slot.state.contains(SlotState::HURRIED)
            })
        };
        let carries = |rail: &&Rail<Q, DEPTH>| {
            rail.health.lifecycle.is_in_service() && rail.sends.iter().any(is_hurried)
        };
        self.rails.iter().filter(carries).map(|rail| rail.id).collect()
    }

    /// Returns the rails that may still execute parts of requests that are being taken back.
    fn awaited_rails(&self) -> RailSet {
        let mut awaited = RailSet::EMPTY;
        for id in self.sends.unreported_ids() {
            if self.sends.find(id).is_some_and(SendSlot::is_being_taken_back) {
                for rail in self.all_rails() {
                    // Of two copies, one may be acknowledged.
                    let awaits = self.health.awaits_fence && rail.health.lifecycle.awaits_fence();
                    if awaits || may_execute(rail, id) {
                        awaited.insert(rail.id);
                    }
                }
            }
        }
        awaited
    }

    /// Decides what became of requests that are being taken back, as far as that is final.
    pub(super) fn settle_taken_back(&mut self) {
        if self.being_taken_back == 0 {
            return;
        }
        for id in self.sends.unreported_ids() {
            if self.sends.slot(id).is_being_taken_back() && self.is_final(id) {
                self.being_taken_back -= 1;
            }
        }
    }

    /// If it is final what became of a request that is being taken back, takes note of that.
    fn is_final(&mut self, id: u64) -> bool {
        self.drop_lost(id);
        let slot = *self.sends.slot(id);
        let is_whole = !slot.state.contains(SlotState::CANCELLED);
        let is_done = is_whole && self.last_number_arrived(id);
        if !is_done {
            // The local buffer of a READ is written by this end's queue pairs only, and numbered
            // fragments are posted again after the fence only. Of plain WRITEs, a lost copy may be
            // executed although another one is acknowledged.
            let has_copies = !slot.is_numbered() && slot.opcode != Opcode::RdmaRead;
            let awaits = self.health.awaits_fence && has_copies && slot.offset > 0;
            if awaits || self.rails.iter().any(|rail| may_execute(rail, id)) {
                return false;
            }
        }
        let slot = self.sends.slot(id);
        if is_done || is_whole && slot.batches_in_flight == 0 {
            slot.state.remove(SlotState::TAKEN_BACK | SlotState::HURRIED);
            if !is_done {
                // All of it is acknowledged. Its owner waits for that, so its report need not wait
                // for its turn either.
                slot.state.insert(SlotState::WHEN_DONE);
            }
        } else {
            slot.status = WcStatus::CANCELLED;
            // Fragments are posted in the order of their bytes. What was posted may have been
            // written, also what did not arrive whole.
            slot.local = slot.local.within(0, slot.offset);
            self.has_taken_back = true;
        }
        true
    }

    /// Plain fragments that were lost, and of which no copy can be executed on their rail, are not
    /// posted again.
    fn drop_lost(&mut self, id: u64) {
        let Self { rails, sends, .. } = self;
        let slot = sends.slot(id);
        for rail in rails {
            let mut from = 0;
            while let Some((number, batch)) = rail.sends.next_lost(from) {
                from = number + u64::from(batch.count);
                let is_own = batch.wr == id && batch.content == Content::Fragments;
                if is_own && !may_be_executed(rail, number, slot.opcode) {
                    rail.sends.take_lost(number, None);
                    slot.batches_in_flight -= 1;
                    slot.state.insert(SlotState::CANCELLED);
                }
            }
        }
    }

    /// Returns a lost batch as it is posted again, if it is: of a request that was taken back, only
    /// the numbers, once it is final that it is not delivered.
    pub(super) fn goes_again_as(&self, batch: &Batch) -> Option<Batch> {
        let slot = self.sends.find(batch.wr).filter(|_| batch.content.is_fragments());
        match slot {
            Some(slot) if slot.state.contains(SlotState::TAKEN_BACK) => {
                let is_gap = batch.content == Content::Numbered && !slot.is_being_taken_back();
                is_gap.then(|| batch.gap())
            }
            _ => Some(*batch),
        }
    }

    /// Returns the oldest request that was taken back and is not reported.
    pub(super) fn next_taken_back(&self) -> Option<u64> {
        if !self.has_taken_back {
            return None;
        }
        let was_taken_back = |id: &u64| self.sends.find(*id).is_some_and(SendSlot::was_taken_back);
        self.sends.unreported_ids().find(was_taken_back)
    }

    /// The virtual queue pair failed: requests that are being taken back fail like all others,
    /// since no peer says any more what arrived.
    pub(super) fn forget_taken_back(&mut self) {
        if core::mem::take(&mut self.being_taken_back) == 0 {
            return;
        }
        for id in self.sends.unreported_ids() {
            let slot = self.sends.slot(id);
            if slot.is_being_taken_back() {
                slot.state.remove(SlotState::TAKEN_BACK | SlotState::HURRIED);
                slot.state.insert(SlotState::CANCELLED);
            }
        }
    }

    /// Checks the count of requests that are being taken back.
    pub(super) fn taken_back_invariants(&self) {
        let count = self.sends.iter().filter(|slot| slot.is_being_taken_back()).count();
        assert_eq!(count, self.being_taken_back, "requests that are being taken back");
        assert!(count == 0 || self.health.needs_recovery, "each poll looks at them");
    }
}

/// Whether a rail may execute a part of a request, whose fragments it has in flight or has lost.
fn may_execute<Q: QueuePair, const DEPTH: usize>(rail: &Rail<Q, DEPTH>, id: u64) -> bool {
    let is_own = |batch: &Batch| batch.wr == id && batch.content.is_fragments();
    if rail.sends.iter().any(is_own) {
        return true;
    }
    let mut from = 0;
    while let Some((number, batch)) = rail.sends.next_lost(from) {
        from = number + u64::from(batch.count);
        // Plain fragments that cannot be executed are dropped before.
        let may_be = batch.content == Content::Fragments || !rail.sends.is_resolved(number);
        if is_own(&batch) && may_be {
            return true;
        }
    }
    false
}

/// Whether a lost batch may still be executed: until the fence. A READ is over with its own queue
/// pair, as far as local memory is concerned.
fn may_be_executed<Q: QueuePair, const DEPTH: usize>(
    rail: &Rail<Q, DEPTH>,
    number: u64,
    opcode: Opcode,
) -> bool {
    if opcode == Opcode::RdmaRead {
        rail.sends.is_losing() && !rail.health.lifecycle.is_drained()
    } else {
        !rail.sends.is_resolved(number)
    }
}
