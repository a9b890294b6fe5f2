//! The receiver as a target of completions: what arrives, and the sizes that follow from it.

use super::end::Receiver;
use super::slot::{Arrival, Slot, State, UNTOLD, Withdrawal};
use crate::completion::{
    CompletionTarget, DirectCompletions, PhysicalQp, Role, TargetSet, VirtualWc, sealed,
};
use crate::hardware::{CqId, ENGINE_WR_ID, QueuePair, ReceiveQueue};
use crate::p2p::entry::MAX_BUFFERS;
use crate::p2p::error::{Failure, ProtocolError};
use crate::p2p::immediate::{Immediate, SIZE_UNIT, Told};
use crate::p2p::lane::{Lane, Purpose};
use crate::p2p::lanes::list;
use crate::p2p::mask::Mask;
use crate::p2p::memory::Words;
use crate::p2p::record::{self, RECORD_WORDS};
use crate::rail::{FailedBecause, PhysicalRail, RailState, Rails};
use crate::verbs::{Completion, DeviceId, ImmOrder, WcOpcode};
use core::sync::atomic::AtomicU64;

impl<
    Q: QueuePair,
    S: ReceiveQueue,
    M: Words,
    const QPS: usize,
    const DEPTH: usize,
    const SLOTS: usize,
> Receiver<Q, S, M, QPS, DEPTH, SLOTS>
{
    /// Handles a completion. Returns whether it is of a queue pair of this receiver.
    #[inline]
    fn take(&mut self, run: &mut Run, completion: &Completion) -> bool {
        let found = self.lanes.find(run.device, completion.qp_num);
        let Some((place, lane)) = found else { return false };
        lane.counters.completions += 1;
        // A failed completion has no valid opcode, only `wr_id`, `status`, `qp_num` and
        // `vendor_err` (ibv_poll_cq(3)), so this bit of the `wr_id` separates sends from receives.
        if completion.wr_id & ENGINE_WR_ID != 0 {
            // It consumed no receive of the pool.
            run.sends += 1;
            self.sent(place, completion);
            return true;
        }
        if !completion.status.is_success() {
            self.failed(place, completion);
            return true;
        }
        // Before anything can fail below: the sender compares this count with what it posted.
        lane.immediates = lane.immediates.wrapping_add(1);
        let (rail, own) = (lane.rail, lane.own);
        // A stopped queue pair may still deliver completions of messages that arrived before.
        if lane.is_stopped {
            // After the fence the count is final at the peer, which may have moved these shares.
            let is_fenced = lane.health.lifecycle.is_drained();
            if is_fenced || self.lanes.failure.is_some() {
                return true;
            }
        }
        if let Err(error) = self.arrive((rail, own), run.carrier, completion) {
            self.give_up(Failure::Protocol(error));
        }
        true
    }

    /// Handles an immediate of a queue pair of `rail`, on the device with the bit `carrier`.
    #[inline]
    fn arrive(
        &mut self,
        (rail, own): (u8, Mask),
        carrier: u8,
        completion: &Completion,
    ) -> Result<(), ProtocolError> {
        let Completion { opcode, byte_len: bytes, .. } = *completion;
        let Some(imm) = completion.imm() else {
            return Err(ProtocolError::NoImmediate { rail, opcode });
        };
        // A SEND also takes a receive, and its immediate is not of this protocol.
        if opcode != WcOpcode::RECV_RDMA_WITH_IMM {
            return Err(ProtocolError::NoImmediate { rail, opcode });
        }
        let immediate = self.layout.decode(imm);
        let arrival = Arrival { immediate, rail, own, carrier, bytes };
        match immediate.told {
            Told::Units(_) => self.note(&arrival),
            Told::Record | Told::Moved(_) => self.note_record(arrival),
        }
    }

    /// Records an immediate in its slot.
    #[inline(always)]
    fn note(&mut self, arrival: &Arrival) -> Result<(), ProtocolError> {
        let slot = self.waiting_slot(arrival)?;
        if slot.note(arrival)? {
            self.finish(usize::from(arrival.immediate.slot))?;
        }
        Ok(())
    }

    /// Records an immediate that refers to the record, possibly of a moved share.
    #[inline(never)]
    fn note_record(&mut self, mut arrival: Arrival) -> Result<(), ProtocolError> {
        self.waiting_slot(&arrival)?;
        if let Told::Moved(rail) = arrival.immediate.told {
            // Before the fence the share may still arrive over its own rail, and would count twice.
            if !self.fenced.contains(rail) {
                return Err(ProtocolError::NotFenced { slot: arrival.immediate.slot, rail });
            }
            // The share is that of the failed rail. The device that carried it stays the one that
            // `flush` needs.
            (arrival.rail, arrival.own) = (rail, Mask::of(rail));
        }
        self.note(&arrival)
    }

    /// Returns the slot of an immediate, which must wait for one.
    #[inline]
    fn waiting_slot(&mut self, arrival: &Arrival) -> Result<&mut Slot, ProtocolError> {
        let slot = arrival.immediate.slot;
        match self.slots.get_mut(usize::from(slot)) {
            // The slot comes from the peer: it may be too large, or of a message that has ended.
            Some(waiting) if waiting.state == State::Waiting => Ok(waiting),
            _ => Err(ProtocolError::NoReceive { slot }),
        }
    }

    /// Finishes a receive after its last immediate.
    #[inline]
    fn finish(&mut self, at: usize) -> Result<(), ProtocolError> {
        let Self { slots, region, .. } = self;
        let slot = &mut slots[at];
        if slot.needs_record {
            let words = region.words(at * RECORD_WORDS..(at + 1) * RECORD_WORDS);
            if slot.read_record(at as u8, words)? {
                slot.end_void();
                self.waiting -= 1;
                return Ok(());
            }
        } else {
            slot.add_up(at as u8)?;
        }
        // Only after the sizes: a message whose sizes are wrong fails the connection and is never
        // done.
        slot.state = State::Done;
        self.waiting -= 1;
        Ok(())
    }

    /// Handles the completion of a request that this end posted.
    #[inline(never)]
    fn sent(&mut self, place: usize, completion: &Completion) {
        let Self { lanes, slots, .. } = self;
        let is_success = completion.status.is_success();
        let queue = &mut lanes[place].queue;
        // Also for a failure: the requests before it have ended, whatever became of them.
        if let Some(number) = queue.find(completion.wr_id) {
            queue.end(number, |purpose| {
                if let Purpose::EntriesAgain { number } = purpose
                    && is_success
                {
                    slots[Self::slot_at(number)].written_again(place, number);
                }
            });
        }
        if !is_success {
            self.failed(place, completion);
        }
    }

    /// Handles a failed completion, which means that its queue pair failed.
    #[cold]
    fn failed(&mut self, place: usize, completion: &Completion) {
        let lane = &mut self.lanes[place];
        lane.counters.errors += 1;
        let error = lane.completion_error(completion, 0);
        self.rail_failed(place, FailedBecause::Error(error));
    }

    /// Replaces consumed receives, a batch at a time.
    #[inline]
    pub(super) fn refill(&mut self) {
        for pool in &mut self.pools {
            let posted = match pool.each {
                // No rail of this connection delivers here now, but receives that its failed queue
                // pairs consumed last may have been posted by another connection.
                0 => pool.account.pay_back(),
                each => pool.account.refill(self.waiting * each),
            };
            if posted.is_err() {
                // Each immediate consumed the receive that was reserved for it, so the reservation
                // usually still holds. If it does not, a later poll asks the driver again.
                self.lanes.needs_recovery = true;
            }
        }
    }
}

