//! The end of receives of a queue pair in ERR. Its own receives are flushed. Receives of a shared
//! receive queue stay there, and an event reports when the queue pair takes no more of them.

use crate::receives::{Ending, Responder};
use crate::shared::{QpShared, SrqShared};
use polyrail_core::verbs::{Completion, RecvRequest, WcStatus};
use polyrail_nic_parts::error::{errno, vendor};
use polyrail_nic_parts::event::AsyncEvent;
use polyrail_nic_parts::state::QpState;
use polyrail_nic_parts::sync::lock;

/// Flushes every posted receive of a queue pair in ERR. If its receives are shared, continues its
/// end.
pub(crate) fn flush(qp: &QpShared, recv: &mut Responder) {
    while let Some((request, releases)) = recv.pop(&qp.posts) {
        flush_one(qp, recv, &request, releases);
    }
    qp.hand_over(recv);
    advance(qp, recv);
}

fn flush_one(qp: &QpShared, recv: &mut Responder, request: &RecvRequest, releases: u64) {
    let status = WcStatus::WR_FLUSH_ERR;
    let flushed = Completion::failure(qp.number, request.wr_id, status, vendor::FLUSHED);
    qp.push_receive(recv, releases, flushed, true);
}

/// Returns whether a queue pair in ERR has something to do for its receives.
pub(crate) fn is_due(qp: &QpShared, recv: &Responder) -> bool {
    recv.has_receives(&qp.posts) || (qp.srq.is_some() && next(qp, recv).is_some())
}

/// Returns when a queue pair in ERR has something to do for its receives, if it waits for a time.
pub(crate) fn wakes_at(qp: &QpShared, recv: &Responder) -> Option<u64> {
    match recv.ending {
        Ending::OneMore { until } if qp.state.get() == QpState::Err => Some(until),
        _ => None,
    }
}

/// Returns whether the queue pair, in ERR, still receives a message.
pub(crate) fn takes_one_more(qp: &QpShared, recv: &mut Responder) -> bool {
    advance(qp, recv);
    matches!(recv.ending, Ending::OneMore { .. })
}

/// Records that a receive was taken and completed, which in ERR is the last.
pub(crate) fn took_one(qp: &QpShared, recv: &mut Responder) {
    if matches!(recv.ending, Ending::OneMore { .. }) {
        end(qp, recv);
    }
}

/// Continues the end of a queue pair in ERR whose receives are shared.
fn advance(qp: &QpShared, recv: &mut Responder) {
    if qp.srq.is_none() || qp.state.get() != QpState::Err {
        return;
    }
    match next(qp, recv) {
        Some(Ending::LastWqeReached) => end(qp, recv),
        Some(next) => recv.ending = next,
        None => {}
    }
}

/// Returns the next state of the end, if it is due.
fn next(qp: &QpShared, recv: &Responder) -> Option<Ending> {
    let now = qp.device.fabric.clock.now();
    let within = qp.device.faults.one_more_receive();
    match recv.ending {
        Ending::NotBegun if within > 0 => {
            Some(Ending::OneMore { until: now.saturating_add(within) })
        }
        Ending::NotBegun => Some(Ending::LastWqeReached),
        Ending::OneMore { until } if until <= now => Some(Ending::LastWqeReached),
        Ending::OneMore { .. } | Ending::LastWqeReached => None,
    }
}

fn end(qp: &QpShared, recv: &mut Responder) {
    let takes_one = qp.device.faults.takes_shared_receive();
    let taken = qp.srq.as_deref().filter(|_| takes_one).and_then(SrqShared::pop);
    if let Some(request) = taken {
        flush_one(qp, recv, &request, 0);
    }
    // Before the event, so that a reader of the event finds the completions.
    qp.hand_over(recv);
    recv.ending = Ending::LastWqeReached;
    qp.device.push_event(AsyncEvent::LastWqeReached { qp_num: qp.number });
}

/// Returns whether the last receive was taken from the shared receive queue and its completion is
/// visible; or an errno.
pub(crate) fn last_wqe_reached(qp: &QpShared) -> Result<bool, i32> {
    qp.device.refusal()?;
    let has_failed = qp.state.get() == QpState::Err && !lock(&qp.send).has_work();
    if qp.srq.is_none() || !has_failed {
        return Err(errno::EINVAL);
    }
    let is_over = {
        let mut recv = lock(&qp.recv);
        advance(qp, &mut recv);
        recv.ending == Ending::LastWqeReached && !qp.recv_cq.has_pending_receive(qp.recv_owner)
    };
    if is_over {
        qp.device.fabric.quiesce();
    }
    Ok(is_over)
}
