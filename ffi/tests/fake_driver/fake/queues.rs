//! Posting and polling: the operations that a driver puts into contexts, queue pairs and completion
//! queues.

use super::{State, with};
use rdma_sys::ibv_wr_opcode::*;
use rdma_sys::*;
use std::ffi::{c_int, c_void};

/// A request that the device accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Posted {
    pub(crate) wr_id: u64,
    pub(crate) opcode: u32,
    pub(crate) flags: u32,
    /// Length of its buffer; `None` if it has none.
    pub(crate) length: Option<u32>,
    pub(crate) remote_addr: u64,
    pub(crate) rkey: u32,
    /// The immediate, or the key to invalidate.
    pub(crate) imm: u32,
    /// Operands of an atomic: the value compared or added, and the value swapped in.
    pub(crate) operands: (u64, u64),
    /// Destination of a datagram: queue pair number and Q_Key.
    pub(crate) to: Option<(u32, u32)>,
}

/// A completion, of which a driver writes only the fields that verbs defines.
#[derive(Clone, Copy)]
pub(super) struct Completed {
    wr_id: u64,
    status: u32,
    opcode: u32,
    byte_len: u32,
}

/// Queues a completion in the only completion queue.
pub(crate) fn complete(wr_id: u64, status: u32, opcode: u32, byte_len: u32) {
    with(|state| state.completions.push(Completed { wr_id, status, opcode, byte_len }));
}

/// Returns how many requests of a list are accepted, and the call's return value.
fn take(state: &mut State, length: usize) -> (usize, c_int) {
    match state.refusing.take() {
        Some((taken, code)) => (taken, code),
        None => (length, 0),
    }
}

/// Records a request's buffers; returns the length of the first.
unsafe fn note(sges: *const ibv_sge, count: usize) -> Option<u32> {
    let list = if count > 0 { std::slice::from_raw_parts(sges, count) } else { &[] };
    let seen: Vec<_> = list.iter().map(|sge| (sge.addr, sge.length, sge.lkey)).collect();
    with(|state| state.buffers.push(seen));
    list.first().map(|sge| sge.length)
}

unsafe fn datagram(ah: *mut ibv_ah, qp_num: u32, qkey: u32) -> Option<(u32, u32)> {
    assert!(super::is_alive(ah), "the address handle is read while the request is posted");
    Some((qp_num, qkey))
}

/// Reads a request as a driver does: the fields that its opcode uses.
unsafe fn read(request: *const ibv_send_wr, is_datagram: bool) -> Posted {
    let ibv_send_wr { wr_id, opcode, send_flags, sg_list, num_sge, .. } = *request;
    let wr = &(*request).wr;
    let seen = Posted {
        wr_id,
        opcode,
        flags: send_flags,
        length: note(sg_list, num_sge as usize),
        ..Posted::default()
    };
    let union = &(*request).imm_data_invalidated_rkey_union;
    let imm = match opcode {
        IBV_WR_RDMA_WRITE_WITH_IMM | IBV_WR_SEND_WITH_IMM => union.imm_data,
        IBV_WR_LOCAL_INV | IBV_WR_SEND_WITH_INV => union.invalidated_rkey,
        _ => 0,
    };
    match opcode {
        _ if is_datagram => {
            let ud_t { ah, remote_qpn, remote_qkey } = wr.ud;
            Posted { imm, to: datagram(ah, remote_qpn, remote_qkey), ..seen }
        }
        IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM | IBV_WR_RDMA_READ => {
            let rdma_t { remote_addr, rkey } = wr.rdma;
            Posted { imm, remote_addr, rkey, ..seen }
        }
        IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
            let atomic_t { remote_addr, compare_add, swap, rkey } = wr.atomic;
            Posted { remote_addr, rkey, operands: (compare_add, swap), ..seen }
        }
        _ => Posted { imm, ..seen },
    }
}

unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    mut at: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    super::call("ibv_post_send");
    let is_datagram = (*qp).qp_type == ibv_qp_type::IBV_QPT_UD;
    let mut list = Vec::new();
    while !at.is_null() {
        list.push((at, read(at, is_datagram)));
        at = (*at).next;
    }
    with(|state| {
        let (taken, code) = take(state, list.len());
        state.posted.extend(list[..taken].iter().map(|(_, request)| *request));
        if code != 0 {
            *bad = list[taken].0;
        }
        code
    })
}

