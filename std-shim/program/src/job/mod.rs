//! What two sides meet for: a file is to be copied, or requests are to be measured. Plain data, and
//! how it travels over a [link](polyrail::exchange).
//!
//! The side that asks states the job in its hello, and both say in the end what they saw of it:
//!
//! | purpose | done |
//! |---|---|
//! | `{"copy":{"plan":{"total":1073741824,"chunk":1048576,"window":8},"name":"model.bin"}}` | `{"copy":{"bytes":1073741824,"crc32":3504400640}}` |
//! | `{"perf":{"operation":"write","messageSize":65536,"window":8}}` | `{"perf":{"requests":81920}}` |
//!
//! A [server](crate::serve) waits for the other side's hello, whose rails it adopts, and says `done`
//! last: when the file is complete, when everything measured has arrived.
//!
//! # Files
//!
//! `purpose` is both and their form; `plan` and `file_name` are of a copy, `workload` is of a
//! measurement; `ring` is how both lay requests into memory, `shape` how requests go; `outcome` is what is said in the end.

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
pub use outcome::{JobOutcome, Sum};
pub use plan::{CopyPlan, CopyPlanError, MAX_CHUNK, MAX_WINDOW};
pub use purpose::{Control, Hello, Incoming, Job, Message};
pub use shape::Shape;
pub use workload::{MAX_MESSAGE_SIZE, Operation, Workload, WorkloadError};
