//! The steps of a request at its sending end, to its peer and to its completion, which `execute`
//! and `deferred` combine.

use crate::responder::{Answer, Arrival};
use crate::shared::{QpShared, SendQueue};
use crate::step::TurnOutcome;
use polyrail_core::verbs::{Completion, Opcode, SendFlags, SendRequest, WcStatus};
use polyrail_nic_parts::completions::Entry;
use polyrail_nic_parts::error::vendor;
use polyrail_nic_parts::event::AsyncEvent;
use polyrail_nic_parts::lists::Listed;
use polyrail_nic_parts::local::Local;
use polyrail_nic_parts::memory::MemoryTable;
use polyrail_nic_parts::state::QpState;
use std::sync::{Arc, Weak};

/// The result of a queue pair's turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    pub(crate) wr_id: u64,
    pub(crate) opcode: Opcode,
    pub(crate) outcome: TurnOutcome,
    pub(crate) bytes: u32,
}

/// Returns the answer of a successful responder, unless a fault loses it or replaces it by a
/// failure.
pub(crate) fn acknowledge(qp: &QpShared, peer: &QpShared) -> Answer {
    if qp.device.faults.drops_arriving() {
        return Answer::Silence(vendor::ACK_LOST);
    }
    if qp.device.faults.fails_requests() {
        return Answer::Nak(WcStatus::GENERAL_ERR, vendor::INTERNAL);
    }
    if peer.device.faults.fails_requests() {
        return refuse_for_internal_error(peer);
    }
    if qp.device.faults.loses_acks() || peer.device.faults.loses_acks() {
        return Answer::Silence(vendor::ACK_LOST);
    }
    Answer::Ack
}

/// Returns the answer of a responder that did not execute the request, unless a fault loses it.
pub(crate) fn received(qp: &QpShared, answer: Answer) -> Answer {
    if qp.device.faults.drops_arriving() { Answer::Silence(vendor::DROPPED) } else { answer }
}

/// Fails the request and its responder, whose queues are flushed by their poller.
fn refuse_for_internal_error(peer: &QpShared) -> Answer {
    if peer.state.fail() {
        peer.list_work();
    }
    Answer::Nak(WcStatus::REM_OP_ERR, vendor::INTERNAL)
}

pub(crate) fn carried(qp: &QpShared, peer: &QpShared, bytes: u32) {
    qp.device.carried(bytes);
    if !Arc::ptr_eq(&qp.device, &peer.device) {
        peer.device.carried(bytes);
    }
}

pub(crate) fn arrival<'a>(
    send: &SendQueue,
    request: &'a Listed<SendRequest>,
    local: Local<'a>,
) -> Arrival<'a> {
    Arrival {
        request,
        from_gid: send.path.own_gid,
        from_qp_num: send.own_qp_num,
        psn: send.psn,
        packets: packets(send, request),
        mtu: send.path.mtu,
        local,
        data_done: send.front.data_done,
        admitted: false,
    }
}

/// Returns the number of packet sequence numbers that the request takes. For a READ, these are the
/// packets of its response.
pub(crate) fn packets(send: &SendQueue, request: &Listed<SendRequest>) -> u32 {
    match request.opcode {
        Opcode::CompareSwap | Opcode::FetchAdd => 1,
        _ => send.path.mtu.packets(request.length),
    }
}

/// Returns the peer, cached while it exists.
pub(crate) fn find_peer(qp: &QpShared, send: &mut SendQueue) -> Option<Arc<QpShared>> {
    if let Some(peer) = send.path.peer.upgrade() {
        return Some(peer);
    }
    let peer = qp.device.fabric.find_qp(send.path.gid, send.path.dest_qp_num)?;
    send.path.peer = Arc::downgrade(&peer);
    Some(peer)
}

