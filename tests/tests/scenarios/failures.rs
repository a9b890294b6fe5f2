//! The error state, stalls, and rails out of service. `core/docs/architecture.md`, "Failures",
//! "Tags" and "Rails and batches".

use polyrail_core::hardware::Refusal;
use polyrail_core::verbs::{Completion, Opcode, RecvWr, SendWr, WcOpcode, WcStatus};
use polyrail_core::virtual_qp::{PassThroughOrder, PostRecvError, PostSendError, QpState, RailId};
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

/// Defect 6: a request refused is a request forgotten.
#[test]
fn defect_06_a_refused_post_leaves_no_ghost() {
    for request in [rig::write(1, 128), rig::send(1, 64)] {
        let mut rig = Setup::spray(2).fragment(128).rig();
        rig.rails[0].refuse_next(0, Refusal::Driver(22));
        let refused = rig.qp.post_send(&request);
        assert_eq!(refused, Err(PostSendError::Driver { rail: RailId::Data(0), errno: 22 }));
        assert_eq!(rig.qp.unreported_sends(), 0);
        assert_eq!(rig.qp.state(), QpState::Ready);
        assert_eq!(rig.poll(), []);
        rig.post([SendWr { wr_id: 2, ..request }]);
        let wcs = rig.run_dry();
        assert_eq!(wcs.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [2]);
    }
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

#[test]
fn in_flight_reports_its_real_status_and_unposted_reports_flush() {
    let mut rig = Setup::spray(2).fragment(128).depth(2).rig();
    rig.post((1..=6).map(|id| rig::write(id, 128)));
    // 1 and 3 on rail 0, 2 and 4 on rail 1, 5 and 6 in the ring only.
    rig.rails[0].fail(WcStatus::RETRY_EXC_ERR);
    assert_eq!(rig.poll_ids(), [(1, WcStatus::RETRY_EXC_ERR)], "2 is in flight");
    assert_eq!(rig.qp.post_send(&rig::write(7, 128)), Err(PostSendError::InErrorState));
    rig.rails[1].complete(2);
    let flush = WcStatus::WR_FLUSH_ERR;
    let ok = WcStatus::SUCCESS;
    assert_eq!(rig.poll_ids(), [(2, ok), (3, flush), (4, ok), (5, flush), (6, flush)]);
    assert_eq!((rig.qp.state(), rig.qp.unreported_sends()), (QpState::Error, 0));
    assert!(rig.rails.iter().all(|rail| rail.take_doorbells().len() == 2));
}

#[test]
fn a_half_posted_request_is_reported_only_when_its_fragments_are_in() {
    let mut rig = Setup::spray(2).fragment(128).depth(2).rig();
    rig.post([rig::write(1, 10 * 128)]);
    rig.rails[0].flush();
    assert_eq!(rig.poll(), [], "rail 1 may still touch the buffer");
    assert_eq!(rig.poll(), []);
    rig.rails[1].complete(2);
    assert_eq!(rig.poll_ids(), [(1, WcStatus::WR_FLUSH_ERR)]);
}

#[test]
fn deferred_requests_are_flushed_in_the_error_state() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.post([rig::write(1, 256), rig::send(2, 8), rig::fetch_add(3)]);
    rig.rails[1].fail(WcStatus::REM_ACCESS_ERR);
    rig.rails[0].complete(1);
    let flush = WcStatus::WR_FLUSH_ERR;
    assert_eq!(rig.poll_ids(), [(1, WcStatus::REM_ACCESS_ERR), (2, flush), (3, flush)]);
}

#[test]
fn the_first_error_stays() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.post([rig::write(1, 4 * 128)]);
    rig.rails[1].fail_after(1, WcStatus::REM_INV_REQ_ERR);
    rig.poll();
    let first = rig.qp.first_error().unwrap();
    assert_eq!((first.rail, first.offset, first.qp_num), (RailId::Data(1), 3 * 128, 11));
    rig.rails[0].fail(WcStatus::FATAL_ERR);
    rig.poll();
    assert_eq!(rig.qp.first_error(), Some(first));
}

