//! The extended completion queue, which can timestamp completions.

use super::{CqHandle, CqInit, name};
use crate::context::Context;
use crate::error::{Argument, Result};
use crate::named::Named;
use crate::owned::{CloseError, Owned};
use bitflags::bitflags;
use polyrail_core::hardware::{self, CqError, CqId, assume_init_slice};
use polyrail_core::verbs::{Completion, DeviceId, Imm, WcFlags, WcOpcode, WcStatus};
use rdma_sys::{ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_create_cq_wc_flags, ibv_poll_cq_attr};
use std::mem::MaybeUninit;
use std::ptr;

bitflags! {
    /// Timestamps of completions.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Timestamps: u64 {
        /// Ticks of the device's clock.
        const DEVICE =
            ibv_create_cq_wc_flags::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP.0 as u64;
        /// Nanoseconds of the wall clock.
        const WALL_CLOCK =
            ibv_create_cq_wc_flags::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK.0 as u64;
    }
}

/// `IBV_WC_STANDARD_FLAGS`: the fields of a classic completion.
const STANDARD: u64 = ibv_create_cq_wc_flags::IBV_WC_EX_WITH_BYTE_LEN.0 as u64
    | ibv_create_cq_wc_flags::IBV_WC_EX_WITH_IMM.0 as u64
    | ibv_create_cq_wc_flags::IBV_WC_EX_WITH_QP_NUM.0 as u64
    | ibv_create_cq_wc_flags::IBV_WC_EX_WITH_SRC_QP.0 as u64
    | ibv_create_cq_wc_flags::IBV_WC_EX_WITH_SLID.0 as u64
    | ibv_create_cq_wc_flags::IBV_WC_EX_WITH_SL.0 as u64
    | ibv_create_cq_wc_flags::IBV_WC_EX_WITH_DLID_PATH_BITS.0 as u64;

/// A completion with the timestamps that its queue was created with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtendedCompletion {
    /// The completion, as a classic queue reports it.
    pub completion: Completion,
    /// Ticks of the device's clock at completion.
    pub device_ticks: Option<u64>,
    /// Nanoseconds of the wall clock at completion.
    pub wall_clock_ns: Option<u64>,
}

/// An extended completion queue (`struct ibv_cq_ex`).
///
/// It takes one completion per poll (`ibv_start_poll`, `ibv_end_poll`), because `ibv_next_poll` of
/// rxe (rdma-core 44) is faulty. [`CompletionQueue`](super::CompletionQueue) is faster if no
/// timestamps are needed.
#[derive(Debug)]
pub struct ExtendedCompletionQueue {
    handle: CqHandle,
    timestamps: Timestamps,
}

impl Context {
    /// Creates an extended completion queue, which reports everything that a classic one reports,
    /// with timestamps.
    ///
    /// # Errors
    ///
    /// EOPNOTSUPP: the device does not support these timestamps, or extended queues; EINVAL: `cqe`
    /// is over `max_cqe`, or the completion vector does not exist; ENOMEM.
    pub fn create_extended_cq(
        &self,
        init: &CqInit<'_>,
        timestamps: Timestamps,
    ) -> Result<ExtendedCompletionQueue> {
        const CALL: &str = "ibv_create_cq_ex";
        let context = self.for_call(CALL)?;
        let named = name(init);
        let mut attr = ibv_cq_init_attr_ex {
            cqe: init.cqe,
            cq_context: Named::as_ptr(&named),
            channel: init.channel_ptr(self, CALL)?,
            comp_vector: init.comp_vector,
            wc_flags: STANDARD | timestamps.bits(),
            comp_mask: 0,
            flags: 0,
            parent_domain: ptr::null_mut(),
        };
        // SAFETY: the context is open, the channel is alive or null, and `raw` keeps `cq_context`.
        let raw = unsafe { crate::sys::create_cq_ex(context, &raw mut attr) };
        // `struct ibv_cq` is the first part of `struct ibv_cq_ex`.
        let raw = raw.cast::<ibv_cq>();
        let argument = Argument::Number("cqe", init.cqe.into());
        // SAFETY: null, or a new queue that nothing else owns.
        let raw = unsafe { Owned::new(raw, CALL, argument) }?;
        Ok(ExtendedCompletionQueue { handle: CqHandle::new(raw, self, init, named), timestamps })
    }
}

impl ExtendedCompletionQueue {
    /// Returns a handle for queue pairs and event loops.
    pub fn handle(&self) -> &CqHandle {
        &self.handle
    }

