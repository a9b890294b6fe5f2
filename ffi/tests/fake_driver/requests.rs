//! Queue pairs, requests for them, and the requests that the driver received.

use crate::fake::{Posted, with};
use crate::fixture::{open, path};
use polyrail_core::hardware::{CommitError, SendBatch as _};
use polyrail_core::verbs::{AccessFlags, Imm, LocalBuffer, Opcode, SendFlags, SendRequest, Sge};
use polyrail_ffi::{Connected, Mtu, PostMode, QpCap, QpInit, QueuePair, Rc, ToInit, ToRtr, ToRts};

pub(crate) const CAP: QpCap = QpCap::new(4, 4, 64);

pub(crate) fn in_init<S: Connected>(post_mode: PostMode) -> QueuePair<S> {
    with_cap(post_mode, CAP)
}

pub(crate) fn with_cap<S: Connected>(post_mode: PostMode, cap: QpCap) -> QueuePair<S> {
    let (_, pd, cq) = open();
    let init = QpInit { post_mode, ..QpInit::new(&cq, cap) };
    let qp = pd.create_qp(&init).unwrap();
    let to_init = ToInit { port_num: 1, pkey_index: 0, access: AccessFlags::empty() };
    qp.modify(&to_init).unwrap();
    qp
}

pub(crate) fn connected(post_mode: PostMode) -> QueuePair<Rc> {
    connect(in_init(post_mode))
}

pub(crate) fn connect(qp: QueuePair<Rc>) -> QueuePair<Rc> {
    qp.modify(&ToRtr {
        path: path(),
        path_mtu: Mtu::Mtu4096,
        dest_qp_num: 1,
        rq_psn: 2,
        max_dest_rd_atomic: 1,
        min_rnr_timer: 12,
    })
    .unwrap();
    let to_rts = ToRts { sq_psn: 7, timeout: 14, retry_cnt: 7, rnr_retry: 7, max_rd_atomic: 1 };
    qp.modify(&to_rts).unwrap();
    qp
}

fn sge(length: u32) -> Sge {
    // SAFETY: the fake device never touches memory.
    unsafe { LocalBuffer::new(0x1000, length) }.sge(5)
}

pub(crate) fn request(wr_id: u64, opcode: Opcode, length: u32) -> SendRequest {
    SendRequest {
        wr_id,
        opcode,
        flags: SendFlags::SIGNALED,
        imm: Imm::from_number(0x0102_0304),
        sge: sge(length),
        remote_addr: 0x9000,
        rkey: 6,
        compare_add: 0,
        swap: 0,
    }
}

pub(crate) fn post<S: Connected>(
    qp: &mut QueuePair<S>,
    requests: impl IntoIterator<Item = SendRequest>,
) -> Result<(), CommitError> {
    let mut batch = qp.start_send();
    requests.into_iter().for_each(|request| batch.add(&request));
    batch.commit()
}

pub(crate) fn writes(wr_ids: std::ops::Range<u64>) -> impl Iterator<Item = SendRequest> {
    wr_ids.map(|wr_id| request(wr_id, Opcode::RdmaWrite, 100))
}

pub(crate) fn posted() -> Vec<Posted> {
    with(|state| std::mem::take(&mut state.posted))
}

pub(crate) fn ids() -> Vec<u64> {
    posted().iter().map(|request| request.wr_id).collect()
}

pub(crate) fn buffers() -> Vec<Vec<(u64, u32, u32)>> {
    with(|state| std::mem::take(&mut state.buffers))
}

pub(crate) const BOTH: [PostMode; 2] = [PostMode::Classic, PostMode::Extended];

/// A buffer of `length` bytes, with a distinct address and key.
pub(crate) fn part(length: u32) -> Sge {
    // SAFETY: the fake device never touches memory.
    unsafe { LocalBuffer::new(u64::from(length) << 12, length) }.sge(length + 1)
}
