//! The null device: the cheapest possible device.
//!
//! It only performs the memory accesses of a driver's posting and polling functions. Every request
//! is stored into a ring of 256 slots of 64 bytes and a doorbell follows with one release store;
//! completions are copied into 48-byte records, as many at a time as the caller has room for.
//! Floor, baseline and engine all run on it, so its own cost is the same for the three.
//!
//! A request counts as done at the doorbell: `commit` appends a note for each *signaled* request to
//! one ring for each completion queue, and polling turns notes into completions in that order. That
//! makes them FIFO on each queue pair, as verbs demands, and first rung, first completed between
//! queue pairs. [`Wire`] is the far end: it makes receives complete, in any order across queue
//! pairs.
//!
//! Storing a request is inlined into the code that builds it. Ringing a doorbell and polling are
//! function calls, as they are with a driver: the same machine code for all contenders, specialized
//! for none.
//!
//! The device never touches the memory that requests point to, checks no limit and never fails. It
//! lives on one thread.

mod completion_queue;
mod queue_pair;
mod receive_queue;

pub use completion_queue::{NullCq, Wire};
pub(crate) use queue_pair::MAX_SGE;
pub use queue_pair::{NullQp, NullSendBatch};
pub use receive_queue::{Inbox, NullRecvBatch, NullSrq};

/// Slots of a send or receive ring.
pub const RING_SLOTS: usize = 256;
