//! SPRAY's short requests whose data is in the notify: when they are, and what becomes of them when
//! the notify queue pair fails. `core/docs/architecture.md`, "The schemes";
//! `core/docs/rails-that-fail.md`, "What happens to requests".

use super::reroute::{fenced, ready};
use polyrail_core::hardware::{QpLimits, Refusal};
use polyrail_core::verbs::{
    Imm, LocalPart, Opcode, RecvWr, SendFlags, SendRequest, SendWr, WcOpcode, WcStatus,
};
use polyrail_core::virtual_qp::{QpState, RailChoice, RailFailure, RailId, ReplaceError};
use polyrail_tests::rig::{self, KEYS, Rig, Setup, done, keys_on, local, ok};
use polyrail_tests::scripted::LIMITS;

const NOTIFY: RailId = RailId::Notify;
const KB_64: u32 = 64 << 10;

/// What is in flight on the notify queue pair: the immediate and the bytes of each request.
fn in_flight(rig: &Rig) -> Vec<(u32, u32)> {
    let imm_and_bytes = |send: &SendRequest| (send.imm.number(), send.sge.length());
    rig.notify().sends().iter().map(imm_and_bytes).collect()
}

/// Requests in flight on the data rails.
fn on_rails(rig: &Rig) -> usize {
    rig.rails.iter().map(|rail| rail.sends().len()).sum()
}

/// Whether a request that is posted now is one physical request, with its notify.
fn is_one_trip(rig: &mut Rig, wr: &SendWr<'_>) -> bool {
    let before = on_rails(rig);
    rig.post([*wr]);
    let last = rig.notify().sends().last().copied();
    let is_it =
        |last: SendRequest| (last.imm.number(), last.sge.length()) == (wr.imm, wr.local.length());
    let with_data = last.is_some_and(is_it);
    assert_eq!(on_rails(rig) - before, usize::from(!with_data), "one request, on one of them");
    with_data
}

#[test]
fn a_fragment_with_nothing_before_it_is_one_request() {
    let mut rig = Setup::spray(2).devices(2).rig();
    let solicited = SendFlags::SIGNALED | SendFlags::SOLICITED;
    for (id, length) in [(1, 8), (2, 4096), (3, KB_64)] {
        rig.post([rig::write_imm(id, length, 0xCAFE).with_flags(solicited)]);
        assert_eq!(on_rails(&rig), 0);
        let sent = rig.notify().sends()[0];
        assert_eq!((sent.opcode, sent.flags), (Opcode::RdmaWriteWithImm, solicited));
        assert_eq!((sent.imm.wire(), sent.remote_addr), ([0, 0, 0xCA, 0xFE], rig::REMOTE));
        assert_eq!((sent.sge.addr(), sent.sge.length()), (rig::LOCAL, length));
        assert_eq!((sent.sge.lkey(), sent.rkey), (keys_on(0).lkey, keys_on(0).rkey));
        assert_eq!(rig.poll(), []);
        rig.notify().complete(1);
        assert_eq!(rig.poll(), [done(id, WcOpcode::RDMA_WRITE, length)]);
    }
    let counters = rig.qp.counters(NOTIFY).unwrap();
    assert_eq!((counters.send_requests, counters.doorbells, counters.completions), (3, 3, 3));
    assert_eq!(counters.bytes, u64::from(8 + 4096 + KB_64));
}

/// A longer request, a list, and several requests that are posted together go over the rails.
#[test]
fn what_is_not_one_fragment_of_one_buffer_goes_over_the_rails() {
    let mut rig = Setup::spray(2).rig();
    rig.post([rig::write_imm(1, KB_64 + 1, 1)]);
    assert_eq!((on_rails(&rig), in_flight(&rig)), (2, vec![]));
    rig.run_dry();
    let parts = [LocalPart { local: local(8), keys: &KEYS }; 2];
    rig.qp.post_list(&rig::write_imm(2, 8, 2), &parts).unwrap();
    assert_eq!(in_flight(&rig), []);
    rig.run_dry();
    rig.qp.post_many(&[rig::write_imm(3, 8, 3), rig::write_imm(4, 8, 4)]).unwrap();
    assert_eq!((on_rails(&rig), in_flight(&rig)), (2, vec![]));
    rig.run_dry();
    rig.qp.post_many(&[rig::write_imm(5, 8, 5)]).unwrap();
    assert_eq!((on_rails(&rig), in_flight(&rig)), (0, vec![(5, 8)]));
}

