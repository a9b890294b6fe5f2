//! DQPLB's sender: which requests are numbered, in which order numbers go out, and how far a sender
//! runs ahead. `core/docs/architecture.md`, "The schemes"; `core/docs/wire.md`, "Sequence numbers
//! of DQPLB".

use polyrail_core::hardware::Refusal;
use polyrail_core::internals::{MODULUS, SequenceImm};
use polyrail_core::verbs::{Opcode, SendRequest, WcOpcode};
use polyrail_core::virtual_qp::{PeerWindow, PostSendError, RailId};
use polyrail_tests::rig::{self, Rig, Setup, done, ok};

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

/// Numbers count modulo 0xFFFFFF, not 2^24: a sender and a receiver go around once.
#[test]
#[ignore = "slow: seconds without optimisation; tests/gate.sh runs it"]
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

/// A plain WRITE has no number, so the receiver cannot count it: the notification of it waits until
/// it is acknowledged, which keeps the order of one queue pair.
#[test]
fn a_notification_waits_for_plain_writes_posted_before_it() {
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
fn a_notification_waits_for_reads_posted_before_it() {
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

/// One rail has no window: any window on a card is accepted.
#[test]
fn one_rail_needs_no_window() {
    let mut rig = Setup::dqplb(1).rig();
    let peer = polyrail_core::virtual_qp::PeerWindow { window: 1, receives_per_rail: u32::MAX };
    assert_eq!(rig.qp.set_peer_window(peer), Ok(()));
    rig.post([rig::write_imm(1, 128, 7)]);
    rig.rails[0].complete_all();
    assert_eq!(rig.poll_ids(), ok(&[1]));
}