/// Returns the local bytes and the peer of the request at `position`, if both are usable. The local
/// end is checked first, as in hardware, which checks it before sending.
pub(crate) fn ends<'m>(
    qp: &QpShared,
    send: &'m SendQueue,
    position: u64,
    peer: Option<Arc<QpShared>>,
    memory: &'m MemoryTable,
) -> Result<(Local<'m>, Arc<QpShared>), Answer> {
    let limits = (qp.limits.max_msg_size, send.timers.max_rd_atomic);
    let local = send.local(position, limits, qp.domain, memory);
    let local = local.map_err(|(status, vendor)| Answer::Nak(status, vendor))?;
    Ok((local, reach(qp, send, peer)?))
}

/// Returns the peer, if requests reach it.
pub(crate) fn reach(
    qp: &QpShared,
    send: &SendQueue,
    peer: Option<Arc<QpShared>>,
) -> Result<Arc<QpShared>, Answer> {
    let silent = |qp: &QpShared| qp.device.faults.is_silent();
    if silent(qp) || peer.as_deref().is_some_and(silent) {
        return Err(Answer::Never);
    }
    if !qp.device.carries(send.path.port) {
        return Err(Answer::Silence(vendor::LINK_DOWN));
    }
    let peer = peer.ok_or(Answer::Silence(vendor::PEER_GONE))?;
    if peer.device.is_gone() {
        return Err(Answer::Silence(vendor::PEER_GONE));
    }
    let port = peer.port.load(std::sync::atomic::Ordering::Relaxed);
    if port != 0 && !peer.device.carries(port) {
        return Err(Answer::Silence(vendor::LINK_DOWN));
    }
    if peer.device.faults.drops_arriving() {
        return Err(Answer::Silence(vendor::DROPPED));
    }
    Ok(peer)
}

/// Completes every outstanding send request as flushed, in posting order, signaled or not.
pub(crate) fn flush(qp: &QpShared, send: &mut SendQueue) {
    flush_from(qp, send, send.settled());
}

/// [`flush`] for a queue whose requests before `position` are complete.
pub(crate) fn flush_from(qp: &QpShared, send: &mut SendQueue, position: u64) {
    for position in position..send.posted() {
        let wr_id = send.get(position).wr_id;
        let status = WcStatus::WR_FLUSH_ERR;
        complete(qp, position, Completion::failure(qp.number, wr_id, status, vendor::FLUSHED));
    }
    send.clear();
}

pub(crate) fn flush_turn(qp: &QpShared, send: &mut SendQueue) -> Option<Turn> {
    let first = *send.get(send.settled());
    if !send.has_work() {
        return None;
    }
    flush(qp, send);
    let wr_id = first.wr_id;
    let opcode = first.opcode;
    Some(Turn { wr_id, opcode, outcome: TurnOutcome::Flushed, bytes: 0 })
}

pub(crate) fn succeed(qp: &QpShared, request: &Listed<SendRequest>, position: u64) {
    if !qp.sq_sig_all && !request.flags.contains(SendFlags::SIGNALED) {
        return;
    }
    let opcode = request.opcode;
    let byte_len = if opcode.is_fetching() { request.length } else { 0 };
    let done = Completion::success(qp.number, request.wr_id, opcode.completion());
    complete(qp, position, Completion { byte_len, ..done });
}

pub(crate) fn complete(qp: &QpShared, position: u64, completion: Completion) {
    qp.send_cq.push(Entry {
        completion,
        releases: position + 1,
        owner: qp.send_owner,
        is_recv: false,
        solicited: false,
    });
}

/// Reports to the owner of a draining queue pair that the last started request has ended.
pub(crate) fn drained(qp: &QpShared, send: &SendQueue) {
    if qp.state.get() == QpState::Sqd && !send.is_underway() {
        qp.device.push_event(AsyncEvent::SqDrained { qp_num: qp.number });
    }
}

/// Resets the cached peer, which is then looked up again.
pub(crate) const NO_PEER: Weak<QpShared> = Weak::new();
