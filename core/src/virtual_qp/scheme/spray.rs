//! SPRAY: fragments are plain WRITEs. When all fragments of a request are acknowledged, a
//! zero-length WRITE_WITH_IMM with the user's immediate follows on the notify queue pair, which has
//! the users' receives. A short request with nothing unacknowledged before it goes in one trip
//! (`virtual_qp::one_trip`).

use super::shared::{Notification, Offers, Receiving};
use crate::hardware::{QueuePair, Refusal, SendBatch, Taken};
use crate::rail::tag::Tag;
use crate::rail::{Batch, Content, PhysicalRail, Rail, RailError, RailId, RailSet};
use crate::verbs::{Opcode, SendFlags, SendRequest, Sge, WcStatus};
use crate::virtual_qp::error::{PostRecvError, ProtocolError};
use crate::virtual_qp::slot::{Received, RecvSlot, Recvs, SendSlot, Sends, SlotState};
use core::ops::Range;

/// The state of SPRAY. Without a notify queue pair, no WRITE_WITH_IMM can be posted.
#[derive(Debug)]
pub(in crate::virtual_qp) struct Spray<Q, const DEPTH: usize> {
    pub(in crate::virtual_qp) notify: Option<Rail<Q, DEPTH>>,
    /// The newest requests that were posted with their notifies, one behind the other.
    with_notify: Range<u64>,
}

/// A driver refused a part of a request for good.
pub(in crate::virtual_qp) struct Refused {
    /// Its id in the ring.
    pub(in crate::virtual_qp) request: u64,
    pub(in crate::virtual_qp) error: RailError,
}

impl<Q: QueuePair, const DEPTH: usize> Spray<Q, DEPTH> {
    pub(super) const fn new(notify: Option<Rail<Q, DEPTH>>) -> Self {
        Self { notify, with_notify: 0..0 }
    }

    /// Posts the notifies of the acknowledged ones among `requests`, as one batch and as far as
    /// there are credits. Returns whether any was posted. The first request wants a notify.
    pub(in crate::virtual_qp) fn post_notifies<const RAILS: usize, const WRS: usize>(
        &mut self,
        sends: &mut Sends<RAILS, WRS>,
        requests: Range<u64>,
        offers: &mut Offers,
    ) -> Result<bool, Refused> {
        let Some(notify) = &mut self.notify else { return Ok(false) };
        // The rest of a batch that the driver took in part must go first.
        let owed = offers.sends.contains(RailId::Notify);
        if notify.sends.credits() == 0 || owed || !notify.carries {
            return Ok(false);
        }
        let first = requests.start;
        // Gone through once: counting, posting and marking the requests in three passes took 1551.9
        // instructions in place of 1482.0.
        let ready = ready_to_notify(sends, requests.end, notify.sends.credits());
        let mut notifies = notify.qp.start_send();
        let added = add_notifies(&mut notifies, ready, notify.sends.next_tag());
        let Some((count, end)) = added else { return Ok(false) };
        // The range of ids says which requests the batch is of: those in it that want a notify. So
        // the batch has a fixed size.
        let batch = Batch::notifies(first, (end - first) as u32, count);
        notify.sends.push(batch);
        let taken = Taken::of(count, notifies.commit());
        if taken.refusal.is_some() {
            notify.sends.truncate(count, taken.count);
        }
        if taken.count > 0 {
            // With a part taken, too: the rest of the batch goes out before any later notify.
            sends.pop_in_flight_until(end);
        }
        let Some(refusal) = taken.refusal else { return Ok(true) };
        offers.sends.insert(RailId::Notify);
        let Some(errno) = refusal.errno() else { return Ok(taken.count > 0) };
        let error = notify.refusal_error(errno, 0);
        // Drivers accept a prefix of a chain, so the first request that was not accepted is the
        // refused one.
        let request = notify_of(sends, &batch, taken.count).unwrap_or(first);
        Err(Refused { request, error })
    }

