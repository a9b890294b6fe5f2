//! Jobs of two sides, copying files or measuring requests: plain data, and its encoding on a
//! [control channel](polyrail::link).
//!
//! The side that requests a job states it as the purpose of its hello. At the end both sides send
//! `done` with their results:
//!
//! | purpose | done |
//! |---|---|
//! | `{"copy":{"plan":{"total":1073741824,"chunk":1048576,"window":8},"name":"model.bin","mode":420,"overwrite":true}}` | `{"copy":{"bytes":1073741824,"crc32":3504400640}}` |
//! | `{"tree":{"plan":{"chunk":1048576,"window":8},"overwrite":true}}` | `{"tree":{"files":31,"unchanged":4,"bytes":52428800,"skipped":0}}` |
//! | `{"pull":{"plan":{"chunk":1048576,"window":8},"path":"model/step1"}}` | the same, `tree` |
//! | `{"perf":{"operation":"write","messageSize":65536,"window":8,"answered":false,"bidirectional":false,"inline":0}}` | `{"perf":{"requests":81920}}` |
//!
//! A [server](crate::serve) waits for the other side's hello, uses the same number of rails, and
//! sends `done` last: when the files are complete, or when all measured requests have arrived. In a
//! `pull`, the side that asks receives the files, and sends `done` last.
//!
//! # Files
//!
//! `purpose` has both jobs and their encoding; `plan` and `file_name` belong to a copy, `workload`
//! to a measurement; `ring` places requests in memory, `shape` describes how requests are sent;
//! `outcome` is the result of a side.

mod file_name;
mod outcome;
mod plan;
mod purpose;
mod ring;
mod shape;
#[cfg(test)]
mod tests;
mod workload;

pub use file_name::{FileName, MAX_NAME_BYTES};
pub use outcome::{Back, JobOutcome, Sum, TreeSum};
pub use plan::{CopyPlan, CopyPlanError, MAX_CHUNK, MAX_WINDOW, MIN_TREE_CHUNK, TreePlan};
pub use purpose::{CopyJob, Hello, Incoming, Job, Link, Message, PullJob, TreeJob};
pub use shape::Shape;
pub use workload::{
    ATOMIC_SIZE, MAX_IN_FLIGHT, MAX_IN_FLIGHT_OVER_RAILS, MAX_INLINE, MAX_MESSAGE_SIZE, Operation,
    Workload, WorkloadError,
};
