//! The sending end: executes the request at the front of a send queue, and completes it.

use crate::deferred;
use crate::ending;
use crate::line::Line;
use crate::responder::{self, Answer};
use crate::retry::{self, Verdict};
use crate::shared::{QpShared, SendQueue};
use crate::step::TurnOutcome;
use crate::transmit::{
    Turn, acknowledge, arrival, carried, complete, drained, ends, find_peer, flush, flush_turn,
    packets, received, succeed,
};
use polyrail_core::verbs::{Completion, Opcode, SendRequest, WcStatus};
use polyrail_nic_parts::error::vendor;
use polyrail_nic_parts::lists::Listed;
use polyrail_nic_parts::memory::MemoryTable;
use polyrail_nic_parts::state::QpState;
use polyrail_nic_parts::sync::{lock, read};
use std::sync::Arc;

/// Requests that one poll executes for one queue pair: enough to amortise its locks, but few enough
/// that other queue pairs get their turn and completions are returned early.
const POLL_REQUESTS: u32 = 16;
const POLL_BYTES: u64 = 128 * 1024;

/// Executes a poll's share of a listed queue pair's work, and lists the queue pair again if there
/// is more.
pub(crate) fn service(qp: &QpShared) {
    // Before the check, so that a later post lists the queue pair again.
    qp.listed.store(false, std::sync::atomic::Ordering::Release);
    let mut send = lock(&qp.send);
    let mut bytes = 0;
    {
        let memory = read(&qp.device.fabric.memory);
        for _ in 0..POLL_REQUESTS {
            if send.next < send.posted() && send.get(send.next).length > responder::SHORT_BYTES {
                hand_over(&mut send);
            }
            let Some(turn) = turn(qp, &mut send, &memory) else { break };
            bytes += u64::from(turn.bytes);
            if bytes >= POLL_BYTES {
                break;
            }
        }
    }
    hand_over(&mut send);
    let active = matches!(qp.state.get(), QpState::Rts | QpState::Err);
    let more = send.is_underway() || (active && send.has_work());
    let mut ends_later = false;
    if qp.state.get() == QpState::Err {
        finish_if_failed(qp);
        ends_later = ending::wakes_at(qp, &lock(&qp.recv)).is_some();
    }
    drop(send);
    if more || ends_later {
        qp.list_work();
    }
}

/// Runs one turn for the scheduler. `None`: there was nothing to do. `delay_fetch` defers the data
/// of a READ or atomic; `fetch_first` fetches deferred data now.
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
    hand_over(&mut send);
    if turn.is_some() {
        finish_if_failed(qp);
    }
    turn
}

/// Adds the receives that requests have completed to the peer's completion queue, all at once,
/// because each access moves the queue's cache lines from the processor that polls it. A peer that
/// was reset has no such receives any more.
fn hand_over(send: &mut SendQueue) {
    if std::mem::take(&mut send.completes_receives)
        && let Some(peer) = send.path.peer.upgrade()
    {
        peer.hand_over(&mut lock(&peer.recv));
    }
}

/// Flushes the receives of a queue pair in ERR. Returns whether there were any or, if its receives
/// are shared, whether it took its last receive now.
pub(crate) fn finish_if_failed(qp: &QpShared) -> bool {
    let mut recv = lock(&qp.recv);
    let found = qp.state.get() == QpState::Err && ending::is_due(qp, &recv);
    if found {
        ending::flush(qp, &mut recv);
    }
    found && ending::wakes_at(qp, &recv).is_none()
}

/// Tries the request at the front. `None`: the queue is empty, or the request has to wait.
fn turn(qp: &QpShared, send: &mut SendQueue, memory: &MemoryTable) -> Option<Turn> {
    match qp.state.get() {
        QpState::Err => return flush_turn(qp, send),
        QpState::Rts => {}
        QpState::Sqd if send.front.started => {}
        _ => return None,
    }
    let fabric = &qp.device.fabric;
    if send.next == send.posted() || retry::waits(&send.front, fabric) {
        return None;
    }
    let request = *send.get(send.next);
    if let Some(line) = &qp.device.line
        && !has_been_sent(send, line, request.length, fabric.clock.now())
    {
        return None;
    }
    // Read before the attempt, so that a later change is not missed.
    let changes = fabric.changes();
    send.front.started = true;
    let answer = attempt(qp, send, &request, memory);
    let outcome = settle(qp, send, &request, answer, changes, memory)?;
    let bytes = if outcome == TurnOutcome::Done { request.length } else { 0 };
    Some(Turn { wr_id: request.wr_id, opcode: request.opcode, outcome, bytes })
}

