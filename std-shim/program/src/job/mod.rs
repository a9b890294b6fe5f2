//! What two sides meet for: a file is to be copied, or requests are to be measured. Plain data, and
//! how it travels over a [control channel](polyrail::exchange).
//!
//! The side that asks states the job in its hello, and at the end both report what they saw of it:
//!
//! | purpose | done |
//! |---|---|
//! | `{"copy":{"plan":{"total":1073741824,"chunk":1048576,"window":8},"name":"model.bin","mode":420,"overwrite":true}}` | `{"copy":{"bytes":1073741824,"crc32":3504400640}}` |
//! | `{"perf":{"operation":"write","messageSize":65536,"window":8,"answered":false,"bidirectional":false,"inline":0}}` | `{"perf":{"requests":81920}}` |
//!
//! A [server](crate::serve) waits for the other side's hello, adopts its rails, and sends `done` last: when
//! the file is complete, or when everything measured has arrived.
//!
//! # Files
//!
//! `purpose` is both jobs and their form on the wire; `plan` and `file_name` belong to a copy,
//! `workload` to a measurement; `ring` places requests in memory, `shape` is how requests are sent;
//! `outcome` is the report at the end.

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
pub use outcome::{Back, JobOutcome, Sum};
pub use plan::{CopyPlan, CopyPlanError, MAX_CHUNK, MAX_WINDOW};
pub use purpose::{Control, CopyJob, Hello, Incoming, Job, Message};
pub use shape::Shape;
pub use workload::{
    ATOMIC_SIZE, MAX_IN_FLIGHT, MAX_IN_FLIGHT_OVER_RAILS, MAX_INLINE, MAX_MESSAGE_SIZE, Operation,
    Workload, WorkloadError,
};