#[test]
fn stalled_rails_are_named_and_moving_ones_are_not() {
    let mut rig = Setup::spray(3).fragment(128).rig();
    assert!(rig.qp.check_stalled().is_empty());
    rig.post([rig::write(1, 256), rig::write(2, 256)]);
    assert!(rig.qp.check_stalled().is_empty(), "first seen now");
    rig.rails[0].complete(1);
    rig.poll();
    let stalled: Vec<_> = rig.qp.check_stalled().collect();
    assert_eq!(stalled, [RailId::Data(1), RailId::Data(2)], "rail 0's front moved on");
    for rail in rig.rails.iter().skip(1) {
        rail.flush();
    }
    rig.rails[0].complete_all();
    assert_eq!(rig.poll_ids().len(), 2);
    assert!(rig.qp.check_stalled().is_empty());
}

#[test]
fn a_stalled_notify_queue_pair_is_named() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.post([rig::write_imm(1, 256, 0)]);
    rig.rails.iter().for_each(|rail| rail.complete(1));
    rig.poll();
    rig.qp.check_stalled();
    assert_eq!(rig.qp.check_stalled().collect::<Vec<_>>(), [RailId::Notify]);
}

#[test]
fn a_rail_comes_back_into_service_and_takes_what_waits() {
    let mut rig = Setup::spray(2).fragment(128).depth(2).rig();
    assert!(rig.qp.set_rail_in_service(1, false));
    rig.post([rig::write(1, 4 * 128)]);
    assert_eq!((rig.rails[0].sends().len(), rig.rails[1].sends().len()), (2, 0));
    assert!(rig.qp.set_rail_in_service(1, true));
    rig.poll();
    assert_eq!((rig.rails[1].sends().len(), rig.qp.state()), (2, QpState::Ready));
    assert_eq!(rig.run_dry().len(), 1);
}

#[test]
fn putting_a_rail_into_service_twice_is_harmless() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    assert!(rig.qp.set_rail_in_service(1, true));
    rig.post([rig::write(1, 256)]);
    assert!(!rig.qp.set_rail_in_service(2, true), "there is no rail 2");
    assert_eq!(rig.run_dry().len(), 1);
    let mut single = Setup::spray(1).rig();
    for id in 0..40 {
        single.post([rig::write(id, 8)]);
    }
    assert!(single.qp.set_rail_in_service(0, true));
    assert!(!single.qp.set_rail_in_service(0, false));
}

#[test]
fn the_last_rail_stays_in_service() {
    let mut rig = Setup::spray(3).rig();
    assert!(rig.qp.set_rail_in_service(0, false));
    assert!(rig.qp.set_rail_in_service(2, false));
    assert!(!rig.qp.set_rail_in_service(1, false));
    assert_eq!(rig.qp.state(), QpState::Degraded);
}

#[test]
fn what_is_in_flight_on_a_rail_taken_out_of_service_completes() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.post([rig::write(1, 256)]);
    assert!(rig.qp.set_rail_in_service(1, false));
    rig.rails.iter().for_each(|rail| rail.complete_all());
    assert_eq!(rig.poll_ids(), ok(&[1]));
    rig.post([rig::write(2, 256)]);
    assert_eq!((rig.rails[0].sends().len(), rig.rails[1].sends().len()), (2, 0));
}

#[test]
fn counters_count() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.post([rig::write_imm(1, 5 * 128, 1), rig::send(2, 64)]);
    assert_eq!(rig.run_dry().len(), 2);
    let rail = |rail| rig.qp.counters(rail).unwrap();
    let zero = rail(RailId::Data(0));
    let one = rail(RailId::Data(1));
    let notify = rail(RailId::Notify);
    assert_eq!((zero.bytes, zero.send_requests, zero.doorbells), (3 * 128 + 64, 4, 2));
    assert_eq!((zero.completions, zero.errors), (2, 0));
    assert_eq!((one.bytes, one.send_requests, one.doorbells, one.completions), (256, 2, 1, 1));
    assert_eq!((notify.bytes, notify.send_requests, notify.doorbells), (0, 1, 1));
    assert_eq!(rig.qp.counters(RailId::Data(2)), None);
    rig.post([rig::write(3, 4 * 128)]);
    rig.rails[0].fail(WcStatus::RETRY_EXC_ERR);
    rig.poll();
    assert_eq!(rig.qp.counters(RailId::Data(0)).unwrap().errors, 2, "one failed, one flushed");
}

