//! What does a row's work, burst by burst, to be timed or to have its instructions counted.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// One of the three that do a row's work.
pub trait Contender {
    /// Does the work of `bursts` bursts. Returns how long that took.
    fn time(&mut self, bursts: u32) -> Duration;

    /// Does the same work, each burst within [`collected`].
    fn count(&mut self, bursts: u32);
}

/// The function whose instructions callgrind counts, with all that it calls.
#[inline(never)]
pub fn collected(burst: &mut dyn FnMut()) {
    burst();
    // Something to come back to: callgrind would not see the end of a tail call.
    black_box(());
}

/// Is timed as a whole.
struct Whole<B>(B);

impl<B: FnMut()> Contender for Whole<B> {
    fn time(&mut self, bursts: u32) -> Duration {
        let start = Instant::now();
        for _ in 0..bursts {
            (self.0)();
        }
        start.elapsed()
    }

    fn count(&mut self, bursts: u32) {
        for _ in 0..bursts {
            collected(&mut self.0);
        }
    }
}

/// Has each burst prepared, which is not measured.
struct Prepared<S, P, B> {
    state: S,
    prepare: P,
    burst: B,
    /// What reading the clock takes, as long as several completions.
    clock: Duration,
}

impl<S, P: FnMut(&mut S), B: FnMut(&mut S)> Contender for Prepared<S, P, B> {
    fn time(&mut self, bursts: u32) -> Duration {
        let mut elapsed = Duration::ZERO;
        for _ in 0..bursts {
            (self.prepare)(&mut self.state);
            let start = Instant::now();
            (self.burst)(&mut self.state);
            elapsed += start.elapsed();
        }
        elapsed.saturating_sub(self.clock * bursts)
    }

    fn count(&mut self, bursts: u32) {
        for _ in 0..bursts {
            (self.prepare)(&mut self.state);
            collected(&mut || (self.burst)(&mut self.state));
        }
    }
}

/// A contender that does nothing but its bursts.
pub fn whole(burst: impl FnMut() + 'static) -> Box<dyn Contender> {
    Box::new(Whole(burst))
}

/// A contender of which only `burst` is measured, and not what `prepare` does before each.
pub fn prepared<S: 'static>(
    state: S,
    prepare: impl FnMut(&mut S) + 'static,
    burst: impl FnMut(&mut S) + 'static,
) -> Box<dyn Contender> {
    Box::new(Prepared { state, prepare, burst, clock: clock_cost() })
}

/// What an empty interval measures: the median of many.
fn clock_cost() -> Duration {
    let mut intervals: Vec<_> = (0..10_001).map(|_| Instant::now().elapsed()).collect();
    intervals.sort_unstable();
    intervals[intervals.len() / 2]
}