/// A notification tells of everything before it, so the data of what is before it must be there.
#[test]
fn behind_unacknowledged_requests_the_notify_waits() {
    let earlier = [rig::write(1, 128), rig::read(1, 128), rig::write_imm(1, 2 * KB_64, 1)];
    for wr in earlier {
        let mut rig = Setup::spray(2).rig();
        rig.post([wr]);
        assert!(!is_one_trip(&mut rig, &rig::write_imm(2, 8, 2)), "behind {:?}", wr.opcode);
        assert_eq!(rig.run_dry().len(), 2);
        assert!(is_one_trip(&mut rig, &rig::write_imm(3, 8, 3)), "once all is acknowledged");
    }
    // SENDs and atomics are before it unless they may be overtaken; a fenced request waits for them.
    let fenced = SendFlags::SIGNALED | SendFlags::FENCE;
    for wr in [rig::send(1, 8), rig::fetch_add(1)] {
        let mut rig = Setup::spray(2).rig();
        rig.post([wr]);
        assert!(!is_one_trip(&mut rig, &rig::write_imm(2, 8, 2)));
        let mut rig = Setup::spray(2).unordered().rig();
        rig.post([wr]);
        assert!(is_one_trip(&mut rig, &rig::write_imm(2, 8, 2)));
        rig.notify().complete(1);
        assert_eq!(rig.poll_ids(), ok(&[2]));
        rig.post([rig::write_imm(3, 8, 3).with_flags(fenced)]);
        assert_eq!((on_rails(&rig), in_flight(&rig)), (1, vec![]), "the fence holds it back");
        rig.run_dry();
        assert!(is_one_trip(&mut rig, &rig::write_imm(4, 8, 4).with_flags(fenced)));
    }
}

/// A notify that is in flight, with or without data, is before it.
#[test]
fn behind_a_notify_on_its_way_the_data_goes_over_the_rails() {
    let mut rig = Setup::spray(2).rig();
    rig.post([rig::write_imm(1, KB_64 + 1, 1)]);
    rig.rails.iter().for_each(|rail| rail.complete_all());
    assert_eq!(rig.poll(), []);
    assert_eq!(in_flight(&rig), [(1, 0)]);
    assert!(!is_one_trip(&mut rig, &rig::write_imm(2, 8, 2)));
    rig.run_dry();
    rig.post([SendWr::signal(3, 3)]);
    assert_eq!(in_flight(&rig), [(3, 0)]);
    assert!(!is_one_trip(&mut rig, &rig::write_imm(4, 8, 4)));
    rig.run_dry();
}

