//! The rules of taking requests back.

use super::step::Promise;

/// Which rules are kept: all of them are in [`ALL`](Self::ALL).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Nothing of a request that is taken back is posted again.
    pub posts_nothing_again: bool,
    /// A request is reported only after each queue pair that carries something of it has
    /// acknowledged it or is fenced, whether this end is still using it or not.
    pub awaits_failed_rails: bool,
    /// So do queue pairs that carry a second copy of what an earlier failure lost.
    pub awaits_copies: bool,
    /// Bytes that were posted and not acknowledged are reported as perhaps written.
    pub reports_unacknowledged: bool,
    /// With SPRAY, a request whose notification was posted is not taken back.
    pub notification_is_too_late: bool,
    /// With SPRAY, a request that was taken back sends no notification.
    pub sends_no_notification: bool,
    /// With SPRAY, later notifications do not wait for that of a request that was taken back.
    pub later_ones_pass: bool,
    /// With DQPLB, numbers that did not arrive are sent without data, so that later ones count.
    pub fills_gaps: bool,
    /// Such numbers go out only after the fence, when it is certain that they did not arrive.
    pub fills_after_fence: bool,
    /// Such a number is never marked as the last one of its request.
    pub fills_without_last_mark: bool,
    /// Such a number goes out again if a second failure loses it.
    pub fills_again: bool,
    /// With DQPLB, a request whose last number arrived is posted to its end in place of filled.
    pub completes_if_last_arrived: bool,
    /// With DQPLB, later requests are reported only once such numbers are acknowledged: until then
    /// their notifications wait for them at the peer.
    pub later_reports_await_gaps: bool,
}

impl Rules {
    /// All of them are kept.
    pub const ALL: Self = Self {
        posts_nothing_again: true,
        awaits_failed_rails: true,
        awaits_copies: true,
        reports_unacknowledged: true,
        notification_is_too_late: true,
        sends_no_notification: true,
        later_ones_pass: true,
        fills_gaps: true,
        fills_after_fence: true,
        fills_without_last_mark: true,
        fills_again: true,
        completes_if_last_arrived: true,
        later_reports_await_gaps: true,
    };

    /// Returns, for each rule, its name, the promise that breaks first without it in the smallest
    /// world where one breaks, and the rules without it.
    pub fn each_broken() -> [(&'static str, Promise, Self); 13] {
        macro_rules! broken {
            ($($rule:ident => $promise:ident),* $(,)?) => {
                [$((
                    stringify!($rule),
                    Promise::$promise,
                    Self { $rule: false, ..Self::ALL },
                )),*]
            };
        }
        broken![
            posts_nothing_again => NoLateWrite,
            awaits_failed_rails => NoLateWrite,
            awaits_copies => NoLateWrite,
            reports_unacknowledged => TrueReport,
            notification_is_too_late => TrueReport,
            sends_no_notification => TakenBackSilently,
            later_ones_pass => Reported,
            fills_gaps => TrueReport,
            fills_after_fence => Once,
            fills_without_last_mark => TakenBackSilently,
            fills_again => TrueReport,
            completes_if_last_arrived => TrueReport,
            later_reports_await_gaps => TrueReport,
        ]
    }
}
