//! Decides when a request is retried, and when it fails.

use crate::responder::Answer;
use crate::send_queue::{Front, Timers};
use crate::shared::FabricShared;
use crate::step::TurnOutcome;
use polyrail_core::verbs::WcStatus;
use polyrail_nic_parts::error::vendor;
use polyrail_nic_parts::state::{ack_timeout, rnr_delay};

/// The result of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Executed and acknowledged.
    Done,
    /// Failed, with this status and `vendor_err`.
    Failed(WcStatus, u32),
    /// Retried later.
    Later(TurnOutcome),
    /// Retried later, and nothing visible happened.
    Unnoticed,
}

/// `rnr_retry` of a sender that retries forever.
const FOR_EVER: u8 = 7;

/// Returns whether the request at the front must wait.
pub(crate) fn waits(front: &Front, fabric: &FabricShared) -> bool {
    let is_early = |until| fabric.clock.now() < until;
    let is_unchanged = |changes| fabric.changes() == changes;
    match (front.until, front.blocked) {
        (Some(until), Some(changes)) => is_unchanged(changes) && is_early(until),
        (until, blocked) => until.is_some_and(is_early) || blocked.is_some_and(is_unchanged),
    }
}

/// Evaluates an answer. `changes` is the fabric's count from before the attempt.
pub(crate) fn judge(
    answer: Answer,
    front: &mut Front,
    timers: Timers,
    changes: u64,
    fabric: &FabricShared,
) -> Verdict {
    (front.until, front.blocked) = (None, None);
    match answer {
        Answer::Ack => Verdict::Done,
        Answer::Nak(status, vendor) => Verdict::Failed(status, vendor),
        Answer::NotReady(code) => not_ready(code, front, timers, changes, fabric),
        Answer::Silence(vendor) => unanswered(vendor, front, timers, changes, fabric),
        Answer::Never => {
            front.blocked = Some(changes);
            Verdict::Unnoticed
        }
    }
}

/// Handles "receiver not ready". The responder is alive, so the count of timeouts starts again.
fn not_ready(
    code: u8,
    front: &mut Front,
    timers: Timers,
    changes: u64,
    fabric: &FabricShared,
) -> Verdict {
    front.timeouts = 0;
    if timers.rnr_retry == FOR_EVER {
        // In virtual time, the request waits for a change, because endless retries would keep an
        // idle fabric busy.
        front.blocked = Some(changes);
        if fabric.threaded {
            front.until = Some(fabric.clock.now() + rnr_delay(code));
        }
        return Verdict::Later(TurnOutcome::NotReady);
    }
    if front.rnr_tries == timers.rnr_retry {
        return Verdict::Failed(WcStatus::RNR_RETRY_EXC_ERR, vendor::NO_RECEIVE);
    }
    front.rnr_tries += 1;
    front.until = Some(fabric.clock.now() + rnr_delay(code));
    Verdict::Later(TurnOutcome::NotReady)
}

/// Handles an acknowledgement timeout, which passes after every attempt, including the last.
fn unanswered(
    vendor: u32,
    front: &mut Front,
    timers: Timers,
    changes: u64,
    fabric: &FabricShared,
) -> Verdict {
    let Some(timeout) = ack_timeout(timers.timeout) else {
        front.blocked = Some(changes);
        return Verdict::Later(TurnOutcome::NoAnswer);
    };
    if front.timeouts > timers.retry_cnt {
        return Verdict::Failed(WcStatus::RETRY_EXC_ERR, vendor);
    }
    front.timeouts += 1;
    front.until = Some(fabric.clock.now() + timeout);
    Verdict::Later(TurnOutcome::NoAnswer)
}
