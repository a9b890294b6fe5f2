//! What a thread that polls does when there is nothing to do.

use std::time::Duration;

/// Idle rounds before the processor is offered to others, and before it is given up.
// Under loom each round more is many interleavings more.
const SPINS: u32 = if cfg!(polyrail_loom) { 0 } else { 64 };
const YIELDS: u32 = if cfg!(polyrail_loom) { 0 } else { 4096 };

/// How long a thread sleeps while a device may complete something: devices do not wake it.
pub const NAP: Duration = Duration::from_micros(50);

/// Counts rounds without anything to do: 64 of them in which a thread looks again at once, about
/// 4000 in which it lets others run in between, and from then on it should sleep.
///
/// ```
/// use polyrail::idle::{Idle, Rest};
///
/// let mut idle = Idle::default();
/// assert_eq!(idle.rest(), Rest::Spin);
/// let slept = (0..5000).find(|_| idle.rest() == Rest::Sleep);
/// assert!(slept.is_some());
/// idle.reset();
/// assert_eq!(idle.rest(), Rest::Spin);
/// ```
#[derive(Debug, Default)]
pub struct Idle {
    rounds: u32,
}

/// What to do about a round without anything to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Look again at once.
    Spin,
    /// Let others run first.
    Yield,
    /// Sleep, until woken or for a [nap](NAP).
    Sleep,
}

impl Idle {
    /// There was something to do.
    pub const fn reset(&mut self) {
        self.rounds = 0;
    }

    /// Another round without anything to do.
    pub const fn rest(&mut self) -> Rest {
        if self.rounds >= YIELDS {
            return Rest::Sleep;
        }
        self.rounds += 1;
        if self.rounds <= SPINS { Rest::Spin } else { Rest::Yield }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_spins_then_yields_then_sleeps_until_there_is_something() {
        let mut idle = Idle::default();
        let count = |idle: &mut Idle, rest| (0..10_000).take_while(|_| idle.rest() == rest).count();
        for _ in 0..2 {
            assert_eq!(count(&mut idle, Rest::Spin), 64);
            // One was taken by the count before.
            assert_eq!(count(&mut idle, Rest::Yield), 4096 - 64 - 1);
            assert_eq!(count(&mut idle, Rest::Sleep), 10_000);
            idle.reset();
        }
    }
}
