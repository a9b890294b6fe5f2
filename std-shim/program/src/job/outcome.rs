//! The result of a job that a side reports at the end.

use serde::Serialize;
use std::fmt;

/// The result of a job that a side reports at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum JobOutcome {
    /// Length and checksum of the file.
    Copy(Sum),
    /// Counts of directories and several files.
    Tree(TreeSum),
    /// Counts of the measured requests.
    Perf {
        /// At the near end: requests that were posted and completed. At the far end: requests that
        /// arrived, or 0 for an operation that the far end does not notice.
        requests: u64,
        /// Requests that the far end posted, if both ends did.
        #[serde(skip_serializing_if = "Option::is_none")]
        back: Option<Back>,
    },
}

impl JobOutcome {
    /// Returns length and checksum of the file, if the job was a copy.
    pub const fn sum(self) -> Option<Sum> {
        match self {
            Self::Copy(sum) => Some(sum),
            Self::Tree(_) | Self::Perf { .. } => None,
        }
    }

    /// Returns the counts, if the job was a copy of directories.
    pub const fn tree(self) -> Option<TreeSum> {
        match self {
            Self::Tree(sum) => Some(sum),
            Self::Copy(_) | Self::Perf { .. } => None,
        }
    }

    /// Returns the number of requests, if the job was a measurement.
    pub const fn requests(self) -> Option<u64> {
        match self {
            Self::Perf { requests, .. } => Some(requests),
            Self::Copy(_) | Self::Tree(_) => None,
        }
    }

    /// Returns the requests that the far end posted, if both ends did.
    pub const fn back(self) -> Option<Back> {
        match self {
            Self::Perf { back, .. } => back,
            Self::Copy(_) | Self::Tree(_) => None,
        }
    }
}

/// Requests that the far end posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Back {
    /// Requests that were posted; all are complete.
    pub posted: u64,
    /// Requests that were complete when the near end was done.
    pub completed: u64,
    /// Time until then in nanoseconds, at least 1.
    pub nanoseconds: u64,
}

impl Back {
    /// Returns the number of completed requests per second.
    pub fn per_second(self) -> f64 {
        self.completed as f64 / (self.nanoseconds as f64 / 1e9)
    }
}

/// Length and checksum of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sum {
    /// Number of bytes.
    pub bytes: u64,
    /// CRC-32 (IEEE 802.3) of the bytes, as computed by `crc32(1)` and gzip.
    pub crc32: u32,
}

/// Counts of a copy of directories and several files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TreeSum {
    /// Files that were sent.
    pub files: u64,
    /// Files that the receiver had already.
    pub unchanged: u64,
    /// Bytes of the files that were sent, without holes.
    pub bytes: u64,
    /// Files that were not sent, because they are neither files nor directories.
    pub skipped: u64,
}

impl fmt::Display for TreeSum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { files, unchanged, bytes, .. } = self;
        write!(f, "{bytes} bytes of {files} files, and {unchanged} unchanged files")
    }
}
