//! The sending end: carries out the request at the front of a send queue, and completes it.

use crate::completion_queue::Entry;
use crate::deferred;
use crate::dma::Span;
use crate::error::vendor;
use crate::event::AsyncEvent;
use crate::memory::{MemoryTable, Range};
use crate::queue_pair::QpShared;
use crate::responder::{self, Answer, Arrival};
use crate::retry::{self, Verdict};
use crate::scheduler::Outcome;
use crate::send_queue::SendQueue;
use crate::state::QpState;
use crate::sync::{lock, read};
use polyrail_core::verbs::{AccessFlags, Completion, Opcode, SendFlags, SendRequest, WcStatus};
use std::sync::{Arc, Weak};

/// What one turn of a queue pair did.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    pub(crate) wr_id: u64,
    pub(crate) opcode: Opcode,
    pub(crate) outcome: Outcome,
    pub(crate) bytes: u32,
}

/// How much one poll does for one queue pair: enough to pay for its locks, little enough that
/// others get their turn and completions are handed out early.
const POLL_REQUESTS: u32 = 16;
const POLL_BYTES: u64 = 128 * 1024;

/// Does a poll's share of a listed queue pair's work, and lists it again if there is more.
pub(crate) fn service(qp: &QpShared) {
    // Before looking: whoever posts from now on lists the queue pair anew.
    qp.listed.store(false, std::sync::atomic::Ordering::Release);
    let mut send = lock(&qp.send);
    let mut bytes = 0;
    {
        let memory = read(&qp.device.fabric.memory);
        for _ in 0..POLL_REQUESTS {
            let Some(turn) = turn(qp, &mut send, &memory) else { break };
            bytes += u64::from(turn.bytes);
            if bytes >= POLL_BYTES {
                break;
            }
        }
    }
    let active = matches!(qp.state.get(), QpState::Rts | QpState::Err);
    let more = send.is_underway() || (active && send.has_work());
    if qp.state.get() == QpState::Err {
        finish_if_failed(qp);
    }
    drop(send);
    if more {
        qp.list_work();
    }
}

/// Lets the scheduler run one turn. `None`: nothing could be done now. `delay_fetch` has a READ or
/// atomic bring its data later, `fetch_first` has a delayed one do so now.
pub(crate) fn run_one(qp: &QpShared, delay_fetch: bool, fetch_first: bool) -> Option<Turn> {
    let mut send = lock(&qp.send);
    let memory = read(&qp.device.fabric.memory);
    let turn = match send.deferred {
        Some(_) if fetch_first || !deferred::may_overtake(&send) => {
            deferred::fetch(qp, &mut send, &memory)
        }
        None if delay_fetch => {
            deferred::defer(qp, &mut send).or_else(|| turn(qp, &mut send, &memory))
        }
        _ => turn(qp, &mut send, &memory),
    };
    if turn.is_some() {
        finish_if_failed(qp);
    }
    turn
}

/// Flushes the receives of a queue pair that is in ERR; whether there were any.
pub(crate) fn finish_if_failed(qp: &QpShared) -> bool {
    let mut recv = lock(&qp.recv);
    let found = qp.state.get() == QpState::Err && recv.ring.len() > 0;
    if found {
        responder::flush(qp, &mut recv);
    }
    found
}

/// Tries the request at the front. `None`: there is none, or it has to wait.
fn turn(qp: &QpShared, send: &mut SendQueue, memory: &MemoryTable) -> Option<Turn> {
    match qp.state.get() {
        QpState::Err => return flush_turn(qp, send),
        QpState::Rts => {}
        QpState::Sqd if send.front.started => {}
        _ => return None,
    }
    let fabric = &qp.device.fabric;
    if send.next == send.posted || retry::waits(&send.front, fabric) {
        return None;
    }
    // Read before the attempt: a change that comes after it must not be missed.
    let changes = fabric.changes();
    let request = *send.get(send.next);
    send.front.started = true;
    let answer = attempt(qp, send, &request, memory);
    let outcome = settle(qp, send, &request, answer, changes, memory)?;
    let bytes = if outcome == Outcome::Done { request.sge.length() } else { 0 };
    Some(Turn { wr_id: request.wr_id, opcode: request.opcode, outcome, bytes })
}

