//! Step 4: requests whose data is acknowledged move on, and SPRAY's receiver is told.

use super::VirtualQp;
use super::config::PassThroughOrder;
use super::error::RailId;
use super::slot::{SendSlot, SlotState};
use crate::hardware::{CommitError, QueuePair, Refusal, SendBatch};
use crate::in_flight::{Batch, Content};
use crate::tag::Tag;
use crate::tracker::WrTracker;
use crate::verbs::{Imm, Opcode, SendFlags, SendRequest, Sge, WcStatus};
use core::ops::Range;

impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize>
    VirtualQp<Q, RAILS, DEPTH, WRS>
{
    /// Moves past every request, in posting order, whose data is acknowledged; its notify goes
    /// out on the way. So a notify says that everything posted before it is in place too.
    #[inline]
    pub(super) fn acknowledge(&mut self) {
        while let Some(id) = self.sends.front_in_flight() {
            let slot = self.sends.slot(id);
            if slot.outstanding > 0 {
                return;
            }
            if !slot.state.contains(SlotState::WANTS_NOTIFY) {
                self.sends.pop_in_flight();
            } else if self.failed {
                // The receiver must not be told of data that failed, nor past it.
                slot.state.insert(SlotState::CANCELLED);
                self.sends.pop_in_flight();
            } else if self.pass_through_ahead(id) || !self.post_notifies(id) && !self.failed {
                return;
            }
        }
    }

    /// Posts the notifies of consecutive acknowledged requests from `first` on, as one batch and
    /// as far as there are credits. Says whether any went out.
    fn post_notifies(&mut self, first: u64) -> bool {
        // Those behind a pass-through request that is not complete wait for it.
        let limit = match self.config.pass_through {
            PassThroughOrder::Ordered => self.deferred.oldest(),
            PassThroughOrder::Unordered => u64::MAX,
        };
        let Self { notify: Some(notify), sends, retry, .. } = self else { return false };
        if notify.sends.credits() == 0 || retry.contains(RailId::Notify) {
            return false;
        }
        let (count, end) = ready_to_notify(sends, first..limit, notify.sends.credits());
        let length = (end - first) as u32;
        let one = Batch::one(first, length, Content::Notifies, Opcode::RdmaWriteWithImm);
        let batch = Batch { count: count as u16, ..one };
        let tag = notify.sends.push(batch);
        let refused = fill_notifies(&mut notify.qp, sends, &batch, tag, 0).err();
        let accepted = refused.map_or(count, |error| error.accepted.min(count));
        if refused.is_some() {
            notify.sends.cut(count, accepted);
        }
        if accepted > 0 {
            while sends.front_in_flight().is_some_and(|id| id < end) {
                mark_notified(sends);
            }
        }
        if let Some(CommitError { refusal, .. }) = refused {
            retry.insert(RailId::Notify);
            if let Refusal::Driver(errno) = refusal {
                let error = notify.refusal_error(errno, 0);
                // What was not taken, if nothing was, fails with the driver's refusal.
                if accepted == 0 {
                    sends.slot(first).fail(error.status);
                }
                self.fail(error);
            }
        }
        accepted > 0
    }

    /// Offers the driver the rest of a batch of notifies that it took in part.
    pub(super) fn retry_notify(&mut self) {
        let Self { notify: Some(notify), sends, .. } = self else { return };
        let Some((batch, index, tag)) = notify.sends.unfinished() else { return };
        let missing = u32::from(batch.count) - index;
        let refused = fill_notifies(&mut notify.qp, sends, &batch, tag, index).err();
        let accepted = refused.map_or(missing, |error| error.accepted.min(missing));
        notify.sends.accepted(accepted);
        notify.more_doorbells += u64::from(accepted > 0);
        if let Some(CommitError { refusal, .. }) = refused {
            self.retry.insert(RailId::Notify);
            if let Refusal::Driver(errno) = refusal {
                let error = notify.refusal_error(errno, 0);
                self.notify_failed(&batch, index + accepted, error.status);
                self.fail(error);
            }
        }
    }

    /// Notify `index` of a batch failed: so did the request that it belongs to.
    pub(super) fn notify_failed(&mut self, batch: &Batch, index: u32, status: WcStatus) {
        let requests = batch.wr..batch.wr + u64::from(batch.length);
        let notified = |id: &u64| {
            let slot = self.sends.find(*id);
            slot.is_some_and(|slot| slot.state.contains(SlotState::NOTIFY_IN_FLIGHT))
        };
        if let Some(id) = requests.filter(notified).nth(index as usize) {
            self.sends.slot(id).fail(status);
        }
    }
}

/// How many of these requests, from the first on, can be notified at once with `credits`, and where
/// they end. Nothing has failed.
fn ready_to_notify<const RAILS: usize, const WRS: usize>(
    sends: &WrTracker<SendSlot<RAILS>, WRS>,
    requests: Range<u64>,
    credits: u32,
) -> (u32, u64) {
    let (mut count, mut end) = (0, requests.start);
    for id in requests {
        let Some(slot) = sends.find_posted(id).filter(|slot| slot.outstanding == 0) else { break };
        if slot.state.contains(SlotState::WANTS_NOTIFY) {
            if count == credits {
                break;
            }
            count += 1;
            end = id + 1;
        }
    }
    (count, end)
}

/// Posts the notifies of `batch` from `index` on, only the last signaled.
fn fill_notifies<Q: QueuePair, const RAILS: usize, const WRS: usize>(
    qp: &mut Q,
    sends: &WrTracker<SendSlot<RAILS>, WRS>,
    batch: &Batch,
    mut tag: Tag,
    index: u32,
) -> Result<(), CommitError> {
    let requests = batch.wr..batch.wr + u64::from(batch.length);
    let slots = requests.filter_map(|id| sends.find(id));
    let wanting = slots.filter(|slot| slot.state.contains(SlotState::WANTS_NOTIFY));
    let mut left = u32::from(batch.count) - index;
    let mut notifies = qp.start_send();
    for slot in wanting.skip(index as usize) {
        left -= 1;
        if left == 0 {
            tag = tag.last();
        }
        notifies.add(&notify_request(slot, tag));
        tag = tag.plus(1);
    }
    notifies.commit()
}

/// A zero-length WRITE_WITH_IMM: the user's immediate and nothing else.
fn notify_request<const RAILS: usize>(slot: &SendSlot<RAILS>, tag: Tag) -> SendRequest {
    let solicited = slot.flags & SendFlags::SOLICITED;
    let signaled = if tag.is_last() { SendFlags::SIGNALED } else { SendFlags::empty() };
    SendRequest {
        wr_id: tag.wr_id(),
        opcode: Opcode::RdmaWriteWithImm,
        flags: solicited | signaled,
        imm: Imm::from_number(slot.imm),
        sge: Sge::EMPTY,
        remote_addr: slot.remote_addr,
        rkey: slot.notify_rkey,
        compare_add: 0,
        swap: 0,
    }
}

/// The front request in flight is acknowledged, and its notify, if it wants one, is posted.
fn mark_notified<const RAILS: usize, const WRS: usize>(
    sends: &mut WrTracker<SendSlot<RAILS>, WRS>,
) {
    if let Some(id) = sends.front_in_flight() {
        let slot = sends.slot(id);
        if slot.state.contains(SlotState::WANTS_NOTIFY) {
            slot.state.insert(SlotState::NOTIFY_IN_FLIGHT);
        }
        sends.pop_in_flight();
    }
}
