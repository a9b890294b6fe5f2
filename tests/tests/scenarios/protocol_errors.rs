//! Completions that no correct NIC and no correct peer produces. `core/docs/architecture.md`,
//! "Tags" and "Failures".

use polyrail_core::hardware::Refusal;
use polyrail_core::internals::MODULUS;
use polyrail_core::internals::{Tag, TagKind};
use polyrail_core::verbs::{Completion, DeviceId, Imm, RecvWr, WcFlags, WcOpcode, WcStatus};
use polyrail_core::virtual_cq::{Event, VirtualCq};
use polyrail_core::virtual_qp::OutsideWindow;
use polyrail_core::virtual_qp::{Config, ProtocolError, QpState, RailId, VirtualQp};
use polyrail_tests::rig::{self, KEYS, Rig, Setup, TestCq, TestQp, imm, local, ok};
use polyrail_tests::scripted::{LIMITS, Nic};

/// This completion of rail 0 is a protocol error if its tag can belong to its queue, and foreign
/// otherwise. Returns whether it is a protocol error.
fn is_out_of_turn(rig: &mut Rig, completion: Completion) -> bool {
    let Completion { wr_id, status, opcode, .. } = completion;
    let is_ours = Tag::from_wr_id(wr_id)
        .kind()
        .is_some_and(|kind| !status.is_success() || opcode.is_recv() == (kind != TagKind::Send));
    rig.rails[0].inject(completion);
    let (events, _) = rig.poll_events(usize::MAX);
    let error = rig.qp.take_protocol_error();
    if is_ours {
        assert_eq!(events, []);
        let Some(ProtocolError::Tag { rail, wr_id: seen, .. }) = error else {
            panic!("{wr_id:#x}: {error:?}")
        };
        assert_eq!((rail, seen), (RailId::Data(0), wr_id));
    } else {
        assert_eq!(events, [Event::Foreign { device: DeviceId(0), completion }]);
        assert_eq!(error, None);
    }
    is_ours
}

/// Completions of rail 0 under this name, good and bad, change nothing. Returns how many of them
/// are protocol errors.
fn is_not_in_turn(rig: &mut Rig, wr_id: u64) -> u64 {
    let errors = [
        Completion::success(10, wr_id, WcOpcode::RDMA_WRITE),
        Completion::success(10, wr_id, WcOpcode::RECV),
        Completion::failure(10, wr_id, WcStatus::WR_FLUSH_ERR, 0),
    ]
    .map(|completion| u64::from(is_out_of_turn(rig, completion)));
    assert_eq!(rig.qp.state(), QpState::Ready);
    errors.iter().sum()
}

/// On rail 0: a batch of two (one silent), then one of one. Flips every bit of a name in turn, and
/// tries the names of the next batch, of another rail, of the notify queue pair and of receives:
/// none is mistaken for another.
#[test]
fn names_that_are_not_in_turn_are_protocol_errors_and_change_nothing() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.qp.post_recv(&RecvWr::data(9, local(64), &KEYS)).unwrap();
    rig.qp.post_recv(&RecvWr::notification(8)).unwrap();
    rig.post([rig::write(1, 4 * 128), rig::write(2, 256)]);
    let sends: Vec<_> = rig.rails[0].sends().iter().map(|request| request.wr_id).collect();
    let mut names = vec![0, u64::MAX, sends[2], rig.rails[1].sends()[1].wr_id];
    names.push(rig.notify().recvs()[0].wr_id);
    for bit in 0..64 {
        names.extend([sends[0] ^ 1 << bit, sends[1] ^ 1 << bit]);
        names.push(rig.rails[0].recvs()[0].wr_id ^ 1 << bit);
    }
    let errors = names.into_iter().map(|name| is_not_in_turn(&mut rig, name)).sum::<u64>();
    assert_eq!(rig.qp.protocol_errors(), errors);
    assert!(errors > 2 * 64, "most names are tags");
    assert_eq!(rig.run_dry().len(), 2, "the rest works");
    rig.rails[0].deliver_send(3, None);
    rig.notify().deliver_imm(Imm::from_number(3));
    let mut ids = rig.poll_ids();
    ids.sort_by_key(|(id, _)| *id);
    assert_eq!(ids, ok(&[8, 9]));
}