#[test]
fn counters_count_on_a_single_rail_too() {
    let mut rig = Setup::spray(1).rig();
    rig.post([rig::write(1, 100), rig::send(2, 28), rig::write(3, 1)]);
    rig.rails[0].complete(2);
    rig.rails[0].fail(WcStatus::REM_OP_ERR);
    rig.poll();
    let counters = rig.qp.counters(RailId::Data(0)).unwrap();
    assert_eq!((counters.bytes, counters.send_requests, counters.doorbells), (129, 3, 3));
    assert_eq!((counters.completions, counters.errors), (3, 1));
}

#[test]
fn an_opcode_is_reported_for_what_it_was_whatever_happened() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.post([rig::read(1, 256), rig::write_imm(2, 256, 0)]);
    rig.rails.iter().for_each(|rail| rail.fail(WcStatus::RETRY_EXC_ERR));
    let opcodes: Vec<_> = rig.poll().iter().map(|wc| (wc.opcode, wc.byte_len)).collect();
    assert_eq!(opcodes, [(WcOpcode::RDMA_READ, 256), (WcOpcode::RDMA_WRITE, 256)]);
    assert_eq!(Opcode::RdmaWriteWithImm.completion(), WcOpcode::RDMA_WRITE);
}

#[test]
fn the_record_of_an_error_reads_well() {
    let mut rig = Setup::spray(2).devices(2).fragment(128).rig();
    rig.post([rig::write(1, 4 * 128)]);
    let wr_id = rig.rails[1].sends()[1].wr_id;
    rig.rails[1].complete(1);
    rig.rails[1].inject(Completion::failure(11, wr_id, WcStatus::RETRY_EXC_ERR, 0x81));
    rig.poll();
    let text = rig.qp.first_error().unwrap().to_string();
    let expected = "rail 1 (device 1, queue pair 11) failed: transport retries exceeded \
                    (status 12), vendor code 0x81, at offset 384";
    assert_eq!(text, expected);
}

/// In the order of one connection: what waits is flushed behind what is in flight.
#[test]
fn pass_through_requests_that_waited_are_flushed_behind_those_in_flight() {
    for order in [PassThroughOrder::Ordered, PassThroughOrder::Unordered] {
        let setup = Setup::spray(2).fragment(128).depth(2);
        let mut rig = setup.config(|config| config.pass_through = order).rig();
        rig.post((1..=3).map(|id| rig::send(id, 8)));
        rig.rails[0].complete(1);
        assert_eq!(rig.poll_ids(), ok(&[1]), "request 3 took its place");
        rig.post([rig::send(4, 8), rig::write(5, 128)]);
        rig.rails[1].fail(WcStatus::RETRY_EXC_ERR);
        assert_eq!(rig.poll_ids(), [(5, WcStatus::RETRY_EXC_ERR)]);
        rig.rails[0].complete(1);
        assert_eq!(rig.poll_ids(), ok(&[2]));
        rig.rails[0].flush();
        assert_eq!(rig.poll_ids(), [3, 4].map(|id| (id, WcStatus::WR_FLUSH_ERR)));
    }
}

/// The status of a request is its first error: the one whose completion came first.
#[test]
fn the_first_error_wins_and_is_reported_when_all_fragments_are_in() {
    let mut rig = Setup::spray(3).fragment(128).rig();
    rig.post([rig::write(1, 3 * 128), rig::write(2, 128)]);
    rig.rails[1].fail(WcStatus::REM_ACCESS_ERR);
    assert_eq!(rig.poll(), [], "two fragments are still in flight");
    rig.rails[2].fail(WcStatus::RETRY_EXC_ERR);
    assert_eq!(rig.poll(), []);
    rig.rails[0].complete_all();
    let expected = [(1, WcStatus::REM_ACCESS_ERR), (2, WcStatus::SUCCESS)];
    assert_eq!(rig.poll_ids(), expected, "what was in flight reports its real status");
    let error = rig.qp.first_error().unwrap();
    assert_eq!((error.status, error.offset), (WcStatus::REM_ACCESS_ERR, 128));
}

#[test]
fn within_a_batch_the_failure_wins_over_the_flushes_behind_it() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.post([rig::write(1, 8 * 128)]);
    rig.rails[0].fail_after(2, WcStatus::LOC_PROT_ERR);
    rig.rails[1].complete_all();
    assert_eq!(rig.poll_ids(), [(1, WcStatus::LOC_PROT_ERR)]);
    let error = rig.qp.first_error().unwrap();
    assert_eq!((error.offset, error.qp_num), (2 * 128, 10));
    assert_eq!(error.vendor_err & 0xFF00_0000, 0x8100_0000);
}
