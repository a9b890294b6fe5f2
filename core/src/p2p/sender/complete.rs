//! The sender as a target of completions.

use super::end::Sender;
use super::slot::{Slot, Stage, State};
use crate::completion::{
    CompletionTarget, DirectCompletions, PhysicalQp, Role, TargetSet, VirtualWc, sealed,
};
use crate::hardware::{ENGINE_WR_ID, QueuePair};
use crate::p2p::lane::Purpose;
use crate::p2p::lanes::list;
use crate::p2p::mask::Mask;
use crate::p2p::memory::Words;
use crate::rail::{FailedBecause, MAX_RAILS, PhysicalRail, Rails};
use crate::verbs::{Completion, DeviceId, ImmOrder};

impl<Q: QueuePair, M: Words, const QPS: usize, const DEPTH: usize, const SLOTS: usize>
    Sender<Q, M, QPS, DEPTH, SLOTS>
{
    /// Handles a completion. Returns whether it is of a queue pair of this sender.
    #[inline]
    fn take(&mut self, device: DeviceId, completion: &Completion) -> bool {
        let Self { lanes, slots, outstanding, .. } = self;
        let Some((place, lane)) = lanes.find(device, completion.qp_num) else { return false };
        let Some(number) = lane.queue.find(completion.wr_id) else {
            // Not in flight: the completion is of another generation, or a repetition. The tag
            // check makes it harmless, so it is only counted.
            lane.counters.errors += 1;
            return completion.wr_id & ENGINE_WR_ID != 0;
        };
        lane.counters.completions += 1;
        if !completion.status.is_success() {
            self.failed(place, number, completion);
            return true;
        }
        // The remainder removes a bounds check: rails are below it.
        let outstanding = &mut outstanding[usize::from(lane.rail) % MAX_RAILS];
        lane.queue.end(number, |purpose| {
            if let Purpose::Share { number, rail } = purpose {
                let slot = &mut slots[Self::slot_at(number)];
                *outstanding -= slot.arrived(number, rail, place);
            }
        });
        true
    }

    /// Handles the failure of request `number`. The requests that end with it may or may not have
    /// arrived.
    #[cold]
    fn failed(&mut self, place: usize, number: u64, completion: &Completion) {
        let lane = &mut self.lanes[place];
        lane.counters.errors += 1;
        // They end without being noted as arrived; the peer's count decides which of them did.
        lane.queue.end(number, |_| {});
        let error = lane.completion_error(completion, 0);
        self.rail_failed(place, FailedBecause::Error(error));
    }
}

impl Slot {
    /// Notes that the share of a rail arrived over the queue pair at `place`. Returns its payload
    /// bytes, or 0 if that was known.
    #[inline]
    pub(super) fn arrived(&mut self, number: u64, rail: u8, place: usize) -> u64 {
        let rail = rail % MAX_RAILS as u8;
        let share = &mut self.shares[usize::from(rail)];
        // State is keyed by the message number, because another message may have the slot now
        // (messages.md, "Why an 8-bit slot is safe").
        let is_ours = self.number == number && usize::from(share.lane) == place;
        // A share that was counted by the peer's fence, or is lost, is settled already.
        if !is_ours || share.stage != Stage::Posted {
            return 0;
        }
        let payload = share.payload;
        share.stage = Stage::Arrived;
        self.arrived |= Mask::of(rail);
        // Repetitions for a message that `test` has returned must not make it done again.
        if self.state == State::Sending && self.has_arrived() {
            self.state = State::Done;
        }
        payload
    }
}

impl<Q, M, const QPS: usize, const DEPTH: usize, const SLOTS: usize> sealed::Sealed
    for Sender<Q, M, QPS, DEPTH, SLOTS>
{
}

#[allow(private_interfaces, reason = "sealed: the methods are for VirtualCq only")]
impl<Q: QueuePair, M: Words, const QPS: usize, const DEPTH: usize, const SLOTS: usize>
    CompletionTarget for Sender<Q, M, QPS, DEPTH, SLOTS>
{
    fn virtual_qp_num(&self) -> u32 {
        self.config.virtual_qp_num
    }

    fn imm_order(&self) -> ImmOrder {
        ImmOrder::BigEndian
    }

    fn list_physical(&self, each: &mut dyn FnMut(&dyn PhysicalQp, Role, u32)) {
        list(&self.lanes, 0, each);
    }

    fn take_completions(
        &mut self,
        device: DeviceId,
        role: Role,
        completions: &[Completion],
        _direct: &mut DirectCompletions,
    ) -> usize {
        let Role::Rail(_) = role else { return 0 };
        let mut taken = 0;
        for completion in completions {
            // One look-up of the route serves the completions of all rails.
            if !self.take(device, completion) {
                break;
            }
            taken += 1;
        }
        taken
    }

    fn is_only_rail(&self, _device: DeviceId, _qp_num: u32) -> bool {
        false
    }

    fn count_passed(&mut self, _count: usize) {}

    fn note_passed_failures(&mut self, _completions: &[Completion]) {}

    fn pump_all(&mut self) {
        if self.owes {
            self.post_owed();
        }
        if self.lanes.needs_recovery {
            self.recover();
        }
    }

    fn report(&mut self) -> Option<VirtualWc> {
        None
    }

    fn needs_poll(&self) -> bool {
        (self.owes || self.lanes.needs_recovery) && self.has_something_to_do()
    }
}

/// A set of one, at index 0.
impl<Q: QueuePair, M: Words, const QPS: usize, const DEPTH: usize, const SLOTS: usize> TargetSet
    for Sender<Q, M, QPS, DEPTH, SLOTS>
{
    type Target = Self;

    fn target(&mut self, index: u16) -> Option<&mut Self> {
        (index == 0).then_some(self)
    }
}

/// Equal senders, by their places in the slice.
impl<Q: QueuePair, M: Words, const QPS: usize, const DEPTH: usize, const SLOTS: usize> TargetSet
    for [Sender<Q, M, QPS, DEPTH, SLOTS>]
{
    type Target = Sender<Q, M, QPS, DEPTH, SLOTS>;

    fn target(&mut self, index: u16) -> Option<&mut Self::Target> {
        self.get_mut(usize::from(index))
    }
}
