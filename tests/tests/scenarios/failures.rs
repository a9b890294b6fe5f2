//! The error state, stalls, and rails out of service.

use polyrail_core::verbs::{Completion, Imm, Opcode, RecvWr, WcOpcode, WcStatus};
use polyrail_core::virtual_qp::{PassThroughOrder, PostRecvError, PostSendError, QpState, RailId};
use polyrail_tests::rig::{self, KEYS, Setup, imm, local, ok};

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
fn spray_receives_flush_when_the_notify_queue_pair_does() {
    let mut setup = Setup::spray(2).fragment(128);
    setup.notify_limits.max_recv_wr = 2;
    let mut rig = setup.rig();
    for id in 0..4 {
        rig.qp.post_recv(&RecvWr::notification(id)).unwrap();
    }
    rig.post([rig::write(9, 128)]);
    rig.rails[0].fail(WcStatus::RETRY_EXC_ERR);
    assert_eq!(rig.poll_ids(), [(9, WcStatus::RETRY_EXC_ERR)]);
    rig.notify().deliver_imm(Imm::from_number(5));
    assert_eq!(rig.poll_ids(), ok(&[0]), "what arrives, arrives");
    rig.notify().flush();
    let flushed: Vec<_> = (1..4).map(|id| (id, WcStatus::WR_FLUSH_ERR)).collect();
    assert_eq!(rig.poll_ids(), flushed);
}

#[test]
fn dqplb_receives_flush_when_a_rail_fails() {
    let mut rig = Setup::dqplb(2).fragment(128).depth(4).rig();
    for id in 0..3 {
        rig.qp.post_recv(&RecvWr::notification(id)).unwrap();
    }
    rig.rails[0].deliver_imm(imm(0, true));
    rig.rails[1].fail_recv(WcStatus::LOC_QP_OP_ERR);
    let reports = rig.poll();
    let seen: Vec<_> = reports.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    let flush = WcStatus::WR_FLUSH_ERR;
    assert_eq!(seen, [(0, WcStatus::SUCCESS), (1, flush), (2, flush)]);
    assert_eq!(rig.qp.first_error().unwrap().status, WcStatus::LOC_QP_OP_ERR);
}

#[test]
fn data_receives_flush_with_their_queue_pair() {
    let mut rig = Setup::spray(2).rig();
    for id in 0..3 {
        rig.qp.post_recv(&RecvWr::data(id, local(64), &KEYS)).unwrap();
    }
    rig.rails[0].deliver_send(7, None);
    rig.rails[0].fail_recv(WcStatus::LOC_LEN_ERR);
    let seen: Vec<_> =
        rig.poll().iter().map(|wc| (wc.wr_id, wc.status, wc.byte_len, wc.imm)).collect();
    let flush = WcStatus::WR_FLUSH_ERR;
    let expected =
        [(0, WcStatus::SUCCESS, 7, None), (1, WcStatus::LOC_LEN_ERR, 0, None), (2, flush, 0, None)];
    assert_eq!(seen, expected);
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
    rig.post([rig::write_imm(1, 128, 0)]);
    rig.rails[0].complete(1);
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

/// Rails whose receives come from a shared receive queue.
#[test]
fn without_a_receive_queue_of_its_own_rail_0_takes_no_data_receives() {
    let mut setup = Setup::spray(2);
    setup.limits.max_recv_wr = 0;
    setup.notify_limits.max_recv_wr = 0;
    let mut rig = setup.rig();
    let data = rig.qp.post_recv(&RecvWr::data(1, local(8), &KEYS));
    assert_eq!(data, Err(PostRecvError::NoReceiveQueue(RailId::Data(0))));
    let notification = rig.qp.post_recv(&RecvWr::notification(1));
    assert_eq!(notification, Err(PostRecvError::NoReceiveQueue(RailId::Notify)));
}

#[test]
fn data_receives_beyond_the_queue_are_refused_until_one_completes() {
    let mut rig = Setup::spray(2).depth(2).rig();
    let data = |id| RecvWr::data(id, local(8), &KEYS);
    rig.qp.post_recv(&data(1)).unwrap();
    rig.qp.post_recv(&data(2)).unwrap();
    assert_eq!(rig.qp.post_recv(&data(3)), Err(PostRecvError::QueueFull(RailId::Data(0))));
    rig.rails[0].deliver_send(8, None);
    assert_eq!(rig.poll_ids(), ok(&[1]));
    assert_eq!(rig.qp.post_recv(&data(3)), Ok(()));
    for _ in 0..2 {
        rig.rails[0].deliver_send(8, None);
    }
    assert_eq!(rig.poll_ids(), ok(&[2, 3]));
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

/// Of DQPLB no queue pair holds the caller's receives: with the virtual queue pair they have failed, whatever is still in
/// flight, and no completion tells of them.
#[test]
fn receives_that_no_queue_pair_holds_are_flushed_though_requests_are_in_flight() {
    use polyrail_core::hardware::Refusal;
    for write_is_in_flight in [true, false] {
        let mut rig = Setup::dqplb(2).unordered().fragment(128).rig();
        rig.qp.post_recv(&RecvWr::notification(1)).unwrap();
        while rig.cq.needs_poll() {
            assert_eq!(rig.poll(), []);
        }
        if write_is_in_flight {
            rig.post([rig::write(2, 128)]);
        }
        // Its driver takes it, and complains: the virtual queue pair fails outside of a poll.
        rig.rails[0].complain_next(1, Refusal::Driver(5));
        rig.post([rig::fetch_add(3)]);
        assert_eq!(rig.qp.state(), QpState::Error);
        let flushed = (1, WcStatus::WR_FLUSH_ERR);
        assert_eq!(rig.poll_ids(), [flushed], "a WRITE is in flight: {write_is_in_flight}");
    }
}
