//! DQPLB's receiver: arrivals in any order complete receives in order, and every rail keeps
//! receives posted. `core/docs/architecture.md`, "The schemes".

use polyrail_core::hardware::Refusal;
use polyrail_core::verbs::{RecvWr, WcOpcode, WcStatus};
use polyrail_core::virtual_qp::{PostRecvError, RailId};
use polyrail_tests::rig::{self, KEYS, Rig, Setup, done, imm, local, ok};

fn receiver(rails: usize) -> Rig {
    let mut rig = Setup::dqplb(rails).depth(8).rig();
    rig.qp.prepare_receives().unwrap();
    rig
}

/// Four rails, three receives; 0 arrives on QP 2, 2 on QP 0, 1 on QP 1.
#[test]
fn messages_0_2_1_complete_three_receives_in_order() {
    let mut rig = receiver(4);
    for id in [100, 101, 102] {
        rig.qp.post_recv(&RecvWr::notification(id)).unwrap();
    }
    rig.rails[2].deliver_imm(imm(0, true));
    assert_eq!(rig.poll(), [done(100, WcOpcode::RECV_RDMA_WITH_IMM, 0)]);
    rig.rails[0].deliver_imm(imm(2, true));
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.qp.unreported_recvs(), 2);
    rig.rails[1].deliver_imm(imm(1, true));
    assert_eq!(rig.poll_ids(), ok(&[101, 102]));
    assert_eq!(rig.qp.protocol_errors(), 0);
}

/// The same with requests of several fragments: only a mark completes a receive.
#[test]
fn a_receive_completes_with_the_last_fragment_of_a_request() {
    let mut rig = receiver(2);
    rig.qp.post_recv(&RecvWr::notification(1)).unwrap();
    rig.qp.post_recv(&RecvWr::notification(2)).unwrap();
    for (rail, number, last) in [(1, 2, true), (0, 3, false), (0, 0, false)] {
        rig.rails[rail].deliver_imm(imm(number, last));
        assert_eq!(rig.poll(), []);
    }
    rig.rails[1].deliver_imm(imm(1, false));
    assert_eq!(rig.poll_ids(), ok(&[1]));
    rig.rails[1].deliver_imm(imm(4, true));
    assert_eq!(rig.poll_ids(), ok(&[2]));
}

/// A sender's fragments, delivered in any order, complete the receiver's receives in order.
#[test]
fn a_sender_and_a_receiver_agree() {
    let mut sender = Setup::dqplb(3).fragment(128).depth(8).rig();
    let mut receiver = receiver(3);
    for id in 0..6 {
        receiver.qp.post_recv(&RecvWr::notification(id)).unwrap();
        sender.post([rig::write_imm(id, 128 * (1 + id as u32 % 3), 0)]);
    }
    for rail in [2, 0, 1] {
        for request in sender.rails[rail].sends() {
            receiver.rails[rail].deliver_imm(request.imm);
        }
    }
    assert_eq!(receiver.poll_ids(), ok(&[0, 1, 2, 3, 4, 5]));
    assert_eq!(receiver.qp.protocol_errors(), 0);
}

/// Receives are posted on every rail before anything arrives.
#[test]
fn every_rail_gets_its_receives_before_traffic() {
    let rig = receiver(3);
    for rail in &rig.rails {
        assert_eq!(rail.take_recv_batches(), [8], "in one batch");
        assert!(rail.recvs().iter().all(|recv| recv.sge.length() == 0));
    }
}

/// Receives are replenished in batches at a low-water mark: one doorbell for many.
#[test]
fn receives_are_replenished_in_batches() {
    let mut rig = receiver(2);
    rig.rails.iter().for_each(|rail| drop(rail.take_recv_batches()));
    for number in 0..32u32 {
        rig.rails[0].deliver_imm(imm(number, false));
        assert_eq!(rig.poll(), []);
        assert!(rig.rails[0].recvs().len() > 8 - 8 / 4 - 1, "never near empty");
    }
    assert_eq!(rig.rails[0].take_recv_batches(), [2; 16]);
    assert!(rig.rails[1].take_recv_batches().is_empty());
}

#[test]
fn receives_are_replenished_when_there_is_one_only() {
    let mut rig = Setup::dqplb(2).depth(1).rig();
    rig.qp.prepare_receives().unwrap();
    for number in 0..5 {
        rig.rails[1].deliver_imm(imm(number, true));
        assert_eq!(rig.poll(), []);
        assert_eq!(rig.rails[1].recvs().len(), 1);
    }
}