/// An immediate that arrived, and the sizes that follow from all of them.
impl Slot {
    /// Records an immediate. Returns whether all have arrived.
    #[inline]
    fn note(&mut self, arrival: &Arrival) -> Result<bool, ProtocolError> {
        let Arrival { immediate: Immediate { slot, mask, told }, own, carrier, bytes, .. } =
            *arrival;
        // One expression for all four errors keeps the usual case short; `not_due` finds the
        // reason. An empty mask fails the first condition.
        let is_due = !(mask & own).is_empty()
            && (self.mask == mask || self.mask.is_empty())
            && (self.seen & own).is_empty();
        if !is_due {
            return Err(self.not_due(arrival));
        }
        // The first immediate decides; later ones were compared with it above.
        self.mask = mask;
        self.seen |= own;
        // The device that delivered this immediate, which for a moved share is not that of its
        // rail: `flush` has to read on it.
        self.carriers |= carrier;
        match told {
            Told::Units(units) => {
                self.sum += u64::from(bytes);
                self.note_units(slot, units)?;
            }
            // The bytes of these immediates are the record or nothing, so they are not part of the
            // sum.
            Told::Record | Told::Moved(_) => {
                self.needs_record = true;
                if told != Told::Record {
                    // The sender may repeat only the signal, so the payload may have arrived over a
                    // lost device, which `flush` must know.
                    self.carriers |= self.lost_carriers;
                }
            }
        }
        Ok(self.seen == self.mask)
    }

