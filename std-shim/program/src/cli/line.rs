//! One line of the sweep.

use polyrail_program::job::Shape;
use polyrail_program::perf::Measurement;
use serde::Serialize;

/// One line of the sweep.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Line {
    pub(super) operation: &'static str,
    #[serde(flatten)]
    pub(super) shape: Shape,
    pub(super) threads: u8,
    #[serde(flatten)]
    pub(super) measured: Measurement,
}

impl Line {
    /// Returns what distinguishes lines besides the size.
    pub(super) fn series(&self) -> String {
        match self.shape.scheme_name() {
            "-" => self.operation.to_owned(),
            scheme => format!("{} {scheme}", self.operation),
        }
    }
}