/// Defect 13: "unlimited" means the queue pair's own depth.
#[test]
fn defect_13_an_unlimited_message_count_still_posts_receives() {
    for (max_recv_wr, expected) in [(1024, 16), (5, 5)] {
        let mut setup = Setup::dqplb(2).depth(u32::MAX);
        setup.limits.max_recv_wr = max_recv_wr;
        let mut rig = setup.rig();
        rig.qp.prepare_receives().unwrap();
        for rail in &rig.rails {
            assert_eq!(rail.recvs().len(), expected);
        }
        assert_eq!(rig.qp.window().receives_per_rail, expected as u32);
    }
}

#[test]
fn a_duplicate_is_dropped_and_counted() {
    let mut rig = receiver(2);
    for id in 0..3 {
        rig.qp.post_recv(&RecvWr::notification(id)).unwrap();
    }
    for rail in [0, 1] {
        rig.rails[rail].deliver_imm(imm(0, true));
    }
    assert_eq!(rig.poll_ids(), ok(&[0]));
    rig.rails[0].deliver_imm(imm(2, true));
    rig.rails[1].deliver_imm(imm(2, true));
    assert_eq!((rig.poll(), rig.qp.duplicates()), (vec![], 2));
    let completions = |rail| rig.qp.counters(RailId::Data(rail)).unwrap().completions;
    assert_eq!([completions(0), completions(1)], [2, 2], "duplicates count");
    rig.rails[0].deliver_imm(imm(1, true));
    assert_eq!(rig.poll_ids(), ok(&[1, 2]));
}

#[test]
fn only_dqplb_over_several_rails_posts_receives_of_its_own() {
    for setup in [Setup::spray(2), Setup::dqplb(1), Setup::spray(1)] {
        let mut rig = setup.depth(8).rig();
        rig.qp.prepare_receives().unwrap();
        assert!(rig.rails.iter().all(|rail| rail.recvs().is_empty()));
        rig.qp.post_recv(&RecvWr::data(1, rig::local(64), &rig::KEYS)).unwrap();
    }
}

/// Receives that every driver refused are not posted later either, so the caller may use the queues
/// for data receives.
#[test]
fn receives_that_were_all_refused_leave_the_queues_to_others() {
    let mut rig = Setup::dqplb(2).rig();
    rig.rails.iter().for_each(|rail| rail.refuse_next_recv(0, Refusal::Driver(5)));
    let refused = PostRecvError::Driver { rail: RailId::Data(0), errno: 5 };
    assert_eq!(rig.qp.prepare_receives(), Err(refused));
    assert_eq!(rig.poll(), []);
    assert!(rig.rails.iter().all(|rail| rail.recvs().is_empty()));
    for _ in 0..2 {
        assert!(rig.qp.check_stalled().is_empty(), "no rail waits for them");
    }
    rig.qp.post_recv(&RecvWr::data(1, rig::local(64), &rig::KEYS)).unwrap();
    assert_eq!(rig.rails[0].recvs().len(), 1);
    rig.rails[0].deliver_send(10, None);
    assert_eq!(rig.poll(), [done(1, WcOpcode::RECV, 10)]);
}

/// Defect 8: a notification before its receive is a credit for the next one.
#[test]
fn defect_08_a_notification_before_its_receive_is_kept() {
    let mut rig = Setup::dqplb(2).rig();
    rig.qp.prepare_receives().unwrap();
    rig.rails[1].deliver_imm(imm(0, true));
    rig.rails[0].deliver_imm(imm(1, true));
    assert_eq!(rig.poll(), []);
    for id in [70, 71, 72] {
        rig.qp.post_recv(&RecvWr::notification(id)).unwrap();
    }
    let expected =
        [done(70, WcOpcode::RECV_RDMA_WITH_IMM, 0), done(71, WcOpcode::RECV_RDMA_WITH_IMM, 0)];
    assert_eq!(rig.poll(), expected, "without a completion");
    rig.rails[0].deliver_imm(imm(2, true));
    assert_eq!(rig.poll_ids(), ok(&[72]));
}