    /// Offers the rest of a batch of notifies to the driver that took its front.
    pub(in crate::virtual_qp) fn retry_notifies<const RAILS: usize, const WRS: usize>(
        &mut self,
        sends: &mut Sends<RAILS, WRS>,
        offers: &mut Offers,
    ) -> Result<(), Refused> {
        let Some(notify) = &mut self.notify else { return Ok(()) };
        let Some((batch, index, tag)) = notify.sends.partial() else { return Ok(()) };
        let rest = notified_by(sends, &batch).skip(index as usize);
        let mut notifies = notify.qp.start_send();
        let Some((count, _)) = add_notifies(&mut notifies, rest, tag) else { return Ok(()) };
        let taken = Taken::of(count, notifies.commit());
        notify.sends.accepted(taken.count);
        notify.more_doorbells += u64::from(taken.count > 0);
        let Some(refusal) = taken.refusal else { return Ok(()) };
        offers.sends.insert(RailId::Notify);
        let Some(errno) = refusal.errno() else { return Ok(()) };
        let error = notify.refusal_error(errno, 0);
        let request = notify_of(sends, &batch, index + taken.count).unwrap_or(batch.wr);
        Err(Refused { request, error })
    }

    /// Returns whether all of these requests were posted with their notifies.
    pub(in crate::virtual_qp) fn are_with_notify(&self, requests: &Range<u64>) -> bool {
        self.with_notify.start <= requests.start && self.with_notify.end == requests.end
    }

    /// Notes that a request was posted with its notify, behind those `in_flight`.
    pub(in crate::virtual_qp) fn note_with_notify(&mut self, in_flight: &Range<u64>) {
        if in_flight.is_empty() {
            self.with_notify = in_flight.clone();
        }
        self.with_notify.end = in_flight.end + 1;
    }

    /// Posts a request of one fragment as one WRITE_WITH_IMM, with its data.
    pub(in crate::virtual_qp) fn post_with_data<const RAILS: usize>(
        &mut self,
        id: u64,
        slot: &SendSlot<RAILS>,
    ) -> Result<Option<Refusal>, Refusal> {
        let Some(notify) = &mut self.notify else { return Err(Refusal::QueueFull) };
        let keys = slot.keys[usize::from(notify.keys_at)];
        let inline = slot.flags & SendFlags::INLINE;
        let request = SendRequest {
            sge: slot.local.sge(keys.lkey),
            ..notify_request(slot, Tag::NONE, inline)
        };
        let length = slot.local.length();
        let batch = Batch::one(id, length, Content::WithNotify, Opcode::RdmaWriteWithImm);
        notify.post_one(request, &[], batch)
    }

    #[inline]
    pub(super) fn is_notifying(&self) -> bool {
        // A lost notify is posted again, so its receiver may not be notified yet.
        let notifies =
            |notify: &Rail<Q, DEPTH>| !notify.sends.is_empty() || notify.sends.has_lost();
        self.notify.as_ref().is_some_and(notifies)
    }

    pub(super) fn withhold<const RAILS: usize, const WRS: usize>(
        &mut self,
        sends: &mut Sends<RAILS, WRS>,
    ) {
        let Some(notify) = &mut self.notify else { return };
        let Some((batch, index, _)) = notify.sends.partial() else { return };
        // A queue pair that failed has already withheld the rest.
        if !notify.sends.is_losing() {
            notify.sends.withhold(0);
        }
        // Without a notify the receiver does not know of the request, so it must not succeed.
        for never_sent in index..u32::from(batch.count) {
            notify_failed(sends, &batch, never_sent, WcStatus::WR_FLUSH_ERR);
        }
    }

    /// Takes a user's receive for a notification.
    ///
    /// An error inside `Ok` is of a driver that took the receive and still returned an error: its
    /// rail fails with it.
    pub(in crate::virtual_qp) fn post_recv<const WRS: usize>(
        &mut self,
        wr_id: u64,
        recvs: &mut Recvs<WRS>,
        receiving: &mut Receiving<'_, Q, DEPTH>,
    ) -> Result<Option<RailError>, PostRecvError> {
        let notify = self.notify.as_ref().ok_or(PostRecvError::NoNotifyQp)?;
        if notify.recvs.limit() == 0 {
            return Err(PostRecvError::NoReceiveQueue(notify.id));
        }
        let id = recvs.add(RecvSlot::new(wr_id))?;
        // Receives are consumed in order, so behind a waiting one this one waits, too.
        if recvs.front_pending() != Some(id) {
            return Ok(None);
        }
        // It is the only pending receive, so a refusal is of this one.
        let (accepted, errno) = self.post_pending_recvs(recvs, receiving.offers);
        let Some(errno) = errno else { return Ok(None) };
        if accepted > 0 {
            return Ok(self.refused(errno));
        }
        recvs.take_back();
        Err(PostRecvError::Driver { rail: RailId::Notify, errno })
    }

