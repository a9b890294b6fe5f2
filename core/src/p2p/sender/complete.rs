//! What polls bring to a sender.

use super::end::Sender;
use crate::completion::{
    CompletionTarget, DirectCompletions, PhysicalQp, Role, TargetSet, VirtualWc, sealed,
};
use crate::hardware::{ENGINE_WR_ID, QueuePair};
use crate::p2p::lane::list;
use crate::p2p::memory::Words;
use crate::p2p::queue::Purpose;
use crate::rail::FailedBecause;
use crate::verbs::{Completion, DeviceId, ImmOrder};

impl<Q: QueuePair, M: Words, const QPS: usize, const DEPTH: usize, const SLOTS: usize>
    Sender<Q, M, QPS, DEPTH, SLOTS>
{
    /// Takes a completion of what was posted to a queue pair, which is at this place or another. Returns the
    /// place, or `None` if the completion is of none.
    #[inline]
    fn take(&mut self, place: usize, device: DeviceId, completion: &Completion) -> Option<usize> {
        let Self { lanes, slots, outstanding, .. } = self;
        let (place, lane) = lanes.find(place, device, completion.qp_num)?;
        let Some(number) = lane.queue.find(completion.wr_id) else {
            // Of another generation, or twice: ignored, and counted.
            lane.counters.errors += 1;
            return (completion.wr_id & ENGINE_WR_ID != 0).then_some(place);
        };
        lane.counters.completions += 1;
        if !completion.status.is_success() {
            self.failed(place, number, completion);
            return Some(place);
        }
        while let Some(purpose) = lane.queue.end(number) {
            if let Purpose::Share { number, rail, ends: true } = purpose {
                let slot = &mut slots[Self::slot_at(number)];
                outstanding[usize::from(lane.rail)] -= slot.arrived(number, rail, place);
            }
        }
        Some(place)
    }

    /// Request `number` of a queue pair failed: what ends with it may have arrived, or not.
    #[cold]
    fn failed(&mut self, place: usize, number: u64, completion: &Completion) {
        let lane = &mut self.lanes[place];
        lane.counters.errors += 1;
        while lane.queue.end(number).is_some() {}
        let error = lane.completion_error(completion);
        self.lane_failed(place, FailedBecause::Error(error));
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

    fn for_each_physical(&self, each: &mut dyn FnMut(&dyn PhysicalQp, Role, u32)) {
        list(&self.lanes, 0, each);
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
            let Some(at) = self.take(place, device, completion) else { break };
            place = at;
            taken += 1;
        }
        taken
    }

    fn is_only_rail(&self, _device: DeviceId, _qp_num: u32) -> bool {
        false
    }

    fn count_passed(&mut self, _completions: &[Completion], _any_failed: bool) {}

    fn pump(&mut self) {
        if self.owes {
            self.post_owed();
        }
        if self.lanes.needs_care {
            self.recover();
        }
    }

    fn next_report(&mut self) -> Option<VirtualWc> {
        None
    }

    fn wants_poll(&self) -> bool {
        (self.owes || self.lanes.needs_care) && self.has_something_to_do()
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
