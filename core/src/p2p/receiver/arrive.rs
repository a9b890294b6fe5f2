//! What polls bring to a receiver.

use super::end::Receiver;
use super::slot::{Arrival, State};
use crate::completion::{
    CompletionTarget, DirectCompletions, PhysicalQp, Role, TargetSet, VirtualWc, sealed,
};
use crate::hardware::{CqId, ENGINE_WR_ID, QueuePair, ReceiveQueue};
use crate::p2p::error::{Failure, ProtocolError};
use crate::p2p::immediate::Told;
use crate::p2p::lane::{Lane, list};
use crate::p2p::memory::Words;
use crate::p2p::queue::Purpose;
use crate::p2p::record::RECORD_WORDS;
use crate::rail::{FailedBecause, RailState};
use crate::verbs::{Completion, DeviceId, ImmOrder, WcOpcode};

impl<
    Q: QueuePair,
    S: ReceiveQueue,
    M: Words,
    const QPS: usize,
    const DEPTH: usize,
    const SLOTS: usize,
> Receiver<Q, S, M, QPS, DEPTH, SLOTS>
{
    /// Takes a completion of a queue pair, which is at this place or another. Returns the place, or `None` if
    /// the completion is of none.
    #[inline]
    fn take(&mut self, place: usize, device: DeviceId, completion: &Completion) -> Option<usize> {
        let (place, lane) = self.lanes.find(place, device, completion.qp_num)?;
        lane.counters.completions += 1;
        // On a failure, this bit alone tells which queue it is of.
        if completion.wr_id & ENGINE_WR_ID != 0 {
            self.sent(place, completion);
            return Some(place);
        }
        // Whatever came of it, and whatever became of the connection: the receive is not there any more.
        self.pools[usize::from(lane.device_at)].account.lower();
        if !completion.status.is_success() {
            self.failed(place, completion);
            return Some(place);
        }
        lane.immediates = lane.immediates.wrapping_add(1);
        // Of a queue pair that is fenced, the peer has been told the number.
        let is_fenced = lane.lifecycle.is_drained();
        let (rail, device_at) = (lane.rail, lane.device_at);
        if is_fenced || self.lanes.failure.is_some() {
            return Some(place);
        }
        if let Err(error) = self.arrive((rail, device_at), completion) {
            self.give_up(Failure::Protocol(error));
        }
        Some(place)
    }

    /// An immediate arrived, over a queue pair of this rail, on this device.
    #[inline]
    fn arrive(
        &mut self,
        (mut rail, device_at): (u8, u8),
        completion: &Completion,
    ) -> Result<(), ProtocolError> {
        let Self { slots, layout, fenced, .. } = self;
        let opcode = completion.opcode;
        let imm = completion.imm().filter(|_| opcode == WcOpcode::RECV_RDMA_WITH_IMM);
        let imm = imm.ok_or(ProtocolError::NoImmediate { rail, opcode })?;
        let immediate = layout.decode(imm);
        let number = immediate.slot;
        let at = usize::from(number);
        let slot = slots.get_mut(at).filter(|slot| slot.state == State::Waiting);
        let slot = slot.ok_or(ProtocolError::NoReceive { slot: number })?;
        if let Told::Moved(of) = immediate.told {
            rail = of;
            if !fenced.contains(rail) {
                return Err(ProtocolError::NotFenced { slot: number, rail });
            }
        }
        let bytes = completion.byte_len;
        slot.note(&Arrival { immediate, rail, device_at, bytes })?;
        if slot.is_complete() {
            self.finish(at)?;
        }
        Ok(())
    }

    /// All immediates of a receive are in.
    #[inline]
    fn finish(&mut self, at: usize) -> Result<(), ProtocolError> {
        let Self { slots, region, .. } = self;
        let slot = &mut slots[at];
        if slot.needs_record() {
            let words = region.words(at * RECORD_WORDS..(at + 1) * RECORD_WORDS);
            slot.read_record(at as u8, words)?;
        } else {
            slot.add_up(at as u8)?;
        }
        slot.state = State::Done;
        self.waiting -= 1;
        Ok(())
    }

    /// What was posted to a queue pair has ended.
    #[inline(never)]
    fn sent(&mut self, place: usize, completion: &Completion) {
        let is_success = completion.status.is_success();
        if let Some(number) = self.lanes[place].queue.find(completion.wr_id) {
            while let Some(purpose) = self.lanes[place].queue.end(number) {
                if let Purpose::Entries { number, again: true } = purpose
                    && is_success
                {
                    self.written_again(place, number);
                }
            }
        }
        if !is_success {
            self.failed(place, completion);
        }
    }

    /// A completion failed: so did its queue pair.
    #[cold]
    fn failed(&mut self, place: usize, completion: &Completion) {
        let lane = &mut self.lanes[place];
        lane.counters.errors += 1;
        let error = lane.completion_error(completion);
        self.lane_failed(place, FailedBecause::Error(error));
    }

    /// Posts receives in the place of those that were taken, a batch at a time.
    #[inline]
    pub(super) fn refill(&mut self) {
        for pool in &mut self.pools {
            // What was promised is there, whatever the driver says: each immediate that came took the
            // receive that was promised for it. If it refuses, a later poll asks again.
            let _ = match pool.each {
                // The last ones that dying queue pairs took here may be another connection's.
                0 => pool.account.pay_back(),
                each => pool.account.refill(self.waiting * each),
            };
        }
    }
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

    fn for_each_physical(&self, each: &mut dyn FnMut(&dyn PhysicalQp, Role, u32)) {
        list(&self.lanes, 0, each);
        for (at, flush) in self.flushes.iter().enumerate() {
            let first = self.lanes.len() + at;
            list(core::slice::from_ref(&flush.lane), first, each);
        }
    }

    fn complete(
        &mut self,
        device: DeviceId,
        role: Role,
        completions: &[Completion],
        _direct: &mut DirectCompletions,
    ) -> usize {
        let Role::Rail(place) = role else { return 0 };
        let mut place = usize::from(place);
        let mut taken = 0;
        for completion in completions {
            // One look-up of the route serves all rails.
            match self.take(place, device, completion) {
                Some(at) => place = at,
                None if taken == 0 => return self.flushed(place, device, completion),
                None => break,
            }
            taken += 1;
        }
        taken
    }

    fn is_only_rail(&self, _device: DeviceId, _qp_num: u32) -> bool {
        false
    }

    fn count_passed(&mut self, _completions: &[Completion], _any_failed: bool) {}

    fn pump(&mut self) {
        if self.lanes.failure.is_none() {
            self.refill();
        }
        if self.lanes.needs_care {
            self.recover();
        }
    }

    fn next_report(&mut self) -> Option<VirtualWc> {
        None
    }

    fn wants_poll(&self) -> bool {
        self.lanes.needs_care && self.has_something_to_do()
    }

    fn awaits_empty(&self) -> Option<CqId> {
        let awaits = |lane: &&Lane<Q, DEPTH>| {
            let is_draining = lane.lifecycle.state() == RailState::Draining;
            is_draining && lane.is_drained && !lane.is_seen_empty
        };
        if !self.lanes.needs_care || self.lanes.failure.is_some() {
            return None;
        }
        self.lanes.iter().find(awaits).map(|lane| lane.qp.cq())
    }

    fn note_empty(&mut self, cq: CqId) {
        self.queue_is_empty(cq);
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
