//! Faults of drivers, as plain data.

use polyrail_core::hardware::Refusal;
use std::time::Duration;

/// The queues that a fault affects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkQueue {
    /// Send queues.
    Send,
    /// Receive queues, shared ones included.
    Recv,
}

/// A fault of a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverFault {
    /// Accepts only some requests of one batch. A batch with at most this many requests passes, and
    /// the fault is over.
    AcceptOnly {
        /// The queues whose batches are affected.
        queue: WorkQueue,
        /// Number of batches that pass before; 0 is the next one.
        nth_batch: u32,
        /// Number of requests that are accepted.
        requests: u32,
        /// The driver's error for the next request.
        refusal: Refusal,
    },
    /// Reports that its queue is full, even if there is room.
    QueueFull {
        /// The queues whose batches are affected.
        queue: WorkQueue,
        /// Number of batches.
        commits: u32,
    },
    /// Returns completions only this long after the poll that finds them; zero ends it. Completions
    /// that are held back then keep their delay, and later completions wait behind them.
    DelayCompletions(Duration),
    /// Fails to poll.
    FailPolls {
        /// The driver's code.
        errno: i32,
        /// Number of polls; 0 ends it.
        polls: u32,
    },
    /// Does not report yet that a queue pair in ERR took its last receive from a shared receive
    /// queue.
    DelayLastWqe {
        /// Number of queries; 0 ends it.
        asks: u32,
    },
}
