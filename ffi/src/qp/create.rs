//! Making queue pairs.

use super::QueuePair;
use super::last_state::LastState;
use super::last_wqe::LastWqe;
use super::send::{Lists, Sender};
use super::service::Service;
use crate::chain::Chain;
use crate::context::Context;
use crate::cq::CqHandle;
use crate::end::ReceiveEnd;
use crate::error::{Argument, Result, VerbsError};
use crate::named::Named;
use crate::owned::{Kept, Owned};
use crate::pd::ProtectionDomain;
use crate::srq::SharedReceiveQueue;
use polyrail_core::hardware::QpLimits;
use rdma_sys::{
    ibv_qp, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_init_attr_mask, ibv_qp_type,
};
use std::ffi::c_void;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// How large a queue pair is (`struct ibv_qp_cap`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpCap {
    /// Send requests that may be outstanding.
    pub max_send_wr: u32,
    /// Receives that may be outstanding; none with a shared receive queue.
    pub max_recv_wr: u32,
    /// Bytes of an inline request.
    pub max_inline_data: u32,
    /// Buffers of one send request.
    pub max_send_sge: u32,
    /// Buffers of one receive; with a shared receive queue, that one's count.
    pub max_recv_sge: u32,
}

impl Default for QpCap {
    /// 128 requests each way of one buffer each, 64 bytes inline.
    fn default() -> Self {
        Self::new(128, 128, 64)
    }
}

impl QpCap {
    /// So many requests of one buffer each, and bytes inline.
    pub const fn new(max_send_wr: u32, max_recv_wr: u32, max_inline_data: u32) -> Self {
        Self { max_send_wr, max_recv_wr, max_inline_data, max_send_sge: 1, max_recv_sge: 1 }
    }

    fn raw(self, has_srq: bool) -> ibv_qp_cap {
        ibv_qp_cap {
            max_send_wr: self.max_send_wr,
            max_recv_wr: if has_srq { 0 } else { self.max_recv_wr },
            max_send_sge: self.max_send_sge,
            max_recv_sge: if has_srq { 0 } else { self.max_recv_sge },
            max_inline_data: self.max_inline_data,
        }
    }

    pub(super) fn from_raw(raw: &ibv_qp_cap) -> Self {
        Self {
            max_send_wr: raw.max_send_wr,
            max_recv_wr: raw.max_recv_wr,
            max_inline_data: raw.max_inline_data,
            max_send_sge: raw.max_send_sge,
            max_recv_sge: raw.max_recv_sge,
        }
    }

    /// What a driver granted. One that tells no count of buffers granted what it was asked for.
    fn granted(raw: &ibv_qp_cap, asked: Self) -> Self {
        let cap = Self::from_raw(raw);
        Self {
            max_send_sge: cap.max_send_sge.max(asked.max_send_sge),
            max_recv_sge: cap.max_recv_sge.max(asked.max_recv_sge),
            ..cap
        }
    }
}

/// How send requests get to the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PostMode {
    /// By `ibv_wr_*` where the device offers it and does it right, else by `ibv_post_send`: with rxe, if requests
    /// are to have several buffers.
    #[default]
    Auto,
    /// By `ibv_wr_*`: straight into the driver's queue. A batch is taken whole or not at all. With rxe's library
    /// requests have one buffer, or several of the same length; lists of others are refused with EOPNOTSUPP.
    Extended,
    /// By `ibv_post_send`: a list of requests, of which a driver may take the first few.
    Classic,
}

/// What a new queue pair is made of (`struct ibv_qp_init_attr`).
#[derive(Clone, Copy, Debug)]
pub struct QpInit<'a> {
    /// Where send requests complete.
    pub send_cq: &'a CqHandle,
    /// Where receives complete; may be the same.
    pub recv_cq: &'a CqHandle,
    /// Where receives come from; `None`: the queue pair has its own.
    pub srq: Option<&'a SharedReceiveQueue>,
    /// How large.
    pub cap: QpCap,
    /// Every send request completes visibly, SIGNALED or not.
    pub sq_sig_all: bool,
    /// How send requests get to the driver.
    pub post_mode: PostMode,
    /// What its user knows it by: given back with its events, and never looked at.
    pub user_context: usize,
}

