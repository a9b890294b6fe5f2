//! Attempts to connect queue pairs, and the pauses between them.

use std::time::{Duration, Instant};

/// The shortest time from a failed attempt to connect queue pairs to the next one.
pub(super) const PAUSE: Duration = Duration::from_millis(100);

/// Returns when to connect again, after an attempt that began then and failed with an error that
/// may pass: after 100 ms, or four times as long as the attempt took. For programs with several
/// peers: over RoCE the kernel may search for a path for a second in each attempt, on one of
/// [`MOST_ASIDE`](crate::backend::MOST_ASIDE) threads or, with a call that waits, on the caller's.
/// Others get four fifths of the time.
///
/// ```
/// use polyrail::link::next_attempt;
/// use std::time::{Duration, Instant};
///
/// let began = Instant::now();
/// // ... the attempt fails ...
/// assert!(next_attempt(began) >= began + Duration::from_millis(100));
/// ```
///
/// [`Attempts`] does this for a side that meets a peer over a link.
pub fn next_attempt(began: Instant) -> Instant {
    Instant::now() + PAUSE.max(began.elapsed() * 4)
}

/// The attempts of one side to connect its endpoint, while the peer waits for `ready` over their
/// link. Neither side of a meeting blocks: each calls [`step`](Self::step) whenever it is driven.
///
/// An attempt whose error may pass is repeated after a [pause](next_attempt). The last attempt
/// begins after four fifths of the time for which the peer waits, at the latest, and ends after
/// nine tenths: then the peer is still there to receive the reason of a failure.
///
/// ```
/// use polyrail::link::{Attempts, GaveUp};
/// use std::time::{Duration, Instant};
///
/// let mut attempts = Attempts::<String>::new(Duration::from_secs(10));
/// assert_eq!(attempts.step(|| Ok(false), |_| true), Ok(false)); // Under way.
/// let refused = attempts.step(|| Err("the keys differ".to_owned()), |_| false);
/// assert_eq!(refused, Err(GaveUp::Failed("the keys differ".to_owned())));
/// ```
#[derive(Clone, Debug)]
pub struct Attempts<E> {
    since: Instant,
    limit: Duration,
    /// When the attempt that is under way began.
    began: Option<Instant>,
    /// When the next attempt is due.
    next: Instant,
    is_connected: bool,
    failure: Option<E>,
}

/// Why a side stopped its [`Attempts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GaveUp<E> {
    /// The last attempt failed, or was not done in time after an earlier one had failed.
    Failed(E),
    /// The first attempt was not done in time.
    Searching(StillSearching),
}

/// The first attempt to connect was not done in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the queue pairs were not connected within {limit:?}: the device is still searching for a path \
     to the peer"
)]
pub struct StillSearching {
    /// The time for which the peer waits, of which an attempt has nine tenths.
    pub limit: Duration,
}

impl<E> Attempts<E> {
    /// Begins now. The peer waits for `limit` from now on.
    pub fn new(limit: Duration) -> Self {
        let now = Instant::now();
        Self { since: now, limit, began: None, next: now, is_connected: false, failure: None }
    }

    /// Continues to connect, or begins another attempt if one is due. Returns whether the endpoint
    /// is connected. `connect` never waits and returns the same, as
    /// [`try_connect`](crate::endpoint::EndpointQp::try_connect) does; `may_pass` returns whether
    /// its error may pass.
    ///
    /// # Errors
    ///
    /// An error that does not pass, or the time is up. Send the reason to the peer.
    pub fn step(
        &mut self,
        connect: impl FnOnce() -> Result<bool, E>,
        may_pass: impl FnOnce(&E) -> bool,
    ) -> Result<bool, GaveUp<E>> {
        let now = Instant::now();
        let waited = now.saturating_duration_since(self.since);
        let is_last = waited >= self.limit / 5 * 4;
        if self.is_connected || now < self.next && !is_last {
            return Ok(self.is_connected);
        }
        let began = *self.began.get_or_insert(now);
        match connect() {
            Ok(false) if waited >= self.limit / 10 * 9 => {
                return Err(self.failure.take().map_or(
                    GaveUp::Searching(StillSearching { limit: self.limit }),
                    GaveUp::Failed,
                ));
            }
            Ok(is_connected) => self.is_connected = is_connected,
            Err(error) if !is_last && may_pass(&error) => {
                self.began = None;
                self.next = next_attempt(began);
                self.failure = Some(error);
            }
            Err(error) => return Err(GaveUp::Failed(error)),
        }
        Ok(self.is_connected)
    }

    /// Returns why the endpoint is not connected, if an attempt failed.
    pub fn failure(&self) -> Option<&E> {
        self.failure.as_ref().filter(|_| !self.is_connected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_that_took_long_is_followed_by_a_longer_pause() {
        let Some(began) = Instant::now().checked_sub(Duration::from_secs(1)) else {
            return; // The system has just begun to count.
        };
        assert!(next_attempt(began) >= began + Duration::from_secs(5));
    }

    /// Attempts of which so many tenths of the time have passed; `None` if the system has counted
    /// for a shorter time.
    fn after(tenths: u32) -> Option<Attempts<&'static str>> {
        const LIMIT: Duration = Duration::from_secs(10_000);
        let since = Instant::now().checked_sub(LIMIT / 10 * tenths)?;
        Some(Attempts { since, ..Attempts::new(LIMIT) })
    }

    #[test]
    fn an_attempt_is_repeated_after_a_pause_while_its_error_may_pass() {
        let mut attempts = Attempts::new(Duration::from_secs(10_000));
        assert_eq!(attempts.step(|| Ok(false), |_| true), Ok(false));
        assert_eq!(attempts.step(|| Err("no path"), |_| true), Ok(false));
        assert_eq!(attempts.failure(), Some(&"no path"));
        attempts.next = Instant::now() + Duration::from_secs(5_000);
        assert_eq!(attempts.step(|| unreachable!(), |_| true), Ok(false));
        attempts.next = Instant::now();
        assert_eq!(attempts.step(|| Ok(true), |_| true), Ok(true));
        assert_eq!(
            (attempts.step(|| unreachable!(), |_| true), attempts.failure()),
            (Ok(true), None)
        );
        let mut attempts = Attempts::new(Duration::from_secs(10_000));
        assert_eq!(attempts.step(|| Err("never"), |_| false), Err(GaveUp::Failed("never")));
    }

    #[test]
    fn the_last_attempt_begins_although_a_pause_is_not_over_and_is_given_time() {
        let Some(mut attempts) = after(8) else { return };
        attempts.failure = Some("no path");
        attempts.next = Instant::now() + Duration::from_secs(5_000);
        assert_eq!(attempts.step(|| Ok(false), |_| true), Ok(false));
        assert_eq!(attempts.clone().step(|| Ok(true), |_| true), Ok(true));
        let refused = attempts.clone().step(|| Err("still no path"), |_| true);
        assert_eq!(refused, Err(GaveUp::Failed("still no path")));
        attempts.since = after(9).map_or(attempts.since, |later| later.since);
        assert_eq!(attempts.step(|| Ok(false), |_| true), Err(GaveUp::Failed("no path")));
        let Some(mut attempts) = after(9) else { return };
        assert_eq!(attempts.clone().step(|| Ok(true), |_| true), Ok(true));
        assert_eq!(
            attempts.step(|| Ok(false), |_| true),
            Err(GaveUp::Searching(StillSearching { limit: attempts.limit }))
        );
    }
}
