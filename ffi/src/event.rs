//! Asynchronous events of a device, as plain data; they are read in [`crate::event_queue`].

use polyrail_core::hardware::CqId;

/// A shared receive queue, by a number that is unique in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SrqId(pub u64);

/// Something that happened without a completion to report it (`enum ibv_event_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A completion queue overran, or broke otherwise.
    CqError(CqId),
    /// A queue pair broke, and is in ERR.
    QpFatal {
        /// The queue pair.
        qp_num: u32,
    },
    /// A peer's request was invalid; the queue pair is in ERR.
    QpRequestError {
        /// The queue pair.
        qp_num: u32,
    },
    /// A peer's request touched what it must not; the queue pair is in ERR.
    QpAccessError {
        /// The queue pair.
        qp_num: u32,
    },
    /// The first packet came to a queue pair in RTR.
    CommunicationEstablished {
        /// The queue pair.
        qp_num: u32,
    },
    /// A queue pair in SQD has nothing under way any more.
    SqDrained {
        /// The queue pair.
        qp_num: u32,
    },
    /// A connection moved to its alternate path.
    PathMigrated {
        /// The queue pair.
        qp_num: u32,
    },
    /// A connection could not move to its alternate path.
    PathMigrationFailed {
        /// The queue pair.
        qp_num: u32,
    },
    /// A queue pair with a shared receive queue, in ERR, will take no receive from it any more.
    LastWqeReached {
        /// The queue pair.
        qp_num: u32,
    },
    /// A shared receive queue broke.
    SrqError(SrqId),
    /// A shared receive queue fell below its limit; the limit is disarmed.
    SrqLimitReached(SrqId),
    /// The device is gone, or beyond repair.
    DeviceFatal,
    /// A port came up.
    PortActive {
        /// Its number, from 1 on.
        port: u8,
    },
    /// A port went down.
    PortError {
        /// Its number, from 1 on.
        port: u8,
    },
    /// A port's LID changed.
    LidChange {
        /// Its number, from 1 on.
        port: u8,
    },
    /// A port's P_Key table changed.
    PkeyChange {
        /// Its number, from 1 on.
        port: u8,
    },
    /// A port has another subnet manager.
    SmChange {
        /// Its number, from 1 on.
        port: u8,
    },
    /// A port's subnet manager wants clients to register again.
    ClientReregister {
        /// The port's number, from 1 on.
        port: u8,
    },
    /// A port's GID table changed.
    GidChange {
        /// Its number, from 1 on.
        port: u8,
    },
    /// Anything else, by its number.
    Other(u32),
}
