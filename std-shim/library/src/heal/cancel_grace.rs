//! When the rails of requests and messages that are taken back are fenced.

use std::time::{Duration, Instant};

/// The longest time that rails which are out on purpose put off the next fence: a rail that does
/// not return must not keep the others from being fenced.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// How long requests and messages that are taken back wait for what they have in flight, unless
/// their endpoint's builder says otherwise: longer than that usually takes, and half of the time in
/// which what became of them is to be known.
pub(crate) const CANCEL_GRACE: Duration = Duration::from_micros(500);

/// The requests or messages of an endpoint that are being taken back.
#[derive(Debug)]
pub(crate) struct Cancels {
    pub(crate) grace: Duration,
    /// When their rails are fenced. `None`: they are being fenced, or there are none.
    pub(crate) fence_at: Option<Instant>,
    /// Until when that is put off while rails are out on purpose.
    at_the_latest: Option<Instant>,
    /// Requests are being taken back, or the peer is asked for a fence. Repair steps take care.
    pub(crate) is_busy: bool,
}

impl Cancels {
    pub(crate) const fn new(grace: Duration) -> Self {
        Self { grace, fence_at: None, at_the_latest: None, is_busy: false }
    }

    /// A request is being taken back since now.
    pub(crate) fn begin(&mut self) {
        self.is_busy = true;
        if self.fence_at.is_none() {
            let now = Instant::now();
            // Beyond the range of the clock, their rails are never fenced.
            self.fence_at = now.checked_add(self.grace);
            self.at_the_latest = now.checked_add(self.grace.max(LONGEST_PAUSE));
        }
    }

    /// Whether the time for acknowledgements is over. Rails that return have as much time as
    /// requests: each fence loses what others have in flight, and with a fence for each of many
    /// requests that are taken back, one after the other, others would never progress.
    pub(crate) fn is_due(&mut self, now: Instant, is_any_out: bool) -> bool {
        if is_any_out && self.at_the_latest.is_some_and(|latest| now < latest) {
            self.fence_at = self.fence_at.and(now.checked_add(self.grace));
        }
        self.fence_at.take_if(|at| now >= *at).is_some()
    }
}
