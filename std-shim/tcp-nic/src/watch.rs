//! The time of outstanding requests.
//!
//! A request fails when nothing was confirmed for the limit of its connection. Whatever shows that
//! the peer goes on counts: acknowledgements, responses, and bytes that the peer's system has
//! acknowledged, because a long request over a slow link takes longer than the limit. While the
//! peer has no receive posted, the limit of retries counts instead. No request is sent meanwhile,
//! so the system asks the peer's system whether it is still there.

use crate::ending;
use crate::shared::QpShared;
use polyrail_nic_parts::error::vendor;
use polyrail_nic_parts::sync::lock;
use std::sync::Weak;
use std::sync::atomic::Ordering;

/// Nanoseconds after which a queue pair without requests is not watched any more. Its next request
/// wakes the thread.
const IDLE: u64 = 1_000_000_000;

/// How often a connection is looked at within its limit: so much earlier or later may a request
/// fail.
const LOOKS: u64 = 8;

/// The shortest time between two looks.
const SHORTEST: u64 = 1_000_000;

/// A queue pair with requests.
#[derive(Debug)]
pub(crate) struct Watch {
    qp: Weak<QpShared>,
    /// When something was confirmed last.
    progress_at: u64,
    /// Bytes that the peer's system had acknowledged then.
    acknowledged: u64,
    was_timed: bool,
    /// Whether the system asks the peer's system whether the connection is still there.
    probes: bool,
    idle_since: Option<u64>,
}

impl Watch {
    pub(crate) fn new(qp: Weak<QpShared>) -> Self {
        Self {
            qp,
            progress_at: 0,
            acknowledged: 0,
            was_timed: false,
            probes: false,
            idle_since: None,
        }
    }

    /// Looks at the queue pair. Returns when to look again; `None`: not any more.
    pub(crate) fn look(&mut self, now: u64) -> Option<u64> {
        let qp = self.qp.upgrade()?;
        let acknowledged = qp.socket.get().map_or(0, |socket| socket.acknowledged());
        let (is_timed, waits, has_outstanding, limit, until) = {
            let mut queues = lock(&qp.queues);
            let requester = &mut queues.requester;
            requester.expire_waiting(now);
            if requester.due_failure().is_some() {
                qp.note_failure();
            }
            let is_timed = requester.is_timed();
            let progressed = requester.take_progress() || acknowledged != self.acknowledged;
            if progressed || !self.was_timed || !is_timed {
                self.progress_at = now;
            }
            let (waits, limit) = (requester.is_waiting(), requester.timers.limit);
            (is_timed, waits, requester.has_outstanding(), limit, requester.waits_until())
        };
        if let Some(socket) = qp.socket.get()
            && waits != self.probes
        {
            socket.set_probes(limit.filter(|_| waits));
            self.probes = waits;
        }
        (self.acknowledged, self.was_timed) = (acknowledged, is_timed);
        let is_over = limit.is_some_and(|limit| now - self.progress_at >= limit);
        if is_timed && is_over {
            qp.lose(if qp.socket.get().is_some() {
                vendor::ACK_LOST
            } else {
                vendor::NO_CONNECTION
            });
        }
        ending::run(&qp);
        // While there is no request, too: the time of the next one counts from the next look.
        let interval = limit.map_or(IDLE, |limit| (limit / LOOKS).clamp(SHORTEST, IDLE));
        if !has_outstanding {
            let since = *self.idle_since.get_or_insert(now);
            if now - since >= IDLE {
                return self.leave(&qp, now);
            }
            return Some(now + interval);
        }
        self.idle_since = None;
        let look = now + interval;
        Some(until.map_or(look, |until| until.clamp(now + 1, look)))
    }

    /// Stops to watch, unless a request was posted meanwhile.
    fn leave(&mut self, qp: &QpShared, now: u64) -> Option<u64> {
        qp.is_watched.store(false, Ordering::SeqCst);
        let has_outstanding = lock(&qp.queues).requester.has_outstanding();
        if has_outstanding && !qp.is_watched.swap(true, Ordering::SeqCst) {
            self.idle_since = None;
            return Some(now + 1);
        }
        None
    }
}
