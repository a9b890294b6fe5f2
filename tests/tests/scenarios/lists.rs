//! Requests whose local bytes are a list of buffers. `core/docs/architecture.md`, "Rails and
//! batches".

use crate::reroute::{RAIL_1, fail, fenced, spray};
use polyrail_core::hardware::Refusal;
use polyrail_core::internals::SequenceImm;
use polyrail_core::verbs::{
    DeviceId, DeviceKeys, LocalBuffer, LocalPart, Opcode, ReportOrder, SendRequest, SendWr,
    WcOpcode, WcStatus,
};
use polyrail_core::virtual_qp::{PostRecvError, PostSendError};
use polyrail_tests::rig::{self, KEYS, LOCAL, REMOTE, Rig, Setup, done, local, ok};

mod gathered;

/// Buffers of these lengths, a page apart, each with its own lkey.
pub(super) struct List {
    parts: Vec<(LocalBuffer, [DeviceKeys; 4])>,
}

impl List {
    pub(super) fn new(lengths: &[u32]) -> Self {
        let part = |(at, length): (usize, &u32)| {
            // SAFETY: the scripted NIC never touches memory.
            let local = unsafe { LocalBuffer::new(LOCAL + at as u64 * 4096, *length) };
            let lkey = |keys: DeviceKeys| DeviceKeys { lkey: 1000 + at as u32, rkey: 0, ..keys };
            (local, KEYS.map(lkey))
        };
        Self { parts: lengths.iter().enumerate().map(part).collect() }
    }

    pub(super) fn parts(&self) -> Vec<LocalPart<'_>> {
        self.parts.iter().map(|(local, keys)| LocalPart { local: *local, keys }).collect()
    }
}

fn post(rig: &mut Rig, wr: &SendWr<'_>, lengths: &[u32]) -> Result<(), PostSendError> {
    let list = List::new(lengths);
    rig.qp.post_list(wr, &list.parts())
}

/// Which buffer a fragment is of, its offset there, its length, and its offset in the remote
/// buffer.
pub(super) fn place(request: &SendRequest) -> (u32, u64, u32, u64) {
    let at = request.sge.lkey() - 1000;
    let offset = request.sge.addr() - LOCAL - u64::from(at) * 4096;
    (at, offset, request.sge.length(), request.remote_addr - REMOTE)
}

fn sent(rig: &Rig) -> Vec<(u32, u64, u32, u64)> {
    let mut sent: Vec<_> =
        rig.rails.iter().flat_map(|rail| rail.take_doorbells()).flatten().collect();
    sent.sort_by_key(|request| request.remote_addr);
    sent.iter().map(place).collect()
}

#[test]
fn fragments_are_cut_at_the_borders_of_buffers() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    post(&mut rig, &rig::write(1, 0), &[200, 0, 50, 128]).unwrap();
    assert_eq!(sent(&rig), [(0, 0, 128, 0), (0, 128, 72, 128), (2, 0, 50, 200), (3, 0, 128, 250)]);
    assert_eq!(rig.qp.unreported_sends(), 1);
    assert_eq!(rig.run_dry(), [done(1, WcOpcode::RDMA_WRITE, 378)]);
    assert_eq!(rig.qp.unreported_sends(), 0);
}

#[test]
fn a_read_is_scattered() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    post(&mut rig, &rig::read(1, 0), &[64, 64]).unwrap();
    assert_eq!(sent(&rig), [(0, 0, 64, 0), (1, 0, 64, 64)]);
    assert_eq!(rig.run_dry(), [done(1, WcOpcode::RDMA_READ, 128)]);
}

#[test]
fn with_spray_the_notify_follows_all_buffers() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    post(&mut rig, &rig::write_imm(1, 0, 7), &[64, 300]).unwrap();
    rig.rails[0].complete_all();
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.notifies(), Vec::<Vec<u32>>::new());
    rig.rails[1].complete_all();
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.notifies(), [[7]]);
    assert_eq!(rig.run_dry().len(), 1);
}

#[test]
fn with_dqplb_only_the_last_fragment_of_the_last_buffer_ends_the_request() {
    let mut rig = Setup::dqplb(2).fragment(128).rig();
    post(&mut rig, &rig::write_imm(1, 0, 0), &[200, 100, 129]).unwrap();
    let mut imms: Vec<_> = rig.rails.iter().flat_map(|rail| rail.sends()).collect();
    imms.sort_by_key(|request| request.remote_addr);
    let numbers: Vec<_> = imms
        .iter()
        .map(|request| SequenceImm::decode(request.imm).expect("a number"))
        .map(|imm| (imm.number.get(), imm.last))
        .collect();
    assert_eq!(numbers, [(0, false), (1, false), (2, false), (3, false), (4, true)]);
    assert_eq!(rig.run_dry().len(), 1);
}

#[test]
fn what_finds_no_credits_waits_with_its_buffers() {
    let mut rig = Setup::spray(2).fragment(128).depth(1).rig();
    rig.post([rig::write(0, 128)]);
    post(&mut rig, &rig::write(1, 0), &[100; 6]).unwrap();
    rig.post([rig::write(2, 128)]);
    let reported: Vec<_> = rig.run_dry().iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(reported, ok(&[0, 1, 2]));
}

#[test]
fn the_buffers_have_places_in_the_ring() {
    let mut rig: Rig<4, 16, 8> = Setup::spray(2).fragment(128).build();
    let list = List::new(&[8; 8]);
    let wr = rig::write(1, 0);
    let refused = rig.qp.post_list(&wr, &list.parts());
    assert_eq!(refused, Err(PostSendError::TooManyBuffers { count: 8, max: 7 }));
    rig.qp.post_list(&wr, &list.parts()[..3]).unwrap();
    let refused = rig.qp.post_list(&wr, &list.parts()[..4]);
    assert!(matches!(refused, Err(PostSendError::Full(_))), "{refused:?}");
    rig.qp.post_list(&wr, &list.parts()[..3]).unwrap();
    assert_eq!(rig.qp.unreported_sends(), 2);
    assert_eq!(rig.run_dry().len(), 2);
    rig.qp.post_list(&wr, &list.parts()[..7]).unwrap();
    assert_eq!(rig.run_dry().len(), 1);
}

