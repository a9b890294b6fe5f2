//! Creates queue pairs.

use super::QueuePair;
use super::abandon::Abandon;
use super::last_state::LastState;
use super::last_wqe::LastWqe;
use super::send::{Lists, Sender};
use super::service::Service;
use super::transition::move_to_err;
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

/// Capacities of a queue pair (`struct ibv_qp_cap`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpCap {
    /// Maximum outstanding send requests.
    pub max_send_wr: u32,
    /// Maximum outstanding receives; 0 with a shared receive queue.
    pub max_recv_wr: u32,
    /// Maximum length of an inline request in bytes.
    pub max_inline_data: u32,
    /// Maximum scatter/gather entries per send request.
    pub max_send_sge: u32,
    /// Maximum scatter/gather entries per receive; with a shared receive queue, its limit applies.
    pub max_recv_sge: u32,
}

impl Default for QpCap {
    /// 128 requests in each direction with one scatter/gather entry each, and 64 bytes inline.
    fn default() -> Self {
        Self::new(128, 128, 64)
    }
}

impl QpCap {
    /// Capacities with one scatter/gather entry per request.
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

    /// Converts the capacities that a driver granted. If a driver reports no scatter/gather limit,
    /// it granted the requested one.
    fn granted(raw: &ibv_qp_cap, asked: Self) -> Self {
        let cap = Self::from_raw(raw);
        Self {
            max_send_sge: cap.max_send_sge.max(asked.max_send_sge),
            max_recv_sge: cap.max_recv_sge.max(asked.max_recv_sge),
            ..cap
        }
    }
}

/// Which functions of libibverbs post send requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PostMode {
    /// `ibv_wr_*` if the device supports it without known defects, else `ibv_post_send`. rxe posts
    /// by `ibv_post_send` if requests may have several scatter/gather entries.
    #[default]
    Auto,
    /// `ibv_wr_*`, which write directly into the driver's queue. A batch is accepted completely or
    /// not at all. With rxe's library, all buffers of a request must have the same length; other
    /// lists are refused with EOPNOTSUPP.
    Extended,
    /// `ibv_post_send`, which takes a list of requests. A driver may accept a prefix of the list.
    Classic,
}

/// Attributes of a new queue pair (`struct ibv_qp_init_attr`).
#[derive(Clone, Copy, Debug)]
pub struct QpInit<'a> {
    /// Completion queue of send requests.
    pub send_cq: &'a CqHandle,
    /// Completion queue of receives; may be the completion queue of send requests.
    pub recv_cq: &'a CqHandle,
    /// Shared receive queue; `None` if the queue pair has its own receive queue.
    pub srq: Option<&'a SharedReceiveQueue>,
    /// Capacities.
    pub cap: QpCap,
    /// Whether every send request generates a completion, even without SIGNALED.
    pub sq_sig_all: bool,
    /// Which functions of libibverbs post send requests.
    pub post_mode: PostMode,
    /// A value that events of the queue pair return to the user. The crate does not interpret it.
    pub user_context: usize,
}

impl<'a> QpInit<'a> {
    /// Attributes with one completion queue, no shared receive queue, and completions only for
    /// SIGNALED requests.
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

    /// Refuses objects of another device: drivers identify objects by handles, which are unique per
    /// device only.
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

/// A queue pair as the driver created it.
struct Made {
    raw: Owned<ibv_qp>,
    cap: QpCap,
    sender: Sender,
}

impl ProtectionDomain {
    /// Creates a queue pair, in RESET.
    ///
    /// # Errors
    ///
    /// EINVAL: a capability is over the device's limits, or an object belongs to another device;
    /// ENOMEM, ENOSPC: too many queue pairs, or the limit of locked memory is too low; EOPNOTSUPP:
    /// the device does not support the service, or [`PostMode::Extended`].
    pub fn create_qp<S: Service>(&self, init: &QpInit<'_>) -> Result<QueuePair<S>> {
        self.for_call("ibv_create_qp")?;
        init.check_device(self)?;
        let named = Arc::new(Named { id: ReceiveEnd::default(), user_context: init.user_context });
        let context = Named::as_ptr(&named);
        let Made { mut raw, cap, sender } = match init.post_mode {
            PostMode::Classic => classic(self, init, context, S::TYPE),
            PostMode::Extended => extended(self, init, context, S::TYPE, S::OPS),
            PostMode::Auto if miscounts_lists(self) && init.cap.max_send_sge > 1 => {
                classic(self, init, context, S::TYPE)
            }
            // If the error has another cause than extended posting, the second attempt returns it.
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
        let (raw, state) = (Arc::new(raw), Arc::new(LastState::new()));
        Ok(QueuePair {
            _abandon: Abandon::new(&raw, &state, move_to_err),
            raw: Some(raw),
            last_wqe: LastWqe::new(named),
            sender,
            receives: Chain::new(limits.max_recv_wr, cap.max_recv_sge),
            state,
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

/// Whether `ibv_wr_set_sge_list` computes a wrong message length: rxe's library (rdma-core 44)
/// multiplies the length of the first buffer by the number of buffers.
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
    // SAFETY: null, or a new queue pair that nothing else owns.
    let raw = unsafe { Owned::new(raw, "ibv_create_qp", init.argument()) }?;
    let cap = QpCap::granted(&attr.cap, init.cap);
    let chain = Chain::new(cap.max_send_wr, cap.max_send_sge);
    Ok(Made { raw, cap, sender: Sender::Classic(chain) })
}

/// Requests the first set of operations that the device supports.
fn extended(
    pd: &ProtectionDomain,
    init: &QpInit<'_>,
    qp_context: *mut c_void,
    qp_type: ibv_qp_type::Type,
    sets: &[u64],
) -> Result<Made> {
    let (&most, fewer) = sets.split_first().expect("every service has a set of operations");
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
    // SAFETY: a C struct of numbers and pointers, so zeros are valid.
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
    // SAFETY: null, or a new queue pair that nothing else owns.
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