/// Defect 9: status first; a flushed receive is not data, and is not posted again.
#[test]
fn defect_09_a_flushed_receive_is_neither_data_nor_posted_again() {
    let mut rig = Setup::dqplb(2).depth(4).rig();
    rig.qp.post_recv(&RecvWr::notification(1)).unwrap();
    rig.rails.iter().for_each(|rail| drop(rail.take_recv_batches()));
    // The rubbish in a flushed completion's immediate must not count as sequence number 0.
    rig.rails[1].flush();
    let reports = rig.poll();
    assert_eq!(reports.len(), 1);
    assert_eq!((reports[0].status, reports[0].imm), (WcStatus::WR_FLUSH_ERR, None));
    for rail in &rig.rails {
        assert!(rail.take_recv_batches().is_empty(), "nothing is posted on a failed queue pair");
    }
    let error = rig.qp.first_error().unwrap();
    assert_eq!((error.rail, error.status), (RailId::Data(1), WcStatus::WR_FLUSH_ERR));
}

/// Defect 9, for receives that were never posted: nothing is left to wait for.
#[test]
fn defect_09_a_failed_queue_pair_posts_no_receives_of_its_own() {
    let mut rig = Setup::dqplb(2).depth(4).rig();
    rig.post([rig::write(1, 64)]);
    rig.rails[0].fail(WcStatus::RETRY_EXC_ERR);
    assert_eq!(rig.poll().len(), 1);
    assert_eq!(rig.qp.prepare_receives(), Err(PostRecvError::InErrorState));
    assert!(rig.rails.iter().all(|rail| rail.recvs().is_empty()));
}

/// Defect 11, DQPLB: after a refusal the receives are posted after all, on every rail.
#[test]
fn defect_11_dqplb_receives_refused_once_are_posted_later() {
    for by_poll in [false, true] {
        let mut rig = Setup::dqplb(3).depth(8).rig();
        rig.rails[1].refuse_next_recv(3, Refusal::Driver(12));
        let refused = rig.qp.prepare_receives();
        assert_eq!(refused, Err(PostRecvError::Driver { rail: RailId::Data(1), errno: 12 }));
        if by_poll {
            assert_eq!(rig.poll(), []);
        } else {
            rig.qp.prepare_receives().unwrap();
        }
        let posted: Vec<_> = rig.rails.iter().map(|rail| rail.recvs().len()).collect();
        assert_eq!(posted, [8, 8, 8], "no sender may meet an empty receive queue");
    }
}

#[test]
fn defect_11_dqplb_receives_refused_by_a_full_queue_are_posted_at_the_next_poll() {
    let mut rig = Setup::dqplb(2).depth(8).rig();
    rig.rails[1].refuse_next_recv(3, Refusal::QueueFull);
    rig.qp.post_recv(&RecvWr::notification(1)).unwrap();
    assert_eq!(rig.rails[1].recvs().len(), 3);
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.rails[1].recvs().len(), 8);
}

/// Defect 12: the kind that came first stands, the other is refused before anything is posted.
#[test]
fn defect_12_data_and_notification_receives_do_not_mix_on_rail_0() {
    let data = RecvWr::data(1, local(64), &KEYS);
    let mut rig = Setup::dqplb(2).rig();
    rig.qp.post_recv(&data).unwrap();
    let refused = Err(PostRecvError::MixedReceives { serves_data: true });
    assert_eq!(rig.qp.post_recv(&RecvWr::notification(2)), refused);
    assert_eq!(rig.qp.prepare_receives(), refused);
    assert_eq!((rig.rails[0].recvs().len(), rig.rails[1].recvs().len()), (1, 0));
    rig.rails[0].deliver_send(5, None);
    assert_eq!(rig.poll(), [done(1, WcOpcode::RECV, 5)]);

    let mut rig = Setup::dqplb(2).depth(4).rig();
    rig.qp.post_recv(&RecvWr::notification(2)).unwrap();
    assert_eq!(rig.qp.post_recv(&data), Err(PostRecvError::MixedReceives { serves_data: false }));
    assert_eq!(rig.rails[0].recvs().len(), 4);
}

/// Defect 12: a data receive that was refused has not chosen the kind.
#[test]
fn defect_12_a_refused_data_receive_leaves_the_queue_to_notifications() {
    let mut rig = Setup::dqplb(2).depth(4).rig();
    rig.rails[0].refuse_next_recv(0, Refusal::Driver(1));
    assert!(rig.qp.post_recv(&RecvWr::data(1, local(64), &KEYS)).is_err());
    rig.qp.post_recv(&RecvWr::notification(2)).unwrap();
    rig.rails[0].deliver_imm(imm(0, true));
    assert_eq!(rig.poll(), [done(2, WcOpcode::RECV_RDMA_WITH_IMM, 0)]);
    assert_eq!(rig.qp.protocol_errors(), 0);
}