/// Up to 512 bytes may follow others that are in flight in the same form: one queue pair keeps them
/// in order. Nothing else may be in flight.
#[test]
fn short_requests_follow_each_other_in_one_trip() {
    let fenced = SendFlags::SIGNALED | SendFlags::FENCE;
    let mut rig = Setup::spray(2).depth(4).rig();
    assert!(is_one_trip(&mut rig, &rig::write_imm(1, KB_64, 1)));
    assert!(is_one_trip(&mut rig, &rig::write_imm(2, 512, 2)));
    assert!(is_one_trip(&mut rig, &rig::write_imm(3, 8, 3)));
    assert!(!is_one_trip(&mut rig, &rig::write_imm(4, 513, 4)), "too long");
    assert!(!is_one_trip(&mut rig, &rig::write_imm(5, 8, 5)), "behind 4");
    rig.rails.iter().for_each(|rail| rail.complete_all());
    rig.notify().complete(2);
    assert_eq!(rig.poll_ids(), ok(&[1, 2]));
    assert_eq!(in_flight(&rig), [(3, 8)], "the notifies of 4 and 5 wait");
    rig.notify().complete(1);
    assert_eq!(rig.poll_ids(), ok(&[3]));
    assert_eq!(in_flight(&rig), [(4, 0), (5, 0)]);
    assert!(!is_one_trip(&mut rig, &rig::write_imm(6, 8, 6)), "behind notifies without data");
    rig.run_dry();
    for id in 7..11 {
        assert!(is_one_trip(&mut rig, &rig::write_imm(id, 8, id as u32)));
    }
    assert!(!is_one_trip(&mut rig, &rig::write_imm(11, 8, 7)), "without credits");
    rig.run_dry();
    rig.post([rig::write_imm(12, 8, 7), rig::write_imm(13, 8, 7).with_flags(fenced)]);
    assert_eq!((on_rails(&rig), in_flight(&rig).len()), (0, 1), "a fence waits");
    assert_eq!(rig.run_dry().len(), 2);
}

/// What arrived of several is a prefix.
#[test]
fn of_several_that_are_lost_those_that_did_not_arrive_go_again_in_order() {
    for arrived in 0..=3 {
        let mut rig = Setup::spray(2).reroute().rig();
        rig.post((1..=3).map(|id| rig::write_imm(id, 8, id as u32)));
        rig.notify().flush();
        assert_eq!(rig.poll(), []);
        rig.qp.control(fenced(NOTIFY, 0, arrived)).unwrap();
        let done: Vec<_> = (1..=u64::from(arrived)).collect();
        assert_eq!(rig.poll_ids(), ok(&done));
        rig.post([rig::write_imm(4, 8, 4)]);
        rig.replace(NOTIFY, 1, 80);
        ready(&mut rig, NOTIFY, 1);
        let again: Vec<_> = (arrived + 1..=3).map(|id| (id, 8)).collect();
        assert_eq!(in_flight(&rig), again);
        rig.run_dry();
        assert_eq!(rig.qp.unreported_sends(), 0);
    }
}

/// What is behind it waits for it: a FENCE, a SEND, the notify of the next request.
#[test]
fn what_is_ordered_behind_it_waits_for_its_acknowledgement() {
    let mut rig = Setup::spray(2).rig();
    let fenced = SendFlags::SIGNALED | SendFlags::FENCE;
    rig.post([rig::write_imm(1, 8, 1), rig::send(2, 8), rig::write_imm(3, 2 * KB_64, 3)]);
    rig.post([rig::read(4, 8).with_flags(fenced)]);
    assert_eq!(on_rails(&rig), 2, "the data of request 3");
    rig.rails.iter().for_each(|rail| rail.complete_all());
    assert_eq!(rig.poll(), []);
    assert_eq!((on_rails(&rig), in_flight(&rig)), (0, vec![(1, 8)]));
    rig.notify().complete(1);
    assert_eq!(rig.poll_ids(), ok(&[1]));
    assert_eq!(rig.opcodes(0).last(), Some(&Opcode::Send));
    assert_eq!(rig.run_dry().len(), 3);
}

/// The data of a device that the rails leave out stays off it.
#[test]
fn it_needs_a_rail_on_the_device_of_the_notify_queue_pair() {
    let mut rig = Setup::spray(2).devices(2).rig();
    assert!(rig.qp.set_rail_in_service(0, false));
    assert!(!is_one_trip(&mut rig, &rig::write_imm(1, 8, 1)), "out of service");
    rig.run_dry();
    assert!(rig.qp.set_rail_in_service(0, true));
    assert!(rig.qp.reserve_rail(0, true));
    assert!(!is_one_trip(&mut rig, &rig::write_imm(2, 8, 2)), "reserved");
    rig.run_dry();
    assert!(rig.qp.reserve_rail(0, false));
    assert!(rig.qp.set_standby(0, true));
    assert!(!is_one_trip(&mut rig, &rig::write_imm(3, 8, 3)), "standing by");
    rig.run_dry();
    assert!(rig.qp.set_standby(0, false));
    assert!(is_one_trip(&mut rig, &rig::write_imm(4, 8, 4)));
}

