//! The header's inline functions: each calls an operation that the driver put into the object.
//!
//! They are written in Rust instead of compiled from the header, so that posting and polling cost
//! no more calls than in C. The offsets of the operations are part of the library's binary
//! interface.

use crate::verbs::{
    ibv_ah, ibv_cq, ibv_cq_ex, ibv_mw, ibv_mw_type, ibv_pd, ibv_poll_cq_attr, ibv_qp, ibv_qp_ex,
    ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_srq, ibv_wc, ibv_wc_opcode,
};
use std::ffi::{c_int, c_uint, c_void};

/// A driver that creates an object provides its operations, so a missing one is a driver bug
/// without a sensible error to return.
#[cold]
fn missing(operation: &str) -> ! {
    panic!("the driver does not implement {operation}")
}

/// Defines functions that pass their arguments to an operation of an object.
macro_rules! operations {
    ($(fn $name:ident = $($place:ident).+ of $object:ident: $type:ty
        $(, $argument:ident: $kind:ty)*; $(-> $result:ty)?)*) => {$(
        /// The inline function of this name in `infiniband/verbs.h`.
        ///
        /// # Safety
        ///
        /// As in C: the objects are alive and in a state that allows the call.
        #[inline]
        pub unsafe fn $name($object: *mut $type $(, $argument: $kind)*) $(-> $result)? {
            // SAFETY: guaranteed by the caller.
            unsafe {
                match operations!(@at $object, $($place).+) {
                    Some(operation) => operation($object $(, $argument)*),
                    None => missing(stringify!($name)),
                }
            }
        }
    )*};
    (@at $object:ident, context.ops.$operation:ident) => {
        (*(*$object).context).ops.$operation
    };
    (@at $object:ident, $operation:ident) => { (*$object).$operation };
}

operations! {
    fn ibv_post_send = context.ops.post_send of qp: ibv_qp, first: *mut ibv_send_wr,
        bad: *mut *mut ibv_send_wr; -> c_int
    fn ibv_post_recv = context.ops.post_recv of qp: ibv_qp, first: *mut ibv_recv_wr,
        bad: *mut *mut ibv_recv_wr; -> c_int
    fn ibv_post_srq_recv = context.ops.post_srq_recv of srq: ibv_srq, first: *mut ibv_recv_wr,
        bad: *mut *mut ibv_recv_wr; -> c_int
    fn ibv_poll_cq = context.ops.poll_cq of cq: ibv_cq, count: c_int, wc: *mut ibv_wc; -> c_int
    fn ibv_req_notify_cq = context.ops.req_notify_cq of cq: ibv_cq, solicited_only: c_int; -> c_int
    fn ibv_dealloc_mw = context.ops.dealloc_mw of mw: ibv_mw; -> c_int

    fn ibv_start_poll = start_poll of cq: ibv_cq_ex, attr: *mut ibv_poll_cq_attr; -> c_int
    fn ibv_end_poll = end_poll of cq: ibv_cq_ex;
    fn ibv_wc_read_opcode = read_opcode of cq: ibv_cq_ex; -> ibv_wc_opcode::Type
    fn ibv_wc_read_vendor_err = read_vendor_err of cq: ibv_cq_ex; -> u32
    fn ibv_wc_read_byte_len = read_byte_len of cq: ibv_cq_ex; -> u32
    fn ibv_wc_read_imm_data = read_imm_data of cq: ibv_cq_ex; -> u32
    fn ibv_wc_read_qp_num = read_qp_num of cq: ibv_cq_ex; -> u32
    fn ibv_wc_read_src_qp = read_src_qp of cq: ibv_cq_ex; -> u32
    fn ibv_wc_read_wc_flags = read_wc_flags of cq: ibv_cq_ex; -> c_uint
    fn ibv_wc_read_slid = read_slid of cq: ibv_cq_ex; -> u32
    fn ibv_wc_read_sl = read_sl of cq: ibv_cq_ex; -> u8
    fn ibv_wc_read_dlid_path_bits = read_dlid_path_bits of cq: ibv_cq_ex; -> u8
    fn ibv_wc_read_completion_ts = read_completion_ts of cq: ibv_cq_ex; -> u64
    fn ibv_wc_read_completion_wallclock_ns = read_completion_wallclock_ns of cq: ibv_cq_ex; -> u64

    fn ibv_wr_start = wr_start of qp: ibv_qp_ex;
    fn ibv_wr_complete = wr_complete of qp: ibv_qp_ex; -> c_int
    fn ibv_wr_abort = wr_abort of qp: ibv_qp_ex;
    fn ibv_wr_atomic_cmp_swp = wr_atomic_cmp_swp of qp: ibv_qp_ex, rkey: u32, remote_addr: u64,
        compare: u64, swap: u64;
    fn ibv_wr_atomic_fetch_add = wr_atomic_fetch_add of qp: ibv_qp_ex, rkey: u32, remote_addr: u64,
        add: u64;
    fn ibv_wr_local_inv = wr_local_inv of qp: ibv_qp_ex, invalidate_rkey: u32;
    fn ibv_wr_rdma_read = wr_rdma_read of qp: ibv_qp_ex, rkey: u32, remote_addr: u64;
    fn ibv_wr_rdma_write = wr_rdma_write of qp: ibv_qp_ex, rkey: u32, remote_addr: u64;
    fn ibv_wr_rdma_write_imm = wr_rdma_write_imm of qp: ibv_qp_ex, rkey: u32, remote_addr: u64,
        imm_data: u32;
    fn ibv_wr_send = wr_send of qp: ibv_qp_ex;
    fn ibv_wr_send_imm = wr_send_imm of qp: ibv_qp_ex, imm_data: u32;
    fn ibv_wr_send_inv = wr_send_inv of qp: ibv_qp_ex, invalidate_rkey: u32;
    fn ibv_wr_set_ud_addr = wr_set_ud_addr of qp: ibv_qp_ex, ah: *mut ibv_ah, remote_qpn: u32,
        remote_qkey: u32;
    fn ibv_wr_set_inline_data = wr_set_inline_data of qp: ibv_qp_ex, addr: *mut c_void,
        length: usize;
    fn ibv_wr_set_sge = wr_set_sge of qp: ibv_qp_ex, lkey: u32, addr: u64, length: u32;
    fn ibv_wr_set_sge_list = wr_set_sge_list of qp: ibv_qp_ex, count: usize, list: *const ibv_sge;
}

/// Allocates a memory window (`ibv_alloc_mw` of `infiniband/verbs.h`). Returns `None` with `errno`
/// set if the driver has no windows or the call fails.
///
/// # Safety
///
/// The domain is alive.
#[inline]
pub unsafe fn ibv_alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type::Type) -> Option<*mut ibv_mw> {
    // SAFETY: guaranteed by the caller.
    let operation = unsafe { (*(*pd).context).ops.alloc_mw };
    let Some(alloc) = operation else {
        // SAFETY: the C library returns the address of this thread's `errno`.
        unsafe { *libc::__errno_location() = libc::EOPNOTSUPP };
        return None;
    };
    // SAFETY: guaranteed by the caller.
    let window = unsafe { alloc(pd, kind) };
    (!window.is_null()).then_some(window)
}
