//! READs and atomics whose data comes later, on deterministic fabrics.
//!
//! A responder may execute later requests before it sends the data of a READ or atomic. Only FENCE
//! forbids that, so this module makes missing FENCEs visible in tests. READs and atomics stay in
//! order among themselves, so at most one of them is deferred at a time. Completions keep the
//! posting order: requests that overtook the deferred request complete together with it.

use crate::responder::{self, Answer, Arrival};
use crate::retry::{self, Verdict};
use crate::send_queue::{Deferred, Front};
use crate::shared::{QpShared, SendQueue};
use crate::step::TurnOutcome;
use crate::transmit::{
    Turn, acknowledge, arrival, carried, complete, drained, ends, find_peer, flush_from,
    flush_turn, packets, reach, received, succeed,
};
use polyrail_core::verbs::{Completion, SendFlags, SendRequest, WcStatus};
use polyrail_nic_parts::error::vendor;
use polyrail_nic_parts::lists::Listed;
use polyrail_nic_parts::local::Local;
use polyrail_nic_parts::memory::MemoryTable;
use polyrail_nic_parts::state::QpState;

/// Returns whether the request at the front may be executed before a deferred one has its data.
pub(crate) fn may_overtake(send: &SendQueue) -> bool {
    if send.next == send.posted() {
        return false;
    }
    let front = send.get(send.next);
    !front.flags.contains(SendFlags::FENCE) && !front.opcode.is_fetching()
}

/// Lets the peer admit the READ or atomic at the front, and defers its data. `None` if the front is
/// not a READ or atomic, is out of order, or has to wait for its line; it is then executed
/// normally.
pub(crate) fn defer(qp: &QpShared, send: &mut SendQueue) -> Option<Turn> {
    let ready = send.next < send.posted() && qp.state.get() == QpState::Rts;
    if !ready || send.front.started || qp.device.line.is_some() {
        return None;
    }
    let request = *send.get(send.next);
    if !request.opcode.is_fetching() || send.timers.max_rd_atomic == 0 {
        return None;
    }
    let peer = find_peer(qp, send);
    let peer = reach(qp, send, peer).ok()?;
    let arrival = arrival(send, &request, Local::EMPTY);
    if responder::admit_only(&peer, &arrival) != Answer::Ack {
        return None;
    }
    send.deferred = Some(Deferred { position: send.next, front: Front::default() });
    send.step_past(packets(send, &request));
    Some(turn(&request, TurnOutcome::Deferred))
}

/// Fetches the data of the deferred request if it is available now, and completes the request and
/// those that overtook it.
pub(crate) fn fetch(qp: &QpShared, send: &mut SendQueue, memory: &MemoryTable) -> Option<Turn> {
    if qp.state.get() == QpState::Err {
        return flush_turn(qp, send);
    }
    let mut deferred = send.deferred?;
    let fabric = &qp.device.fabric;
    if retry::waits(&deferred.front, fabric) {
        return None;
    }
    let changes = fabric.changes();
    let request = *send.get(deferred.position);
    let answer = attempt(qp, send, &deferred, &request, memory);
    deferred.front.delivered |= answer == Answer::Silence(vendor::ACK_LOST);
    let verdict = retry::judge(answer, &mut deferred.front, send.timers, changes, fabric);
    send.deferred = Some(deferred);
    let outcome = match verdict {
        Verdict::Done => succeed_all(qp, send, deferred.position),
        Verdict::Failed(status, vendor) => fail_all(qp, send, deferred.position, status, vendor),
        Verdict::Later(outcome) => outcome,
        Verdict::Unnoticed => return None,
    };
    Some(turn(&request, outcome))
}

/// Ends the deferred request, if there is one, because a later request failed: successfully if its
/// data is available at once, otherwise as unanswered.
pub(crate) fn conclude(qp: &QpShared, send: &mut SendQueue, memory: &MemoryTable) {
    if let Some(deferred) = &mut send.deferred {
        deferred.front.until = None;
        deferred.front.blocked = None;
        fetch(qp, send, memory);
    }
    if let Some(deferred) = send.deferred {
        let status = WcStatus::RETRY_EXC_ERR;
        fail_all(qp, send, deferred.position, status, vendor::LINK_DOWN);
    }
}

fn attempt(
    qp: &QpShared,
    send: &mut SendQueue,
    deferred: &Deferred,
    request: &Listed<SendRequest>,
    memory: &MemoryTable,
) -> Answer {
    let peer = find_peer(qp, send);
    let (local, peer) = match ends(qp, send, deferred.position, peer, memory) {
        Ok(ends) => ends,
        Err(answer) => return answer,
    };
    if !deferred.front.delivered {
        let arrival = Arrival { admitted: true, ..arrival(send, request, local) };
        let answer = responder::deliver(&peer, &arrival, memory);
        if answer != Answer::Ack {
            return received(qp, answer);
        }
        carried(qp, &peer, request.length);
    }
    acknowledge(qp, &peer)
}

fn succeed_all(qp: &QpShared, send: &mut SendQueue, position: u64) -> TurnOutcome {
    send.deferred = None;
    for done in position..send.next {
        succeed(qp, send.get(done), done);
    }
    drained(qp, send);
    TurnOutcome::Done
}

/// Fails the deferred request, and flushes the requests that overtook it. They were executed, but
/// must not complete successfully after a failed request.
fn fail_all(
    qp: &QpShared,
    send: &mut SendQueue,
    position: u64,
    status: WcStatus,
    vendor: u32,
) -> TurnOutcome {
    let wr_id = send.get(position).wr_id;
    complete(qp, position, Completion::failure(qp.number, wr_id, status, vendor));
    qp.state.fail();
    flush_from(qp, send, position + 1);
    TurnOutcome::Failed(status)
}

fn turn(request: &Listed<SendRequest>, outcome: TurnOutcome) -> Turn {
    Turn { wr_id: request.wr_id, opcode: request.opcode, outcome, bytes: 0 }
}