unsafe fn post_receives(mut at: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int {
    let mut list = Vec::new();
    while !at.is_null() {
        list.push((at, note((*at).sg_list, (*at).num_sge as usize)));
        at = (*at).next;
    }
    with(|state| {
        let (taken, code) = take(state, list.len());
        for &(request, length) in &list[..taken] {
            let wr_id = (*request).wr_id;
            state.posted.push(Posted { wr_id, length, opcode: 128, ..Posted::default() });
        }
        if code != 0 {
            *bad = list[taken].0;
        }
        code
    })
}

unsafe extern "C" fn post_recv(
    _qp: *mut ibv_qp,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    post_receives(first, bad)
}

unsafe extern "C" fn post_srq_recv(
    _srq: *mut ibv_srq,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    post_receives(first, bad)
}

unsafe extern "C" fn poll_cq(_cq: *mut ibv_cq, most: c_int, out: *mut ibv_wc) -> c_int {
    with(|state| {
        let count = state.completions.len().min(most as usize);
        if let (0, Some(code)) = (count, state.poll_error) {
            return code;
        }
        for (at, done) in state.completions.drain(..count).enumerate() {
            let wc = out.add(at);
            (*wc).wr_id = done.wr_id;
            (*wc).status = done.status;
            (*wc).qp_num = super::QP_NUM;
            (*wc).vendor_err = 0;
            if done.status == 0 {
                (*wc).opcode = done.opcode;
                (*wc).byte_len = done.byte_len;
                (*wc).wc_flags = 0;
            }
        }
        count as c_int
    })
}

unsafe extern "C" fn req_notify_cq(_cq: *mut ibv_cq, _solicited_only: c_int) -> c_int {
    super::call("ibv_req_notify_cq")
}

unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, type_: ibv_mw_type::Type) -> *mut ibv_mw {
    let mw = ibv_mw { context: (*pd).context, pd, rkey: 0x500, handle: 0, type_ };
    super::create("ibv_alloc_mw", "mw", &[pd.expose_provenance()], mw)
}

unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    super::destroy("ibv_dealloc_mw", mw)
}

pub(super) fn fill(ops: &mut ibv_context_ops) {
    ops.post_send = Some(post_send);
    ops.post_recv = Some(post_recv);
    ops.post_srq_recv = Some(post_srq_recv);
    ops.poll_cq = Some(poll_cq);
    ops.req_notify_cq = Some(req_notify_cq);
    ops.alloc_mw = Some(alloc_mw);
    ops.dealloc_mw = Some(dealloc_mw);
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, _attr: *mut ibv_poll_cq_attr) -> c_int {
    with(|state| match (state.completions.first(), state.poll_error) {
        (Some(done), _) => {
            (*cq).wr_id = done.wr_id;
            (*cq).status = done.status;
            0
        }
        (None, Some(code)) => code,
        (None, None) => libc::ENOENT,
    })
}

unsafe extern "C" fn end_poll(_cq: *mut ibv_cq_ex) {
    with(|state| _ = state.completions.remove(0));
}

unsafe extern "C" fn read_qp_num(_cq: *mut ibv_cq_ex) -> u32 {
    super::QP_NUM
}

unsafe extern "C" fn read_nothing(_cq: *mut ibv_cq_ex) -> u32 {
    0
}

unsafe extern "C" fn read_no_byte(_cq: *mut ibv_cq_ex) -> u8 {
    0
}

unsafe extern "C" fn read_opcode(_cq: *mut ibv_cq_ex) -> u32 {
    with(|state| state.completions[0].opcode)
}

unsafe extern "C" fn read_byte_len(_cq: *mut ibv_cq_ex) -> u32 {
    with(|state| state.completions[0].byte_len)
}

unsafe extern "C" fn read_ticks(_cq: *mut ibv_cq_ex) -> u64 {
    super::TICKS
}

unsafe extern "C" fn read_wall_clock(_cq: *mut ibv_cq_ex) -> u64 {
    super::WALL_CLOCK_NS
}

pub(super) fn fill_cq(cq: &mut ibv_cq_ex) {
    cq.start_poll = Some(start_poll);
    cq.end_poll = Some(end_poll);
    cq.read_qp_num = Some(read_qp_num);
    cq.read_opcode = Some(read_opcode);
    cq.read_byte_len = Some(read_byte_len);
    cq.read_vendor_err = Some(read_nothing);
    cq.read_completion_ts = Some(read_ticks);
    cq.read_completion_wallclock_ns = Some(read_wall_clock);
    cq.read_src_qp = Some(read_nothing);
    cq.read_wc_flags = Some(read_nothing);
    cq.read_slid = Some(read_nothing);
    cq.read_sl = Some(read_no_byte);
    cq.read_dlid_path_bits = Some(read_no_byte);
}

