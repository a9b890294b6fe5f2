//! Where requests go, and where completions come from. `core/docs/architecture.md`, "Routing over
//! one rail and over several" and "The virtual completion queue".

use polyrail_core::verbs::{Imm, Opcode, RecvWr, SendFlags, SendWr, WcOpcode, WcStatus};
use polyrail_core::virtual_cq::{CompletionTarget, Event, VirtualCq};
use polyrail_core::virtual_qp::{PostSendError, RailId};
use polyrail_tests::rig::{self, KEYS, Rig, Setup, TestCq, TestQp, done, local, ok};
use polyrail_tests::scripted::Nic;

/// Requests of every opcode that a queue pair of many rails takes.
fn requests() -> [SendWr<'static>; 7] {
    [
        rig::send(1, 256),
        SendWr::send_with_imm(2, local(256), 0x11, &KEYS),
        rig::fetch_add(3),
        SendWr::compare_swap(4, local(8), rig::REMOTE, 5, 6, &KEYS),
        rig::write(5, 256),
        rig::read(6, 256),
        rig::write_imm(7, 256, 0x22),
    ]
}

/// Requests on each rail and on the notify queue pair, after everything that is due was posted.
fn spread(setup: &Setup, request: SendWr<'_>) -> (Vec<usize>, usize) {
    let mut rig = setup.rig();
    rig.post([request]);
    let reports = rig.run_dry();
    assert_eq!((reports.len(), reports[0].wr_id), (1, request.wr_id));
    assert_eq!(reports[0].qp_num, rig::VIRTUAL_QP_NUM);
    let posted = |handle: &polyrail_tests::scripted::QpHandle| {
        handle.take_doorbells().iter().map(Vec::len).sum()
    };
    (rig.rails.iter().map(posted).collect(), rig.notify.as_ref().map_or(0, posted))
}

/// All rows of the table of routes that send.
#[test]
fn over_many_rails_each_opcode_takes_its_path() {
    let spray = Setup::spray(2).fragment(128);
    for request in &requests()[..4] {
        assert_eq!(spread(&spray, *request), (vec![1, 0], 0), "{:?}", request.opcode);
    }
    for request in &requests()[4..6] {
        assert_eq!(spread(&spray, *request), (vec![1, 1], 0), "{:?}", request.opcode);
    }
    assert_eq!(spread(&spray, requests()[6]), (vec![1, 1], 1), "data, then a notify");
    assert_eq!(spread(&Setup::dqplb(2).fragment(128), requests()[6]), (vec![1, 1], 0));
}

#[test]
fn over_one_rail_every_opcode_passes_through_as_it_is() {
    for request in requests().into_iter().chain([SendWr::signal(8, 0x33)]) {
        let mut rig = Setup::spray(1).fragment(128).rig();
        rig.post([request]);
        let posted = rig.rails[0].sends();
        assert_eq!(posted.len(), 1, "no fragments");
        assert_eq!((posted[0].wr_id, posted[0].opcode), (request.wr_id, request.opcode));
        assert_eq!(posted[0].imm.number(), request.imm);
        assert_eq!((posted[0].compare_add, posted[0].swap), (request.compare_add, request.swap));
        assert_eq!(rig.qp.unreported_sends(), 0, "no tracking");
        rig.rails[0].complete(1);
        assert_eq!(rig.poll_ids(), ok(&[request.wr_id]));
    }
}

#[test]
fn pass_through_requests_keep_their_fields_and_lose_only_their_name() {
    for (at, opcode) in [(1, WcOpcode::SEND), (3, WcOpcode::COMP_SWAP)] {
        let request = requests()[at];
        let mut rig = Setup::spray(2).rig();
        rig.post([request]);
        let posted = rig.rails[0].sends()[0];
        assert_ne!(posted.wr_id, request.wr_id, "a tag");
        assert_eq!((posted.opcode, posted.imm.number()), (request.opcode, request.imm));
        assert_eq!((posted.compare_add, posted.swap), (request.compare_add, request.swap));
        assert_eq!((posted.sge.addr(), posted.sge.lkey()), (rig::LOCAL, 0x100));
        assert_eq!((posted.remote_addr, posted.rkey), (request.remote_addr, 0x200));
        let expected = done(request.wr_id, opcode, request.local.length());
        assert_eq!(rig.run_dry(), [expected]);
    }
}

#[test]
fn what_cannot_be_spread_is_refused_and_nothing_changes() {
    let mut rig = Setup::spray(2).rig();
    let refused = |rig: &mut Rig, wr: SendWr<'_>| rig.qp.post_send(&wr).unwrap_err();
    for opcode in [Opcode::LocalInv, Opcode::SendWithInv] {
        let wr = SendWr { opcode, ..rig::write(1, 8) };
        assert_eq!(refused(&mut rig, wr), PostSendError::UnsupportedOpcode(opcode));
    }
    for opcode in [Opcode::RdmaWrite, Opcode::RdmaRead] {
        let wr = SendWr { opcode, ..rig::write(1, 8) }.with_flags(SendFlags::empty());
        assert_eq!(refused(&mut rig, wr), PostSendError::Unsignaled(opcode));
        let wr = SendWr { opcode, ..rig::write(1, 0) };
        assert_eq!(refused(&mut rig, wr), PostSendError::Empty(opcode));
    }
    assert_eq!(rig.qp.unreported_sends(), 0);
    assert!(rig.rails.iter().all(|rail| rail.take_doorbells().is_empty()));
}

