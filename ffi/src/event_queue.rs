//! Reads the asynchronous events of a device.

use crate::context::Context;
use crate::end::ReceiveEnd;
use crate::error::{Argument, Result, VerbsError};
use crate::event::{AsyncEvent, SrqId};
use crate::named::Named;
use polyrail_core::hardware::CqId;
use rdma_sys::{ibv_async_event, ibv_event_type as raw};
use std::mem::MaybeUninit;

const CALL: &str = "ibv_get_async_event";

impl Context {
    /// Returns the oldest unread event. Does not block: wait for [`event_fd`](Self::event_fd), then
    /// read until there is none.
    /// [`last_wqe_reached`](polyrail_core::hardware::QueuePair::last_wqe_reached) of a queue pair
    /// also reads events; they are kept here and returned by this method, but the file descriptor
    /// is no longer readable for them.
    ///
    /// All handles of a context share its events: each event is returned once.
    ///
    /// Every event is acknowledged when it is read, so destroying an object does not block on one.
    ///
    /// With `RDMAV_ALLOW_DISASSOC_DESTROY` in the environment, the library destroys the objects of
    /// a removed device without waiting for their events. Then no thread may read events, or call
    /// `last_wqe_reached`, while another thread destroys an object made from the context.
    ///
    /// # Errors
    ///
    /// Errors of reading the file descriptor.
    pub fn next_event(&self) -> Result<Option<AsyncEvent>> {
        Ok(self.next_event_and_user_context()?.map(|(event, _)| event))
    }

    /// Like [`next_event`](Self::next_event), with the `user_context` of the completion queue,
    /// queue pair or shared receive queue that the event names; 0 for events of a port or the
    /// device.
    ///
    /// # Errors
    ///
    /// Errors of reading the file descriptor.
    pub fn next_event_and_user_context(&self) -> Result<Option<(AsyncEvent, usize)>> {
        self.for_call(CALL)?;
        let mut kept = self.kept_events();
        kept.pop_front().map_or_else(|| self.read_event(), |event| Ok(Some(event)))
    }

    /// Reads all events, so that queue pairs record theirs, and keeps them for `next_event`.
    pub(crate) fn read_events(&self) -> Result<()> {
        self.for_call(CALL)?;
        let mut kept = self.kept_events();
        while let Some(event) = self.read_event()? {
            kept.push_back(event);
        }
        Ok(())
    }

    /// Reads the next event from the kernel. The caller holds the lock of the kept events, so that
    /// events stay in order.
    fn read_event(&self) -> Result<Option<(AsyncEvent, usize)>> {
        let mut event = MaybeUninit::<ibv_async_event>::zeroed();
        // SAFETY: the context is open, and the event is written to a local variable.
        if unsafe { rdma_sys::ibv_get_async_event(self.as_ptr(), event.as_mut_ptr()) } != 0 {
            let error = VerbsError::last(CALL, Argument::None);
            return if error.errno == libc::EAGAIN { Ok(None) } else { Err(error) };
        }
        // SAFETY: the event came from the library and is not acknowledged.
        let known = unsafe { read(event.as_ptr()) };
        // SAFETY: as above; each event is acknowledged once.
        unsafe { rdma_sys::ibv_ack_async_event(event.as_mut_ptr()) };
        Ok(Some(known))
    }
}

/// Defines the kinds as numbers, because a newer kernel may send a kind that the enum does not
/// have.
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

/// `IBV_EVENT_DEVICE_SPEED_CHANGE` of rdma-core 62, which follows the last event in the older
/// header of the bindings (`libibverbs/verbs.h`).
const DEVICE_SPEED_CHANGE: u32 = 20;

/// # Safety
///
/// The event came from `ibv_get_async_event` and is not acknowledged. The object that it names then
/// still exists, since destroying it waits for the acknowledgement.
unsafe fn read(event: *const ibv_async_event) -> (AsyncEvent, usize) {
    // SAFETY: read as the number that it is in C.
    let kind = unsafe { (&raw const (*event).event_type).cast::<u32>().read() };
    // SAFETY: an initialised union of pointers and a number; the kind determines the valid field.
    let element = unsafe { &(*event).element };
    let qp = |event: fn(u32) -> AsyncEvent| {
        // SAFETY: only called for kinds whose element is a queue pair, which still exists.
        let qp_num = unsafe { (*element.qp).qp_num };
        // SAFETY: as above; all queue pairs are created in this crate.
        let Named::<ReceiveEnd> { id: end, user_context } =
            unsafe { Named::at((*element.qp).qp_context) };
        let event = event(qp_num);
        end.record(&event);
        (event, *user_context)
    };
    let cq = |event: fn(CqId) -> AsyncEvent| {
        // SAFETY: as for queue pairs: all completion queues are created in this crate.
        let Named { id, user_context } = unsafe { Named::read((*element.cq).cq_context) };
        (event(id), user_context)
    };
    let srq = |event: fn(SrqId) -> AsyncEvent| {
        // SAFETY: as for queue pairs: all shared receive queues are created in this crate.
        let Named { id, user_context } = unsafe { Named::read((*element.srq).srq_context) };
        (event(id), user_context)
    };
    // SAFETY: only called for kinds whose element is a port number; every bit pattern is valid.
    let port = |event: fn(u8) -> AsyncEvent| (event(unsafe { element.port_num } as u8), 0);
    match kind {
        CQ_ERR => cq(AsyncEvent::CqError),
        QP_FATAL => qp(|qp_num| AsyncEvent::QpFatal { qp_num }),
        QP_REQ_ERR => qp(|qp_num| AsyncEvent::QpRequestError { qp_num }),
        QP_ACCESS_ERR => qp(|qp_num| AsyncEvent::QpAccessError { qp_num }),
        COMM_EST => qp(|qp_num| AsyncEvent::CommunicationEstablished { qp_num }),
        SQ_DRAINED => qp(|qp_num| AsyncEvent::SqDrained { qp_num }),
        PATH_MIG => qp(|qp_num| AsyncEvent::PathMigrated { qp_num }),
        PATH_MIG_ERR => qp(|qp_num| AsyncEvent::PathMigrationFailed { qp_num }),
        QP_LAST_WQE_REACHED => qp(|qp_num| AsyncEvent::LastWqeReached { qp_num }),
        SRQ_ERR => srq(AsyncEvent::SrqError),
        SRQ_LIMIT_REACHED => srq(AsyncEvent::SrqLimitReached),
        DEVICE_FATAL => (AsyncEvent::DeviceFatal, 0),
        DEVICE_SPEED_CHANGE => (AsyncEvent::DeviceSpeedChange, 0),
        PORT_ACTIVE => port(|port| AsyncEvent::PortActive { port }),
        PORT_ERR => port(|port| AsyncEvent::PortError { port }),
        LID_CHANGE => port(|port| AsyncEvent::LidChange { port }),
        PKEY_CHANGE => port(|port| AsyncEvent::PkeyChange { port }),
        SM_CHANGE => port(|port| AsyncEvent::SmChange { port }),
        CLIENT_REREGISTER => port(|port| AsyncEvent::ClientReregister { port }),
        GID_CHANGE => port(|port| AsyncEvent::GidChange { port }),
        other => (AsyncEvent::Other(other), 0),
    }
}
