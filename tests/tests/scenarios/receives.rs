//! Receives: the queue pair that each goes to, and what it reports. `core/docs/architecture.md`,
//! "Routing over one rail and over several" and "The schemes".

use polyrail_core::hardware::{QpLimits, Refusal};
use polyrail_core::verbs::{Imm, RecvWr, WcOpcode, WcStatus};
use polyrail_core::virtual_qp::{PostRecvError, QpState, RailId};
use polyrail_tests::rig::{self, KEYS, Rig, Setup, done, imm, local, ok};
use polyrail_tests::scripted::LIMITS;

/// A length selects between data and notification receives.
#[test]
fn receives_go_where_the_table_sends_them() {
    let data = RecvWr::data(1, local(64), &KEYS);
    let notification = RecvWr::notification(2);
    let recvs = |rig: &Rig| {
        let notify = rig.notify.as_ref().map_or(0, |notify| notify.recvs().len());
        (rig.rails.iter().map(|rail| rail.recvs().len()).collect::<Vec<_>>(), notify)
    };
    let mut single = Setup::spray(1).rig();
    single.qp.post_recv(&data).unwrap();
    single.qp.post_recv(&notification).unwrap();
    assert_eq!(recvs(&single), (vec![2], 0));
    assert_eq!(single.rails[0].recvs()[0].wr_id, 1, "the user's name");

    let mut spray = Setup::spray(2).rig();
    spray.qp.post_recv(&data).unwrap();
    spray.qp.post_recv(&notification).unwrap();
    assert_eq!(recvs(&spray), (vec![1, 0], 1));
    let posted = spray.rails[0].recvs()[0];
    assert_eq!((posted.sge.length(), posted.sge.lkey()), (64, 0x100));

    let mut dqplb = Setup::dqplb(2).depth(8).rig();
    dqplb.qp.post_recv(&notification).unwrap();
    assert_eq!(recvs(&dqplb), (vec![8, 8], 0), "the engine's own");
}

/// Defect 17: what arrived is reported: SPRAY's immediate, a SEND's length and immediate, and no
/// immediate with DQPLB, which uses it.
#[test]
fn defect_17_receives_over_many_rails_report_what_arrived() {
    let mut rig = Setup::spray(2).rig();
    rig.qp.post_recv(&RecvWr::notification(1)).unwrap();
    rig.notify().deliver_imm(Imm::from_wire([0xDE, 0xAD, 0xBE, 0xEF]));
    let mut expected = done(1, WcOpcode::RECV_RDMA_WITH_IMM, 0);
    expected.imm = Some(0xDEAD_BEEF);
    assert_eq!(rig.poll(), [expected]);

    rig.qp.post_recv(&RecvWr::data(2, local(64), &KEYS)).unwrap();
    rig.rails[0].deliver_send(33, Some(Imm::from_number(7)));
    let mut expected = done(2, WcOpcode::RECV, 33);
    expected.imm = Some(7);
    assert_eq!(rig.poll(), [expected]);

    let mut rig = Setup::dqplb(2).rig();
    rig.qp.post_recv(&RecvWr::notification(3)).unwrap();
    rig.rails[0].deliver_imm(imm(0, true));
    assert_eq!(rig.poll(), [done(3, WcOpcode::RECV_RDMA_WITH_IMM, 0)]);
}

/// Defect 10: one ring, nothing to leak.
#[test]
fn defect_10_a_hundred_thousand_receives_leave_nothing_behind() {
    let mut rig = Setup::spray(2).rig();
    for round in 0..25_000u64 {
        for id in 0..4 {
            rig.qp.post_recv(&RecvWr::notification(4 * round + id)).unwrap();
        }
        for _ in 0..4 {
            rig.notify().deliver_imm(Imm::from_number(0));
        }
        assert_eq!(rig.poll().len(), 4);
    }
    assert_eq!(rig.qp.unreported_recvs(), 0);
    assert!(rig.notify().recvs().is_empty());
}

/// Defect 11: refused cleanly, with the driver's code; later receives are not blocked.
#[test]
fn defect_11_a_refused_receive_leaves_no_ghost() {
    let mut rig = Setup::spray(2).rig();
    rig.notify().refuse_next_recv(0, Refusal::Driver(12345));
    let refused = rig.qp.post_recv(&RecvWr::notification(1));
    assert_eq!(refused, Err(PostRecvError::Driver { rail: RailId::Notify, errno: 12345 }));
    assert_eq!(rig.qp.unreported_recvs(), 0);
    rig.qp.post_recv(&RecvWr::notification(2)).unwrap();
    rig.notify().deliver_imm(Imm::from_number(5));
    assert_eq!(rig.poll_ids(), ok(&[2]));

    rig.rails[0].refuse_next_recv(0, Refusal::Driver(77));
    let data = |id| RecvWr::data(id, local(64), &KEYS);
    let refused = rig.qp.post_recv(&data(3));
    assert_eq!(refused, Err(PostRecvError::Driver { rail: RailId::Data(0), errno: 77 }));
    rig.qp.post_recv(&data(4)).unwrap();
    rig.rails[0].deliver_send(10, None);
    assert_eq!(rig.poll(), [done(4, WcOpcode::RECV, 10)]);
}

/// Receives beyond the notify queue pair's capacity wait, in order.
#[test]
fn receives_beyond_the_notify_queue_pairs_capacity_wait_in_order() {
    let notify_limits = QpLimits { max_recv_wr: 2, ..LIMITS };
    let mut rig: Rig = Setup { notify_limits, ..Setup::spray(2) }.build();
    for id in 0..5 {
        rig.qp.post_recv(&RecvWr::notification(id)).unwrap();
    }
    assert_eq!(rig.notify().recvs().len(), 2);
    for id in 0..5u64 {
        rig.notify().deliver_imm(Imm::from_number(100 + id as u32));
        let wcs = rig.poll();
        assert_eq!(wcs.len(), 1);
        assert_eq!((wcs[0].wr_id, wcs[0].imm), (id, Some(100 + id as u32)));
        assert_eq!(rig.notify().recvs().len() as u64, (4 - id).min(2));
    }
}

#[test]
fn receives_that_a_full_driver_refused_are_offered_again_at_the_next_poll() {
    let mut rig = Setup::spray(2).rig();
    rig.notify().refuse_next_recv(0, Refusal::QueueFull);
    rig.qp.post_recv(&RecvWr::notification(1)).unwrap();
    rig.qp.post_recv(&RecvWr::notification(2)).unwrap();
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.notify().recvs().len(), 2);
    rig.notify().deliver_imm(Imm::from_number(0));
    assert_eq!(rig.poll_ids(), ok(&[1]));
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

/// Of DQPLB no queue pair holds the caller's receives: with the virtual queue pair they have
/// failed, whatever is still in flight, and no completion reports them.
#[test]
fn receives_that_no_queue_pair_holds_are_flushed_though_requests_are_in_flight() {
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
