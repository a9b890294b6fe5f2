//! Rows about DQPLB and receives: 5, 8, 9, 11, 12, 17, 25.

use polyrail_core::hardware::Refusal;
use polyrail_core::internals::SequenceImm;
use polyrail_core::verbs::{Imm, RecvWr, WcOpcode, WcStatus};
use polyrail_core::virtual_qp::{PeerWindow, PostRecvError, RailId};
use polyrail_tests::rig::{self, KEYS, Rig, Setup, done, imm, local, ok};

/// The numbers that went out on all rails since the last call, in order, and whether each is last.
fn numbers(rig: &Rig) -> Vec<(u32, bool)> {
    let doorbells = rig.rails.iter().flat_map(|rail| rail.take_doorbells());
    let mut numbers: Vec<_> = doorbells
        .flatten()
        .filter(|request| request.opcode == polyrail_core::verbs::Opcode::RdmaWriteWithImm)
        .map(|request| SequenceImm::decode(request.imm).unwrap())
        .map(|imm| (imm.number.get(), imm.last))
        .collect();
    numbers.sort_unstable();
    numbers
}

/// Defect 5: only WRITE_WITH_IMM consumes sequence numbers.
#[test]
fn defect_05_plain_writes_and_reads_consume_no_sequence_numbers() {
    let mut rig = Setup::dqplb(2).fragment(128).rig();
    rig.post([rig::write(1, 256), rig::write_imm(2, 256, 0), rig::read(3, 256)]);
    rig.post([rig::fetch_add(4), rig::write_imm(5, 256, 0)]);
    let all = rig.run_dry();
    assert_eq!(all.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    assert_eq!(numbers(&rig), [(0, false), (1, true), (2, false), (3, true)]);
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

/// Defect 11, DQPLB: after a refusal the receives are posted after all, on every rail.
#[test]
fn defect_11_dqplb_receives_refused_once_are_posted_later() {
    let mut rig = Setup::dqplb(3).depth(8).rig();
    rig.rails[1].refuse_next_recv(3, Refusal::Driver(12));
    let refused = rig.qp.prepare_receives();
    assert_eq!(refused, Err(PostRecvError::Driver { rail: RailId::Data(1), errno: 12 }));
    rig.qp.prepare_receives().unwrap();
    let posted: Vec<_> = rig.rails.iter().map(|rail| rail.recvs().len()).collect();
    assert_eq!(posted, [8, 8, 8], "no sender may meet an empty receive queue");
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

/// Defect 12 is DQPLB's: with SPRAY, notifications have a queue of their own.
#[test]
fn defect_12_spray_mixes_both_kinds() {
    let mut rig = Setup::spray(2).rig();
    rig.qp.post_recv(&RecvWr::data(1, local(64), &KEYS)).unwrap();
    rig.qp.post_recv(&RecvWr::notification(2)).unwrap();
    rig.rails[0].deliver_send(64, None);
    rig.notify().deliver_imm(Imm::from_number(3));
    assert_eq!(rig.poll_ids(), ok(&[1, 2]));
}

/// Defect 17: what arrived is reported: SPRAY's immediate, a SEND's length and immediate.
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
}

/// Defect 17: "none" where the scheme uses the immediate itself.
#[test]
fn defect_17_dqplb_reports_no_immediate() {
    let mut rig = Setup::dqplb(2).rig();
    rig.qp.post_recv(&RecvWr::notification(1)).unwrap();
    rig.rails[0].deliver_imm(imm(0, true));
    assert_eq!(rig.poll(), [done(1, WcOpcode::RECV_RDMA_WITH_IMM, 0)]);
}

/// A DQPLB sender whose peer's window leaves it `span` numbers.
fn sender(span: u32) -> Rig {
    let mut rig = Setup::dqplb(2).fragment(128).depth(8).rig();
    let peer = PeerWindow { window: 2 * 8 + span, receives_per_rail: 8 };
    rig.qp.set_peer_window(peer).unwrap();
    rig
}

/// Defect 25: with rail 0 stalled, rail 1 runs ahead as far as the span.
#[test]
fn defect_25_a_sender_keeps_within_its_span_of_a_stalled_rail() {
    let mut rig = sender(10);
    rig.post((0..20).map(|id| rig::write_imm(id, 128, 0)));
    for _ in 0..50 {
        rig.rails[1].complete_all();
        assert_eq!(rig.poll().len(), 0, "request 0 is on the stalled rail");
    }
    let sent = numbers(&rig);
    assert_eq!(sent.len(), 10, "numbers 0 to 9: {sent:?}");
    rig.rails[0].complete(1);
    assert_ne!(rig.poll_ids(), [], "the stall ends");
    rig.run_dry();
    assert_eq!(rig.qp.unreported_sends(), 0);
    let rest = numbers(&rig);
    assert_eq!(rest.last(), Some(&(19, true)));
}

/// Defect 25: one request longer than the span.
#[test]
fn defect_25_a_request_longer_than_the_span_goes_out_piece_by_piece() {
    let mut rig = sender(3);
    rig.post([rig::write_imm(1, 20 * 128, 0)]);
    let mut sent = numbers(&rig);
    assert_eq!(sent.len(), 3);
    let reports = rig.run_dry();
    assert_eq!(reports, [done(1, WcOpcode::RDMA_WRITE, 20 * 128)]);
    sent.extend(numbers(&rig));
    let expected: Vec<_> = (0..20).map(|number| (number, number == 19)).collect();
    assert_eq!(sent, expected);
}

/// Defect 25: a window that is known late, and smaller than what is in flight, is not overstepped
/// further.
#[test]
fn defect_25_a_window_that_shrinks_under_traffic_stops_the_sender() {
    let mut rig = sender(16);
    rig.post((0..12).map(|id| rig::write_imm(id, 128, 0)));
    assert_eq!(numbers(&rig).len(), 12);
    let peer = PeerWindow { window: 2 * 8 + 4, receives_per_rail: 8 };
    rig.qp.set_peer_window(peer).unwrap();
    rig.post([rig::write_imm(12, 128, 0)]);
    assert_eq!(numbers(&rig), []);
    assert_eq!(rig.run_dry().len(), 13);
    assert_eq!(numbers(&rig), [(12, true)]);
}

/// Defect 25: a window that leaves no numbers.
#[test]
fn defect_25_a_window_too_small_for_anything_is_refused() {
    let mut rig = sender(16);
    let peer = PeerWindow { window: 16, receives_per_rail: 8 };
    let error = rig.qp.set_peer_window(peer).unwrap_err();
    assert_eq!((error.peer, error.rails), (peer, 2));
    rig.post((0..16).map(|id| rig::write_imm(id, 128, 0)));
    assert_eq!(numbers(&rig).len(), 16, "nothing changed");
}
