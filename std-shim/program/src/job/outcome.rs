//! What a side reports at the end.

use serde::Serialize;

/// What a side reports at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum JobOutcome {
    /// What it saw of the file.
    Copy(Sum),
    /// What it saw of the requests that were measured.
    Perf {
        /// Requests that it posted and saw complete; at the far end, requests that arrived, or 0 for an
        /// operation that it does not notice.
        requests: u64,
        /// What the far end posted itself, if both did.
        #[serde(skip_serializing_if = "Option::is_none")]
        back: Option<Back>,
    },
}

impl JobOutcome {
    /// Returns what it saw of a file, if it copied one.
    pub const fn sum(self) -> Option<Sum> {
        match self {
            Self::Copy(sum) => Some(sum),
            Self::Perf { .. } => None,
        }
    }

    /// Returns how many requests it saw, if it measured.
    pub const fn requests(self) -> Option<u64> {
        match self {
            Self::Perf { requests, .. } => Some(requests),
            Self::Copy(_) => None,
        }
    }

    /// Returns what the far end posted itself, if both did.
    pub const fn back(self) -> Option<Back> {
        match self {
            Self::Perf { back, .. } => back,
            Self::Copy(_) => None,
        }
    }
}

/// What the far end posted itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Back {
    /// Requests that it posted, all complete.
    pub posted: u64,
    /// Those that were complete when the near end was done.
    pub completed: u64,
    /// How long that took, in nanoseconds; at least 1.
    pub nanoseconds: u64,
}

impl Back {
    /// Returns requests that were complete a second.
    pub fn per_second(self) -> f64 {
        self.completed as f64 / (self.nanoseconds as f64 / 1e9)
    }
}

/// What a side saw of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sum {
    /// Number of bytes.
    pub bytes: u64,
    /// Their CRC-32 (IEEE 802.3), as `crc32(1)` and gzip compute it.
    pub crc32: u32,
}