unsafe fn build(qp: *mut ibv_qp_ex, opcode: u32, rkey: u32, remote_addr: u64, imm: u32) {
    let wr_id = (*qp).wr_id;
    let flags = (*qp).wr_flags;
    let request = Posted { wr_id, opcode, flags, remote_addr, rkey, imm, ..Posted::default() };
    with(|state| state.building.push(request));
}

fn set_operands(compare_add: u64, swap: u64) {
    with(|state| {
        state.building.last_mut().expect("a request").operands = (compare_add, swap);
    });
}

fn set_length(length: Option<u32>) {
    with(|state| state.building.last_mut().expect("a request").length = length);
}

unsafe extern "C" fn wr_start(_qp: *mut ibv_qp_ex) {
    super::call("ibv_wr_start");
}

unsafe extern "C" fn wr_complete(_qp: *mut ibv_qp_ex) -> c_int {
    super::call("ibv_wr_complete");
    with(|state| {
        let built = std::mem::take(&mut state.building);
        let (_, code) = take(state, built.len());
        if code == 0 {
            state.posted.extend(built);
        }
        code
    })
}

unsafe extern "C" fn wr_abort(_qp: *mut ibv_qp_ex) {
    super::call("ibv_wr_abort");
    with(|state| state.building.clear());
}

unsafe extern "C" fn wr_rdma_write(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) {
    build(qp, IBV_WR_RDMA_WRITE, rkey, remote_addr, 0);
}

unsafe extern "C" fn wr_write_imm(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, imm: u32) {
    build(qp, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, remote_addr, imm);
}

unsafe extern "C" fn wr_local_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    build(qp, IBV_WR_LOCAL_INV, 0, 0, rkey);
}

unsafe extern "C" fn wr_send(qp: *mut ibv_qp_ex) {
    build(qp, IBV_WR_SEND, 0, 0, 0);
}

unsafe extern "C" fn wr_send_imm(qp: *mut ibv_qp_ex, imm: u32) {
    build(qp, IBV_WR_SEND_WITH_IMM, 0, 0, imm);
}

unsafe extern "C" fn wr_rdma_read(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) {
    build(qp, IBV_WR_RDMA_READ, rkey, remote_addr, 0);
}

unsafe extern "C" fn wr_compare_swap(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    compare: u64,
    swap: u64,
) {
    build(qp, IBV_WR_ATOMIC_CMP_AND_SWP, rkey, remote_addr, 0);
    set_operands(compare, swap);
}

unsafe extern "C" fn wr_fetch_add(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, add: u64) {
    build(qp, IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, remote_addr, 0);
    set_operands(add, 0);
}

unsafe extern "C" fn wr_send_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    build(qp, IBV_WR_SEND_WITH_INV, 0, 0, rkey);
}

unsafe extern "C" fn wr_set_ud_addr(_qp: *mut ibv_qp_ex, ah: *mut ibv_ah, qp_num: u32, qkey: u32) {
    let to = datagram(ah, qp_num, qkey);
    with(|state| state.building.last_mut().expect("a request").to = to);
}

unsafe extern "C" fn wr_set_sge(_qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    set_length(note(&ibv_sge { addr, length, lkey }, 1));
}

unsafe extern "C" fn wr_set_sge_list(_qp: *mut ibv_qp_ex, count: usize, sges: *const ibv_sge) {
    set_length(note(sges, count));
}

/// Inline data has no key.
unsafe extern "C" fn wr_set_inline_data(_qp: *mut ibv_qp_ex, data: *mut c_void, length: usize) {
    let sge = ibv_sge { addr: data.expose_provenance() as u64, length: length as u32, lkey: 0 };
    set_length(note(&sge, 1));
}

pub(super) fn fill_qp(qp: &mut ibv_qp_ex) {
    qp.wr_start = Some(wr_start);
    qp.wr_complete = Some(wr_complete);
    qp.wr_abort = Some(wr_abort);
    qp.wr_rdma_write = Some(wr_rdma_write);
    qp.wr_rdma_write_imm = Some(wr_write_imm);
    qp.wr_local_inv = Some(wr_local_inv);
    qp.wr_send = Some(wr_send);
    qp.wr_send_imm = Some(wr_send_imm);
    qp.wr_rdma_read = Some(wr_rdma_read);
    qp.wr_atomic_cmp_swp = Some(wr_compare_swap);
    qp.wr_atomic_fetch_add = Some(wr_fetch_add);
    qp.wr_send_inv = Some(wr_send_inv);
    qp.wr_set_ud_addr = Some(wr_set_ud_addr);
    qp.wr_set_sge = Some(wr_set_sge);
    qp.wr_set_sge_list = Some(wr_set_sge_list);
    qp.wr_set_inline_data = Some(wr_set_inline_data);
}
