//! Queries the attributes of a queue pair.

use super::service::Service;
use super::{QpCap, QueuePair};
use crate::error::{Argument, Result, VerbsError};
use crate::path::Path;
use crate::port::Mtu;
use crate::qp_state::QpState;
use polyrail_core::verbs::AccessFlags;
use rdma_sys::{ibv_qp_attr, ibv_qp_attr_mask as mask, ibv_qp_init_attr};
use std::mem::MaybeUninit;

/// Attributes of a queue pair (`struct ibv_qp_attr`). Fields that its state or service does not use
/// have driver-defined values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpAttributes {
    /// The state.
    pub state: QpState,
    /// The state that the driver assumes (`IBV_QP_CUR_STATE`), which may lag behind a failure.
    pub cur_state: QpState,
    /// The path to the peer, if the queue pair has one.
    pub path: Option<Path>,
    /// Path MTU; `None` if the driver returned an unknown code.
    pub path_mtu: Option<Mtu>,
    /// The local port.
    pub port_num: u8,
    /// Index in the port's P_Key table.
    pub pkey_index: u16,
    /// Access rights of the peer.
    pub access: AccessFlags,
    /// The Q_Key that incoming datagrams must carry.
    pub qkey: u32,
    /// The peer's queue pair number.
    pub dest_qp_num: u32,
    /// The next packet sequence number expected.
    pub rq_psn: u32,
    /// The next packet sequence number to send.
    pub sq_psn: u32,
    /// READs and atomics that may be outstanding to the peer.
    pub max_rd_atomic: u8,
    /// READs and atomics that the peer may have outstanding.
    pub max_dest_rd_atomic: u8,
    /// See [`ToRtr::min_rnr_timer`](super::ToRtr::min_rnr_timer).
    pub min_rnr_timer: u8,
    /// See [`ToRts::timeout`](super::ToRts::timeout).
    pub timeout: u8,
    /// See [`ToRts::retry_cnt`](super::ToRts::retry_cnt).
    pub retry_cnt: u8,
    /// See [`ToRts::rnr_retry`](super::ToRts::rnr_retry).
    pub rnr_retry: u8,
    /// In SQD: whether requests are still in progress.
    pub sq_draining: bool,
    /// Capacities that the driver granted.
    pub cap: QpCap,
    /// Attributes that the queue pair was created with.
    pub init: QpInitAttributes,
}

/// Attributes that a queue pair was created with, as the driver reports them (`struct
/// ibv_qp_init_attr`). The service is its type; its [completion queues](QueuePair::send_cq),
/// [domain](QueuePair::pd) and [user context](QueuePair::user_context) are known without a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpInitAttributes {
    /// Capacities granted at creation.
    pub cap: QpCap,
    /// Whether every send request generates a completion, even without SIGNALED.
    pub sq_sig_all: bool,
    /// Whether receives come from a shared receive queue.
    pub has_srq: bool,
}

impl<S: Service> QueuePair<S> {
    /// Queries the present attributes (`ibv_query_qp`), including the state, which a failure can
    /// change at any time.
    ///
    /// # Errors
    ///
    /// Errors of the driver.
    pub fn query(&self) -> Result<QpAttributes> {
        self.check_alive("ibv_query_qp")?;
        let wanted = mask::IBV_QP_STATE
            | mask::IBV_QP_CUR_STATE
            | mask::IBV_QP_AV
            | mask::IBV_QP_PATH_MTU
            | mask::IBV_QP_PKEY_INDEX
            | mask::IBV_QP_PORT
            | mask::IBV_QP_ACCESS_FLAGS
            | mask::IBV_QP_QKEY
            | mask::IBV_QP_DEST_QPN
            | mask::IBV_QP_RQ_PSN
            | mask::IBV_QP_SQ_PSN
            | mask::IBV_QP_MAX_QP_RD_ATOMIC
            | mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | mask::IBV_QP_MIN_RNR_TIMER
            | mask::IBV_QP_TIMEOUT
            | mask::IBV_QP_RETRY_CNT
            | mask::IBV_QP_RNR_RETRY
            | mask::IBV_QP_CAP;
        let mut attr = MaybeUninit::<ibv_qp_attr>::zeroed();
        let mut init = MaybeUninit::<ibv_qp_init_attr>::zeroed();
        // SAFETY: the queue pair is alive; both structs are numbers and pointers, for which zeros
        // do.
        let returned = unsafe {
            rdma_sys::ibv_query_qp(
                self.as_ptr(),
                attr.as_mut_ptr(),
                wanted.0 as libc::c_int,
                init.as_mut_ptr(),
            )
        };
        let argument = Argument::Number("qp_num", self.qp_num.into());
        VerbsError::check(returned, "ibv_query_qp", argument)?;
        // SAFETY: at least zeroed.
        let (attr, init) = unsafe { (attr.assume_init_ref(), init.assume_init_ref()) };
        Ok(from_raw(attr, init))
    }
}

fn from_raw(raw: &ibv_qp_attr, init: &ibv_qp_init_attr) -> QpAttributes {
    QpAttributes {
        state: QpState::from_raw(raw.qp_state),
        cur_state: QpState::from_raw(raw.cur_qp_state),
        path: Path::from_raw(&raw.ah_attr),
        path_mtu: Mtu::from_raw(raw.path_mtu),
        port_num: raw.port_num,
        pkey_index: raw.pkey_index,
        access: AccessFlags::from_bits_retain(raw.qp_access_flags),
        qkey: raw.qkey,
        dest_qp_num: raw.dest_qp_num,
        rq_psn: raw.rq_psn,
        sq_psn: raw.sq_psn,
        max_rd_atomic: raw.max_rd_atomic,
        max_dest_rd_atomic: raw.max_dest_rd_atomic,
        min_rnr_timer: raw.min_rnr_timer,
        timeout: raw.timeout,
        retry_cnt: raw.retry_cnt,
        rnr_retry: raw.rnr_retry,
        sq_draining: raw.sq_draining != 0,
        cap: QpCap::from_raw(&raw.cap),
        init: QpInitAttributes {
            cap: QpCap::from_raw(&init.cap),
            sq_sig_all: init.sq_sig_all != 0,
            has_srq: !init.srq.is_null(),
        },
    }
}
