//! The classic completion queue, polled by `ibv_poll_cq`.

use super::{CqHandle, CqInit, name};
use crate::context::Context;
use crate::error::{Argument, Result};
use crate::named::Named;
use crate::owned::{CloseError, Owned};
use polyrail_core::hardware::{self, CqError, CqId, assume_init_slice};
use polyrail_core::verbs::{Completion, DeviceId, WcFlags, WcOpcode, WcStatus};
use polyrail_core::virtual_cq::POLL_BATCH;
use rdma_sys::{ibv_wc, ibv_wc_flags, ibv_wc_opcode, ibv_wc_status};
use static_assertions::{assert_eq_align, assert_eq_size, const_assert_eq};
use std::mem::{MaybeUninit, offset_of};

// The driver writes `ibv_wc`, and Rust reads the same memory as `Completion`.
assert_eq_size!(Completion, ibv_wc);
assert_eq_align!(Completion, ibv_wc);
const_assert_eq!(offset_of!(Completion, wr_id), offset_of!(ibv_wc, wr_id));
const_assert_eq!(offset_of!(Completion, status), offset_of!(ibv_wc, status));
const_assert_eq!(offset_of!(Completion, opcode), offset_of!(ibv_wc, opcode));
const_assert_eq!(offset_of!(Completion, vendor_err), offset_of!(ibv_wc, vendor_err));
const_assert_eq!(offset_of!(Completion, byte_len), offset_of!(ibv_wc, byte_len));
const_assert_eq!(offset_of!(Completion, imm), offset_of!(ibv_wc, imm_data_invalidated_rkey_union));
const_assert_eq!(offset_of!(Completion, qp_num), offset_of!(ibv_wc, qp_num));
const_assert_eq!(offset_of!(Completion, src_qp), offset_of!(ibv_wc, src_qp));
const_assert_eq!(offset_of!(Completion, wc_flags), offset_of!(ibv_wc, wc_flags));
const_assert_eq!(offset_of!(Completion, pkey_index), offset_of!(ibv_wc, pkey_index));
const_assert_eq!(offset_of!(Completion, slid), offset_of!(ibv_wc, slid));
const_assert_eq!(offset_of!(Completion, sl), offset_of!(ibv_wc, sl));
const_assert_eq!(offset_of!(Completion, dlid_path_bits), offset_of!(ibv_wc, dlid_path_bits));

