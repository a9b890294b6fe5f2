//! Asynchronous events of a device (`ibv_get_async_event`).

use polyrail_core::hardware::CqId;

/// An event that no completion reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A port went down.
    PortError {
        /// Its number, from 1 on.
        port: u8,
    },
    /// A port came up.
    PortActive {
        /// Its number, from 1 on.
        port: u8,
    },
    /// A completion queue overran and is broken.
    CqError {
        /// The queue.
        cq: CqId,
    },
    /// A queue pair in SQD has no more requests in progress.
    SqDrained {
        /// The queue pair.
        qp_num: u32,
    },
    /// A peer's request was invalid, and the queue pair is in ERR.
    QpAccessError {
        /// The queue pair.
        qp_num: u32,
    },
    /// A queue pair in ERR will take no more receives from its shared receive queue.
    LastWqeReached {
        /// The queue pair.
        qp_num: u32,
    },
    /// A shared receive queue fell below its limit; the limit is disarmed.
    SrqLimitReached,
    /// The device is gone.
    DeviceFatal,
}