#[test]
fn a_single_rail_reports_receives_as_the_driver_does() {
    let mut rig = Setup::spray(1).rig();
    rig.qp.post_recv(&RecvWr::notification(5)).unwrap();
    rig.rails[0].deliver(WcOpcode::RECV_RDMA_WITH_IMM, 4096, Some(Imm::from_number(9)));
    let mut expected = done(5, WcOpcode::RECV_RDMA_WITH_IMM, 4096);
    expected.imm = Some(9);
    assert_eq!(rig.poll(), [expected]);
}

#[test]
fn a_single_rail_that_fails_reports_an_unknown_opcode() {
    let mut rig = Setup::spray(1).rig();
    rig.post([rig::write(5, 4096), rig::write(6, 1)]);
    rig.rails[0].fail(WcStatus::REM_ACCESS_ERR);
    let wcs = rig.poll();
    let seen: Vec<_> = wcs.iter().map(|wc| (wc.wr_id, wc.status, wc.opcode, wc.byte_len)).collect();
    let unknown = WcOpcode::UNKNOWN;
    let first = WcStatus::REM_ACCESS_ERR;
    let flush = WcStatus::WR_FLUSH_ERR;
    assert_eq!(seen, [(5, first, unknown, 0), (6, flush, unknown, 0)]);
    assert!(wcs.iter().all(|wc| wc.imm.is_none()), "no rubbish");
    let error = rig.qp.first_error().unwrap();
    assert_eq!((error.status, error.rail, error.qp_num), (first, RailId::Data(0), 10));
}

/// Four rails (10 to 13) with notify (20), and a single one (30), on one queue.
#[test]
fn a_single_and_a_multi_rail_queue_pair_share_a_completion_queue() {
    let nic = Nic::new();
    let cqs = [nic.cq(0, 1 << 14)];
    let multi_setup = Setup::spray(4).fragment(128);
    let single_setup = Setup::spray(1).config(|config| config.virtual_qp_num = 3);
    let (mut multi, rails, _) = multi_setup.build_qp::<4, 16, 32>(&nic, &cqs, 10);
    let (mut single, lone, _) = single_setup.build_qp::<1, 8, 8>(&nic, &cqs, 30);
    let mut cq: TestCq = VirtualCq::new(cqs).unwrap();
    cq.attach(0, &multi).unwrap();
    cq.attach(1, &single).unwrap();
    multi.post_send(&rig::write(7, 256)).unwrap();
    single.post_send(&rig::write(999, 64)).unwrap();
    rails[0].complete(1);
    lone[0].complete(1);
    rails[1].complete(1);
    let mut set: [&mut dyn CompletionTarget; 2] = [&mut multi, &mut single];
    let mut events = Vec::new();
    let polled = cq.poll(&mut set[..], 32, |event| events.push(event));
    assert_eq!((polled.events, polled.error), (2, None));
    let seen: Vec<_> = events
        .into_iter()
        .filter_map(Event::completion)
        .map(|wc| (wc.qp_num, wc.wr_id, wc.byte_len))
        .collect();
    assert_eq!(seen, [(3, 999, 0), (rig::VIRTUAL_QP_NUM, 7, 256)]);
}

/// The key of a route is device and number.
#[test]
fn equal_numbers_on_two_devices_are_two_queue_pairs() {
    let nic = Nic::new();
    let cqs = [nic.cq(0, 1 << 12), nic.cq(1, 1 << 12)];
    let setup = |number| Setup::spray(1).config(move |config| config.virtual_qp_num = number);
    let (a, a_rails, _) = setup(1).build_qp::<4, 8, 8>(&nic, &cqs[..1], 17);
    let (b, b_rails, _) = setup(2).build_qp::<4, 8, 8>(&nic, &cqs[1..], 17);
    let mut cq: TestCq = VirtualCq::new(cqs).unwrap();
    let mut set: Vec<TestQp<4, 8, 8>> = vec![a, b];
    cq.attach(0, &set[0]).unwrap();
    cq.attach(1, &set[1]).unwrap();
    set[0].post_send(&rig::write(100, 8)).unwrap();
    set[1].post_send(&rig::write(200, 8)).unwrap();
    let seen = |cq: &mut TestCq, set: &mut [TestQp<4, 8, 8>]| {
        let mut seen = Vec::new();
        let _ = cq.poll(set, 32, |event| seen.extend(event.completion()));
        seen.iter().map(|wc| (wc.qp_num, wc.wr_id)).collect::<Vec<_>>()
    };
    b_rails[0].complete(1);
    assert_eq!(seen(&mut cq, &mut set), [(2, 200)]);
    a_rails[0].complete(1);
    assert_eq!(seen(&mut cq, &mut set), [(1, 100)]);
}

/// The same within one virtual queue pair: rails of equal number on two devices.
#[test]
fn rails_of_equal_number_on_two_devices_are_two_rails() {
    let nic = Nic::new();
    let cqs = [nic.cq(0, 1 << 12), nic.cq(1, 1 << 12)];
    let (rails, handles): (Vec<_>, Vec<_>) =
        cqs.iter().map(|cq| nic.qp(17, cq, polyrail_tests::scripted::LIMITS)).unzip();
    let setup = Setup::spray(2).fragment(128);
    let mut qp = TestQp::<4, 8, 8>::new(setup.config, rails, None).unwrap();
    let mut cq: TestCq = VirtualCq::new(cqs).unwrap();
    cq.attach(0, &qp).unwrap();
    qp.post_send(&rig::write(1, 256)).unwrap();
    let mut poll = |qp: &mut TestQp<4, 8, 8>| cq.poll(qp, 32, drop).events;
    handles[1].complete(1);
    assert_eq!(poll(&mut qp), 0);
    handles[0].complete(1);
    assert_eq!(poll(&mut qp), 1);
    assert_eq!(qp.protocol_errors(), 0);
}
