//! Step 3: physical completions retire batches and receives.

use super::VirtualQp;
use super::error::{ProtocolError, RailId};
use super::rail::{Rail, address};
use super::slot::SlotState;
use crate::hardware::QueuePair;
use crate::in_flight::{Batch, Content, TagMatch};
use crate::routing::Role;
use crate::tag::{Tag, TagKind};
use crate::verbs::{Completion, DeviceId, WcStatus};
use crate::virtual_cq::{DirectCompletions, VirtualWc};

impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize>
    VirtualQp<Q, RAILS, DEPTH, WRS>
{
    /// Takes completions from the front as far as they are this queue pair's, and returns how many.
    /// The first one should be of the physical queue pair with this role; 0 if it is not, or if the
    /// engine did not post what completed. What passes straight through goes to `direct`, which has
    /// room for as many as there are completions.
    #[inline]
    pub(crate) fn complete(
        &mut self,
        device: DeviceId,
        role: Role,
        completions: &[Completion],
        direct: &mut DirectCompletions,
    ) -> usize {
        let Some(first) = completions.first() else { return 0 };
        let taken = match Tag::from_wr_id(first.wr_id).kind() {
            Some(TagKind::Send) => self.complete_fragments(device, completions),
            Some(TagKind::NotifyRecv) => self.complete_arrivals(device, completions),
            Some(TagKind::DataRecv) | None => 0,
        };
        if taken > 0 {
            return taken;
        }
        let id = match role {
            Role::Rail(rail) => RailId::Data(rail),
            Role::Notify | Role::Single => RailId::Notify,
        };
        usize::from(self.complete_one(id, device, first, direct))
    }

    /// Takes completions for as long as they are what they nearly always are for a sender: of one
    /// data rail or another, its fragments acknowledged. Says how many.
    // Not in line, and apart from the next one: on its own either keeps everything in registers.
    #[inline(never)]
    fn complete_fragments(&mut self, device: DeviceId, completions: &[Completion]) -> usize {
        let Self { rails, sends, freed, chooser, .. } = self;
        let mut taken = 0;
        let (mut freed_now, mut last_freed) = (0, *freed);
        for completion in completions {
            let rail = succeeded(rails, TagKind::Send, device, completion);
            let Some(rail) = rail else { break };
            let retired = rail.sends.retire_fragments(Tag::from_wr_id(completion.wr_id));
            let Some(id) = retired else { break };
            sends.slot(id).outstanding -= 1;
            last_freed = rail.turn_bit;
            freed_now |= last_freed;
            rail.completions += 1;
            taken += 1;
        }
        *freed = last_freed;
        chooser.set_ready(freed_now);
        taken
    }

    /// The same for a DQPLB receiver: new fragments arriving.
    #[inline(never)]
    fn complete_arrivals(&mut self, device: DeviceId, completions: &[Completion]) -> usize {
        let mut taken = 0;
        for completion in completions {
            let rail = succeeded(&mut self.rails, TagKind::NotifyRecv, device, completion);
            let Some(rail) = rail else { break };
            if !rail.recvs.arrived(completion, &mut self.window) {
                break;
            }
            rail.completions += 1;
            taken += 1;
        }
        taken
    }

    /// Takes any completion of what the engine posted to this rail, and returns whether it is one.
    #[cold]
    fn complete_one(
        &mut self,
        id: RailId,
        device: DeviceId,
        completion: &Completion,
        direct: &mut DirectCompletions,
    ) -> bool {
        let Some(kind) = Tag::from_wr_id(completion.wr_id).kind() else { return false };
        let Some(rail) = self.rail_mut(id) else { return false };
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
            self.update_ready(rail as usize);
        }
        true
    }

    #[inline]
    pub(super) fn rail_mut(&mut self, id: RailId) -> Option<&mut Rail<Q, DEPTH>> {
        match id {
            RailId::Data(rail) => self.rails.get_mut(rail as usize),
            RailId::Notify => self.notify.as_mut(),
        }
    }

    fn complete_send(
        &mut self,
        id: RailId,
        completion: &Completion,
        direct: &mut DirectCompletions,
    ) {
        let Some(rail) = self.rail_mut(id) else { return };
        match rail.sends.compare(completion.wr_id) {
            TagMatch::Last => {
                let batch = rail.sends.retire();
                if !completion.status.is_success() {
                    self.send_failed(id, &batch, u32::from(batch.count) - 1, completion);
                }
                self.retire(&batch, completion, direct);
            }
            // A queue pair with sq_sig_all reports the success of unsignaled requests too.
            TagMatch::Inner(_) if completion.status.is_success() => {}
            TagMatch::Inner(index) => {
                if let Some(batch) = rail.sends.front().copied() {
                    self.send_failed(id, &batch, index, completion);
                    self.retire_cut(id, index, completion, direct);
                }
            }
            TagMatch::Mismatch => {
                let expected = rail.sends.expected();
                self.mismatch(id, completion, expected);
            }
        }
    }

    /// Retires a batch that failed while the driver owed the rest of it: no more will come.
    #[cold]
    fn retire_cut(
        &mut self,
        id: RailId,
        index: u32,
        completion: &Completion,
        direct: &mut DirectCompletions,
    ) {
        let cut = self.rail_mut(id).and_then(|rail| rail.sends.retire_cut(index));
        let Some((batch, taken)) = cut else { return };
        if batch.content == Content::Notifies {
            // Last to first: those notified are found by counting.
            for never_sent in (taken..u32::from(batch.count)).rev() {
                self.notify_failed(&batch, never_sent, WcStatus::WR_FLUSH_ERR);
            }
        }
        self.retire(&batch, completion, direct);
    }

    /// All requests of the batch are complete.
    fn retire(&mut self, batch: &Batch, completion: &Completion, direct: &mut DirectCompletions) {
        self.passing -= u32::from(batch.content.passes());
        match batch.content {
            Content::Fragments | Content::Numbered => {
                self.sends.slot(batch.wr).outstanding -= 1;
            }
            Content::Deferred => self.complete_deferred(batch, completion, direct),
            Content::Quiet if completion.status.is_success() => {}
            Content::PassThrough | Content::Quiet => {
                direct.push(self.passed_through(batch.wr, batch, completion));
            }
            Content::Notifies => {
                for wr in batch.wr..batch.wr + u64::from(batch.length) {
                    self.sends.slot(wr).state.remove(SlotState::NOTIFY_IN_FLIGHT);
                }
            }
        }
    }

    pub(super) fn passed_through(
        &self,
        wr_id: u64,
        batch: &Batch,
        completion: &Completion,
    ) -> VirtualWc {
        VirtualWc {
            wr_id,
            status: completion.status,
            opcode: batch.opcode.completion(),
            qp_num: self.config.virtual_qp_num,
            byte_len: batch.length,
            imm: None,
        }
    }

    /// Request `index` of the batch failed.
    #[cold]
    fn send_failed(&mut self, id: RailId, batch: &Batch, index: u32, completion: &Completion) {
        let mut offset = 0;
        match batch.content {
            Content::Fragments | Content::Numbered => {
                offset = batch.offset + index * self.config.max_msg_size;
                self.sends.slot(batch.wr).fail(completion.status);
            }
            Content::Notifies => self.notify_failed(batch, index, completion.status),
            Content::Deferred | Content::PassThrough | Content::Quiet => {}
        }
        self.completion_failed(id, completion, offset);
    }

    /// A completion that is not in turn: ignored, and kept as an error to be read.
    #[cold]
    pub(super) fn mismatch(
        &mut self,
        rail: RailId,
        completion: &Completion,
        expected: Option<Tag>,
    ) {
        let wr_id = completion.wr_id;
        self.note_protocol_error(ProtocolError::Tag { rail, wr_id, expected });
    }
}

/// The data rail that a successful completion is of, if it is open, and the completion is of the last
/// request of a batch of this kind.
#[inline]
fn succeeded<'r, Q: QueuePair, const DEPTH: usize>(
    rails: &'r mut [Rail<Q, DEPTH>],
    kind: TagKind,
    device: DeviceId,
    completion: &Completion,
) -> Option<&'r mut Rail<Q, DEPTH>> {
    let rail = rails.get_mut(Tag::from_wr_id(completion.wr_id).rail_of_last(kind))?;
    let own = rail.is_open_as(address(device, completion.qp_num));
    let succeeded = completion.status.is_success() && may_complete(kind, completion);
    if own && succeeded { Some(rail) } else { None }
}

/// Whether the completion can be of this kind of request. A success says which queue it is of; on a
/// failure only the tag does.
#[inline]
fn may_complete(kind: TagKind, completion: &Completion) -> bool {
    let receives = kind != TagKind::Send;
    !completion.status.is_success() || completion.opcode.is_recv() == receives
}
