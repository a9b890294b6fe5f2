//! What polls bring to a receiver.

use super::end::Receiver;
use super::slot::{Arrival, State};
use crate::completion::{
    CompletionTarget, DirectCompletions, PhysicalQp, Role, TargetSet, VirtualWc, sealed,
};
use crate::hardware::{ENGINE_WR_ID, QueuePair, ReceiveQueue};
use crate::p2p::error::{Failure, ProtocolError};
use crate::p2p::immediate::Told;
use crate::p2p::lane::{Lane, list};
use crate::p2p::memory::Words;
use crate::p2p::record::RECORD_WORDS;
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
    /// Takes a completion of a queue pair.
    #[inline]
    fn take(&mut self, place: usize, completion: &Completion) {
        let lane = &mut self.lanes[place];
        lane.counters.completions += 1;
        lane.counters.errors += u64::from(!completion.status.is_success());
        // On a failure, this bit alone tells which queue it is of.
        if completion.wr_id & ENGINE_WR_ID != 0 {
            return self.sent(place, completion);
        }
        // Whatever came of it, and whatever became of the connection: the receive is not there any more.
        self.pools[usize::from(lane.device_at)].account.lower();
        if !completion.status.is_success() {
            return self.failed(place, completion);
        }
        if self.failure.is_some() {
            return;
        }
        if let Err(error) = self.arrive(place, completion) {
            self.give_up(Failure::Protocol(error));
        }
    }

    /// An immediate arrived.
    #[inline]
    fn arrive(&mut self, place: usize, completion: &Completion) -> Result<(), ProtocolError> {
        let lane = &self.lanes[place];
        let (rail, opcode) = (lane.rail, completion.opcode);
        let imm = completion.imm().filter(|_| opcode == WcOpcode::RECV_RDMA_WITH_IMM);
        let imm = imm.ok_or(ProtocolError::NoImmediate { rail, opcode })?;
        let immediate = self.layout.decode(imm);
        let number = immediate.slot;
        let at = usize::from(number);
        let slot = self.slots.get_mut(at).filter(|slot| slot.state == State::Waiting);
        let slot = slot.ok_or(ProtocolError::NoReceive { slot: number })?;
        if let Told::Moved(rail) = immediate.told {
            return Err(ProtocolError::NotFenced { slot: number, rail });
        }
        let (device_at, bytes) = (lane.device_at, completion.byte_len);
        slot.note(&Arrival { immediate, rail, device_at, bytes })?;
        if slot.is_complete() {
            let record = at * RECORD_WORDS;
            let words = self.region.words(record..record + RECORD_WORDS);
            slot.finish(number, words)?;
            self.waiting -= 1;
        }
        Ok(())
    }

    /// What was posted to a queue pair has ended.
    fn sent(&mut self, place: usize, completion: &Completion) {
        let lane = &mut self.lanes[place];
        if let Some(number) = lane.queue.find(completion.wr_id) {
            while lane.queue.end(number).is_some() {}
        }
        if !completion.status.is_success() {
            self.failed(place, completion);
        }
    }

    /// A completion failed: so did its queue pair.
    #[cold]
    fn failed(&mut self, place: usize, completion: &Completion) {
        let error = self.lanes[place].completion_error(completion);
        self.give_up(Failure::Rail(error));
    }

    /// Posts receives in the place of those that were taken, a batch at a time.
    fn refill(&mut self) {
        for pool in &mut self.pools {
            // What was promised is there, whatever the driver says: each immediate that came took the
            // receive that was promised for it. If it refuses, a later poll asks again.
            let _ = pool.account.refill(self.waiting * pool.each);
        }
    }

    /// Receives that may complete on a queue pair: all of the account, counted once for each device.
    fn receives(&self, place: usize) -> u32 {
        let device_at = self.lanes[place].device_at;
        let first = self.lanes.iter().position(|lane| lane.device_at == device_at);
        if first != Some(place) {
            return 0;
        }
        self.pools.get(usize::from(device_at)).map_or(0, |pool| pool.account.limit())
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
        list(&self.lanes, 0, |place| self.receives(place), each);
        for (at, flush) in self.flushes.iter().enumerate() {
            let first = self.lanes.len() + at;
            list(core::slice::from_ref(&flush.lane), first, |_| 0, each);
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
        let place = usize::from(place);
        let Some(first) = completions.first() else { return 0 };
        let is_at = |lane: &Lane<Q, DEPTH>| lane.is_at(device, first.qp_num);
        if !self.lanes.get(place).is_some_and(is_at) {
            return self.flushed(place, device, first);
        }
        let run = completions.iter().take_while(|next| next.qp_num == first.qp_num);
        run.map(|completion| self.take(place, completion)).count()
    }

    fn is_only_rail(&self, _device: DeviceId, _qp_num: u32) -> bool {
        false
    }

    fn count_passed(&mut self, _completions: &[Completion], _any_failed: bool) {}

    fn pump(&mut self) {
        if self.failure.is_none() { self.refill() } else { self.drain() }
    }

    fn next_report(&mut self) -> Option<VirtualWc> {
        None
    }

    fn wants_poll(&self) -> bool {
        self.failure.is_some() && (!self.is_drained() || self.owes_receives())
    }
}

impl<
    Q: QueuePair,
    S: ReceiveQueue,
    M: Words,
    const QPS: usize,
    const DEPTH: usize,
    const SLOTS: usize,
> Receiver<Q, S, M, QPS, DEPTH, SLOTS>
{
    /// Whether receives of other connections were taken, and none were posted for them.
    fn owes_receives(&self) -> bool {
        self.pools.iter().any(|pool| !pool.account.covers(0))
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