    /// Takes the completion of a receive that the scheme posted.
    pub(in crate::virtual_qp) fn arrived<const WRS: usize>(
        &mut self,
        notification: Notification<'_>,
        recvs: &mut Recvs<WRS>,
    ) -> Result<(), ProtocolError> {
        // The notify queue pair consumes its receives in order, so the oldest one is complete.
        let Some(front) = recvs.front_in_flight() else { return Ok(()) };
        let Notification { rail, completion, imm_order } = notification;
        // A failed completion has no immediate: its other fields are undefined (ibv_poll_cq(3)).
        let (received, result) = match completion.imm() {
            Some(imm) => (Received::Imm(imm_order.decode(imm)), Ok(())),
            None if !completion.status.is_success() => {
                (Received::Failed(completion.status), Ok(()))
            }
            // Only a notify consumes these receives. Without an immediate the peer sent something
            // else.
            None => (Received::Failed(WcStatus::BAD_RESP_ERR), Err(ProtocolError::NoImm { rail })),
        };
        recvs.slot(front).received = received;
        recvs.pop_in_flight();
        result
    }

    /// Posts the receives that wait; there are some.
    ///
    /// An error is a driver's refusal for good: its rail fails with the error.
    #[inline]
    pub(in crate::virtual_qp) fn settle_receives<const WRS: usize>(
        &mut self,
        recvs: &mut Recvs<WRS>,
        receiving: &mut Receiving<'_, Q, DEPTH>,
    ) -> Result<(), RailError> {
        debug_assert!(recvs.front_pending().is_some());
        if receiving.failed {
            // `flush_receives` completes what waits; there is nothing left to offer.
            receiving.offers.receives = RailSet::EMPTY;
            return Ok(());
        }
        let (_, errno) = self.post_pending_recvs(recvs, receiving.offers);
        errno.and_then(|errno| self.refused(errno)).map_or(Ok(()), Err)
    }

    /// Posts waiting receives to the notify queue pair, as far as it has room. Returns how many it
    /// took, and the error that its driver returned for good.
    fn post_pending_recvs<const WRS: usize>(
        &mut self,
        recvs: &mut Recvs<WRS>,
        offers: &mut Offers,
    ) -> (u32, Option<i32>) {
        offers.receives = RailSet::EMPTY;
        let Some(notify) = &mut self.notify else { return (0, None) };
        let count = notify.recvs.room().min(recvs.pending_count() as u32);
        // A failed queue pair would flush them at once.
        if count == 0 || !notify.health.lifecycle.takes_receives() {
            return (0, None);
        }
        let taken = notify.post_empty_recvs(count);
        for _ in 0..taken.count {
            recvs.pop_pending();
        }
        if taken.refusal == Some(Refusal::QueueFull) {
            offers.receives.insert(RailId::Notify);
        }
        (taken.count, taken.refusal.and_then(Refusal::errno))
    }

    fn refused(&self, errno: i32) -> Option<RailError> {
        self.notify.as_ref().map(|notify| notify.refusal_error(errno, 0))
    }
}

/// Returns the requests before `end`, oldest first, whose receiver can be notified now, at most
/// `credits`. Nothing has failed.
fn ready_to_notify<const RAILS: usize, const WRS: usize>(
    sends: &Sends<RAILS, WRS>,
    end: u64,
    credits: u32,
) -> impl Iterator<Item = (u64, &SendSlot<RAILS>)> {
    let requests = sends.in_flight().take_while(move |(id, _)| *id < end);
    // Stops at the first request with data in flight: a notify tells of everything before it.
    let acknowledged = requests.take_while(|(_, slot)| slot.batches_in_flight == 0);
    acknowledged.filter(|(_, slot)| slot.wants_notify()).take(credits as usize)
}

