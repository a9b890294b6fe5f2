//! Asynchronous events of a device (`ibv_get_async_event`).

use polyrail_core::hardware::CqId;

/// Something that happened without a request's completion to report it.
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
    /// A queue pair in SQD has nothing under way any more.
    SqDrained {
        /// The queue pair.
        qp_num: u32,
    },
    /// A peer's request broke the rules, and the queue pair is in ERR.
    QpAccessError {
        /// The queue pair.
        qp_num: u32,
    },
    /// A queue pair with a shared receive queue, in ERR, will take no receive from it any more.
    LastWqeReached {
        /// The queue pair.
        qp_num: u32,
    },
    /// A shared receive queue fell below its limit; the limit is disarmed.
    SrqLimitReached,
    /// The device is gone.
    DeviceFatal,
}
