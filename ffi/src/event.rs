//! Asynchronous events of a device, as plain data; they are read in [`crate::event_queue`].

use polyrail_core::hardware::CqId;

/// Identifies a shared receive queue by a number that is unique in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SrqId(pub u64);

/// An event that no completion reports (`enum ibv_event_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A completion queue overran, or failed otherwise.
    CqError(CqId),
    /// A queue pair failed and is in ERR.
    QpFatal {
        /// The queue pair.
        qp_num: u32,
    },
    /// A peer's request was invalid; the queue pair is in ERR.
    QpRequestError {
        /// The queue pair.
        qp_num: u32,
    },
    /// A peer's request violated access rights; the queue pair is in ERR.
    QpAccessError {
        /// The queue pair.
        qp_num: u32,
    },
    /// The first packet arrived at a queue pair in RTR.
    CommunicationEstablished {
        /// The queue pair.
        qp_num: u32,
    },
    /// A queue pair in SQD has no more requests in progress.
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
    /// A queue pair in ERR took its last receive from its shared receive queue.
    LastWqeReached {
        /// The queue pair.
        qp_num: u32,
    },
    /// A shared receive queue failed.
    SrqError(SrqId),
    /// A shared receive queue fell below its limit, which is now disarmed.
    SrqLimitReached(SrqId),
    /// The device failed or was removed.
    DeviceFatal,
    /// The data rate of a port of the device has changed: see
    /// [`Context::query_port_speed`](crate::Context::query_port_speed). Some drivers raise it
    /// whenever the state of a port changes.
    DeviceSpeedChange,
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
    /// A port's subnet manager requests that clients register again.
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
