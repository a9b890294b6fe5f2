//! Step 3: the virtual queue pair as a target of completions. Physical completions retire batches
//! and receives.

use super::error::ProtocolError;
use super::parts::front_bytes;
use super::qp::VirtualQp;
use super::scheme::{SchemeState, notified, notify_failed};
use super::slot::SlotState;
use crate::completion::{
    CompletionTarget, DirectCompletions, PhysicalQp, Role, TargetSet, VirtualWc, sealed,
};
use crate::hardware::{QueuePair, address};
use crate::rail::tag::{Tag, TagKind};
use crate::rail::{Batch, Content, Rail, RailId, TagMatch};
use crate::verbs::{Completion, DeviceId, ImmOrder, WcStatus};

impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize> sealed::Sealed
    for VirtualQp<Q, RAILS, DEPTH, WRS>
{
}

#[allow(private_interfaces, reason = "sealed: the methods are for VirtualCq only")]
impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize> CompletionTarget
    for VirtualQp<Q, RAILS, DEPTH, WRS>
{
    #[inline]
    fn virtual_qp_num(&self) -> u32 {
        VirtualQp::virtual_qp_num(self)
    }

    #[inline]
    fn imm_order(&self) -> ImmOrder {
        self.header.imm_order
    }

    fn list_physical(&self, each: &mut dyn FnMut(&dyn PhysicalQp, Role, u32)) {
        for rail in self.all_rails() {
            let role = match rail.id {
                RailId::Data(_) if !self.is_multi() => Role::Single,
                RailId::Data(rail) => Role::Rail(rail),
                RailId::Notify => Role::Notify,
            };
            let entries = if self.is_multi() {
                // When a queue pair fails, every request of both its queues completes, signaled or
                // not.
                rail.sends.limit() + rail.recvs.limit()
            } else {
                // The driver alone limits a single rail: the engine tracks nothing of it.
                let limits = rail.qp.limits();
                limits.max_send_wr.saturating_add(limits.max_recv_wr)
            };
            each(&rail.qp, role, entries);
        }
    }

    #[inline]
    fn take_completions(
        &mut self,
        device: DeviceId,
        role: Role,
        completions: &[Completion],
        direct: &mut DirectCompletions,
    ) -> usize {
        let Some(first) = completions.first() else { return 0 };
        let Role::Rail(at) = role else {
            // No loop: the notify queue pair has at most one completion for each request.
            return usize::from(self.complete_one(RailId::Notify, device, first, direct));
        };
        // The owner may have put a virtual queue pair with fewer rails at the attached index.
        let rail = self.rails.get(at as usize);
        let front_is_fragments = || rail.is_some_and(|rail| rail.sends.front_is_fragments());
        let taken = match Tag::from_wr_id(first.wr_id).kind() {
            Some(TagKind::Send) if front_is_fragments() => {
                // Without requests that are reported ahead of their turn, the loop needs no check
                // for them.
                if self.ahead.is_used() {
                    self.complete_fragments::<true>(device, completions, direct)
                } else {
                    self.complete_fragments::<false>(device, completions, direct)
                }
            }
            // The first completion decides: a rail of a sender has completions of sends, one of a
            // receiver those of receives, and each loop ends at the first other one.
            Some(TagKind::Send) => self.complete_bypassing(device, completions, direct),
            Some(TagKind::NotifyRecv) => self.complete_arrivals(device, completions),
            Some(TagKind::DataRecv) | None => 0,
        };
        if taken > 0 {
            return taken;
        }
        usize::from(self.complete_one(RailId::Data(at), device, first, direct))
    }

    #[inline]
    fn is_only_rail(&self, device: DeviceId, qp_num: u32) -> bool {
        !self.is_multi() && self.rails[0].is_at(device, qp_num)
    }

    #[inline]
    fn count_passed(&mut self, count: usize) {
        self.rails[0].completions += count as u64;
    }

    fn note_passed_failures(&mut self, completions: &[Completion]) {
        VirtualQp::note_passed_failures(self, completions);
    }

    #[inline]
    fn pump_all(&mut self) {
        VirtualQp::pump_all(self);
    }

    // Always inline: it is called once for each report and once more, and a call would be a third
    // of its cost.
    #[inline(always)]
    fn report(&mut self) -> Option<VirtualWc> {
        VirtualQp::report(self)
    }

    fn report_flushed(&mut self) -> Option<VirtualWc> {
        VirtualQp::report_flushed(self)
    }

    #[inline]
    fn needs_poll(&self) -> bool {
        VirtualQp::needs_poll(self)
    }
}

