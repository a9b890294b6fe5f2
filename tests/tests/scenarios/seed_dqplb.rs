//! DQPLB, sender and receiver: the examples of the C++ design that polyrail implements.

use polyrail_core::hardware::Refusal;
use polyrail_core::internals::{MODULUS, SequenceImm};
use polyrail_core::verbs::{Opcode, RecvWr, SendRequest, WcOpcode};
use polyrail_core::virtual_qp::{PostRecvError, PostSendError, RailId, Scheme};
use polyrail_tests::rig::{self, Rig, Setup, done, imm, ok};

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

/// What one rail was given: numbers with marks, and bytes as they cross the wire.
fn sent(rail: &[Vec<SendRequest>]) -> Vec<Vec<[u8; 4]>> {
    rail.iter().map(|batch| batch.iter().map(|request| request.imm.wire()).collect()).collect()
}

/// Wire format: bits 0..=23 the number, bit 31 the mark, little endian on the wire.
#[test]
fn every_fragment_is_a_write_with_imm_that_carries_the_next_number() {
    let mut rig = Setup::dqplb(2).fragment(128).rig();
    rig.post([rig::write_imm(1, 3 * 128, 0xABCD), rig::write_imm(2, 128, 0xABCD)]);
    let doorbells = [rig.rails[0].take_doorbells(), rig.rails[1].take_doorbells()];
    let opcodes = doorbells.iter().flatten().flatten().map(|request| request.opcode);
    assert!(opcodes.into_iter().all(|opcode| opcode == Opcode::RdmaWriteWithImm));
    assert_eq!(sent(&doorbells[0]), [vec![[0, 0, 0, 0], [1, 0, 0, 0]]]);
    // The rail that got less goes first.
    assert_eq!(sent(&doorbells[1]), [vec![[2, 0, 0, 0x80]], vec![[3, 0, 0, 0x80]]]);
    assert_eq!(rig.run_dry().len(), 2);
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

/// Numbers count modulo 0xFFFFFF, not 2^24: a sender and a receiver go around once.
#[test]
#[ignore = "slow: seconds without optimisation; tests/full.sh runs it"]
fn numbers_wrap_where_the_reference_wraps_them() {
    let setup = Setup::dqplb(2).fragment(128).depth(1024).deep();
    let mut rig: Rig<2, 1024, 2> = setup.build();
    let requests = MODULUS.div_ceil(2048);
    let mut last_number = 0;
    for _ in 0..requests {
        rig.post([rig::write_imm(1, 2048 * 128, 0)]);
        for rail in &rig.rails {
            let doorbells = rail.take_doorbells();
            let newest = doorbells.last().unwrap().last().unwrap();
            last_number = SequenceImm::decode(newest.imm).expect("a number").number.get();
            rail.complete_all();
        }
        assert_eq!(rig.poll().len(), 1);
    }
    let all = u64::from(requests) * 2048;
    assert_eq!(u64::from(last_number), (all - 1) % u64::from(MODULUS));
    assert!(all > u64::from(MODULUS));
}

#[test]
fn dqplb_takes_no_notify_queue_pair() {
    use polyrail_core::virtual_qp::{BuildError, Config};
    use polyrail_tests::scripted::{LIMITS, Nic};
    let nic = Nic::new();
    let cq = nic.cq(0, 64);
    let config = Config { scheme: Scheme::Dqplb, ..Config::default() };
    let qp = |number| nic.qp(number, &cq, LIMITS).0;
    let built = <rig::TestQp>::new(config, [qp(1), qp(2)], Some(qp(3)));
    assert_eq!(built.map(|_| ()), Err(BuildError::UnexpectedNotify));
}

/// A plain WRITE has no number, so the receiver cannot count it: the notification of it waits until
/// it is acknowledged, which keeps the order of one queue pair.
#[test]
fn a_notification_tells_of_plain_writes_posted_before_it_too() {
    let mut rig = Setup::dqplb(2).fragment(128).rig();
    rig.post([rig::write(1, 128), rig::write_imm(2, 256, 0), rig::write(3, 128)]);
    let posted = |rig: &Rig| [rig.rails[0].sends().len(), rig.rails[1].sends().len()];
    assert_eq!(posted(&rig), [1, 0]);
    rig.rails[0].complete(1);
    assert_eq!(rig.poll_ids(), ok(&[1]));
    assert_eq!(posted(&rig).iter().sum::<usize>(), 3, "3 need not wait for 2");
    // Behind 3, which is in flight.
    rig.post([rig::write_imm(4, 128, 0)]);
    assert_eq!(posted(&rig).iter().sum::<usize>(), 3);
    assert_eq!(rig.run_dry().len(), 3);
    // After the plain WRITEs nothing waits.
    rig.post([rig::write_imm(5, 128, 0), rig::write_imm(6, 128, 0)]);
    assert_eq!(posted(&rig).iter().sum::<usize>(), 2);
}

/// After the notification the receiver may reuse the memory that was read.
#[test]
fn a_notification_tells_that_earlier_reads_are_done() {
    let mut rig = Setup::dqplb(2).fragment(128).rig();
    rig.post([rig::read(1, 128), rig::write_imm(2, 128, 0)]);
    let sent: Vec<_> = rig.rails.iter().flat_map(|rail| rail.sends()).collect();
    assert_eq!(sent.iter().map(|one| one.opcode).collect::<Vec<_>>(), [Opcode::RdmaRead]);
    rig.rails.iter().for_each(|rail| rail.complete_all());
    assert_eq!(rig.poll_ids(), ok(&[1]));
    assert_eq!(rig.run_dry().len(), 1);
}

#[test]
fn a_plain_write_that_was_refused_keeps_no_notification_waiting() {
    let mut rig = Setup::dqplb(2).fragment(128).rig();
    rig.post([rig::write_imm(1, 256, 0)]);
    rig.rails[0].refuse_next(0, polyrail_core::hardware::Refusal::Driver(22));
    let refused = rig.qp.post_send(&rig::write(2, 128));
    assert_eq!(refused, Err(PostSendError::Driver { rail: RailId::Data(0), errno: 22 }));
    rig.post([rig::write_imm(3, 128, 0)]);
    assert_eq!(rig.rails[0].sends().len() + rig.rails[1].sends().len(), 3);
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

#[test]
fn a_queue_that_took_none_of_its_receives_may_still_take_data_receives() {
    let mut rig = Setup::dqplb(2).depth(8).rig();
    for rail in &rig.rails {
        rail.refuse_next_recv(0, polyrail_core::hardware::Refusal::Driver(12));
    }
    let refused = PostRecvError::Driver { rail: RailId::Data(0), errno: 12 };
    assert_eq!(rig.qp.prepare_receives(), Err(refused));
    rig.qp.post_recv(&RecvWr::data(1, rig::local(64), &rig::KEYS)).unwrap();
    rig.rails[0].deliver_send(10, None);
    assert_eq!(rig.poll(), [done(1, WcOpcode::RECV, 10)]);
}

/// One rail has no window: whatever a card says of one is not refused.
#[test]
fn one_rail_needs_no_window() {
    let mut rig = Setup::dqplb(1).rig();
    let peer = polyrail_core::virtual_qp::PeerWindow { window: 1, receives_per_rail: u32::MAX };
    assert_eq!(rig.qp.set_peer_window(peer), Ok(()));
    rig.post([rig::write_imm(1, 128, 7)]);
    rig.rails[0].complete_all();
    assert_eq!(rig.poll_ids(), ok(&[1]));
}

/// Receives that no driver took are not posted behind the owner's back later on.
#[test]
fn receives_that_were_all_refused_leave_the_queues_to_others() {
    let mut rig = Setup::dqplb(2).rig();
    rig.rails.iter().for_each(|rail| rail.refuse_next_recv(0, Refusal::Driver(5)));
    let refused = PostRecvError::Driver { rail: RailId::Data(0), errno: 5 };
    assert_eq!(rig.qp.prepare_receives(), Err(refused));
    assert_eq!(rig.poll(), []);
    assert!(rig.rails.iter().all(|rail| rail.recvs().is_empty()));
    for _ in 0..2 {
        assert!(rig.qp.check_stalled().is_empty(), "nobody waits for them");
    }
    rig.qp.post_recv(&RecvWr::data(1, rig::local(8), &rig::KEYS)).unwrap();
    assert_eq!(rig.rails[0].recvs().len(), 1);
}

#[test]
fn receives_that_one_driver_refused_are_posted_by_the_next_poll() {
    let mut rig = Setup::dqplb(2).rig();
    rig.rails[1].refuse_next_recv(0, Refusal::QueueFull);
    assert_eq!(rig.qp.prepare_receives(), Ok(()));
    rig.rails[1].refuse_next_recv(0, Refusal::Driver(5));
    let refused = PostRecvError::Driver { rail: RailId::Data(1), errno: 5 };
    assert_eq!(rig.qp.prepare_receives(), Err(refused));
    assert!(rig.rails[1].recvs().is_empty());
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.rails[1].recvs().len(), rig.rails[0].recvs().len());
}
