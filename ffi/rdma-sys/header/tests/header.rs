//! The committed bindings, compared with the installed header.

use polyrail_verbs_header::{BINDINGS, DIRECTORY, INSTALLED, RELEASE};
use static_assertions::{assert_eq_align, assert_eq_size, const_assert_eq};
use std::fs;
use std::mem::offset_of;
use std::path::Path;

/// All types as bindgen translates them. It asserts their layouts, which the committed bindings do
/// not, because those of the C library's types depend on the processor.
#[allow(unreachable_pub, dead_code, reason = "generated")]
#[allow(missing_debug_implementations, missing_docs, reason = "generated")]
#[allow(non_camel_case_types, non_snake_case, non_upper_case_globals, reason = "generated")]
#[allow(clippy::all, clippy::undocumented_unsafe_blocks, reason = "generated")]
mod header {
    use libc::{pthread_cond_t, pthread_mutex_t};
    include!(concat!(env!("OUT_DIR"), "/layouts.rs"));
}

/// Asserts that the fields of a struct of the crate have the offsets that they have in the header.
macro_rules! same_layout {
    ($ours:ident = $header:ident: $($field:ident $(= $in_header:ident)?),*) => {
        assert_eq_size!(polyrail_rdma_sys::$ours, header::$header);
        assert_eq_align!(polyrail_rdma_sys::$ours, header::$header);
        $(same_layout!(@field $ours = $header: $field $(= $in_header)?);)*
    };
    (@field $ours:ident = $header:ident: $field:ident) => {
        const_assert_eq!(offset_of!(polyrail_rdma_sys::$ours, $field), offset_of!(header::$header, $field));
    };
    (@field $ours:ident = $header:ident: $field:ident = $in_header:ident) => {
        const_assert_eq!(offset_of!(polyrail_rdma_sys::$ours, $field), offset_of!(header::$header, $in_header));
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

#[test]
fn the_bindings_are_those_of_the_header() {
    if INSTALLED != RELEASE {
        println!("skipped: the header is of release {INSTALLED}, and the bindings of {RELEASE}");
        return;
    }
    for (file, made) in BINDINGS {
        let path = Path::new(DIRECTORY).join(file);
        let found = fs::read_to_string(&path).unwrap();
        assert!(found == made, "{} differs from what bindgen makes of the header", path.display());
    }
}