#[test]
fn reported_when_it_is_done_it_leaves_its_places_until_its_turn() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.post([rig::write(1, 128)]);
    post(&mut rig, &rig::write(2, 0).reported(ReportOrder::WhenDone), &[128]).unwrap();
    rig.rails[1].complete_all();
    assert_eq!(rig.poll_ids(), ok(&[2]));
    assert_eq!(rig.qp.unreported_sends(), 1);
    rig.rails[0].complete_all();
    assert_eq!(rig.poll_ids(), ok(&[1]));
}

#[test]
fn the_rest_of_a_batch_is_of_its_own_buffer() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.rails[0].refuse_next(1, Refusal::QueueFull);
    post(&mut rig, &rig::write(1, 0), &[512, 512]).unwrap();
    rig.rails.iter().for_each(|rail| rail.complete_all());
    rig.poll();
    let whole: u32 = sent(&rig).iter().map(|(_, _, length, _)| length).sum();
    assert_eq!(whole, 1024);
    assert_eq!(rig.run_dry().len(), 1);
}

#[test]
fn lost_fragments_are_posted_again_from_their_buffers() {
    let mut rig = spray().rig();
    post(&mut rig, &rig::write(1, 0), &[256, 100]).unwrap();
    let first = sent(&rig);
    assert_eq!(first, [(0, 0, 128, 0), (0, 128, 128, 128), (1, 0, 100, 256)]);
    let lost: Vec<_> = rig.rails[1].sends().iter().map(place).collect();
    fail(&mut rig, 1, WcStatus::RETRY_EXC_ERR);
    assert_eq!(sent(&rig), lost);
    rig.rails[0].complete_all();
    rig.qp.control(fenced(RAIL_1, 0, 0)).unwrap();
    assert_eq!(rig.poll_ids(), ok(&[1]));
}

#[test]
fn one_that_fails_is_reported_once() {
    let mut rig = Setup::spray(2).fragment(128).depth(1).rig();
    post(&mut rig, &rig::write(1, 0), &[100; 4]).unwrap();
    rig.rails[0].fail(WcStatus::LOC_PROT_ERR);
    rig.rails[1].flush();
    assert_eq!(rig.poll_ids(), [(1, WcStatus::LOC_PROT_ERR)]);
    assert_eq!(rig.qp.unreported_sends(), 0);
}

#[test]
fn what_a_list_cannot_be_is_refused_and_nothing_changes() {
    let mut rig = Setup::spray(2).rig();
    let atomic = rig::fetch_add(1);
    assert_eq!(post(&mut rig, &atomic, &[8]), Err(PostSendError::List(Opcode::FetchAdd)));
    assert_eq!(post(&mut rig, &rig::write(1, 0), &[]), Err(PostSendError::NoBuffers));
    let empty = Err(PostSendError::Empty(Opcode::RdmaWrite));
    assert_eq!(post(&mut rig, &rig::write(1, 0), &[0, 0]), empty);
    let bytes = 2 * u64::from(u32::MAX);
    let too_long = Err(PostSendError::ListTooLong { bytes });
    assert_eq!(post(&mut rig, &rig::write(1, 0), &[u32::MAX; 2]), too_long);
    let too_many = Err(PostSendError::TooManyBuffers { count: 2, max: 1 });
    assert_eq!(post(&mut rig, &rig::send(1, 0), &[8, 0, 8]), too_many);
    let known = LocalPart { local: local(8), keys: &KEYS };
    let unknown = LocalPart { local: local(8), keys: &[] };
    let device = DeviceId(0);
    let missing = Err(PostSendError::BufferKeys { buffer: 1, device });
    assert_eq!(rig.qp.post_list(&rig::write(1, 0), &[known, unknown]), missing);
    let no_rkeys = SendWr { keys: &[], ..rig::write(1, 0) };
    let missing = Err(PostSendError::MissingKeys { device });
    assert_eq!(rig.qp.post_list(&no_rkeys, &[known, known]), missing);
    assert_eq!(rig.qp.unreported_sends(), 0);
    assert_eq!(rig.doorbells_rung(), 0);
    let mut single = Setup::spray(1).rig();
    let too_many = Err(PostSendError::TooManyBuffers { count: 2, max: 1 });
    assert_eq!(post(&mut single, &rig::write(1, 0), &[8, 8]), too_many);
    assert_eq!(post(&mut single, &atomic, &[8]), Err(PostSendError::List(Opcode::FetchAdd)));
}

#[test]
fn what_a_list_of_a_receive_cannot_be_is_refused() {
    for rails in [1, 2] {
        let mut rig = Setup::spray(rails).rig();
        let unknown = LocalPart { local: local(8), keys: &[] };
        let device = DeviceId(0);
        assert_eq!(rig.qp.post_recv_list(1, &[]), Err(PostRecvError::NoBuffers));
        let missing = Err(PostRecvError::BufferKeys { buffer: 0, device });
        assert_eq!(rig.qp.post_recv_list(1, &[unknown]), missing);
        let known = LocalPart { local: local(8), keys: &KEYS };
        let too_many = Err(PostRecvError::TooManyBuffers { count: 3, max: 1 });
        assert_eq!(rig.qp.post_recv_list(1, &[known; 3]), too_many);
        assert_eq!(rig.rails[0].recvs().len(), 0);
    }
}
