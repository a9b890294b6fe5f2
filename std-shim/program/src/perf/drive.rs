//! The loops of a measurement: one end keeps a window of requests in flight, the other receives
//! them. The two ends may be in one thread, two threads or two processes, and the requests may be
//! of any kind.

use super::config::Limit;
use super::cpu_time::cpu_time;
use super::error::PerfError;
use super::progress::PerfProgress;
use super::round::Round;
use super::sampler::Sampler;
use super::timeline::Sample;
use crate::session::SessionError;
use polyrail::virtual_qp::RailCounters;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Time between checks for silent rails. A time and not a count, because a round of the loop can
/// take a second over slow paths.
const WATCH_EVERY: Duration = Duration::from_millis(1);

/// How long requests may be missing at the receiver after the sender saw them acknowledged. By then
/// their completions are either in the receiver's queue or lost. Also how long requests in flight
/// may take after an interrupt.
pub(super) const LATE: Duration = Duration::from_secs(2);

/// Idle rounds before the thread yields the processor: longer than a request takes on an emulated
/// processor, and some tens of microseconds on a real one. There, a yield during a half round trip
/// of 60 us made it a quarter longer. perftest never yields.
const ROUNDS_PER_YIELD: u32 = 1024;

/// Yields the processor after some idle rounds, so that the other end can run on the same one.
/// Never sleeps, because measured requests would wait.
#[derive(Debug, Default)]
pub(super) struct Eager {
    idle_rounds: u32,
}

impl Eager {
    #[inline]
    pub(super) fn note(&mut self, busy: bool) {
        self.idle_rounds = if busy { 0 } else { self.idle_rounds + 1 };
        if self.idle_rounds == ROUNDS_PER_YIELD {
            self.idle_rounds = 0;
            std::thread::yield_now();
        }
    }
}

/// Watches for an interrupt, after which requests in flight have a limited time to complete.
#[derive(Debug, Default)]
pub(super) struct Interrupt(Option<Instant>);

impl Interrupt {
    /// Returns whether the measurement is interrupted.
    ///
    /// # Errors
    ///
    /// It has been for [`LATE`], and requests are still not complete.
    pub(super) fn check(&mut self, progress: &PerfProgress) -> Result<bool, SessionError> {
        if !progress.is_interrupted() {
            return Ok(false);
        }
        let since = self.0.get_or_insert_with(Instant::now);
        if since.elapsed() >= LATE { Err(SessionError::Interrupted) } else { Ok(true) }
    }
}

/// An end of a measurement, for any kind of request.
pub(super) trait Flush {
    /// Flushes all requests from the devices, for at most `timeout`.
    fn flush(&mut self, timeout: Duration);
}

/// The end that posts requests, numbered from 0.
pub(super) trait Sender: Flush {
    /// Posts the next request; returns `false` if there is no room until something completes.
    fn post(&mut self) -> Result<bool, PerfError>;

    /// Polls completions, and returns whether there were any. If both ends send, also receives the
    /// other end's requests, and makes room for more.
    fn poll(&mut self) -> Result<bool, PerfError>;

    /// Returns how many requests of the other end have arrived, for operations that the receiver
    /// notices.
    fn arrived(&self) -> u64;

    /// Returns how many requests were posted.
    fn posted(&self) -> u64;

    /// Returns how many requests are complete.
    fn completed(&self) -> u64;

    /// Returns the maximum number of requests in flight.
    fn window(&self) -> u64;

    /// Returns the size of a request in bytes.
    fn message_size(&self) -> u64;

    /// Checks that requests make progress.
    fn check_progress(&mut self) -> Result<(), PerfError>;

    /// Returns the counters of each rail that carries payload.
    fn rails(&self) -> impl Iterator<Item = RailCounters>;

    /// Returns the sum of the counters of all rails.
    fn counters(&self) -> RailCounters;

    /// Returns the name of the device of a rail that carries payload.
    fn device_of(&self, rail: usize) -> String;

    /// Returns the sampler of this end.
    fn sampler(&mut self) -> &mut Sampler;
}

/// The end that receives requests.
pub(super) trait Receiver: Flush {
    /// Polls arrived requests, and returns whether there were any.
    fn poll(&mut self) -> Result<bool, PerfError>;