/// With least finish time a long fragment goes over a faster rail.
#[test]
fn a_long_fragment_does_not_go_over_a_slower_device() {
    for (bandwidth, expected) in [([10, 100], false), ([100, 10], true), ([10, 10], true)] {
        let mut bandwidth_mbps = [1; 8];
        bandwidth_mbps[..2].copy_from_slice(&bandwidth);
        let choice = RailChoice::LeastFinishTime { bandwidth_mbps };
        let setup = Setup::spray(2).devices(2).config(|config| config.rail_choice = choice);
        let mut rig = setup.rig();
        assert!(is_one_trip(&mut rig, &rig::write_imm(1, 4096, 1)), "short: {bandwidth:?}");
        rig.run_dry();
        let is_one = is_one_trip(&mut rig, &rig::write_imm(2, 4097, 2));
        assert_eq!(is_one, expected, "{bandwidth:?}");
    }
}

/// A notify queue pair whose messages, or inline data, are shorter than those of the rails.
#[test]
fn what_does_not_fit_the_notify_queue_pair_goes_over_the_rails() {
    let notify_limits = QpLimits { max_msg_size: 64, max_inline_data: 16, ..LIMITS };
    let limits = QpLimits { max_inline_data: 256, ..LIMITS };
    let mut rig = Setup { notify_limits, limits, ..Setup::spray(2) }.rig();
    let inline = SendFlags::SIGNALED | SendFlags::INLINE;
    for (length, flags, expected) in [
        (64, SendFlags::SIGNALED, true),
        (65, SendFlags::SIGNALED, false),
        (16, inline, true),
        (17, inline, false),
    ] {
        let wr = rig::write_imm(1, length, 1).with_flags(flags);
        assert_eq!(is_one_trip(&mut rig, &wr), expected, "{length} {flags:?}");
        let sent = rig.rails.iter().chain(&rig.notify).flat_map(|rail| rail.sends());
        assert!(sent.last().unwrap().flags.contains(flags));
        rig.run_dry();
    }
}

#[test]
fn a_full_driver_leaves_it_to_the_rails() {
    let mut rig = Setup::spray(2).rig();
    rig.notify().refuse_next(0, Refusal::QueueFull);
    assert!(!is_one_trip(&mut rig, &rig::write_imm(1, 8, 1)));
    rig.rails.iter().for_each(|rail| rail.complete_all());
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.notifies(), [[1]]);
    rig.notify().complete(1);
    assert_eq!(rig.poll_ids(), ok(&[1]));
}

/// Then the notify fails, as that of any request, and names the queue pair.
#[test]
fn a_driver_that_refuses_it_for_good_leaves_it_to_the_rails() {
    for setup in [Setup::spray(2), Setup::spray(2).reroute()] {
        let mut rig = setup.rig();
        rig.notify().refuse_next(0, Refusal::Driver(12));
        assert!(!is_one_trip(&mut rig, &rig::write_imm(1, 8, 1)));
        assert_eq!(rig.run_dry().len(), 1, "refused once");
        rig.notify().refuse_all(Some(Refusal::Driver(12)));
        assert!(!is_one_trip(&mut rig, &rig::write_imm(2, 8, 2)));
        rig.rails.iter().for_each(|rail| rail.complete_all());
        let reroutes = setup.config.rail_failure == RailFailure::Reroute;
        let failed = if reroutes { vec![] } else { vec![(2, WcStatus::GENERAL_ERR)] };
        assert_eq!([rig.poll_ids(), rig.poll_ids()].concat(), failed);
        assert_ne!(rig.qp.state(), QpState::Ready);
        let error = rig.qp.first_error().unwrap();
        assert_eq!((error.rail, error.errno), (NOTIFY, Some(12)));
    }
}

