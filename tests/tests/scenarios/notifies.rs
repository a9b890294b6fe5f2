//! SPRAY's notifies: when they go out, in which order, and for which requests none goes out.
//! `core/docs/architecture.md`, "The schemes".

use polyrail_core::hardware::{QpLimits, QueuePair, Refusal};
use polyrail_core::verbs::{Opcode, RecvWr, SendFlags, SendRequest, WcOpcode, WcStatus};
use polyrail_core::virtual_qp::{PostRecvError, PostSendError, QpState, RailId};
use polyrail_tests::rig::{self, Rig, Setup, done, ok};
use polyrail_tests::scripted::LIMITS;
use polyrail_tests::view::write;

const KB_100: u32 = 100 << 10;
const NONE: [Vec<u32>; 0] = [];

/// 200 KB in two fragments, then the notify.
#[test]
fn the_notify_follows_when_both_fragments_are_acknowledged() {
    let mut rig = Setup::spray(2).fragment(KB_100).rig();
    rig.post([rig::write_imm(42, 2 * KB_100, 0xCAFE)]);
    assert_eq!(rig.pieces(0), [[write(0, KB_100)]], "plain WRITE");
    assert_eq!(rig.pieces(1), [[write(u64::from(KB_100), KB_100)]]);
    rig.rails[0].complete(1);
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.notifies(), NONE);
    rig.rails[1].complete(1);
    assert_eq!(rig.poll(), [], "waits for the notify");
    let notify = rig.notify().sends()[0];
    assert_eq!((notify.opcode, notify.sge.length()), (Opcode::RdmaWriteWithImm, 0));
    assert_eq!((notify.imm.wire(), notify.flags), ([0, 0, 0xCA, 0xFE], SendFlags::SIGNALED));
    assert_eq!((notify.remote_addr, notify.rkey), (rig::REMOTE, rig::keys_on(0).rkey));
    rig.notify().complete(1);
    assert_eq!(rig.poll(), [done(42, WcOpcode::RDMA_WRITE, 2 * KB_100)]);
}

#[test]
fn the_notify_queue_pair_is_not_one_of_the_rails() {
    let qp = Setup::spray(2).rig().qp;
    assert_eq!(qp.notify_qp().map(QueuePair::qp_num), Some(rig::NOTIFY_QP_NUM));
    let rails: Vec<_> = qp.rails().map(QueuePair::qp_num).collect();
    assert_eq!(rails, [rig::FIRST_QP_NUM, rig::FIRST_QP_NUM + 1]);
    assert!(Setup::dqplb(2).rig().qp.notify_qp().is_none());
}

/// A rig whose notify queue pair has this many slots.
fn with_notify_slots(max_send_wr: u32) -> Rig {
    let notify_limits = QpLimits { max_send_wr, ..LIMITS };
    Setup { notify_limits, ..Setup::spray(2) }.fragment(128).rig()
}

/// A notify queue pair that is full, by its own limit or by the configured one, holds up notifies
/// and nothing else. They go out as far as there are credits, and not one for each round trip.
#[test]
fn notifies_without_credits_wait_for_an_acknowledgement() {
    let configured = Setup::spray(2).fragment(128).depth(2).rig();
    for (limit, mut rig) in [("its own", with_notify_slots(2)), ("configured", configured)] {
        rig.post_together((1..=4).map(|id| rig::write_imm(id, 128, id as u32)));
        rig.rails.iter().for_each(|rail| rail.complete_all());
        assert_eq!(rig.poll(), []);
        assert_eq!(rig.notifies(), [[1, 2]], "{limit}");
        rig.post([rig::write(5, 128)]);
        rig.rails.iter().for_each(|rail| rail.complete_all());
        assert_eq!(rig.poll(), []);
        assert_eq!(rig.notifies(), NONE, "{limit}");
        rig.notify().complete_all();
        assert_eq!(rig.poll_ids(), ok(&[1, 2]));
        assert_eq!(rig.notifies(), [[3, 4]], "{limit}");
        rig.notify().complete_all();
        assert_eq!(rig.poll_ids(), ok(&[3, 4, 5]));
    }
}