/// Returns the ids of the requests of a batch of notifies, and of those between them that need
/// none.
const fn requests_of(batch: &Batch) -> Range<u64> {
    batch.wr..batch.wr + batch.number as u64
}

/// Returns the requests of a batch of notifies.
fn notified_by<'s, const RAILS: usize, const WRS: usize>(
    sends: &'s Sends<RAILS, WRS>,
    batch: &Batch,
) -> impl Iterator<Item = (u64, &'s SendSlot<RAILS>)> {
    let slots = requests_of(batch).filter_map(|id| sends.find(id).map(|slot| (id, slot)));
    slots.filter(|(_, slot)| slot.wants_notify())
}

/// Adds notifies of the `requests`, the first one under `tag`, only the last one signaled. Returns
/// how many, and the id behind the last one, if there are any.
fn add_notifies<'s, const RAILS: usize>(
    notifies: &mut impl SendBatch,
    mut requests: impl Iterator<Item = (u64, &'s SendSlot<RAILS>)>,
    mut tag: Tag,
) -> Option<(u32, u64)> {
    let (mut id, mut slot) = requests.next()?;
    let mut count = 1;
    for (next_id, next_slot) in requests {
        notifies.add(&notify_request(slot, tag, SendFlags::empty()));
        tag = tag.next_of_batch();
        (id, slot) = (next_id, next_slot);
        count += 1;
    }
    notifies.add(&notify_request(slot, tag.last(), SendFlags::SIGNALED));
    Some((count, id + 1))
}

/// Returns the notify of a request: a zero-length WRITE_WITH_IMM with the user's immediate.
#[inline]
fn notify_request<const RAILS: usize>(
    slot: &SendSlot<RAILS>,
    tag: Tag,
    signaled: SendFlags,
) -> SendRequest {
    // The notify is the only request that consumes a receive, so only it can wake the receiver.
    let solicited = slot.flags & SendFlags::SOLICITED;
    SendRequest {
        wr_id: tag.wr_id(),
        opcode: Opcode::RdmaWriteWithImm,
        flags: solicited | signaled,
        imm: slot.imm,
        sge: Sge::EMPTY,
        remote_addr: slot.remote_addr,
        rkey: slot.notify_rkey,
        compare_add: 0,
        swap: 0,
    }
}

/// Handles an acknowledged batch of notifies.
pub(in crate::virtual_qp) fn notified<const RAILS: usize, const WRS: usize>(
    sends: &mut Sends<RAILS, WRS>,
    batch: &Batch,
) {
    requests_of(batch).for_each(|wr| sends.slot(wr).state.remove(SlotState::WANTS_NOTIFY));
}

/// Handles the failure of notify `index` of a batch, which fails its request.
pub(in crate::virtual_qp) fn notify_failed<const RAILS: usize, const WRS: usize>(
    sends: &mut Sends<RAILS, WRS>,
    batch: &Batch,
    index: u32,
    status: WcStatus,
) {
    if let Some(id) = notify_of(sends, batch, index) {
        sends.slot(id).fail(status);
    }
}

/// Returns the request of notify `index` of a batch.
fn notify_of<const RAILS: usize, const WRS: usize>(
    sends: &Sends<RAILS, WRS>,
    batch: &Batch,
    index: u32,
) -> Option<u64> {
    notified_by(sends, batch).nth(index as usize).map(|(id, _)| id)
}

/// Notes that exactly the first `count` notifies of a batch arrived. Returns the first request of
/// which the receiver was not notified.
pub(in crate::virtual_qp) fn notified_first<const RAILS: usize, const WRS: usize>(
    sends: &mut Sends<RAILS, WRS>,
    batch: &Batch,
    count: u32,
) -> Option<u64> {
    let first = notify_of(sends, batch, count);
    let Range { start, end } = requests_of(batch);
    for wr in start..first.unwrap_or(end) {
        sends.slot(wr).state.remove(SlotState::WANTS_NOTIFY);
    }
    first
}