/// On a DQPLB receiver any posted receive could take the number that comes: only the oldest one
/// may.
#[test]
fn arrivals_in_receives_that_are_not_in_turn_are_protocol_errors_and_change_nothing() {
    let mut rig = Setup::dqplb(2).fragment(128).depth(4).rig();
    rig.qp.prepare_receives().unwrap();
    rig.qp.post_recv(&RecvWr::notification(1)).unwrap();
    let posted = rig.rails[0].recvs();
    let is_not_in_turn = |rig: &mut Rig, wr_id, number| {
        let arrival = Completion::success(10, wr_id, WcOpcode::RECV_RDMA_WITH_IMM);
        let imm = imm(number, true);
        let wc_flags = WcFlags::WITH_IMM;
        is_out_of_turn(rig, Completion { imm, wc_flags, ..arrival })
    };
    let mut names = vec![posted[1].wr_id, posted[3].wr_id, rig.rails[1].recvs()[0].wr_id];
    names.extend((0..64).map(|bit| posted[0].wr_id ^ 1 << bit));
    for name in names {
        is_not_in_turn(&mut rig, name, 0);
    }
    assert!(rig.qp.protocol_errors() > 32);
    // Nor may a receive that is yet to be posted, when there is none.
    rig.rails[0].refuse_all_recvs(Some(Refusal::QueueFull));
    (0..4).for_each(|number| rig.rails[0].deliver_imm(imm(number, true)));
    assert_eq!(rig.poll_ids(), ok(&[1]));
    let next = posted[3].wr_id + (posted[3].wr_id - posted[2].wr_id);
    assert!(is_not_in_turn(&mut rig, next, 4));
    rig.rails[0].refuse_all_recvs(None);
    rig.qp.post_recv(&RecvWr::notification(2)).unwrap();
    assert_eq!(rig.poll_ids(), ok(&[2]), "the second of four");
    assert_eq!(rig.rails[0].recvs()[0].wr_id, next);
    assert_eq!(rig.qp.duplicates(), 0);
}

/// Each device numbers its own queue pairs.
#[test]
fn a_name_of_a_rail_with_the_same_number_on_another_device_is_not_in_turn() {
    let nic = Nic::new();
    let cqs = [nic.cq(0, 64), nic.cq(1, 64)];
    let (rails, handles): (Vec<_>, Vec<_>) = cqs.iter().map(|cq| nic.qp(7, cq, LIMITS)).unzip();
    let (notify, _) = nic.qp(8, &cqs[0], LIMITS);
    let mut qp: TestQp = VirtualQp::new(Config::default(), rails, Some(notify)).unwrap();
    let mut cq: TestCq = VirtualCq::new(cqs).unwrap();
    cq.attach(0, &qp).unwrap();
    qp.post_send(&rig::write(1, 64)).unwrap();
    let name = handles[0].sends()[0].wr_id;
    handles[1].inject(Completion::success(7, name, WcOpcode::RDMA_WRITE));
    assert_eq!(cq.poll(&mut qp, 8, |event| panic!("{event:?}")).error, None);
    let error = ProtocolError::Tag { rail: RailId::Data(1), wr_id: name, expected: None };
    assert_eq!((qp.take_protocol_error(), qp.unreported_sends()), (Some(error), 1));
    handles[0].complete(1);
    assert_eq!(cq.poll(&mut qp, 8, |_| {}).events, 1);
}

#[test]
fn a_duplicate_completion_is_a_protocol_error_and_the_rest_works() {
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.post([rig::write(1, 128), rig::write(2, 128), rig::write(3, 128)]);
    let wr_id = rig.rails[0].sends()[0].wr_id;
    rig.rails[0].complete(1);
    rig.rails[0].inject(Completion::success(10, wr_id, WcOpcode::RDMA_WRITE));
    assert_eq!(rig.poll_ids(), ok(&[1]));
    let error = rig.qp.take_protocol_error().unwrap();
    let ProtocolError::Tag { expected: Some(expected), .. } = error else { panic!("{error}") };
    assert_eq!(expected, rig.rails[0].sends()[0].wr_id);
    assert_eq!(rig.qp.take_protocol_error(), None, "taken");
    assert_eq!(rig.run_dry().len(), 2);
}