/// A notify means that every earlier request is complete too, those
/// without notify included.
#[test]
fn a_notify_waits_for_every_earlier_request() {
    let mut rig = Setup::spray(4).fragment(128).rig();
    rig.post([rig::write(1, 128), rig::write_imm(2, 128, 2), rig::read(3, 128)]);
    rig.post([rig::write_imm(4, 128, 4)]);
    rig.rails[1].complete(1);
    rig.rails[3].complete(1);
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.notifies(), NONE, "requests 1 and 3 are not complete");
    rig.rails[0].complete(1);
    assert_eq!(rig.poll_ids(), ok(&[1]));
    assert_eq!(rig.notifies(), [[2]]);
    rig.notify().complete(1);
    assert_eq!(rig.poll_ids(), ok(&[2]));
    rig.rails[2].complete(1);
    assert_eq!(rig.poll_ids(), ok(&[3]));
    assert_eq!(rig.notifies(), [[4]]);
    rig.notify().complete(1);
    assert_eq!(rig.poll_ids(), ok(&[4]));
}

#[test]
fn requests_without_notify_between_two_notifies_do_not_part_them() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.post([rig::write_imm(1, 256, 1), rig::write(2, 128), rig::write_imm(3, 128, 3)]);
    rig.rails.iter().for_each(|rail| rail.complete_all());
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.notifies(), [[1, 3]]);
    rig.notify().complete(2);
    assert_eq!(rig.poll_ids(), ok(&[1, 2, 3]));
}

/// Defect 4: all notifies that are ready go out together, in order, as credits allow.
#[test]
fn defect_04_notifies_of_ready_requests_go_out_together() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.post((0..8).map(|id| rig::write_imm(id, 256, 100 + id as u32)));
    rig.rails.iter().for_each(|rail| rail.complete_all());
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.notifies(), [(100..108).collect::<Vec<_>>()], "one doorbell");
    let signaled: Vec<_> = rig.notify().sends().iter().map(signaled).collect();
    assert_eq!(signaled, [false, false, false, false, false, false, false, true]);
    rig.notify().complete_all();
    assert_eq!(rig.poll_ids(), ok(&[0, 1, 2, 3, 4, 5, 6, 7]));
}

fn signaled(request: &SendRequest) -> bool {
    request.flags.contains(SendFlags::SIGNALED)
}

/// RDMA must be signaled, WRITE_WITH_IMM excepted: its success is then not reported.
#[test]
fn an_unsignaled_write_with_imm_is_notified_and_not_reported() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.post([rig::write_imm(1, 256, 7).with_flags(SendFlags::empty()), rig::write(2, 128)]);
    rig.rails.iter().for_each(|rail| rail.complete_all());
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.notifies(), [[7]]);
    rig.notify().complete(1);
    assert_eq!(rig.poll_ids(), ok(&[2]));
    assert_eq!(rig.qp.unreported_sends(), 0);
}

#[test]
fn an_unsignaled_write_with_imm_that_fails_is_reported() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.post([rig::write_imm(1, 256, 7).with_flags(SendFlags::empty())]);
    rig.rails[0].fail(WcStatus::RETRY_EXC_ERR);
    rig.rails[1].complete(1);
    assert_eq!(rig.poll_ids(), [(1, WcStatus::RETRY_EXC_ERR)]);
}

#[test]
fn write_with_imm_needs_a_notify_queue_pair() {
    let mut rig = Setup { notify: false, ..Setup::spray(2) }.fragment(128).rig();
    assert_eq!(rig.qp.post_send(&rig::write_imm(1, 256, 7)), Err(PostSendError::NoNotifyQp));
    assert_eq!(rig.qp.post_recv(&RecvWr::notification(1)), Err(PostRecvError::NoNotifyQp));
    rig.post([rig::write(2, 256)]);
    assert_eq!(rig.run_dry().len(), 1);
}

