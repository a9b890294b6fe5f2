//! Asynchronous events of a device.

use crate::context::Context;
use crate::error::{Argument, Result, VerbsError};
use polyrail_core::hardware::CqId;
use rdma_sys::{ibv_async_event, ibv_event_type as raw};
use std::mem::MaybeUninit;

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

impl Context {
    /// The oldest event that was not read. Does not block; wait for
    /// [`event_fd`](Self::event_fd).
    ///
    /// Every event is acknowledged when it is read, so that no object waits for it when it is
    /// destroyed.
    ///
    /// # Errors
    ///
    /// What reading the file descriptor reports.
    pub fn next_event(&self) -> Result<Option<AsyncEvent>> {
        let mut event = MaybeUninit::<ibv_async_event>::zeroed();
        // SAFETY: the context is open, and the event is written to a local variable.
        if unsafe { rdma_sys::ibv_get_async_event(self.as_ptr(), event.as_mut_ptr()) } != 0 {
            let error = VerbsError::last("ibv_get_async_event", Argument::None);
            return if error.errno == libc::EAGAIN { Ok(None) } else { Err(error) };
        }
        // SAFETY: the event came from the library and is not acknowledged.
        let known = unsafe { read(event.as_ptr()) };
        // SAFETY: as above; it is acknowledged once.
        unsafe { rdma_sys::ibv_ack_async_event(event.as_mut_ptr()) };
        Ok(Some(known))
    }
}

/// The numbers of the kinds, to be matched against what comes: a newer kernel may send one that the
/// enum does not have.
macro_rules! kinds {
    ($($name:ident = $kind:ident;)*) => { $(const $name: u32 = raw::$kind as u32;)* };
}

kinds! {
    CQ_ERR = IBV_EVENT_CQ_ERR;
    QP_FATAL = IBV_EVENT_QP_FATAL;
    QP_REQ_ERR = IBV_EVENT_QP_REQ_ERR;
    QP_ACCESS_ERR = IBV_EVENT_QP_ACCESS_ERR;
    COMM_EST = IBV_EVENT_COMM_EST;
    SQ_DRAINED = IBV_EVENT_SQ_DRAINED;
    PATH_MIG = IBV_EVENT_PATH_MIG;
    PATH_MIG_ERR = IBV_EVENT_PATH_MIG_ERR;
    DEVICE_FATAL = IBV_EVENT_DEVICE_FATAL;
    PORT_ACTIVE = IBV_EVENT_PORT_ACTIVE;
    PORT_ERR = IBV_EVENT_PORT_ERR;
    LID_CHANGE = IBV_EVENT_LID_CHANGE;
    PKEY_CHANGE = IBV_EVENT_PKEY_CHANGE;
    SM_CHANGE = IBV_EVENT_SM_CHANGE;
    SRQ_ERR = IBV_EVENT_SRQ_ERR;
    SRQ_LIMIT_REACHED = IBV_EVENT_SRQ_LIMIT_REACHED;
    QP_LAST_WQE_REACHED = IBV_EVENT_QP_LAST_WQE_REACHED;
    CLIENT_REREGISTER = IBV_EVENT_CLIENT_REREGISTER;
    GID_CHANGE = IBV_EVENT_GID_CHANGE;
}

/// # Safety
///
/// The event came from `ibv_get_async_event` and is not acknowledged: then what it names still
/// exists, since destroying it waits for the acknowledgement.
unsafe fn read(event: *const ibv_async_event) -> AsyncEvent {
    // SAFETY: read as the number that it is in C.
    let kind = unsafe { (&raw const (*event).event_type).cast::<u32>().read() };
    // SAFETY: an initialised union of pointers and a number; its kind says which.
    let element = unsafe { &(*event).element };
    // SAFETY: only called for kinds whose element is a queue pair, which still exists.
    let qp_num = || unsafe { (*element.qp).qp_num };
    // SAFETY: likewise for completion queues.
    let cq = || crate::cq::named(unsafe { (*element.cq).cq_context });
    // SAFETY: likewise for shared receive queues.
    let srq = || SrqId(unsafe { (*element.srq).srq_context }.addr() as u64);
    // SAFETY: likewise for ports; every bit pattern is a number.
    let port = || unsafe { element.port_num } as u8;
    match kind {
        CQ_ERR => AsyncEvent::CqError(cq()),
        QP_FATAL => AsyncEvent::QpFatal { qp_num: qp_num() },
        QP_REQ_ERR => AsyncEvent::QpRequestError { qp_num: qp_num() },
        QP_ACCESS_ERR => AsyncEvent::QpAccessError { qp_num: qp_num() },
        COMM_EST => AsyncEvent::CommunicationEstablished { qp_num: qp_num() },
        SQ_DRAINED => AsyncEvent::SqDrained { qp_num: qp_num() },
        PATH_MIG => AsyncEvent::PathMigrated { qp_num: qp_num() },
        PATH_MIG_ERR => AsyncEvent::PathMigrationFailed { qp_num: qp_num() },
        QP_LAST_WQE_REACHED => AsyncEvent::LastWqeReached { qp_num: qp_num() },
        SRQ_ERR => AsyncEvent::SrqError(srq()),
        SRQ_LIMIT_REACHED => AsyncEvent::SrqLimitReached(srq()),
        DEVICE_FATAL => AsyncEvent::DeviceFatal,
        PORT_ACTIVE => AsyncEvent::PortActive { port: port() },
        PORT_ERR => AsyncEvent::PortError { port: port() },
        LID_CHANGE => AsyncEvent::LidChange { port: port() },
        PKEY_CHANGE => AsyncEvent::PkeyChange { port: port() },
        SM_CHANGE => AsyncEvent::SmChange { port: port() },
        CLIENT_REREGISTER => AsyncEvent::ClientReregister { port: port() },
        GID_CHANGE => AsyncEvent::GidChange { port: port() },
        other => AsyncEvent::Other(other),
    }
}
