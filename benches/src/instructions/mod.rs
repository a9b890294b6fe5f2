//! Instructions of every row, counted by callgrind. They are the same in every run, and independent
//! of other load.
//!
//! [`callgrind`] runs the contenders under valgrind and reads the counts; [`accepted`] compares
//! them with the accepted counts in `benches/instructions.json`.

pub mod accepted;
pub mod callgrind;

use serde::{Deserialize, Serialize};

/// Instructions of one operation of each contender of a row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Counts {
    /// The row.
    pub name: String,
    /// The same work done raw.
    pub floor: f64,
    /// The baseline: the design that the engine replaces.
    pub baseline: f64,
    /// Ours.
    pub engine: f64,
}

impl Counts {
    /// Engine over floor.
    pub fn floor_ratio(&self) -> f64 {
        self.engine / self.floor
    }

    /// Engine over baseline.
    pub fn baseline_ratio(&self) -> f64 {
        self.engine / self.baseline
    }
}