#[test]
fn notifies_that_a_driver_took_in_part_are_completed_and_reported() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.post_together((0..4).map(|id| rig::write_imm(id, 128, id as u32)));
    rig.rails.iter().for_each(|rail| rail.complete_all());
    rig.notify().refuse_next(1, Refusal::QueueFull);
    rig.notify().refuse_next(0, Refusal::QueueFull);
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.notifies(), [[0]], "unsignaled, as the batch goes on");
    rig.notify().complete(1);
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.notifies(), [[1, 2, 3]], "the rest");
    rig.notify().complete(3);
    assert_eq!(rig.poll_ids(), ok(&[0, 1, 2, 3]));
    let counters = rig.qp.counters(RailId::Notify).unwrap();
    assert_eq!((counters.send_requests, counters.doorbells, counters.bytes), (4, 2, 0));
}

/// Defect 3: no notify for failed data, nor past it.
#[test]
fn defect_03_the_receiver_is_not_notified_of_failed_data_nor_past_it() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.post((1..=3).map(|id| rig::write_imm(id, 256, id as u32)));
    rig.rails[0].complete(1);
    rig.rails[1].complete(1);
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.notifies(), [[1]]);
    rig.rails[0].complete(2);
    rig.rails[1].fail(WcStatus::REM_OP_ERR);
    assert_eq!(rig.poll(), [], "request 1 waits for its notify");
    rig.notify().complete(1);
    let expected = [
        (1, WcStatus::SUCCESS),
        (2, WcStatus::REM_OP_ERR),
        // Its fragment on rail 1 was flushed; that on rail 0 arrived.
        (3, WcStatus::WR_FLUSH_ERR),
    ];
    assert_eq!(rig.poll_ids(), expected);
    assert_eq!(rig.notifies(), Vec::<Vec<u32>>::new());
}

/// Defect 3, the other side: data complete, notify not sent when a *later* request fails.
#[test]
fn defect_03_data_whose_notify_was_not_sent_is_flushed_not_successful() {
    let mut rig = with_notify_slots(1);
    rig.post((1..=3).map(|id| rig::write_imm(id, 256, id as u32)));
    rig.rails[0].complete(2);
    rig.rails[1].complete(3);
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.notifies(), [[1]], "one slot: the notify of 2 waits");
    rig.rails[0].fail(WcStatus::LOC_PROT_ERR);
    assert_eq!(rig.poll(), []);
    rig.notify().complete(1);
    let expected =
        [(1, WcStatus::SUCCESS), (2, WcStatus::WR_FLUSH_ERR), (3, WcStatus::LOC_PROT_ERR)];
    assert_eq!(rig.poll_ids(), expected);
    assert_eq!(rig.notifies(), Vec::<Vec<u32>>::new());
}

/// Defect 23: a driver's error on notifies surfaces, and the request does not succeed.
#[test]
fn defect_23_an_error_while_posting_notifies_surfaces() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.notify().refuse_all(Some(Refusal::Driver(19)));
    rig.post([rig::write_imm(1, 256, 1), rig::write_imm(2, 256, 2)]);
    rig.rails.iter().for_each(|rail| rail.complete_all());
    let mut reports = rig.poll_ids();
    reports.extend(rig.poll_ids());
    assert_eq!(reports, [(1, WcStatus::GENERAL_ERR), (2, WcStatus::WR_FLUSH_ERR)]);
    let error = rig.qp.first_error().unwrap();
    assert_eq!((error.rail, error.errno), (RailId::Notify, Some(19)));
    assert_eq!(rig.qp.state(), QpState::Error);
}

/// Defect 23: the same for a notify that fails on its way.
#[test]
fn defect_23_a_failed_notify_fails_its_request_and_flushes_those_behind() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.post((1..=3).map(|id| rig::write_imm(id, 256, id as u32)));
    rig.rails.iter().for_each(|rail| rail.complete_all());
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.notifies(), [[1, 2, 3]]);
    rig.notify().fail_after(1, WcStatus::RNR_RETRY_EXC_ERR);
    let expected =
        [(1, WcStatus::SUCCESS), (2, WcStatus::RNR_RETRY_EXC_ERR), (3, WcStatus::WR_FLUSH_ERR)];
    assert_eq!(rig.poll_ids(), expected);
    assert_eq!(rig.qp.first_error().unwrap().rail, RailId::Notify);
}