    /// Takes the oldest completion.
    ///
    /// # Errors
    ///
    /// The queue is broken; no completion was taken.
    pub fn poll_next(&mut self) -> std::result::Result<Option<ExtendedCompletion>, CqError> {
        self.handle.check_process()?;
        let cq = self.handle.as_ptr().cast::<ibv_cq_ex>();
        let mut attr = ibv_poll_cq_attr { comp_mask: 0 };
        // SAFETY: the queue is alive and was created as an extended one.
        match unsafe { rdma_sys::ibv_start_poll(cq, &raw mut attr) } {
            0 => {}
            libc::ENOENT => return Ok(None),
            code => return Err(self.handle.error(code)),
        }
        // SAFETY: a poll is in progress, at a completion.
        let taken = unsafe { self.read(cq) };
        // SAFETY: the poll that began above.
        unsafe { rdma_sys::ibv_end_poll(cq) };
        Ok(Some(taken))
    }

    /// # Safety
    ///
    /// A poll of `cq` is in progress, at a completion.
    unsafe fn read(&self, cq: *mut ibv_cq_ex) -> ExtendedCompletion {
        let wants = |flag| self.timestamps.contains(flag);
        // SAFETY: the fields were requested at creation, and the poll is at a completion.
        unsafe {
            ExtendedCompletion {
                completion: read_standard(cq),
                device_ticks: wants(Timestamps::DEVICE)
                    .then(|| rdma_sys::ibv_wc_read_completion_ts(cq)),
                wall_clock_ns: wants(Timestamps::WALL_CLOCK)
                    .then(|| rdma_sys::ibv_wc_read_completion_wallclock_ns(cq)),
            }
        }
    }

    /// Destroys the queue.
    ///
    /// # Errors
    ///
    /// A queue pair or another handle still uses the queue, or the driver reports an error.
    pub fn close(self) -> std::result::Result<(), CloseError> {
        self.handle.close()
    }
}

/// # Safety
///
/// A poll of `cq` is in progress, at a completion, and `STANDARD` was requested at creation.
unsafe fn read_standard(cq: *mut ibv_cq_ex) -> Completion {
    // SAFETY: as above. After a failure only these three fields and the vendor error are valid.
    let qp_num = unsafe { rdma_sys::ibv_wc_read_qp_num(cq) };
    // SAFETY: as above.
    let wr_id = unsafe { (*cq).wr_id };
    // SAFETY: as above.
    let status = WcStatus(unsafe { (*cq).status });
    if !status.is_success() {
        // SAFETY: as above.
        let vendor_err = unsafe { rdma_sys::ibv_wc_read_vendor_err(cq) };
        return Completion::failure(qp_num, wr_id, status, vendor_err);
    }
    // SAFETY: as above.
    unsafe {
        let opcode = WcOpcode(rdma_sys::ibv_wc_read_opcode(cq));
        let wc_flags = WcFlags::from_bits_retain(rdma_sys::ibv_wc_read_wc_flags(cq));
        let has_imm = wc_flags.intersects(WcFlags::WITH_IMM | WcFlags::WITH_INV);
        let imm = if has_imm { rdma_sys::ibv_wc_read_imm_data(cq) } else { 0 };
        Completion {
            byte_len: rdma_sys::ibv_wc_read_byte_len(cq),
            imm: Imm::from_wire(imm.to_ne_bytes()),
            src_qp: rdma_sys::ibv_wc_read_src_qp(cq),
            wc_flags,
            slid: rdma_sys::ibv_wc_read_slid(cq) as u16,
            sl: rdma_sys::ibv_wc_read_sl(cq),
            dlid_path_bits: rdma_sys::ibv_wc_read_dlid_path_bits(cq),
            ..Completion::success(qp_num, wr_id, opcode)
        }
    }
}

impl AsRef<CqHandle> for ExtendedCompletionQueue {
    fn as_ref(&self) -> &CqHandle {
        &self.handle
    }
}

// SAFETY: each completion that libibverbs returns is passed on once, unchanged.
unsafe impl hardware::CompletionQueue for ExtendedCompletionQueue {
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
        let mut taken = 0;
        while taken < out.len() {
            match self.poll_next() {
                Ok(Some(next)) => out[taken].write(next.completion),
                Err(error) if taken == 0 => return Err(error),
                // Completions taken so far are returned; the next poll reports an error again.
                Ok(None) | Err(_) => break,
            };
            taken += 1;
        }
        // SAFETY: the first `taken` were written above.
        Ok(unsafe { assume_init_slice(&out[..taken]) })
    }
}