    /// Returns the error of an unexpected immediate.
    #[cold]
    fn not_due(&self, arrival: &Arrival) -> ProtocolError {
        let Arrival { immediate: Immediate { slot, mask, .. }, rail, own, .. } = *arrival;
        if mask.is_empty() {
            ProtocolError::EmptyMask { slot }
        } else if !self.mask.is_empty() && self.mask != mask {
            ProtocolError::MaskChanged { slot, before: self.mask, now: mask }
        } else if (mask & own).is_empty() {
            ProtocolError::ForeignMask { slot, rail, mask }
        } else {
            ProtocolError::Twice { slot, rail }
        }
    }

    #[inline]
    fn note_units(&mut self, slot: u8, units: u32) -> Result<(), ProtocolError> {
        if self.units != units {
            // Every immediate has the length of the whole message, so all must agree.
            if self.units != UNTOLD {
                let (said, came) = (in_bytes(self.units), in_bytes(units));
                return Err(ProtocolError::SizesDisagree { slot, said, came });
            }
            self.units = units;
        }
        Ok(())
    }

    /// Sets the size of the only buffer from the immediates, none of which refers to the record.
    #[inline]
    fn add_up(&mut self, slot: u8) -> Result<(), ProtocolError> {
        let said = in_bytes(self.units);
        // Separate signals have no payload: then the length in the immediates is exact, since other
        // lengths use the record (messages.md, "Exact sizes").
        let size = if self.sum == 0 { said } else { self.sum };
        check_units(slot, said, size)?;
        let capacity = self.entries[0].length;
        // The caller would read beyond its buffer.
        if size > u64::from(capacity) {
            return Err(ProtocolError::TooLong { slot, size, capacity });
        }
        self.sizes[0] = size as u32;
        Ok(())
    }

    /// Copies the sizes out of the record, because the sender may write the record again once the
    /// slot is reused. Returns whether the message was taken back instead.
    #[cold]
    fn read_record(&mut self, slot: u8, words: &[AtomicU64]) -> Result<bool, ProtocolError> {
        if record::is_void(words) {
            return Ok(true);
        }
        if matches!(self.withdrawal(), Some(Withdrawal::Final | Withdrawal::Tested)) {
            return Err(ProtocolError::GivenBack { slot });
        }
        let mut capacities = [0; MAX_BUFFERS];
        for (capacity, entry) in capacities.iter_mut().zip(self.entries()) {
            *capacity = entry.length;
        }
        let loaded = record::load(words, &capacities[..usize::from(self.count)]);
        self.sizes = loaded.map_err(|source| ProtocolError::Record { slot, source })?;
        let all = self.sizes[..usize::from(self.count)].iter().map(|size| u64::from(*size)).sum();
        // A moved share refers to the record although earlier shares had the length.
        if self.units != UNTOLD {
            check_units(slot, in_bytes(self.units), all)?;
        }
        Ok(false)
    }
}

const fn in_bytes(units: u32) -> u64 {
    units as u64 * SIZE_UNIT as u64
}

/// Checks that a length, rounded up to units, is the length in the immediates.
#[inline]
fn check_units(slot: u8, said: u64, size: u64) -> Result<(), ProtocolError> {
    // A size above the said length wraps to a large number, so one comparison tests both bounds.
    let is_it = said.wrapping_sub(size) < u64::from(SIZE_UNIT);
    if is_it { Ok(()) } else { Err(ProtocolError::SizesDisagree { slot, said, came: size }) }
}

/// Consecutive completions of one device.
struct Run {
    device: DeviceId,
    /// The bit of the device, by its place in the list.
    carrier: u8,
    /// The number of completions that consumed no receive.
    sends: u32,
}

impl<Q, S, M, const QPS: usize, const DEPTH: usize, const SLOTS: usize> sealed::Sealed
    for Receiver<Q, S, M, QPS, DEPTH, SLOTS>
{
}

#[allow(private_interfaces, reason = "sealed: the methods are for VirtualCq only")]
impl<
    Q: QueuePair,
    S: ReceiveQueue,
    M: Words,
    const QPS: usize,
    const DEPTH: usize,
    const SLOTS: usize,
