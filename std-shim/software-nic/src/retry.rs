//! When a request is tried again, and when it is given up.

use crate::error::vendor;
use crate::responder::Answer;
use crate::send_queue::{Front, Timers};
use crate::shared::FabricShared;
use crate::state::{ack_timeout, rnr_delay};
use crate::step::TurnOutcome;
use polyrail_core::verbs::WcStatus;

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Carried out and acknowledged.
    Done,
    /// Failed, with this status and `vendor_err`.
    Failed(WcStatus, u32),
    /// To be tried again.
    Later(TurnOutcome),
    /// To be tried again, and nothing visible happened.
    Unnoticed,
}

/// `rnr_retry` of a sender that never gives up.
const FOR_EVER: u8 = 7;

/// Whether the request at the front must not be tried yet.
pub(crate) fn waits(front: &Front, fabric: &FabricShared) -> bool {
    let is_early = |until| fabric.clock.now() < until;
    let is_unchanged = |changes| fabric.changes() == changes;
    match (front.until, front.blocked) {
        (Some(until), Some(changes)) => is_unchanged(changes) && is_early(until),
        (until, blocked) => until.is_some_and(is_early) || blocked.is_some_and(is_unchanged),
    }
}

/// Judges an answer. `changes` is the fabric's count from before the attempt.
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

/// No receive was posted: the responder is alive, so the count of timeouts starts again.
fn not_ready(
    code: u8,
    front: &mut Front,
    timers: Timers,
    changes: u64,
    fabric: &FabricShared,
) -> Verdict {
    front.timeouts = 0;
    if timers.rnr_retry == FOR_EVER {
        // In virtual time, waiting forever means waiting for a change; trying again and again would
        // keep an idle fabric busy.
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

/// No answer came within the acknowledgement timeout, which passes after every attempt, the last
/// included.
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