#[test]
fn a_driver_that_takes_it_with_a_complaint_fails() {
    let mut rig = Setup::spray(2).rig();
    rig.notify().complain_next(1, Refusal::Driver(12));
    rig.post([rig::write_imm(1, 8, 1)]);
    assert_eq!(rig.qp.state(), QpState::Error);
    rig.notify().complete(1);
    assert_eq!(rig.poll_ids(), ok(&[1]), "it was taken");
}

#[test]
fn it_fails_with_its_own_status() {
    let mut rig = Setup::spray(2).rig();
    rig.post([rig::write_imm(1, 8, 1), rig::write(2, 8)]);
    rig.notify().fail(WcStatus::REM_ACCESS_ERR);
    rig.rails.iter().for_each(|rail| rail.complete_all());
    assert_eq!(rig.poll_ids(), [(1, WcStatus::REM_ACCESS_ERR), (2, WcStatus::SUCCESS)]);
    let error = rig.qp.first_error().unwrap();
    assert_eq!((error.rail, error.status), (NOTIFY, WcStatus::REM_ACCESS_ERR));
}

/// Its receive shows no bytes, as that of a notify without data.
#[test]
fn its_receive_reports_no_bytes() {
    let mut rig = Setup::spray(2).rig();
    for (id, bytes) in [(1, 0), (2, 4096)] {
        rig.qp.post_recv(&RecvWr::notification(id)).unwrap();
        let imm = Some(Imm::from_number(7));
        rig.notify().deliver(WcOpcode::RECV_RDMA_WITH_IMM, bytes, imm);
        let mut expected = done(id, WcOpcode::RECV_RDMA_WITH_IMM, 0);
        expected.imm = Some(7);
        assert_eq!(rig.poll(), [expected]);
    }
}

/// A rig whose notify queue pair failed with one request on it, of which the peer counts `arrived`.
fn failed(arrived: u32) -> Rig {
    failed_with(Setup::spray(2).devices(2).reroute(), arrived)
}

fn failed_with(setup: Setup, arrived: u32) -> Rig {
    let mut rig = setup.rig();
    rig.post([rig::write_imm(1, 8, 1), rig::write_imm(2, 513, 2)]);
    rig.rails.iter().for_each(|rail| rail.complete_all());
    rig.notify().flush();
    assert_eq!(rig.poll(), [], "until the peer's count is known");
    assert_eq!(on_rails(&rig), 0, "its data goes to no other rail");
    rig.qp.control(fenced(NOTIFY, 0, arrived)).unwrap();
    rig
}

#[test]
fn lost_it_is_posted_again_as_it_was_on_the_new_notify_queue_pair() {
    let mut rig = failed(0);
    assert_eq!(rig.poll(), []);
    assert_eq!(on_rails(&rig), 0);
    let limits = rig.notify().limits();
    let (queue_pair, again) = rig.nic.qp(80, &rig.cqs[1], limits);
    assert!(rig.qp.replace_rail(&mut rig.cq, 0, NOTIFY, 1, queue_pair).is_ok());
    rig.notify = Some(again.clone());
    assert_eq!(in_flight(&rig), [], "until the peer is ready");
    ready(&mut rig, NOTIFY, 1);
    assert_eq!(in_flight(&rig), [(1, 8)], "with its data, and before the notify of request 2");
    let sent = again.sends()[0];
    let keys = keys_on(1);
    assert_eq!((sent.sge.addr(), sent.sge.lkey(), sent.rkey), (rig::LOCAL, keys.lkey, keys.rkey));
    again.complete(1);
    assert_eq!(rig.poll_ids(), ok(&[1]));
    assert_eq!(in_flight(&rig), [(2, 0)]);
    again.complete(1);
    assert_eq!(rig.poll_ids(), ok(&[2]));
    assert!(is_one_trip(&mut rig, &rig::write_imm(3, 8, 3)));
}