> CompletionTarget for Receiver<Q, S, M, QPS, DEPTH, SLOTS>
{
    fn virtual_qp_num(&self) -> u32 {
        self.config.virtual_qp_num
    }

    fn imm_order(&self) -> ImmOrder {
        ImmOrder::BigEndian
    }

    fn list_physical(&self, each: &mut dyn FnMut(&dyn PhysicalQp, Role, u32)) {
        list(&self.lanes, 0, each);
        for (at, flush) in self.flushes.iter().enumerate() {
            let first = self.lanes.len() + at;
            list(core::slice::from_ref(&flush.lane), first, each);
        }
    }

    fn take_completions(
        &mut self,
        device: DeviceId,
        role: Role,
        completions: &[Completion],
        _direct: &mut DirectCompletions,
    ) -> usize {
        let Role::Rail(place) = role else { return 0 };
        let device_at = self.devices.iter().position(|known| *known == device);
        let carrier = device_at.map_or(0, |at| 1 << at);
        // Counted for the whole run, so that the account is changed once.
        let mut run = Run { device, carrier, sends: 0 };
        let mut taken = 0;
        for completion in completions {
            // One look-up of the route serves the completions of all rails. With 4 rails that was
            // 12% of the instructions of a message.
            if !self.take(&mut run, completion) {
                break;
            }
            taken += 1;
        }
        if let (0, [first, ..]) = (taken, completions) {
            // No queue pair of a rail: it may be one that only flushes.
            return self.flushed(usize::from(place), device, first);
        }
        // Every completion consumed a receive, also a failed one and one of a failed connection
        // (messages.md, "Pools of receives").
        if let Some(pool) = device_at.and_then(|at| self.pools.get_mut(at)) {
            pool.account.lower(taken as u32 - run.sends);
        }
        taken
    }

    fn is_only_rail(&self, _device: DeviceId, _qp_num: u32) -> bool {
        false
    }

    fn count_passed(&mut self, _count: usize) {}

    fn note_passed_failures(&mut self, _completions: &[Completion]) {}

    fn pump_all(&mut self) {
        // Before `recover`, which may send a fence: the peer acts on it at once, and the shares
        // that it moves need receives.
        if self.lanes.failure.is_none() {
            self.refill();
            if self.unwritten < self.next {
                self.write_held();
            }
        }
        if self.lanes.needs_recovery {
            self.recover();
        }
    }

    fn report(&mut self) -> Option<VirtualWc> {
        None
    }

    fn needs_poll(&self) -> bool {
        (self.lanes.needs_recovery || self.unwritten < self.next) && self.has_something_to_do()
    }

    fn awaits_empty(&self) -> Option<CqId> {
        let awaits = |lane: &&Lane<Q, DEPTH>| {
            // The driver has said that no further receive completes, but completions from before
            // may be unpolled; the fence waits for them (messages.md, "Rails that fail").
            let is_draining = lane.health.lifecycle.state() == RailState::Draining;
            is_draining && lane.is_drained && !lane.is_seen_empty
        };
        // Nothing is fenced on a connection that failed.
        if !self.lanes.needs_recovery || self.lanes.failure.is_some() {
            return None;
        }
        self.lanes.iter().find(awaits).map(|lane| lane.qp.cq())
    }

    fn note_empty(&mut self, cq: CqId) {
        self.queue_is_empty(cq);
    }

    fn note_taken(&mut self, cq: CqId, taken: u64, capacity: u32) {
        self.drained_on(cq).for_each(|lane| lane.note_taken(taken, capacity));
    }
}

/// A set of one, at index 0.
impl<
    Q: QueuePair,
    S: ReceiveQueue,
    M: Words,
    const QPS: usize,
    const DEPTH: usize,
    const SLOTS: usize,
> TargetSet for Receiver<Q, S, M, QPS, DEPTH, SLOTS>
{
    type Target = Self;

    fn target(&mut self, index: u16) -> Option<&mut Self> {
        (index == 0).then_some(self)
    }
}

/// Equal receivers, by their places in the slice.
impl<
    Q: QueuePair,
    S: ReceiveQueue,
    M: Words,
    const QPS: usize,
    const DEPTH: usize,
    const SLOTS: usize,
> TargetSet for [Receiver<Q, S, M, QPS, DEPTH, SLOTS>]
{
    type Target = Receiver<Q, S, M, QPS, DEPTH, SLOTS>;

    fn target(&mut self, index: u16) -> Option<&mut Self::Target> {
        self.get_mut(usize::from(index))
    }
}

#[cfg(test)]
mod tests;