    /// Returns how many requests arrived.
    fn received(&self) -> u64;

    /// Returns whether this many requests have arrived; true for operations that the receiver does
    /// not notice.
    fn has_all(&self, requests: u64) -> bool;
}

/// Returns the names of the rails that carry payload, with their devices.
pub(super) fn rail_names(sender: &impl Sender) -> Vec<String> {
    let rails = 0..sender.rails().count();
    rails.map(|rail| format!("rail {rail} ({})", sender.device_of(rail))).collect()
}

/// Returns the sum of the counters of rails.
pub(super) fn sum(rails: impl Iterator<Item = RailCounters>) -> RailCounters {
    rails.fold(RailCounters::default(), |sum, rail| RailCounters {
        bytes: sum.bytes + rail.bytes,
        send_requests: sum.send_requests + rail.send_requests,
        doorbells: sum.doorbells + rail.doorbells,
        completions: sum.completions + rail.completions,
        errors: sum.errors + rail.errors,
    })
}

/// Posts requests up to the limit or an interrupt, and polls until all are complete. Every round of
/// the loop calls `other`, which runs the other end and returns whether that end has received
/// everything posted.
pub(super) fn send(
    sender: &mut impl Sender,
    limit: Limit,
    progress: &PerfProgress,
    mut other: impl FnMut(u64) -> Result<bool, PerfError>,
) -> Result<Round, PerfError> {
    let begin = Instant::now();
    let cpu_before = cpu_time();
    let first = sender.posted();
    let mut interrupt = Interrupt::default();
    let mut last = match limit {
        Limit::Count(count) => first + count,
        Limit::Time(_) => u64::MAX,
    };
    let mut next_watch = WATCH_EVERY;
    let mut idle = Eager::default();
    watch(sender, Duration::ZERO);
    loop {
        fill(sender, last)?;
        let busy = sender.poll()?;
        let received = other(sender.posted())?;
        if received && sender.completed() >= last {
            let time = begin.elapsed();
            watch_end(sender, time);
            let cpu = cpu_time().saturating_sub(cpu_before);
            return Ok(Round { requests: sender.posted() - first, back: None, time, cpu });
        }
        idle.note(busy);
        let elapsed = begin.elapsed();
        if let Limit::Time(time) = limit
            && elapsed >= time
        {
            last = sender.posted();
        }
        if elapsed >= next_watch {
            next_watch = elapsed + WATCH_EVERY;
            // The processor time counts until here, so the samples do, too.
            let checked = interrupt.check(progress).inspect_err(|_| watch_end(sender, elapsed));
            if checked? {
                last = sender.posted();
            }
            sender.check_progress()?;
            watch(sender, elapsed);
        }
    }
}

/// Posts requests with numbers below `last`, until the window is full or the queue has no room.
pub(super) fn fill(sender: &mut impl Sender, last: u64) -> Result<(), PerfError> {
    let last = last.min(sender.completed() + sender.window());
    while sender.posted() < last && sender.post()? {}
    Ok(())
}

/// Takes a sample if the sampler is on and a sample is due.
fn watch(sender: &mut impl Sender, at: Duration) {
    if sender.sampler().is_due(at) {
        let sample = sample(sender, at);
        sender.sampler().note(sample);
    }
}

/// Takes the last sample if the sampler is on.
fn watch_end(sender: &mut impl Sender, at: Duration) {
    if sender.sampler().is_on() {
        let sample = sample(sender, at);
        sender.sampler().note_end(sample);
    }
}

/// Returns a sample.
fn sample(sender: &impl Sender, at: Duration) -> Sample {
    let completed = sender.completed() * sender.message_size();
    let rails = sender.rails().map(|rail| rail.bytes).collect();
    Sample { at, completed, rails }
}

/// Polls until `stop` is set.
pub(super) fn receive_until(
    receiver: &mut impl Receiver,
    stop: &AtomicBool,
) -> Result<(), PerfError> {
    let mut idle = Eager::default();
    while !stop.load(Ordering::Acquire) {
        idle.note(receiver.poll()?);
    }
    Ok(())
}