/// A set of one virtual queue pair, at index 0.
impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize> TargetSet
    for VirtualQp<Q, RAILS, DEPTH, WRS>
{
    type Target = Self;

    #[inline]
    fn target(&mut self, index: u16) -> Option<&mut Self> {
        (index == 0).then_some(self)
    }
}

/// Virtual queue pairs of one type, at their indices in the slice.
impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize> TargetSet
    for [VirtualQp<Q, RAILS, DEPTH, WRS>]
{
    type Target = VirtualQp<Q, RAILS, DEPTH, WRS>;

    #[inline]
    fn target(&mut self, index: u16) -> Option<&mut Self::Target> {
        self.get_mut(usize::from(index))
    }
}

impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize>
    VirtualQp<Q, RAILS, DEPTH, WRS>
{
    /// Takes completions as long as each is the success of a batch of fragments, which is the usual
    /// case of a sender. Returns how many. `AHEAD`: requests may be reported ahead of their turn.
    // Outlined, and separate from `complete_arrivals`, because each loop alone keeps its state in
    // registers. That saved 5% of the instructions of all rows over several rails.
    #[inline(never)]
    fn complete_fragments<const AHEAD: bool>(
        &mut self,
        device: DeviceId,
        completions: &[Completion],
        direct: &mut DirectCompletions,
    ) -> usize {
        let Self { rails, sends, chooser, .. } = self;
        let mut taken = 0;
        let mut freed = 0;
        let mut last_freed = chooser.last_freed();
        let mut when_done = None;
        for completion in completions {
            let rail = succeeded(rails, TagKind::Send, device, completion);
            let Some(rail) = rail else { break };
            let retired = rail.sends.retire_fragments(Tag::from_wr_id(completion.wr_id));
            let Some(id) = retired else { break };
            let slot = sends.slot(id);
            slot.batches_in_flight -= 1;
            last_freed = rail.turn_bit;
            freed |= last_freed;
            rail.completions += 1;
            taken += 1;
            // The loop ends because the report needs more of `self` than the loop has borrowed.
            if AHEAD && slot.state.contains(SlotState::WHEN_DONE) {
                when_done = Some(id);
                break;
            }
        }
        // Once for the run, so that the loop writes no state of the chooser.
        chooser.freed(freed, last_freed);
        if let Some(id) = when_done {
            self.batch_retired(id, direct);
        }
        taken
    }

    /// Takes completions as long as each is the success of a request that went straight to rail 0,
    /// which is the usual case of SENDs and atomics. Returns how many.
    #[inline(never)]
    fn complete_bypassing(
        &mut self,
        device: DeviceId,
        completions: &[Completion],
        direct: &mut DirectCompletions,
    ) -> usize {
        let Self { rails, chooser, pass_through, header, .. } = self;
        let Some(rail) = rails.first_mut() else { return 0 };
        let mut taken = 0;
        for completion in completions {
            let own = rail.accepts_at(address(device, completion.qp_num));
            let succeeded =
                completion.status.is_success() && may_complete(TagKind::Send, completion);
            if !own || !succeeded {
                break;
            }
            let retired = rail.sends.retire_bypassing(Tag::from_wr_id(completion.wr_id));
            let Some(batch) = retired else { break };
            taken += 1;
            // As in verbs, the success of an unsignaled request is not reported.
            if batch.content == Content::PassThrough {
                direct.push(VirtualWc {
                    wr_id: batch.wr,
                    status: WcStatus::SUCCESS,
                    opcode: batch.opcode.completion(),
                    qp_num: header.virtual_qp_num,
                    byte_len: batch.length,
                    imm: None,
                });
            }
        }
        // Once for the run, as in `complete_fragments`. The rail accepts requests, so all that it
        // may have lacked are credits.
        if taken > 0 {
            pass_through.bypassed(taken);
            rail.completions += u64::from(taken);
            chooser.freed(rail.turn_bit, chooser.last_freed());
        }
        taken as usize
    }

    /// Takes completions as long as each is a new number, which is the usual case of a receiver
    /// with DQPLB. Returns how many.
    #[inline(never)]
    fn complete_arrivals(&mut self, device: DeviceId, completions: &[Completion]) -> usize {
        let Self { rails, scheme, .. } = self;
        let SchemeState::Dqplb(dqplb) = scheme else { return 0 };
        let window = dqplb.window();
        let mut taken = 0;
        for completion in completions {
            let rail = succeeded(rails, TagKind::NotifyRecv, device, completion);
            let Some(rail) = rail else { break };
            // A duplicate or an invalid number leaves the receive to `complete_one`, which counts
            // the one and reports the other.
            let is_new = || completion.imm().is_some_and(|imm| window.note_new(imm));
            if rail.recvs.complete_if(completion.wr_id, is_new).is_none() {
                break;
            }
            rail.completions += 1;
            taken += 1;
        }
        taken
    }

    /// Takes any completion of a request or receive that the engine posted to this rail. Returns
    /// whether it is one.
    #[inline(never)]
    fn complete_one(
        &mut self,
        id: RailId,
        device: DeviceId,
        completion: &Completion,
        direct: &mut DirectCompletions,
    ) -> bool {
        let Some(kind) = Tag::from_wr_id(completion.wr_id).kind() else { return false };
        let Some(rail) = self.rail_mut(id) else { return false };
        // Two devices may give out the same queue pair number, and all virtual queue pairs have the
        // same tags, so device, number and tag must agree.
        if !rail.is_at(device, completion.qp_num) || !may_complete(kind, completion) {
            return false;
        }
        rail.completions += 1;
        match kind {
            TagKind::Send => self.complete_send(id, completion, direct),
            TagKind::NotifyRecv => self.complete_notify_recv(id, completion),
            TagKind::DataRecv => self.complete_data_recv(id, completion, direct),
        }
        if let RailId::Data(rail) = id {
            // A retired batch has freed credits, or the rail has failed.
            self.update_availability(rail as usize);
        }
        true
    }

    fn complete_send(
        &mut self,
        id: RailId,
        completion: &Completion,
        direct: &mut DirectCompletions,
    ) {
        let Some(rail) = self.rail_mut(id) else { return };
        match rail.sends.compare(completion.wr_id) {
            TagMatch::Last if completion.status.is_success() && !rail.sends.is_losing() => {
                let batch = rail.sends.retire();
                self.retire(&batch, completion, direct);
            }
            TagMatch::Last => self.last_failed(id, completion, direct),
            // A queue pair with sq_sig_all reports the success of unsignaled requests too.
            TagMatch::Inner(_) if completion.status.is_success() => {}
            // An unsignaled request completes only if it fails.
            TagMatch::Inner(index) => self.inner_failed(id, index, completion, direct),
            TagMatch::Mismatch => {
                let expected = rail.sends.expected();
                self.mismatch(id, completion, expected);
            }
        }
    }

    /// Handles the last request of a batch that failed, or that completed on a failed rail.
    #[cold]
    fn last_failed(&mut self, id: RailId, completion: &Completion, direct: &mut DirectCompletions) {
        let front = self.rail_mut(id).and_then(|rail| rail.sends.front().copied());
        let Some(batch) = front else { return };
        let last = u32::from(batch.count) - 1;
        let failed = !completion.status.is_success();
        if self.lose_withheld(id) || (failed && self.send_lost(id, last, completion)) {
            return;
        }
        if let Some(rail) = self.rail_mut(id) {
            rail.sends.retire();
        }
        if failed {
            self.send_failed(id, &batch, last, completion);
        }
        self.retire(&batch, completion, direct);
    }

    /// Handles the failure of request `index` of a batch, which is not the last one. If the driver
    /// had accepted only the front of the batch, no more completions of it will arrive.
    #[cold]
    fn inner_failed(
        &mut self,
        id: RailId,
        index: u32,
        completion: &Completion,
        direct: &mut DirectCompletions,
    ) {
        let front = self.rail_mut(id).and_then(|rail| rail.sends.front().copied());
        let Some(batch) = front else { return };
        if self.send_lost(id, index, completion) {
            return;
        }
        self.send_failed(id, &batch, index, completion);
        let truncated = self.rail_mut(id).and_then(|rail| rail.sends.retire_truncated(index));
        if let Some(batch) = truncated {
            self.retire(&batch, completion, direct);
        }
    }

    /// Retires a batch whose requests are all complete.
    fn retire(&mut self, batch: &Batch, completion: &Completion, direct: &mut DirectCompletions) {
        match batch.content {
            Content::Fragments | Content::Numbered | Content::Gap => {
                self.sends.slot(batch.wr).batches_in_flight -= 1;
                self.batch_retired(batch.wr, direct);
            }
            Content::Notifies => notified(&mut self.sends, batch),
            Content::WithNotify => self.sends.slot(batch.wr).arrived_with_notify(),
            Content::Deferred => self.complete_deferred(batch, completion, direct),
            Content::PassThrough | Content::Unsignaled => {
                self.pass_through.bypassed(1);
                // As in verbs, an unsignaled request is reported only if it fails. On the wire it
                // is signaled all the same, because its completion frees its credit.
                if batch.content == Content::PassThrough || !completion.status.is_success() {
                    direct.push(self.passed_through(batch.wr, batch, completion));
                }
            }
            Content::Gone => {}
        }
    }

    /// Records the failure of request `index` of a batch.
    #[cold]
    fn send_failed(&mut self, id: RailId, batch: &Batch, index: u32, completion: &Completion) {
        let mut offset = 0;
        match batch.content {
            Content::Fragments | Content::Numbered => {
                offset = batch.offset + front_bytes(&self.sends, batch, index, self.cut());
                self.sends.slot(batch.wr).fail(completion.status);
            }
            Content::Notifies => notify_failed(&mut self.sends, batch, index, completion.status),
            Content::WithNotify => self.sends.slot(batch.wr).fail(completion.status),
            Content::Deferred
            | Content::PassThrough
            | Content::Unsignaled
            | Content::Gap
            | Content::Gone => {}
        }
        self.completion_failed(id, completion, offset);
    }

    /// Ignores an unexpected completion, and keeps it as a protocol error for the owner.
    #[cold]
    pub(super) fn mismatch(
        &mut self,
        rail: RailId,
        completion: &Completion,
        expected: Option<Tag>,
    ) {
        if self.rail(rail).is_some_and(|rail| rail.health.is_gone) {
            // After `lose_rail` any completion of the queue pair may still be in the queue.
            return;
        }
        let wr_id = completion.wr_id;
        let expected = expected.map(Tag::wr_id);
        self.health.note_protocol_error(ProtocolError::Tag { rail, wr_id, expected });
    }
}

/// Returns the data rail of a successful completion, if the rail accepts fragments and the
/// completion is of the last request of a batch of this kind.
#[inline]
fn succeeded<'r, Q: QueuePair, const DEPTH: usize>(
    rails: &'r mut [Rail<Q, DEPTH>],
    kind: TagKind,
    device: DeviceId,
    completion: &Completion,
) -> Option<&'r mut Rail<Q, DEPTH>> {
    // For a tag of another kind, or not of the last request of a batch, this is a number that no
    // rail has: one bounds check makes all three tests.
    let rail = rails.get_mut(Tag::from_wr_id(completion.wr_id).rail_of_last(kind))?;
    let own = rail.accepts_at(address(device, completion.qp_num));
    let succeeded = completion.status.is_success() && may_complete(kind, completion);
    if own && succeeded { Some(rail) } else { None }
}

/// Returns whether the completion can be of this kind of request. The opcode of a success shows the
/// queue; a failure has no valid opcode, so only its tag does.
#[inline]
fn may_complete(kind: TagKind, completion: &Completion) -> bool {
    let receives = kind != TagKind::Send;
    !completion.status.is_success() || completion.opcode.is_recv() == receives
}