impl<'a> QpInit<'a> {
    /// One completion queue for everything, own receives, completions only where asked for.
    pub fn new(cq: &'a impl AsRef<CqHandle>, cap: QpCap) -> Self {
        let cq = cq.as_ref();
        Self {
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            cap,
            sq_sig_all: false,
            post_mode: PostMode::default(),
            user_context: 0,
        }
    }

    fn srq_ptr(&self) -> *mut rdma_sys::ibv_srq {
        self.srq.map_or(ptr::null_mut(), |srq| srq.shared().as_ptr())
    }

    /// Drivers look objects up by handles, which other devices use for other objects.
    fn check_device(&self, pd: &ProtectionDomain) -> Result<()> {
        let own = |context: &Context| context.id() == pd.context().id();
        let srq = self.srq.map(SharedReceiveQueue::context);
        if own(self.send_cq.context()) && own(self.recv_cq.context()) && srq.is_none_or(own) {
            return Ok(());
        }
        Err(VerbsError::new(
            "ibv_create_qp",
            libc::EINVAL,
            Argument::Device(pd.context().device_name()),
        ))
    }

    fn argument(&self) -> Argument {
        Argument::Number("max_send_wr", self.cap.max_send_wr.into())
    }
}

/// A queue pair that the driver made.
struct Made {
    raw: Owned<ibv_qp>,
    cap: QpCap,
    sender: Sender,
}

impl ProtectionDomain {
    /// A new queue pair, in RESET.
    ///
    /// # Errors
    ///
    /// EINVAL: a capability is over the device's limits, or an object belongs to another device;
    /// ENOMEM, ENOSPC: too many queue pairs, or too little memory may be locked; EOPNOTSUPP: the
    /// device does not offer the service, or [`PostMode::Extended`].
    pub fn create_qp<S: Service>(&self, init: &QpInit<'_>) -> Result<QueuePair<S>> {
        init.check_device(self)?;
        let named = Arc::new(Named { id: ReceiveEnd::default(), user_context: init.user_context });
        let context = Named::as_ptr(&named);
        let Made { mut raw, cap, sender } = match init.post_mode {
            PostMode::Classic => classic(self, init, context, S::TYPE),
            PostMode::Extended => extended(self, init, context, S::TYPE, S::OPS),
            PostMode::Auto if miscounts_lists(self) && init.cap.max_send_sge > 1 => {
                classic(self, init, context, S::TYPE)
            }
            // If it is not the way of posting that is refused, the second attempt says why.
            PostMode::Auto => extended(self, init, context, S::TYPE, S::OPS)
                .or_else(|_| classic(self, init, context, S::TYPE)),
        }?;
        raw.keep(Arc::clone(&named) as Kept);
        let limits = QpLimits {
            max_send_wr: cap.max_send_wr,
            max_recv_wr: if init.srq.is_some() { 0 } else { cap.max_recv_wr },
            max_inline_data: cap.max_inline_data,
            max_msg_size: self.context().max_msg_size(),
            max_send_sge: if sender.miscounts_lists() { 1 } else { cap.max_send_sge },
            max_recv_sge: if init.srq.is_some() { 0 } else { cap.max_recv_sge },
        };
        // SAFETY: the queue pair is alive, and its number does not change.
        let qp_num = unsafe { (*raw.as_ptr()).qp_num };
        Ok(QueuePair {
            raw: Some(raw),
            last_wqe: LastWqe::new(named),
            sender,
            receives: Chain::new(limits.max_recv_wr, cap.max_recv_sge),
            state: LastState::new(),
            limits,
            qp_num,
            send_cq: init.send_cq.clone(),
            recv_cq: init.recv_cq.clone(),
            srq: init.srq.map(|srq| Arc::clone(srq.shared())),
            pd: self.clone(),
            service: PhantomData,
        })
    }
}

