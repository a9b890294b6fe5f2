//! The header's types: requests and completions, written here because their unions have no names in C,
//! and all others, as bindgen translates them.
//!
//! They are one module because they refer to each other: objects hold the functions that take
//! requests, and requests point to objects.

#![allow(non_camel_case_types, reason = "names of C, and of rdma-sys for what has none there")]
#![allow(missing_docs, reason = "the library's own manual pages")]
#![allow(missing_debug_implementations, reason = "C structs with unions")]

pub use generated::*;

use static_assertions::{assert_eq_align, assert_eq_size, const_assert_eq};
use std::ffi::{c_int, c_uint, c_void};
use std::mem::offset_of;

/// As bindgen wrote it.
#[allow(non_snake_case, non_upper_case_globals, reason = "names of C")]
#[allow(clippy::all, clippy::undocumented_unsafe_blocks, reason = "generated")]
mod generated {
    use super::{ibv_send_wr, ibv_wc};
    use libc::{pthread_cond_t, pthread_mutex_t};
    include!(concat!(env!("OUT_DIR"), "/verbs.rs"));
}

/// An immediate in network byte order, or a key to invalidate.
#[repr(C)]
#[derive(Clone, Copy)]
pub union imm_data_invalidated_rkey_union_t {
    pub imm_data: u32,
    pub invalidated_rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_t {
    pub remote_addr: u64,
    pub rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct atomic_t {
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ud_t {
    pub ah: *mut ibv_ah,
    pub remote_qpn: u32,
    pub remote_qkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union wr_t {
    pub rdma: rdma_t,
    pub atomic: atomic_t,
    pub ud: ud_t,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct xrc_t {
    pub remote_srqn: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union qp_type_t {
    pub xrc: xrc_t,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct bind_mw_t {
    pub mw: *mut ibv_mw,
    pub rkey: u32,
    pub bind_info: ibv_mw_bind_info,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct tso_t {
    pub hdr: *mut c_void,
    pub hdr_sz: u16,
    pub mss: u16,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union bind_mw_tso_union_t {
    pub bind_mw: bind_mw_t,
    pub tso: tso_t,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_send_wr {
    pub wr_id: u64,
    pub next: *mut Self,
    pub sg_list: *mut ibv_sge,
    pub num_sge: c_int,
    pub opcode: ibv_wr_opcode::Type,
    pub send_flags: c_uint,
    pub imm_data_invalidated_rkey_union: imm_data_invalidated_rkey_union_t,
    pub wr: wr_t,
    pub qp_type: qp_type_t,
    pub bind_mw_tso_union: bind_mw_tso_union_t,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_wc {
    pub wr_id: u64,
    pub status: ibv_wc_status::Type,
    pub opcode: ibv_wc_opcode::Type,
    pub vendor_err: u32,
    pub byte_len: u32,
    pub imm_data_invalidated_rkey_union: imm_data_invalidated_rkey_union_t,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

/// The same structs as bindgen translates them, to compare with.
#[allow(unreachable_pub, dead_code, reason = "generated")]
#[allow(missing_debug_implementations, missing_docs, reason = "generated")]
#[allow(non_camel_case_types, non_snake_case, non_upper_case_globals, reason = "generated")]
#[allow(clippy::all, clippy::undocumented_unsafe_blocks, reason = "generated")]
mod header {
    use libc::{pthread_cond_t, pthread_mutex_t};
    include!(concat!(env!("OUT_DIR"), "/requests.rs"));
}

/// The fields of one struct here lie where those of the other in the header do.
macro_rules! same_layout {
    ($ours:path = $header:ident: $($field:ident $(= $in_header:ident)?),*) => {
        assert_eq_size!($ours, header::$header);
        assert_eq_align!($ours, header::$header);
        $(same_layout!(@field $ours = $header: $field $(= $in_header)?);)*
    };
    (@field $ours:path = $header:ident: $field:ident) => {
        const_assert_eq!(offset_of!($ours, $field), offset_of!(header::$header, $field));
    };
    (@field $ours:path = $header:ident: $field:ident = $in_header:ident) => {
        const_assert_eq!(offset_of!($ours, $field), offset_of!(header::$header, $in_header));
    };
}

same_layout!(ibv_wc = ibv_wc: wr_id, status, opcode, vendor_err, byte_len,
    imm_data_invalidated_rkey_union = __bindgen_anon_1, qp_num, src_qp, wc_flags, pkey_index, slid,
    sl, dlid_path_bits);
same_layout!(ibv_send_wr = ibv_send_wr: wr_id, next, sg_list, num_sge, opcode, send_flags,
    imm_data_invalidated_rkey_union = __bindgen_anon_1, wr, qp_type,
    bind_mw_tso_union = __bindgen_anon_2);
same_layout!(rdma_t = ibv_send_wr__bindgen_ty_2__bindgen_ty_1: remote_addr, rkey);
same_layout!(atomic_t = ibv_send_wr__bindgen_ty_2__bindgen_ty_2: remote_addr, compare_add, swap,
    rkey);
same_layout!(ud_t = ibv_send_wr__bindgen_ty_2__bindgen_ty_3: ah, remote_qpn, remote_qkey);
same_layout!(bind_mw_t = ibv_send_wr__bindgen_ty_4__bindgen_ty_1: mw, rkey, bind_info);
same_layout!(tso_t = ibv_send_wr__bindgen_ty_4__bindgen_ty_2: hdr, hdr_sz, mss);