/// Returns whether the line has sent the request at the front. The first call passes the request to
/// the line, and the request waits until it is sent.
fn has_been_sent(send: &mut SendQueue, line: &Line, length: u32, now: u64) -> bool {
    if send.front.on_line {
        return true;
    }
    send.front.on_line = true;
    let sent = line.send(now, length);
    let waits = sent > now;
    send.front.until = waits.then_some(sent);
    !waits
}

/// Sends the request at the front to its responder.
fn attempt(
    qp: &QpShared,
    send: &mut SendQueue,
    request: &Listed<SendRequest>,
    memory: &MemoryTable,
) -> Answer {
    let peer = find_peer(qp, send);
    let (local, peer) = match ends(qp, send, send.next, peer, memory) {
        Ok(ends) => ends,
        Err(answer) => return answer,
    };
    if send.front.delivered {
        return acknowledge(qp, &peer);
    }
    let arrival = arrival(send, request, local);
    let length = request.length;
    let room = qp.device.faults.room(length).min(peer.device.faults.room(length));
    if room < length {
        responder::deliver_part(&peer, &arrival, room, memory);
        carried(qp, &peer, room);
        return Answer::Silence(vendor::LINK_DOWN);
    }
    let answer = responder::deliver(&peer, &arrival, memory);
    if responder::takes_receive(request.opcode) {
        completes_receive(qp, send, &peer);
    }
    if answer != Answer::Ack {
        return received(qp, answer);
    }
    carried(qp, &peer, length);
    acknowledge(qp, &peer)
}

/// Records that a request may have completed a receive, which is added to its queue together with
/// others. If the request completes in the same queue, the receive is added at once, so that it
/// comes first.
fn completes_receive(qp: &QpShared, send: &mut SendQueue, peer: &QpShared) {
    send.completes_receives = true;
    if Arc::ptr_eq(&qp.send_cq, &peer.recv_cq) {
        hand_over(send);
    }
}

/// Applies an answer. `None`: the request waits, and nothing visible happened.
fn settle(
    qp: &QpShared,
    send: &mut SendQueue,
    request: &Listed<SendRequest>,
    answer: Answer,
    changes: u64,
    memory: &MemoryTable,
) -> Option<TurnOutcome> {
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
            Some(TurnOutcome::Done)
        }
        Verdict::Failed(status, vendor) => {
            deferred::conclude(qp, send, memory);
            if send.next == send.posted() {
                // The deferred request failed, so this one was flushed.
                return Some(TurnOutcome::Flushed);
            }
            fail(qp, send, request, status, vendor);
            Some(TurnOutcome::Failed(status))
        }
        Verdict::Later(outcome) => Some(outcome),
        Verdict::Unnoticed => None,
    }
}

/// Fails a request and its queue pair.
fn fail(
    qp: &QpShared,
    send: &mut SendQueue,
    request: &Listed<SendRequest>,
    status: WcStatus,
    vendor: u32,
) {
    let position = send.next;
    send.step_past(0);
    complete(qp, position, Completion::failure(qp.number, request.wr_id, status, vendor));
    qp.state.fail();
    flush(qp, send);
}

/// Returns whether a turn of this queue pair could do something now.
pub(crate) fn is_runnable(qp: &QpShared) -> bool {
    let send = lock(&qp.send);
    let fabric = &qp.device.fabric;
    let ready = send.next < send.posted() && !retry::waits(&send.front, fabric);
    let fetches = send.deferred.is_some_and(|deferred| !retry::waits(&deferred.front, fabric));
    let ready = ready && (send.deferred.is_none() || deferred::may_overtake(&send));
    match qp.state.get() {
        QpState::Err => send.has_work() || ending::is_due(qp, &lock(&qp.recv)),
        QpState::Rts => fetches || ready,
        QpState::Sqd => fetches || (ready && send.front.started),
        _ => false,
    }
}

/// Returns when a request may be tried again or the receives end, if either waits for a time.
pub(crate) fn wakes_at(qp: &QpShared) -> Option<u64> {
    let send = lock(&qp.send);
    let front = (send.next < send.posted()).then_some(send.front);
    let fronts = front.into_iter().chain(send.deferred.map(|deferred| deferred.front));
    let times = fronts.filter(|front| front.blocked.is_none()).filter_map(|front| front.until);
    times.chain(ending::wakes_at(qp, &lock(&qp.recv))).min()
}
