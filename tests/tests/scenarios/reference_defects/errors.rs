//! Rows about failures: 1, 2, 3, 6, 7, 16, 18, 23.

use polyrail_core::hardware::Refusal;
use polyrail_core::internals::{Tag, TagKind};
use polyrail_core::verbs::{Completion, RecvWr, WcOpcode, WcStatus};
use polyrail_core::virtual_cq::Event;
use polyrail_core::virtual_qp::{PostRecvError, PostSendError, ProtocolError, QpState, RailId};
use polyrail_tests::rig::{self, Setup, ok};

/// Defect 1: completions are routed by tag, whatever the opcode field holds.
#[test]
fn defect_01_a_failed_fragment_is_not_taken_for_a_send() {
    for opcode in [0, 1, 2, 128, 129, 0xDEAD_BEEF] {
        let mut rig = Setup::spray(2).fragment(128).rig();
        rig.post([rig::write(7, 256)]);
        let wr_id = rig.rails[0].sends()[0].wr_id;
        let mut failed = Completion::failure(10, wr_id, WcStatus::REM_ACCESS_ERR, 0x51);
        failed.opcode = WcOpcode(opcode);
        rig.rails[0].inject(failed);
        rig.rails[1].complete(1);
        let wcs = rig.poll();
        assert_eq!(wcs.len(), 1);
        assert_eq!((wcs[0].wr_id, wcs[0].status), (7, WcStatus::REM_ACCESS_ERR));
        assert_eq!((wcs[0].opcode, wcs[0].qp_num), (WcOpcode::RDMA_WRITE, rig::VIRTUAL_QP_NUM));
        let error = rig.qp.first_error().unwrap();
        assert_eq!((error.rail, error.vendor_err), (RailId::Data(0), 0x51));
    }
}

/// Defect 2: the rail's other completions, good or flushed, still count.
#[test]
fn defect_02_completions_after_an_error_on_the_same_rail_count() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.post([rig::write(1, 256), rig::write(2, 256), rig::write(3, 256)]);
    rig.rails[1].complete_all();
    let tags: Vec<_> = rig.rails[0].sends().iter().map(|request| request.wr_id).collect();
    rig.rails[0].inject(Completion::failure(10, tags[0], WcStatus::RETRY_EXC_ERR, 0));
    assert_eq!(rig.poll_ids(), [(1, WcStatus::RETRY_EXC_ERR)]);
    // RC queue pairs do not succeed after a failure, but nothing breaks if one does.
    rig.rails[0].inject(Completion::success(10, tags[1], WcOpcode::RDMA_WRITE));
    assert_eq!(rig.poll_ids(), ok(&[2]));
    rig.rails[0].inject(Completion::failure(10, tags[2], WcStatus::WR_FLUSH_ERR, 0));
    assert_eq!(rig.poll_ids(), [(3, WcStatus::WR_FLUSH_ERR)]);
    assert_eq!(rig.qp.protocol_errors(), 0);
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
    let mut rig = Setup { notify_limits: one_slot(), ..Setup::spray(2) }.fragment(128).rig();
    rig.post((1..=3).map(|id| rig::write_imm(id, 128, id as u32)));
    rig.rails[0].complete(1);
    rig.rails[1].complete(1);
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

fn one_slot() -> polyrail_core::hardware::QpLimits {
    polyrail_core::hardware::QpLimits { max_send_wr: 1, ..polyrail_tests::scripted::LIMITS }
}

/// Defect 6: a request refused is a request forgotten.
#[test]
fn defect_06_a_refused_post_leaves_no_ghost() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.rails[0].refuse_next(0, Refusal::Driver(22));
    let refused = rig.qp.post_send(&rig::write(1, 128));
    assert_eq!(refused, Err(PostSendError::Driver { rail: RailId::Data(0), errno: 22 }));
    assert_eq!(rig.qp.unreported_sends(), 0);
    assert_eq!(rig.qp.state(), QpState::Ready);
    assert_eq!(rig.poll(), []);
    rig.post([rig::write(2, 256)]);
    let wcs = rig.run_dry();
    assert_eq!(wcs.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [2]);
}

/// Defect 6: accepted fragments stay, the rest is cancelled, the request is marked failed.
#[test]
fn defect_06_a_request_that_one_rail_took_and_another_refused_fails() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.rails[1].refuse_next(0, Refusal::Driver(5));
    rig.post([rig::write(1, 256)]);
    assert_eq!(rig.qp.state(), QpState::Error);
    assert_eq!(rig.poll(), [], "a fragment is in flight");
    rig.rails[0].complete(1);
    assert_eq!(rig.poll_ids(), [(1, WcStatus::GENERAL_ERR)]);
    let error = rig.qp.first_error().unwrap();
    assert_eq!((error.rail, error.errno, error.offset), (RailId::Data(1), Some(5), 128));
    assert_eq!(rig.qp.post_send(&rig::write(2, 1)), Err(PostSendError::InErrorState));
}

/// Defect 6, DQPLB: numbers are consumed on acceptance, so a refused post leaves no hole.
#[test]
fn defect_06_a_refused_post_consumes_no_sequence_number() {
    let mut rig = Setup::dqplb(2).fragment(128).rig();
    rig.rails[0].refuse_next(0, Refusal::Driver(22));
    assert!(rig.qp.post_send(&rig::write_imm(1, 128, 0)).is_err());
    assert_eq!(rig.poll(), []);
    rig.post([rig::write_imm(2, 128, 0)]);
    let posted: Vec<_> = rig.rails.iter().flat_map(|rail| rail.sends()).collect();
    assert_eq!(posted.len(), 1);
    assert_eq!(posted[0].imm.wire(), [0, 0, 0, 0x80], "number 0, last fragment");
}

