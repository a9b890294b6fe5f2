//! Step 2: requests go to the rails, oldest first, in batches of fragments.

use super::choose::Load;
use super::config::Scheme;
use super::error::RailId;
use super::failure::RailSet;
use super::rail::Rail;
use super::slot::{SendSlot, SlotState};
use super::{MAX_RAILS, VirtualQp};
use crate::hardware::{CommitError, QueuePair, Refusal};
use crate::in_flight::{Batch, Content};
use crate::sequence::SequenceNumber;
use crate::verbs::{Opcode, SendFlags};

/// How far the dispatch of one request got.
#[derive(Debug)]
pub(super) enum Progress {
    /// All of it is with the rails.
    Posted,
    /// The rest waits for a completion.
    Waits,
    /// A driver refused it for good; what it took before stays posted.
    Refused(Refused),
}

/// What a driver refused for good.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) rail: RailId,
    pub(super) errno: i32,
    /// First byte, within the request, of what was refused.
    pub(super) offset: u32,
}

impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize>
    VirtualQp<Q, RAILS, DEPTH, WRS>
{
    /// Posts what waits for rails, oldest first, until something has to wait.
    pub(super) fn dispatch_pending(&mut self) {
        self.chooser.prefer(self.freed);
        while let Some(id) = self.sends.front_pending() {
            match self.dispatch(id) {
                Progress::Posted => self.sends.pop_pending(),
                Progress::Waits => return,
                Progress::Refused(refused) => return self.dispatch_refused(id, refused),
            }
        }
    }

    /// Posts what it can of the front pending request.
    #[inline(never)]
    pub(super) fn dispatch(&mut self, id: u64) -> Progress {
        self.dispatch_now(id)
    }

    /// [`dispatch`](Self::dispatch), in line with the post: the fast path.
    #[inline(always)]
    pub(super) fn dispatch_now(&mut self, id: u64) -> Progress {
        let slot = self.sends.slot(id);
        if slot.state.intersects(SlotState::FENCED.union(SlotState::PASS_THROUGH)) {
            if slot.state.contains(SlotState::PASS_THROUGH) {
                return Progress::Posted;
            }
            if slot.is_fenced() && !self.passes_fence(id) {
                return Progress::Waits;
            }
        }
        let slot = self.sends.slot(id);
        let one = slot.unposted() <= self.config.max_msg_size;
        if slot.fragment_opcode == Opcode::RdmaWriteWithImm {
            let solicited = slot.flags.contains(SendFlags::SOLICITED);
            if self.unnumbered_in_flight(id) || solicited && self.unsolicited_in_flight() {
                return Progress::Waits;
            }
            let progress = match one {
                true => self.dispatch_fragments::<true, true>(id),
                false => self.dispatch_fragments::<true, false>(id),
            };
            if !solicited && matches!(progress, Progress::Posted) {
                self.unsolicited_until = id + 1;
            }
            return progress;
        }
        let progress = match one {
            true => self.dispatch_fragments::<false, true>(id),
            false => self.dispatch_fragments::<false, false>(id),
        };
        if self.config.scheme == Scheme::Dqplb && matches!(progress, Progress::Posted) {
            self.unnumbered_until = id + 1;
        }
        progress
    }

    /// Whether everything that was posted before the front pending request is complete.
    ///
    /// A fence on one rail says nothing about the others, so the request itself waits. What passed
    /// straight through is known by its number on rail 0 when the fence came to the front: later ones
    /// must not keep it waiting for ever.
    #[cold]
    fn passes_fence(&mut self, id: u64) -> bool {
        let on_rail_0 = &self.rails[0].sends;
        let mark = *self.fence_mark.get_or_insert(on_rail_0.next_number());
        let passed_through = on_rail_0.oldest_request() >= mark;
        let passes = passed_through
            && self.deferred.oldest() > id
            && self.is_acknowledged_before(id)
            && self.sends.front_in_flight().is_none();
        if passes {
            self.fence_mark = None;
        }
        passes
    }

    /// Whether a plain WRITE or a READ of a DQPLB sender, or a pass-through request that request `id` may
    /// not overtake, may be unacknowledged. They have no numbers, so the receiver could be told of what
    /// follows before they are in place, or before its memory was read.
    #[inline]
    fn unnumbered_in_flight(&self, id: u64) -> bool {
        let front = self.sends.front_in_flight();
        front.is_some_and(|front| front < self.unnumbered_until) || self.pass_through_ahead(id)
    }

    /// Whether numbered fragments that wake nobody may be unacknowledged. The last of them to arrive
    /// could be what completes a solicited request behind them.
    #[inline]
    fn unsolicited_in_flight(&self) -> bool {
        let front = self.sends.front_in_flight();
        front.is_some_and(|front| front < self.unsolicited_until)
    }

    /// Cuts the request into one share for each rail that has credits. `NUMBERED` requests are
    /// DQPLB's WRITE_WITH_IMM. Of `ONE`, no more than one fragment is left: nothing is divided or
    /// shared out, which is most of the work for a small request.
    #[inline(always)]
    fn dispatch_fragments<const NUMBERED: bool, const ONE: bool>(&mut self, id: u64) -> Progress {
        // Disjoint fields: a batch borrows its rail while slot and numbers are at work.
        let Self { rails, sends, chooser, numbers, config, .. } = self;
        let size = config.max_msg_size;
        let slot = sends.slot(id);
        let opcode = slot.opcode;
        let content = if NUMBERED { Content::Numbered } else { Content::Fragments };
        let mut left = if ONE { 1 } else { chooser.fragments_in(slot.unposted()) };
        let share = if ONE { 1 } else { chooser.share(left) };
        let mut round = chooser.round();
        loop {
            let Some((at, mut most)) = chooser.next(&mut round, left, share, || load(rails)) else {
                return Progress::Waits;
            };
            if NUMBERED {
                most = numbers.room(most, || unacknowledged(rails));
                if most == 0 {
                    return Progress::Waits;
                }
            }
            let rail = &mut rails[at];
            let count = if ONE { 1 } else { most.min(rail.sends.credits()) };
            let offset = slot.offset;
            let length = if ONE || count == left { slot.unposted() } else { count * size };
            let number = if NUMBERED { numbers.next().get() } else { 0 };
            let batch =
                Batch { wr: id, offset, length, number, count: count as u16, content, opcode };
            // Noted first: a request that is posted leaves nothing to be remembered meanwhile.
            let tag = rail.sends.push(batch);
            if rail.sends.credits() == 0 {
                chooser.set_busy(rail.turn_bit);
            }
            slot.offset += length;
            slot.outstanding += 1;
            if NUMBERED {
                numbers.consume(count);
            }
            if let Err(error) = rail.post_fragments::<NUMBERED, RAILS>(slot, &batch, size, tag, 0) {
                return self.taken_in_part(at, count, error);
            }
            if ONE {
                return Progress::Posted;
            }
            left -= count;
            if left == 0 {
                return Progress::Posted;
            }
        }
    }

    /// The driver took none or only the front of a batch of fragments.
    ///
    /// What it took has no signaled request behind it, so the rest of the batch goes to the same
    /// rail as soon as it takes it, before anything else. DQPLB numbers are used up with the
    /// first request taken.
    #[cold]
    fn taken_in_part(&mut self, at: usize, count: u32, error: CommitError) -> Progress {
        let rail = &mut self.rails[at];
        let accepted = error.accepted;
        let batch = rail.sends.cut(count, accepted);
        let slot = self.sends.slot(batch.wr);
        if accepted == 0 {
            slot.offset -= batch.length;
            slot.outstanding -= 1;
            if batch.content == Content::Numbered {
                self.numbers.take_back(count);
            }
        }
        let (id, rail, all) = (batch.wr, rail.id, slot.unposted() == 0);
        let offset = batch.offset + bytes_of(&batch, accepted, self.config.max_msg_size);
        self.retry.insert(rail);
        self.update_ready(at);
        match error.refusal {
            Refusal::Driver(errno) => Progress::Refused(Refused { rail, errno, offset }),
            Refusal::QueueFull if all => Progress::Posted,
            Refusal::QueueFull => self.dispatch(id),
        }
    }

    /// A driver refused a request of which something may be posted.
    #[cold]
    pub(super) fn dispatch_refused(&mut self, id: u64, refused: Refused) {
        let Refused { rail, errno, offset } = refused;
        let Some(rail) = self.rail_mut(rail) else { return };
        let error = rail.refusal_error(errno, offset);
        self.sends.slot(id).fail(error.status);
        self.fail(error);
    }

    /// Whether no notify waits for its acknowledgement.
    #[inline]
    pub(super) fn notify_idle(&self) -> bool {
        self.notify.as_ref().is_none_or(|notify| notify.sends.is_empty())
    }

    pub(super) fn rail_0_has_room(&self) -> bool {
        self.rails[0].is_open() && self.rails[0].sends.credits() > 0
    }

    /// Takes note of what may have opened or closed a rail.
    #[inline]
    pub(super) fn update_ready(&mut self, at: usize) {
        let rail = &mut self.rails[at];
        let owed = rail.sends.is_unfinished() || self.retry.contains(rail.id);
        rail.set_open(rail.up && !owed);
        if rail.is_open() && rail.sends.credits() > 0 {
            self.chooser.set_ready(rail.turn_bit);
        } else {
            self.chooser.set_busy(rail.turn_bit);
        }
    }

    /// Offers drivers again what they refused: the rest of batches that they took in part, before
    /// anything else goes to those rails.
    #[cold]
    pub(super) fn retry_refused(&mut self) {
        let retry = core::mem::replace(&mut self.retry, RailSet::EMPTY);
        for id in retry {
            match id {
                RailId::Data(rail) => self.retry_rail(rail as usize),
                RailId::Notify => self.retry_notify(),
            }
        }
    }

    fn retry_rail(&mut self, at: usize) {
        if self.failed {
            self.mark_end(RailId::Data(at as u8));
            return self.update_ready(at);
        }
        let rail = &mut self.rails[at];
        if let Some((batch, index, tag)) = rail.sends.unfinished() {
            let slot = self.sends.slot(batch.wr);
            let size = self.config.max_msg_size;
            let refused = if slot.fragment_opcode == Opcode::RdmaWriteWithImm {
                rail.post_fragments::<true, RAILS>(slot, &batch, size, tag, index)
            } else {
                rail.post_fragments::<false, RAILS>(slot, &batch, size, tag, index)
            }
            .err();
            let missing = u32::from(batch.count) - index;
            let accepted = refused.map_or(missing, |error| error.accepted);
            rail.sends.accepted(accepted);
            rail.more_doorbells += u64::from(accepted > 0);
            if let Some(CommitError { refusal, .. }) = refused {
                self.retry.insert(rail.id);
                if let Refusal::Driver(errno) = refusal {
                    let at = batch.offset + bytes_of(&batch, index + accepted, size);
                    let error = rail.refusal_error(errno, at);
                    slot.fail(error.status);
                    self.fail(error);
                }
            }
        }
        self.update_ready(at);
    }

    /// What must hold between slots and batches.
    pub(super) fn dispatch_invariants(&self) {
        let batches = || self.all_rails().flat_map(|rail| rail.sends.iter());
        let mut passing = 0;
        let mut in_flight = 0;
        for batch in batches() {
            match batch.content {
                Content::Fragments | Content::Numbered => {
                    let slot = self.sends.find(batch.wr).expect("a request in flight is alive");
                    assert_eq!(slot.opcode, batch.opcode);
                    in_flight += 1;
                }
                Content::Deferred | Content::PassThrough | Content::Quiet | Content::Notifies => {}
            }
            passing += u32::from(batch.content.passes());
        }
        assert_eq!(self.passing, passing, "notifies wait for what passes");
        let has_failed = |slot: &SendSlot<RAILS>| !slot.final_status().is_success();
        let failed = self.sends.iter().any(has_failed);
        assert!(self.failed || !failed, "no request fails alone: its receiver could be told of it");
        let outstanding: u32 = self.sends.iter().map(|slot| slot.outstanding).sum();
        assert_eq!(outstanding, in_flight, "slots count the batches in flight");
        for (at, rail) in self.rails.iter().enumerate() {
            let owed = rail.sends.is_unfinished() || self.retry.contains(rail.id);
            assert_eq!(rail.is_open(), rail.up && !owed, "rail {at} is open");
            let ready = rail.is_open() && rail.sends.credits() > 0;
            assert_eq!(self.chooser.is_ready(rail.turn_bit), ready, "the chooser knows rail {at}");
        }
    }
}

/// Bytes of the first `count` fragments of a batch; only its last one may be short.
pub(super) fn bytes_of(batch: &Batch, count: u32, size: u32) -> u32 {
    count.saturating_mul(size).min(batch.bytes())
}

/// What least finish time looks at.
#[cold]
#[inline(never)]
fn load<Q: QueuePair, const DEPTH: usize>(rails: &[Rail<Q, DEPTH>]) -> [Load; MAX_RAILS] {
    let mut loads = [Load::default(); MAX_RAILS];
    for (load, rail) in loads.iter_mut().zip(rails) {
        *load = Load { bytes: rail.sends.bytes(), credits: rail.sends.credits() };
    }
    loads
}

/// The oldest unacknowledged number of each rail that has any.
fn unacknowledged<Q, const DEPTH: usize>(
    rails: &[Rail<Q, DEPTH>],
) -> impl Iterator<Item = SequenceNumber> {
    let oldest = rails.iter().filter_map(|rail| rail.sends.oldest_number());
    oldest.filter_map(SequenceNumber::new)
}
