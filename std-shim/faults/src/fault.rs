//! What a driver can do wrong, as plain data.

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

/// What a driver does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverFault {
    /// Takes only some requests of one batch. A batch that has no more than these passes, and the fault
    /// is over.
    AcceptOnly {
        /// The queues whose batches are affected.
        queue: WorkQueue,
        /// Batches that pass before; 0 is the next one.
        nth_batch: u32,
        /// Requests that are taken.
        requests: u32,
        /// The driver's error for the next one.
        refusal: Refusal,
    },
    /// Reports that its queue is full, even if there is room.
    QueueFull {
        /// The queues whose batches are affected.
        queue: WorkQueue,
        /// For how many batches.
        commits: u32,
    },
    /// Shows completions only this time after the poll that finds them; zero ends it. What is held back
    /// then keeps its time, and what comes after it waits behind it.
    DelayCompletions(Duration),
    /// Fails to poll.
    FailPolls {
        /// The driver's code.
        errno: i32,
        /// For how many polls; 0 ends it.
        polls: u32,
    },
    /// Does not know yet whether a queue pair in ERR took its last receive from a shared receive queue.
    DelayLastWqe {
        /// For how many times that it is asked; 0 ends it.
        asks: u32,
    },
}