/// Defect 7: an error beside the completions, not instead of them.
#[test]
fn defect_07_an_error_while_polling_costs_no_completion() {
    let mut rig = Setup::spray(2).devices(2).fragment(128).rig();
    rig.post([rig::write(1, 128), rig::write(2, 128)]);
    rig.rails.iter().for_each(|rail| rail.complete_all());
    let broken = rig.cqs[1].clone();
    rig.nic.break_cq(&broken, Some(5));
    for _ in 0..3 {
        let (events, polled) = rig.poll_events(32);
        let error = polled.error.unwrap();
        assert_eq!((error.errno, error.device.0), (5, 1));
        let ids: Vec<_> = events.into_iter().filter_map(Event::completion).collect();
        assert!(ids.iter().all(|wc| wc.wr_id == 1) && ids.len() <= 1);
    }
    assert_eq!(rig.qp.unreported_sends(), 1);
    rig.nic.break_cq(&broken, None);
    assert_eq!(rig.poll_ids(), ok(&[2]));
}

/// Defect 7: neither a protocol error nor a foreign completion costs the rest of its batch.
#[test]
fn defect_07_bad_completions_cost_the_good_ones_of_their_batch_nothing() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.post([rig::write(1, 128), rig::write(2, 128)]);
    rig.rails[0].complete(1);
    let out_of_turn = Tag::new(TagKind::Send, 0, 1).wr_id();
    rig.rails[0].inject(Completion::success(10, out_of_turn, WcOpcode::SEND));
    let stranger = Completion::success(99, 5, WcOpcode::SEND);
    rig.rails[0].inject(stranger);
    rig.rails[1].complete(1);
    let (events, polled) = rig.poll_events(32);
    assert_eq!(polled.error, None);
    let completions: Vec<_> = events.iter().filter_map(|event| event.completion()).collect();
    assert_eq!(completions.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [1, 2]);
    let device = polyrail_core::verbs::DeviceId(0);
    assert!(events.contains(&Event::Foreign { device, completion: stranger }));
    let error = ProtocolError::Tag { rail: RailId::Data(0), wr_id: out_of_turn, expected: None };
    assert_eq!(rig.qp.take_protocol_error(), Some(error));
    assert_eq!(rig.qp.state(), QpState::Ready);
}

/// Defect 16: rails that are down are not chosen.
#[test]
fn defect_16_a_rail_out_of_service_gets_no_fragments() {
    let mut rig = Setup::spray(3).fragment(128).rig();
    assert!(rig.qp.set_rail_in_service(1, false));
    assert_eq!(rig.qp.state(), QpState::Degraded);
    rig.post([rig::write(1, 6 * 128), rig::write(2, 128), rig::write(3, 128)]);
    assert_eq!(rig.rails[1].sends().len(), 0);
    assert_eq!(rig.rails[0].sends().len() + rig.rails[2].sends().len(), 8);
    assert_eq!(rig.run_dry().len(), 3);
}

/// Defect 16: after a failure, nothing more goes to any rail.
#[test]
fn defect_16_a_failed_queue_pair_is_given_nothing() {
    let mut rig = Setup::spray(2).fragment(128).depth(1).rig();
    rig.post([rig::write(1, 4 * 128)]);
    rig.rails.iter().for_each(|rail| drop(rail.take_doorbells()));
    rig.rails[0].fail(WcStatus::RETRY_EXC_ERR);
    assert_eq!(rig.poll(), []);
    rig.rails[1].complete(1);
    assert_eq!(rig.poll_ids(), [(1, WcStatus::RETRY_EXC_ERR)]);
    for rail in &rig.rails {
        assert!(rail.take_doorbells().is_empty(), "unposted fragments are cancelled");
    }
    assert_eq!(rig.qp.post_send(&rig::send(2, 1)), Err(PostSendError::InErrorState));
    assert_eq!(rig.qp.post_recv(&RecvWr::notification(3)), Err(PostRecvError::InErrorState));
}

/// Defect 18: a completion after its virtual queue pair is gone belongs to the caller.
#[test]
fn defect_18_a_completion_after_detach_is_foreign() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.post([rig::write(1, 256)]);
    assert!(rig.cq.detach(0));
    assert!(!rig.cq.detach(0), "only once");
    rig.rails[0].complete(1);
    let wr_id = rig.qp.rails().next().map(|_| rig.rails[0].take_doorbells()[0][0].wr_id);
    let (events, _) = rig.poll_events(32);
    let [Event::Foreign { device, completion }] = events[..] else { panic!("{events:?}") };
    assert_eq!((device.0, completion.qp_num, Some(completion.wr_id)), (0, 10, wr_id));
}

/// Defect 18: the same when the virtual queue pair is dropped while it is attached.
#[test]
fn defect_18_a_completion_of_a_dropped_queue_pair_is_foreign() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.post([rig::write(1, 256)]);
    rig.rails[1].complete(1);
    let mut none: [rig::TestQp; 0] = [];
    let mut events = Vec::new();
    let polled = rig.cq.poll(&mut none[..], 32, |event| events.push(event));
    assert_eq!((polled.events, polled.error), (1, None));
    assert!(matches!(events[0], Event::Foreign { completion, .. } if completion.qp_num == 11));
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