// Numbers of statuses, opcodes and flags are those of the header.
const_assert_eq!(WcStatus::SUCCESS.0, ibv_wc_status::IBV_WC_SUCCESS);
const_assert_eq!(WcStatus::LOC_LEN_ERR.0, ibv_wc_status::IBV_WC_LOC_LEN_ERR);
const_assert_eq!(WcStatus::LOC_QP_OP_ERR.0, ibv_wc_status::IBV_WC_LOC_QP_OP_ERR);
const_assert_eq!(WcStatus::LOC_EEC_OP_ERR.0, ibv_wc_status::IBV_WC_LOC_EEC_OP_ERR);
const_assert_eq!(WcStatus::LOC_PROT_ERR.0, ibv_wc_status::IBV_WC_LOC_PROT_ERR);
const_assert_eq!(WcStatus::WR_FLUSH_ERR.0, ibv_wc_status::IBV_WC_WR_FLUSH_ERR);
const_assert_eq!(WcStatus::MW_BIND_ERR.0, ibv_wc_status::IBV_WC_MW_BIND_ERR);
const_assert_eq!(WcStatus::BAD_RESP_ERR.0, ibv_wc_status::IBV_WC_BAD_RESP_ERR);
const_assert_eq!(WcStatus::LOC_ACCESS_ERR.0, ibv_wc_status::IBV_WC_LOC_ACCESS_ERR);
const_assert_eq!(WcStatus::REM_INV_REQ_ERR.0, ibv_wc_status::IBV_WC_REM_INV_REQ_ERR);
const_assert_eq!(WcStatus::REM_ACCESS_ERR.0, ibv_wc_status::IBV_WC_REM_ACCESS_ERR);
const_assert_eq!(WcStatus::REM_OP_ERR.0, ibv_wc_status::IBV_WC_REM_OP_ERR);
const_assert_eq!(WcStatus::RETRY_EXC_ERR.0, ibv_wc_status::IBV_WC_RETRY_EXC_ERR);
const_assert_eq!(WcStatus::RNR_RETRY_EXC_ERR.0, ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR);
const_assert_eq!(WcStatus::LOC_RDD_VIOL_ERR.0, ibv_wc_status::IBV_WC_LOC_RDD_VIOL_ERR);
const_assert_eq!(WcStatus::REM_INV_RD_REQ_ERR.0, ibv_wc_status::IBV_WC_REM_INV_RD_REQ_ERR);
const_assert_eq!(WcStatus::REM_ABORT_ERR.0, ibv_wc_status::IBV_WC_REM_ABORT_ERR);
const_assert_eq!(WcStatus::INV_EECN_ERR.0, ibv_wc_status::IBV_WC_INV_EECN_ERR);
const_assert_eq!(WcStatus::INV_EEC_STATE_ERR.0, ibv_wc_status::IBV_WC_INV_EEC_STATE_ERR);
const_assert_eq!(WcStatus::FATAL_ERR.0, ibv_wc_status::IBV_WC_FATAL_ERR);
const_assert_eq!(WcStatus::RESP_TIMEOUT_ERR.0, ibv_wc_status::IBV_WC_RESP_TIMEOUT_ERR);
const_assert_eq!(WcStatus::GENERAL_ERR.0, ibv_wc_status::IBV_WC_GENERAL_ERR);
const_assert_eq!(WcOpcode::SEND.0, ibv_wc_opcode::IBV_WC_SEND);
const_assert_eq!(WcOpcode::RDMA_WRITE.0, ibv_wc_opcode::IBV_WC_RDMA_WRITE);
const_assert_eq!(WcOpcode::RDMA_READ.0, ibv_wc_opcode::IBV_WC_RDMA_READ);
const_assert_eq!(WcOpcode::COMP_SWAP.0, ibv_wc_opcode::IBV_WC_COMP_SWAP);
const_assert_eq!(WcOpcode::FETCH_ADD.0, ibv_wc_opcode::IBV_WC_FETCH_ADD);
const_assert_eq!(WcOpcode::BIND_MW.0, ibv_wc_opcode::IBV_WC_BIND_MW);
const_assert_eq!(WcOpcode::LOCAL_INV.0, ibv_wc_opcode::IBV_WC_LOCAL_INV);
const_assert_eq!(WcOpcode::RECV.0, ibv_wc_opcode::IBV_WC_RECV);
const_assert_eq!(WcOpcode::RECV_RDMA_WITH_IMM.0, ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM);
const_assert_eq!(WcFlags::GRH.bits(), ibv_wc_flags::IBV_WC_GRH.0);
const_assert_eq!(WcFlags::WITH_IMM.bits(), ibv_wc_flags::IBV_WC_WITH_IMM.0);
const_assert_eq!(WcFlags::IP_CSUM_OK.bits(), ibv_wc_flags::IBV_WC_IP_CSUM_OK.0);
const_assert_eq!(WcFlags::WITH_INV.bits(), ibv_wc_flags::IBV_WC_WITH_INV.0);

/// A completion queue (`struct ibv_cq`).
///
/// Drivers write only some fields of a failed completion. The memory that they write to is
/// therefore initialised at creation, and completions are copied out of it: undefined fields have
/// stale values, but are never uninitialised memory.
#[derive(Debug)]
pub struct CompletionQueue {
    handle: CqHandle,
    written: Box<[Completion; POLL_BATCH]>,
}

