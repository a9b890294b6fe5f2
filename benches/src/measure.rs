//! Interleaved measurement: floor, baseline and engine take turns, so that whatever else the
//! machine does meanwhile meets them alike, and the median of each is taken.

use crate::rows::{Make, Row};
use std::time::Duration;

/// One turn of one contender: long enough for the clock and to warm the caches up again, short
/// enough that most turns are not interrupted on a machine with other work to do.
const TURN: Duration = Duration::from_millis(1);

/// A median of fewer repeats means little.
pub const MIN_REPEATS: u32 = 21;

/// The result of one contender.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// Median time of one operation.
    pub ns: f64,
    /// Heap allocations of one operation.
    pub allocs_per_op: f64,
}

/// The results of a row.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// The row.
    pub row: Row,
    /// The same work done raw.
    pub floor: Figures,
    /// The baseline: the design that the engine replaces.
    pub baseline: Figures,
    /// Ours.
    pub engine: Figures,
}

impl Measured {
    /// Engine over floor.
    pub fn floor_ratio(&self) -> f64 {
        self.engine.ns / self.floor.ns
    }

    /// Engine over baseline.
    pub fn baseline_ratio(&self) -> f64 {
        self.engine.ns / self.baseline.ns
    }

    /// Returns whether the engine meets the row's limit, to the printed precision.
    pub fn holds(&self) -> bool {
        self.row.time_limit.is_none_or(|limit| as_printed(self.floor_ratio()) <= limit)
            && self.row.baseline_limit.is_none_or(|limit| self.baseline_ratio() <= limit)
            && self.engine.allocs_per_op == 0.0
    }
}

/// A ratio to the precision that is printed.
pub fn as_printed(ratio: f64) -> f64 {
    (ratio * 100.0).round() / 100.0
}

/// What is timed: does its work as often as asked and returns how long that took.
pub type Timed = Box<dyn FnMut(u32) -> Duration>;

struct Runner {
    contender: Timed,
    rounds: u32,
    ns_per_round: Vec<f64>,
    allocations: u64,
}

impl Runner {
    /// Warms the contender up. Returns how many rounds make a turn.
    fn new(mut contender: Timed) -> Self {
        let mut rounds = 1;
        let mut elapsed = contender(rounds);
        while elapsed < TURN {
            rounds *= 2;
            elapsed = contender(rounds);
        }
        let rounds = (f64::from(rounds) * TURN.div_duration_f64(elapsed)).ceil() as u32;
        Self { contender, rounds, ns_per_round: Vec::new(), allocations: 0 }
    }

    fn turn(&mut self, allocations: fn() -> u64) {
        let before = allocations();
        let elapsed = (self.contender)(self.rounds);
        self.allocations += allocations() - before;
        self.ns_per_round.push(elapsed.as_nanos() as f64 / f64::from(self.rounds));
    }

    fn figures(mut self, operations: usize) -> Figures {
        let turns = self.ns_per_round.len();
        let all_operations = turns as f64 * f64::from(self.rounds) * operations as f64;
        self.ns_per_round.sort_unstable_by(f64::total_cmp);
        Figures {
            ns: self.ns_per_round[turns / 2] / operations as f64,
            allocs_per_op: self.allocations as f64 / all_operations,
        }
    }
}

/// Measures contenders in turns, `repeats` of them and at least [`MIN_REPEATS`]. `operations` is
/// what one round does; `allocations` returns the count so far.
pub fn measure_in_turns<const N: usize>(
    contenders: [Timed; N],
    operations: usize,
    repeats: u32,
    allocations: fn() -> u64,
) -> [Figures; N] {
    let mut runners = contenders.map(Runner::new);
    for _ in 0..repeats.max(MIN_REPEATS) {
        for runner in &mut runners {
            runner.turn(allocations);
        }
    }
    runners.map(|runner| runner.figures(operations))
}

/// Measures a row; see [`measure_in_turns`].
pub fn measure(row: Row, repeats: u32, allocations: fn() -> u64) -> Measured {
    let timed = |(_, make): (_, Make)| -> Timed {
        let mut contender = make();
        Box::new(move |bursts| contender.time(bursts))
    };
    let contenders = row.contenders().map(timed);
    let [floor, baseline, engine] =
        measure_in_turns(contenders, row.operations, repeats, allocations);
    Measured { row, floor, baseline, engine }
}