#[test]
fn lost_a_second_time_it_is_posted_a_third_time() {
    let mut rig = failed(0);
    for generation in 1..4 {
        rig.replace(NOTIFY, generation, 80 + u32::from(generation));
        ready(&mut rig, NOTIFY, generation);
        assert_eq!(in_flight(&rig), [(1, 8)]);
        rig.notify().flush();
        assert_eq!(rig.poll(), []);
        rig.qp.control(fenced(NOTIFY, generation, u32::from(generation == 3))).unwrap();
    }
    assert_eq!(rig.poll_ids(), ok(&[1]));
}

#[test]
fn what_arrived_of_it_is_not_posted_again() {
    let mut rig = failed(1);
    assert_eq!(rig.poll_ids(), ok(&[1]), "it arrived whole");
    rig.replace(NOTIFY, 1, 80);
    ready(&mut rig, NOTIFY, 1);
    assert_eq!(in_flight(&rig), [(2, 0)]);
    rig.notify().complete(1);
    assert_eq!(rig.poll_ids(), ok(&[2]));
}

/// The driver of the new queue pair is full at first.
#[test]
fn refused_by_a_full_driver_it_is_offered_again() {
    let mut rig = failed(0);
    let again = rig.replace(NOTIFY, 1, 80);
    again.refuse_next(0, Refusal::QueueFull);
    ready(&mut rig, NOTIFY, 1);
    assert_eq!(in_flight(&rig), []);
    assert_eq!(rig.poll(), []);
    assert_eq!(in_flight(&rig), [(1, 8)]);
}

/// Given up, it fails with everything else.
#[test]
fn lost_it_fails_with_the_virtual_queue_pair() {
    let mut rig = failed(0);
    rig.qp.fail();
    let flushed = WcStatus::WR_FLUSH_ERR;
    assert_eq!(rig.poll_ids(), [(1, flushed), (2, flushed)]);
}

/// What was lost would not fit.
#[test]
fn a_new_notify_queue_pair_has_messages_as_long() {
    let mut rig = failed(0);
    let limits = QpLimits { max_msg_size: KB_64 - 1, ..rig.notify().limits() };
    let (queue_pair, _) = rig.nic.qp(80, &rig.cqs[0], limits);
    let refused = rig.qp.replace_rail(&mut rig.cq, 0, NOTIFY, 1, queue_pair).unwrap_err().error;
    let (what, given, needed) = ("max_msg_size", KB_64 - 1, KB_64);
    assert_eq!(refused, ReplaceError::Limit { what, given, needed });
    // What was lost is no longer than the messages of the queue pair that lost it.
    let mut setup = Setup::spray(2).devices(2).reroute();
    setup.notify_limits.max_msg_size = 64;
    let mut rig = failed_with(setup, 0);
    let shorter = QpLimits { max_msg_size: 63, ..rig.notify().limits() };
    let (queue_pair, _) = rig.nic.qp(80, &rig.cqs[0], shorter);
    let refused = rig.qp.replace_rail(&mut rig.cq, 0, NOTIFY, 1, queue_pair).unwrap_err().error;
    assert_eq!(refused, ReplaceError::Limit { what, given: 63, needed: 64 });
    let (queue_pair, _) = rig.nic.qp(81, &rig.cqs[0], rig.notify().limits());
    assert!(rig.qp.replace_rail(&mut rig.cq, 0, NOTIFY, 1, queue_pair).is_ok());
}

/// While it is unknown what another rail lost, a copy of that may still be written.
#[test]
fn while_a_fence_is_awaited_the_notify_waits() {
    let mut rig = Setup::spray(2).unordered().reroute().rig();
    rig.post([rig::send(1, 8)]);
    rig.rails[0].flush();
    assert_eq!(rig.poll(), []);
    rig.post([rig::write_imm(2, 8, 2)]);
    assert_eq!((rig.rails[1].sends().len(), in_flight(&rig)), (1, vec![]));
}