/// With nothing in flight, neither old nor future names mean anything.
#[test]
fn with_nothing_in_flight_no_name_is_in_turn() {
    for rounds in [2, 15, 16, 17, 40] {
        let mut rig = Setup::spray(2).fragment(128).rig();
        let mut names = Vec::new();
        for _ in 0..rounds {
            rig.post([rig::write(1, 4 * 128)]);
            names.extend(rig.rails[0].sends().iter().map(|request| request.wr_id));
            assert_eq!(rig.run_dry().len(), 1);
        }
        let [.., before, _, last] = names[..] else { panic!("two names a round") };
        // From one batch's last name to the next one's: two requests.
        let one = (last - before) / 2;
        names.extend((1..40).map(|ahead| last.wrapping_add(ahead * one)));
        names.extend([0, u64::MAX]);
        names.extend((0..64).map(|bit| 1 << bit));
        names.extend((0..16).map(|rail| rail << 3));
        for name in names {
            is_not_in_turn(&mut rig, name);
        }
        rig.post([rig::write(2, 256)]);
        assert_eq!(rig.run_dry().len(), 1);
    }
}

/// A DQPLB receiver on whose rail 1 this arrives, and its report.
fn bad_peer(opcode: WcOpcode, imm: Option<Imm>) -> (ProtocolError, Rig) {
    let mut rig = Setup::dqplb(2).fragment(128).depth(8).rig();
    rig.qp.post_recv(&RecvWr::notification(1)).unwrap();
    rig.post([rig::write(7, 256)]);
    rig.rails[1].deliver(opcode, 0, imm);
    let reports = rig.poll_ids();
    assert_eq!(reports, [(1, WcStatus::WR_FLUSH_ERR)], "nothing is mistaken for data");
    assert_eq!(rig.qp.state(), QpState::Error);
    assert_eq!(rig.qp.first_error().unwrap().status, WcStatus::BAD_RESP_ERR);
    rig.rails.iter().for_each(|rail| rail.complete_all());
    assert_eq!(rig.poll_ids(), ok(&[7]), "what is in flight reports its real status");
    (rig.qp.take_protocol_error().unwrap(), rig)
}

#[test]
fn a_malformed_immediate_is_a_typed_error() {
    let wire = [0, 0, 0, 1];
    let (error, _) = bad_peer(WcOpcode::RECV_RDMA_WITH_IMM, Some(Imm::from_wire(wire)));
    assert_eq!(error, ProtocolError::MalformedImm { rail: RailId::Data(1), imm: wire });
}

#[test]
fn an_immediate_outside_the_window_is_a_typed_error() {
    let (error, rig) = bad_peer(WcOpcode::RECV_RDMA_WITH_IMM, Some(imm(100_000, true)));
    let source = OutsideWindow { number: 100_000, next: 0, window: rig.qp.window().window };
    assert_eq!(error, ProtocolError::OutsideWindow { rail: RailId::Data(1), source });
}

/// Nothing was in turn yet, so nothing can be a duplicate: the peer counts from another start.
#[test]
fn a_number_before_the_first_one_ever_is_outside_the_window() {
    let number = MODULUS - 1;
    let (error, rig) = bad_peer(WcOpcode::RECV_RDMA_WITH_IMM, Some(imm(number, true)));
    let source = OutsideWindow { number, next: 0, window: rig.qp.window().window };
    assert_eq!(error, ProtocolError::OutsideWindow { rail: RailId::Data(1), source });
    assert_eq!(rig.qp.duplicates(), 0);
}

#[test]
fn a_send_that_consumes_a_notification_receive_is_a_typed_error() {
    let (error, _) = bad_peer(WcOpcode::RECV, None);
    assert_eq!(error, ProtocolError::NoImm { rail: RailId::Data(1) });
}

#[test]
fn with_spray_a_send_that_consumes_a_notification_receive_is_a_typed_error() {
    let mut rig = Setup::spray(2).rig();
    rig.qp.post_recv(&RecvWr::notification(1)).unwrap();
    rig.notify().deliver(WcOpcode::RECV, 0, None);
    assert_eq!(rig.poll_ids(), [(1, WcStatus::BAD_RESP_ERR)]);
    let error = rig.qp.take_protocol_error();
    assert_eq!(error, Some(ProtocolError::NoImm { rail: RailId::Notify }));
    assert_eq!(rig.qp.state(), QpState::Error);
}