/// Sends the request at the front to its responder.
fn attempt(
    qp: &QpShared,
    send: &mut SendQueue,
    request: &SendRequest,
    memory: &MemoryTable,
) -> Answer {
    let peer = find_peer(qp, send);
    let (local, peer) = match ends(qp, send, request, peer, memory) {
        Ok(ends) => ends,
        Err(answer) => return answer,
    };
    if send.front.delivered {
        return acknowledge(qp, &peer);
    }
    let arrival = arrival(send, request, local);
    let length = request.sge.length();
    let room = qp.device.faults.room(length).min(peer.device.faults.room(length));
    if room < length {
        responder::deliver_part(&peer, &arrival, room, memory);
        carried(qp, &peer, room);
        return Answer::Silence(vendor::LINK_DOWN);
    }
    let answer = responder::deliver(&peer, &arrival, memory);
    if answer != Answer::Ack {
        return answer;
    }
    carried(qp, &peer, length);
    acknowledge(qp, &peer)
}

/// An acknowledgement on its way back, which may get lost.
pub(crate) fn acknowledge(qp: &QpShared, peer: &QpShared) -> Answer {
    if qp.device.faults.loses_acks() || peer.device.faults.loses_acks() {
        return Answer::Silence(vendor::ACK_LOST);
    }
    Answer::Ack
}

pub(crate) fn carried(qp: &QpShared, peer: &QpShared, bytes: u32) {
    qp.device.carried(bytes);
    if !Arc::ptr_eq(&qp.device, &peer.device) {
        peer.device.carried(bytes);
    }
}

pub(crate) fn arrival<'a>(
    send: &SendQueue,
    request: &'a SendRequest,
    local: Span<'a>,
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

/// Sequence numbers that the request takes. A READ takes those of its response.
pub(crate) fn packets(send: &SendQueue, request: &SendRequest) -> u32 {
    match request.opcode {
        Opcode::CompareSwap | Opcode::FetchAdd => 1,
        _ => send.path.mtu.packets(request.sge.length()),
    }
}

/// The peer, remembered from the last time if it is still there.
pub(crate) fn find_peer(qp: &QpShared, send: &mut SendQueue) -> Option<Arc<QpShared>> {
    if let Some(peer) = send.path.peer.upgrade() {
        return Some(peer);
    }
    let peer = qp.device.fabric.find_qp(send.path.gid, send.path.dest_qp_num)?;
    send.path.peer = Arc::downgrade(&peer);
    Some(peer)
}

/// Both ends of a request, if they can be used: its local bytes and the peer. The local end is
/// checked first, as hardware does before anything is sent.
pub(crate) fn ends<'m>(
    qp: &QpShared,
    send: &'m SendQueue,
    request: &SendRequest,
    peer: Option<Arc<QpShared>>,
    memory: &'m MemoryTable,
) -> Result<(Span<'m>, Arc<QpShared>), Answer> {
    let local = local_bytes(qp, send, request, memory)?;
    Ok((local, reach(qp, send, peer)?))
}

/// The peer, if its requests get through to it.
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
    Ok(peer)
}

/// The request's own bytes, checked as the sending device checks them.
fn local_bytes<'m>(
    qp: &QpShared,
    send: &'m SendQueue,
    request: &SendRequest,
    memory: &'m MemoryTable,
) -> Result<Span<'m>, Answer> {
    let sge = request.sge;
    if sge.length() > qp.limits.max_msg_size {
        return Err(Answer::Nak(WcStatus::LOC_LEN_ERR, vendor::MESSAGE_TOO_LONG));
    }
    if request.opcode.is_fetching() && send.timers.max_rd_atomic == 0 {
        return Err(Answer::Nak(WcStatus::LOC_QP_OP_ERR, vendor::NO_READ_RESOURCES));
    }
    let is_atomic = request.opcode.is_fetching() && request.opcode != Opcode::RdmaRead;
    if is_atomic && sge.length() < 8 {
        return Err(Answer::Nak(WcStatus::LOC_LEN_ERR, vendor::ATOMIC_TOO_SHORT));
    }
    if request.flags.contains(SendFlags::INLINE) {
        return Ok(send.inline_span(send.next).prefix(sge.length() as usize));
    }
    if sge.length() == 0 {
        return Ok(Span::EMPTY);
    }
    let access = match request.opcode.is_fetching() {
        true => AccessFlags::LOCAL_WRITE,
        false => AccessFlags::empty(),
    };
    let range = Range { key: sge.lkey(), addr: sge.addr(), length: sge.length() };
    memory
        .local(qp.domain, range, access)
        .map_err(|fault| Answer::Nak(WcStatus::LOC_PROT_ERR, fault.vendor()))
}

