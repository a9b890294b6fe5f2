//! Measurements in both directions at once, within one process: each end posts requests, and
//! receives the other end's.

use super::config::{Limit, Threads};
use super::drive::{Eager, LATE, Sender, fill, rail_names, send};
use super::error::PerfError;
use super::progress::PerfProgress;
use super::round::{Ends, Round};
use super::sampler::Sampler;
use crate::threads::{join, start};
use polyrail::virtual_qp::RailCounters;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Rounds between two progress checks in the loop that posts requests until it is stopped.
const ROUNDS_PER_CHECK: u32 = 4096;

/// Two ends that send to each other.
pub(super) struct BothWays<S> {
    pub(super) near: S,
    pub(super) far: S,
    pub(super) threads: Threads,
    /// Whether the ends notice each other's requests.
    pub(super) noticed: bool,
}

/// Posts requests until it is stopped.
#[derive(Debug, Default)]
pub(super) struct Endless {
    rounds: u32,
    pub(super) idle: Eager,
}

impl Endless {
    /// Runs one round of the loop; returns whether anything completed.
    pub(super) fn round(&mut self, sender: &mut impl Sender) -> Result<bool, PerfError> {
        fill(sender, u64::MAX)?;
        let busy = sender.poll()?;
        self.rounds += 1;
        if self.rounds.is_multiple_of(ROUNDS_PER_CHECK) {
            sender.check_progress()?;
        }
        Ok(busy)
    }
}

impl<S: Sender + Send> BothWays<S> {
    /// Runs a round, and returns it with the number of requests that the far end completed
    /// meanwhile.
    fn round(&mut self, limit: Limit, progress: &PerfProgress) -> Result<Round, PerfError> {
        let Self { near, far, threads, .. } = self;
        let before = far.completed();
        let mut endless = Endless::default();
        if *threads == Threads::One {
            let round = send(near, limit, progress, |_| endless.round(far).map(|_| true))?;
            return Ok(Round { back: Some(far.completed() - before), ..round });
        }
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let other = start(scope, "posts at the far end", || {
                let mut posts = || {
                    while !stop.load(Ordering::Acquire) {
                        let busy = endless.round(far)?;
                        endless.idle.note(busy);
                    }
                    Ok::<_, PerfError>(far.completed() - before)
                };
                let posted = posts();
                // The near end has stopped, and waits for nothing more.
                stop.store(true, Ordering::Release);
                posted
            })?;
            let round = send(near, limit, progress, |_| match stop.load(Ordering::Acquire) {
                true => Err(PerfError::Lost { sent: 1, received: 0 }),
                false => Ok(true),
            });
            stop.store(true, Ordering::Release);
            let back = join(other);
            // If both fail, the far end's error is the cause.
            let back = Some(back?);
            Ok(Round { back, ..round? })
        })
    }

    /// Polls until all posted requests are complete and have arrived.
    fn settle(&mut self) -> Result<(), PerfError> {
        let mut done_since = None;
        loop {
            let busy = self.near.poll()? | self.far.poll()?;
            self.near.check_progress()?;
            self.far.check_progress()?;
            let is_done = |end: &S| end.completed() == end.posted();
            if !is_done(&self.near) || !is_done(&self.far) || busy {
                continue;
            }
            let ways = [(&self.near, &self.far), (&self.far, &self.near)];
            let counts = ways.map(|(from, to)| (from.posted(), to.arrived()));
            let lost = counts.into_iter().find(|(sent, received)| sent != received);
            let Some((sent, received)) = lost.filter(|_| self.noticed) else { return Ok(()) };
            let since = done_since.get_or_insert_with(Instant::now);
            if since.elapsed() >= LATE {
                return Err(PerfError::Lost { sent, received });
            }
        }
    }
}

impl<S: Sender + Send> Ends for BothWays<S> {
    fn counters(&self) -> RailCounters {
        self.near.counters()
    }

    fn rail_names(&self) -> Vec<String> {
        rail_names(&self.near)
    }

    fn sampler(&mut self) -> &mut Sampler {
        self.near.sampler()
    }

    /// Runs until the near end's requests are complete, then waits for the far end's, which no
    /// longer count.
    fn run(&mut self, limit: Limit, progress: &PerfProgress) -> Result<Round, PerfError> {
        let round = self.round(limit, progress)?;
        self.settle()?;
        Ok(round)
    }
}
