//! One line of a table of measurements.

use super::setting::Setting;
use polyrail_program::job::Shape;
use polyrail_program::perf::{Measurement, PerfConfig};
use serde::Serialize;

/// One line of a table of measurements.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Line<T = Measurement> {
    pub(super) operation: &'static str,
    #[serde(flatten)]
    pub(super) shape: Shape,
    pub(super) threads: u8,
    #[serde(flatten)]
    pub(super) measured: T,
    #[serde(flatten)]
    setting: Setting,
}

impl<T> Line<T> {
    pub(super) fn new(threads: u8, config: &PerfConfig, setting: Setting, measured: T) -> Self {
        let operation = config.operation.name();
        Self { operation, shape: config.shape(), threads, measured, setting }
    }

    /// Returns the name of the lines that differ only in size: the operation, and the scheme if
    /// any.
    pub(super) fn series(&self) -> String {
        match self.shape.scheme_name() {
            "-" => self.operation.to_owned(),
            scheme => format!("{} {scheme}", self.operation),
        }
    }
}
