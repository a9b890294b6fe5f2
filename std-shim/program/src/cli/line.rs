//! One line of the sweep.

use polyrail_program::perf::Measurement;
use serde::Serialize;

/// One line of the sweep.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Line {
    pub(super) operation: &'static str,
    /// `-` where it makes no difference.
    pub(super) scheme: &'static str,
    pub(super) message_size: u32,
    pub(super) rails: usize,
    pub(super) devices: usize,
    pub(super) max_msg_size: u32,
    pub(super) window: u32,
    pub(super) threads: u8,
    #[serde(flatten)]
    pub(super) measured: Measurement,
}

impl Line {
    /// What distinguishes lines besides the size.
    pub(super) fn series(&self) -> String {
        match self.scheme {
            "-" => self.operation.to_owned(),
            scheme => format!("{} {scheme}", self.operation),
        }
    }
}