/// Draws the consequences of an answer. `None`: the request waits, and nobody noticed.
fn settle(
    qp: &QpShared,
    send: &mut SendQueue,
    request: &SendRequest,
    answer: Answer,
    changes: u64,
    memory: &MemoryTable,
) -> Option<Outcome> {
    let fabric = &qp.device.fabric;
    match answer {
        Answer::NotReady(_) if request.opcode == Opcode::RdmaWriteWithImm => {
            send.front.data_done = true;
        }
        Answer::Silence(vendor::ACK_LOST) => send.front.delivered = true,
        _ => {}
    }
    match retry::judge(answer, &mut send.front, send.timers, changes, fabric) {
        Verdict::Done => {
            let position = send.next;
            send.step_past(packets(send, request));
            if send.deferred.is_none() {
                succeed(qp, request, position);
                drained(qp, send);
            }
            Some(Outcome::Done)
        }
        Verdict::Failed(status, vendor) => {
            deferred::conclude(qp, send, memory);
            if send.next == send.posted {
                // The deferred one failed, and took this one with it.
                return Some(Outcome::Flushed);
            }
            fail(qp, send, request, status, vendor);
            Some(Outcome::Failed(status))
        }
        Verdict::Later(outcome) => Some(outcome),
        Verdict::Unnoticed => None,
    }
}

/// A request that fails takes its queue pair with it.
fn fail(qp: &QpShared, send: &mut SendQueue, request: &SendRequest, status: WcStatus, vendor: u32) {
    let position = send.next;
    send.step_past(0);
    complete(qp, position, Completion::failure(qp.number, request.wr_id, status, vendor));
    qp.state.fail();
    flush(qp, send);
}

/// Completes every outstanding send request as flushed, in posting order, signaled or not.
pub(crate) fn flush(qp: &QpShared, send: &mut SendQueue) {
    flush_from(qp, send, send.settled());
}

/// [`flush`] for a queue whose requests before `position` are complete.
pub(crate) fn flush_from(qp: &QpShared, send: &mut SendQueue, position: u64) {
    for position in position..send.posted {
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
    let (wr_id, opcode) = (first.wr_id, first.opcode);
    Some(Turn { wr_id, opcode, outcome: Outcome::Flushed, bytes: 0 })
}

pub(crate) fn succeed(qp: &QpShared, request: &SendRequest, position: u64) {
    if !qp.sq_sig_all && !request.flags.contains(SendFlags::SIGNALED) {
        return;
    }
    let opcode = request.opcode;
    let byte_len = if opcode.is_fetching() { request.sge.length() } else { 0 };
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

/// Tells the owner of a draining queue pair that the last request that had begun has ended.
pub(crate) fn drained(qp: &QpShared, send: &SendQueue) {
    if qp.state.get() == QpState::Sqd && !send.is_underway() {
        qp.device.push_event(AsyncEvent::SqDrained { qp_num: qp.number });
    }
}

/// Whether a turn of this queue pair may do something now.
pub(crate) fn is_runnable(qp: &QpShared) -> bool {
    let send = lock(&qp.send);
    let fabric = &qp.device.fabric;
    let ready = send.next < send.posted && !retry::waits(&send.front, fabric);
    let fetches = send.deferred.is_some_and(|deferred| !retry::waits(&deferred.front, fabric));
    let ready = ready && (send.deferred.is_none() || deferred::may_overtake(&send));
    match qp.state.get() {
        QpState::Err => send.has_work() || lock(&qp.recv).ring.len() > 0,
        QpState::Rts => fetches || ready,
        QpState::Sqd => fetches || (ready && send.front.started),
        _ => false,
    }
}

/// When a request may be tried again, if one waits for a time.
pub(crate) fn wakes_at(qp: &QpShared) -> Option<u64> {
    let send = lock(&qp.send);
    let front = (send.next < send.posted).then_some(send.front);
    let fronts = front.into_iter().chain(send.deferred.map(|deferred| deferred.front));
    fronts.filter(|front| front.blocked.is_none()).filter_map(|front| front.until).min()
}

/// A queue pair that forgets its peer looks for it anew.
pub(crate) const NO_PEER: Weak<QpShared> = Weak::new();