/// Whether `ibv_wr_set_sge_list` is wrong about the length of a message: rxe's library (rdma-core 44) adds up
/// that of the first buffer, as many times as there are buffers.
fn miscounts_lists(pd: &ProtectionDomain) -> bool {
    pd.context().attributes().is_rxe()
}

fn classic(
    pd: &ProtectionDomain,
    init: &QpInit<'_>,
    qp_context: *mut c_void,
    qp_type: ibv_qp_type::Type,
) -> Result<Made> {
    let mut attr = ibv_qp_init_attr {
        qp_context,
        send_cq: init.send_cq.as_ptr(),
        recv_cq: init.recv_cq.as_ptr(),
        srq: init.srq_ptr(),
        cap: init.cap.raw(init.srq.is_some()),
        qp_type,
        sq_sig_all: init.sq_sig_all.into(),
    };
    // SAFETY: the domain, the completion queues and the receive queue are alive.
    let raw = unsafe { rdma_sys::ibv_create_qp(pd.as_ptr(), &raw mut attr) };
    // SAFETY: null, or a fresh queue pair that is handed over.
    let raw = unsafe { Owned::new(raw, "ibv_create_qp", init.argument()) }?;
    let cap = QpCap::granted(&attr.cap, init.cap);
    let chain = Chain::new(cap.max_send_wr, cap.max_send_sge);
    Ok(Made { raw, cap, sender: Sender::Classic(chain) })
}

/// Asks for the first set of operations that the device offers.
fn extended(
    pd: &ProtectionDomain,
    init: &QpInit<'_>,
    qp_context: *mut c_void,
    qp_type: ibv_qp_type::Type,
    sets: &[u64],
) -> Result<Made> {
    let (&most, fewer) = sets.split_first().expect("a service has operations");
    extended_with(pd, init, qp_context, qp_type, most).or_else(|error| match error.errno {
        libc::EOPNOTSUPP if !fewer.is_empty() => extended(pd, init, qp_context, qp_type, fewer),
        _ => Err(error),
    })
}

fn extended_with(
    pd: &ProtectionDomain,
    init: &QpInit<'_>,
    qp_context: *mut c_void,
    qp_type: ibv_qp_type::Type,
    operations: u64,
) -> Result<Made> {
    const CALL: &str = "ibv_create_qp_ex";
    // SAFETY: a C struct of numbers and pointers, for which zeros do.
    let mut attr = unsafe { MaybeUninit::<ibv_qp_init_attr_ex>::zeroed().assume_init() };
    attr.qp_context = qp_context;
    attr.send_cq = init.send_cq.as_ptr();
    attr.recv_cq = init.recv_cq.as_ptr();
    attr.srq = init.srq_ptr();
    attr.cap = init.cap.raw(init.srq.is_some());
    attr.qp_type = qp_type;
    attr.sq_sig_all = init.sq_sig_all.into();
    attr.comp_mask = (ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD
        | ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS)
        .0;
    attr.pd = pd.as_ptr();
    attr.send_ops_flags = operations;
    // SAFETY: the context, the domain, the completion queues and the receive queue are alive.
    let raw = unsafe { crate::sys::create_qp_ex(pd.context().as_ptr(), &raw mut attr) };
    // SAFETY: null, or a fresh queue pair that is handed over.
    let raw = unsafe { Owned::new(raw, CALL, init.argument()) }?;
    // SAFETY: the queue pair is alive.
    let ex = unsafe { rdma_sys::ibv_qp_to_qp_ex(raw.as_ptr()) };
    if ex.is_null() {
        return Err(VerbsError::new(CALL, libc::EOPNOTSUPP, init.argument()));
    }
    let cap = QpCap::granted(&attr.cap, init.cap);
    let lists = Lists::new(cap.max_send_sge, cap.max_inline_data, miscounts_lists(pd));
    let sender = Sender::Extended { qp: ex, operations, building: AtomicBool::new(false), lists };
    Ok(Made { raw, cap, sender })
}