impl Context {
    /// Creates a completion queue.
    ///
    /// # Errors
    ///
    /// EINVAL: `cqe` is over `max_cqe`, the completion vector does not exist, or the channel
    /// belongs to another device; ENOMEM.
    pub fn create_cq(&self, init: &CqInit<'_>) -> Result<CompletionQueue> {
        let context = self.for_call("ibv_create_cq")?;
        let named = name(init);
        let user = Named::as_ptr(&named);
        let cqe = libc::c_int::try_from(init.cqe).unwrap_or(libc::c_int::MAX);
        let vector = libc::c_int::try_from(init.comp_vector).unwrap_or(libc::c_int::MAX);
        let channel = init.channel_ptr(self, "ibv_create_cq")?;
        // SAFETY: the context is open, the channel is alive or null, and `raw` keeps `cq_context`.
        let raw = unsafe { rdma_sys::ibv_create_cq(context, cqe, user, channel, vector) };
        let argument = Argument::Number("cqe", init.cqe.into());
        // SAFETY: null, or a new queue that nothing else owns.
        let raw = unsafe { Owned::new(raw, "ibv_create_cq", argument) }?;
        let blank = Completion::success(0, 0, WcOpcode::SEND);
        let written = Box::new([blank; POLL_BATCH]);
        Ok(CompletionQueue { handle: CqHandle::new(raw, self, init, named), written })
    }
}

impl CompletionQueue {
    /// Returns a handle for queue pairs and event loops.
    pub fn handle(&self) -> &CqHandle {
        &self.handle
    }

    /// Resizes the queue to at least `cqe` completions (`ibv_resize_cq`), more or fewer than
    /// before; drivers round up. Queued completions stay.
    ///
    /// # Errors
    ///
    /// EINVAL: `cqe` is over `max_cqe`, or below the number of queued completions. ENOSYS,
    /// EOPNOTSUPP: the driver does not support it. ENOMEM.
    pub fn resize(&mut self, cqe: u32) -> Result<()> {
        self.handle.resize(cqe)
    }

    /// Destroys the queue.
    ///
    /// # Errors
    ///
    /// A queue pair or another handle still uses the queue, or the driver reports an error.
    pub fn close(self) -> std::result::Result<(), CloseError> {
        self.handle.close()
    }

    /// Polls once: at most `most` completions and at most one batch.
    fn fetch(&mut self, most: usize) -> std::result::Result<&[Completion], CqError> {
        let most = most.min(POLL_BATCH);
        // SAFETY: the queue is alive, and the buffer has room for that many of the driver's
        // structs, each of whose bit patterns is a valid `Completion`.
        let got = unsafe {
            rdma_sys::ibv_poll_cq(
                self.handle.as_ptr(),
                most as i32,
                self.written.as_mut_ptr().cast::<ibv_wc>(),
            )
        };
        match usize::try_from(got) {
            Ok(got) => Ok(&self.written[..got.min(most)]),
            Err(_) => Err(self.handle.error(got)),
        }
    }
}

impl AsRef<CqHandle> for CompletionQueue {
    fn as_ref(&self) -> &CqHandle {
        &self.handle
    }
}

// SAFETY: each completion that libibverbs returns is passed on once, unchanged.
unsafe impl hardware::CompletionQueue for CompletionQueue {
    fn id(&self) -> CqId {
        self.handle.id()
    }

    fn device(&self) -> DeviceId {
        self.handle.device()
    }

    fn capacity(&self) -> u32 {
        self.handle.capacity()
    }

    fn poll<'o>(
        &mut self,
        out: &'o mut [MaybeUninit<Completion>],
    ) -> std::result::Result<&'o [Completion], CqError> {
        self.handle.check_process()?;
        let mut taken = 0;
        while taken < out.len() {
            let most = (out.len() - taken).min(POLL_BATCH);
            let got = match self.fetch(most) {
                Ok([]) => break,
                Ok(got) => got,
                Err(error) if taken == 0 => return Err(error),
                // Completions taken so far are returned; the next poll reports the error again.
                Err(_) => break,
            };
            for (place, completion) in out[taken..].iter_mut().zip(got) {
                place.write(*completion);
            }
            taken += got.len();
            if got.len() < most {
                break;
            }
        }
        // SAFETY: the first `taken` were written above.
        Ok(unsafe { assume_init_slice(&out[..taken]) })
    }
}
