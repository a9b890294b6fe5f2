//! FENCE: what it waits for, among SENDs, atomics and fragmented requests.
//! `core/docs/architecture.md`, "Order and buffer ownership"; `core/docs/reference.md`, defect 21.

use polyrail_core::hardware::Refusal;
use polyrail_core::verbs::{Opcode, SendFlags, WcOpcode};
use polyrail_core::virtual_qp::{PeerWindow, PostSendError};
use polyrail_tests::rig::{self, Rig, Setup, done, ok};

fn unordered() -> Setup {
    Setup::spray(2).fragment(128).unordered()
}

#[test]
fn unordered_no_send_overtakes_a_fenced_one() {
    let mut rig = unordered().rig();
    let fenced = SendFlags::SIGNALED | SendFlags::FENCE;
    rig.post([rig::read(1, 256), rig::send(2, 64).with_flags(fenced), rig::send(3, 64)]);
    assert_eq!(rig.opcodes(0), [Opcode::RdmaRead]);
    assert_eq!(rig.run_dry().iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [1, 2, 3]);
}

#[test]
fn with_nothing_ahead_a_fenced_send_goes_straight_through() {
    for setup in [unordered(), Setup::spray(2)] {
        let mut rig = setup.rig();
        let flags = SendFlags::SIGNALED | SendFlags::FENCE | SendFlags::INLINE;
        rig.post([rig::send(1, 8).with_flags(flags)]);
        assert_eq!(rig.opcodes(0), [Opcode::Send]);
    }
}

#[test]
fn a_fenced_send_waits_for_each_of_several_atomics_that_went_straight_through() {
    let mut rig = unordered().rig();
    let fenced = SendFlags::SIGNALED | SendFlags::FENCE;
    rig.post([rig::fetch_add(1), rig::fetch_add(2), rig::send(3, 64).with_flags(fenced)]);
    rig.rails[0].complete(1);
    assert_eq!(rig.poll_ids(), ok(&[1]));
    assert_eq!(rig.opcodes(0), [Opcode::FetchAdd; 2], "the second is in flight");
    rig.rails[0].complete(1);
    assert_eq!(rig.poll_ids(), ok(&[2]));
    assert_eq!(rig.opcodes(0), [Opcode::Send]);
}

#[test]
fn unordered_a_fenced_send_waits_for_no_notify_of_a_later_request() {
    let mut rig = unordered().rig();
    let fenced = rig::send(2, 64).with_flags(SendFlags::SIGNALED | SendFlags::FENCE);
    rig.post([rig::fetch_add(1), fenced, rig::write_imm(3, 256, 9)]);
    rig.rails[0].complete(2);
    rig.rails[1].complete(1);
    assert_eq!(rig.poll_ids(), ok(&[1]));
    assert_eq!(rig.notifies(), [[9]], "the notify of 3 is in flight");
    assert_eq!(rig.opcodes(0), [Opcode::FetchAdd, Opcode::RdmaWrite, Opcode::Send]);
}

#[test]
fn a_fenced_send_waits_for_deferred_ones_in_flight() {
    let fenced = rig::send(3, 64).with_flags(SendFlags::SIGNALED | SendFlags::FENCE);
    for deferred_too in [true, false] {
        let mut rig = Setup::spray(2).fragment(128).rig();
        rig.post([rig::write(1, 128), rig::send(2, 64)]);
        rig.post(deferred_too.then_some(fenced));
        rig.rails[0].complete(1);
        assert_eq!(rig.poll_ids(), ok(&[1]));
        rig.post((!deferred_too).then_some(fenced));
        assert_eq!(rig.poll(), []);
        assert_eq!(rig.opcodes(0), [Opcode::RdmaWrite, Opcode::Send], "2 is in flight");
        rig.rails[0].complete(1);
        assert_eq!(rig.poll_ids(), ok(&[2]));
        assert_eq!(rig.opcodes(0), [Opcode::Send]);
    }
}

#[test]
fn unordered_an_atomic_overtakes_a_read_that_nothing_is_fenced_behind() {
    let mut rig = unordered().rig();
    rig.post([rig::read(1, 256), rig::fetch_add(2)]);
    assert_eq!(rig.opcodes(0), [Opcode::RdmaRead, Opcode::FetchAdd]);
    rig.rails[0].complete(2);
    assert_eq!(rig.poll_ids(), ok(&[2]), "reported when it arrives");
}

/// A stream of them does not keep it waiting forever either.
#[test]
fn unordered_a_fence_waits_for_what_was_posted_before_it_only() {
    let mut rig = unordered().rig();
    let fenced = SendFlags::SIGNALED | SendFlags::FENCE;
    rig.post([rig::fetch_add(1), rig::write(2, 128).with_flags(fenced), rig::fetch_add(3)]);
    assert_eq!(rig.opcodes(0), [Opcode::FetchAdd; 2], "an atomic may overtake the fence");
    rig.rails[0].complete(1);
    assert_eq!(rig.poll_ids(), ok(&[1]));
    let writes: usize = rig
        .rails
        .iter()
        .map(|rail| {
            rail.sends().iter().filter(|request| request.opcode == Opcode::RdmaWrite).count()
        })
        .sum();
    assert_eq!(writes, 1);
    let mut ids: Vec<_> = rig.run_dry().iter().map(|wc| wc.wr_id).collect();
    ids.sort_unstable();
    assert_eq!(ids, [2, 3]);
}

/// Nothing is left of a fence that was passed, or refused, that a later one could take for its own.
#[test]
fn a_fence_waits_for_what_was_posted_after_the_one_before_it() {
    let mut rig = unordered().rig();
    let fenced = SendFlags::SIGNALED | SendFlags::FENCE;
    let inline = rig::write(2, 64).with_flags(fenced | SendFlags::INLINE);
    for first in [1, 11, 21] {
        let posted = |rig: &Rig| {
            let doorbells = rig.rails.iter().flat_map(|rail| rail.take_doorbells().concat());
            doorbells.map(|request| request.opcode).collect::<Vec<_>>()
        };
        rig.post([rig::fetch_add(first)]);
        assert_eq!(rig.qp.post_send(&inline), Err(PostSendError::InlineMustWait));
        assert_eq!(posted(&rig), [Opcode::FetchAdd]);
        rig.run_dry();
        rig.post([rig::fetch_add(first + 1), rig::write(first + 2, 128).with_flags(fenced)]);
        assert_eq!(posted(&rig), [Opcode::FetchAdd], "it was posted after the fence before");
        assert_eq!(rig.run_dry().len(), 2);
        assert_eq!(posted(&rig), [Opcode::RdmaWrite]);
    }
}

/// There is no order between rails, so a READ behind a WRITE needs a fence.
#[test]
fn a_fenced_request_waits_for_everything_before_it() {
    let fenced = SendFlags::SIGNALED | SendFlags::FENCE;
    let earlier = [rig::write(1, 256), rig::read(1, 256), rig::write_imm(1, 256, 9)];
    let earlier = earlier.into_iter().chain([rig::send(1, 8), rig::fetch_add(1)]);
    for (earlier, setup) in earlier
        .flat_map(|earlier| [(earlier, unordered()), (earlier, Setup::spray(2).fragment(128))])
    {
        for later in [rig::read(2, 256), rig::write(2, 256), rig::send(2, 8), rig::fetch_add(2)] {
            let mut rig = setup.rig();
            rig.post([earlier, later.with_flags(fenced)]);
            let posted = |rig: &Rig| {
                let rails = rig.rails.iter();
                rails.map(|rail| rail.take_doorbells().concat().len()).sum::<usize>()
            };
            assert!(posted(&rig) > 0);
            // One acknowledgement after the other.
            loop {
                let mut handles = rig.rails.iter().chain(&rig.notify);
                handles.find(|handle| !handle.sends().is_empty()).expect("in flight").complete(1);
                if rig.poll_ids() == ok(&[1]) {
                    break;
                }
                assert_eq!(posted(&rig), 0, "{later:?} behind {earlier:?}");
            }
            assert!(posted(&rig) > 0, "{later:?} behind {earlier:?}");
            assert_eq!(rig.run_dry().len(), 1);
        }
    }
}

#[test]
fn unordered_an_atomic_overtakes_a_fenced_request_that_waits_for_numbers() {
    let mut setup = Setup::dqplb(2).fragment(128).depth(8);
    setup = setup.unordered();
    let mut rig = setup.rig();
    let peer = PeerWindow { window: 2 * 8 + 1, receives_per_rail: 8 };
    rig.qp.set_peer_window(peer).unwrap();
    let fenced = SendFlags::SIGNALED | SendFlags::FENCE;
    rig.post([rig::write_imm(1, 128, 0), rig::write_imm(2, 128, 0).with_flags(fenced)]);
    rig.post([rig::fetch_add(3)]);
    assert_eq!(rig.opcodes(0), [Opcode::RdmaWriteWithImm, Opcode::FetchAdd]);
    rig.rails[0].complete(2);
    assert_eq!(rig.poll_ids(), ok(&[3, 1]), "it took no place in the ring");
}

/// A fence waits for what came before.
#[test]
fn a_fenced_read_does_not_wait_for_itself() {
    let mut rig = Setup::spray(2).fragment(128).depth(1).rig();
    rig.post([rig::read(1, 3 * 128).with_flags(SendFlags::SIGNALED | SendFlags::FENCE)]);
    assert_eq!((rig.rails[0].sends().len(), rig.rails[1].sends().len()), (1, 1));
    rig.rails[0].complete(1);
    assert_eq!(rig.poll(), []);
    assert_eq!((rig.rails[0].sends().len(), rig.rails[1].sends().len()), (1, 1), "the third");
    assert_eq!(rig.run_dry().len(), 1);
}

/// A request that found everything before it complete, and then no room, waits for nothing that
/// came meanwhile.
#[test]
fn unordered_a_fence_that_was_passed_is_not_waited_at_again() {
    let mut rig = unordered().depth(2).rig();
    assert!(rig.qp.set_rail_in_service(1, false));
    let fenced = SendFlags::SIGNALED | SendFlags::FENCE;
    rig.post([rig::read(1, 128), rig::write(2, 128).with_flags(fenced)]);
    assert_eq!(rig.opcodes(0), [Opcode::RdmaRead]);
    rig.rails[0].complete_all();
    rig.rails[0].refuse_next(0, Refusal::QueueFull);
    assert_eq!(rig.poll_ids(), ok(&[1]));
    rig.post([rig::send(3, 8)]);
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.opcodes(0), [Opcode::Send, Opcode::RdmaWrite]);
}

/// Defect 21, FENCE: waits for every earlier READ and atomic, on any rail.
#[test]
fn defect_21_a_fenced_request_waits_for_reads_and_atomics_on_all_rails() {
    let mut rig = Setup::spray(3).fragment(128).rig();
    rig.post([rig::fetch_add(1), rig::read(2, 2 * 128)]);
    let fenced = SendFlags::SIGNALED | SendFlags::FENCE;
    rig.post([rig::write(3, 3 * 128).with_flags(fenced), rig::write(4, 128)]);
    let count = |rig: &Rig, fetching: bool| {
        let sends = rig.rails.iter().flat_map(|rail| rail.sends());
        sends.filter(|request| request.opcode.is_fetching() == fetching).count()
    };
    let mut reported = Vec::new();
    for rail in [2, 1, 0] {
        assert_eq!(count(&rig, false), 0, "3 waits for READ and atomic, 4 behind it");
        while rig.rails[rail].sends().first().is_some_and(|first| first.opcode.is_fetching()) {
            rig.rails[rail].complete(1);
            reported.extend(rig.poll_ids());
            assert!(count(&rig, true) == 0 || count(&rig, false) == 0);
        }
    }
    assert_eq!(count(&rig, false), 4, "3 fragments of request 3, one of request 4");
    let flags = rig.rails.iter().flat_map(|rail| rail.sends()).map(|request| request.flags);
    assert!(flags.clone().all(|flags| flags == SendFlags::SIGNALED), "no FENCE on fragments");
    reported.extend(rig.run_dry().iter().map(|wc| (wc.wr_id, wc.status)));
    assert_eq!(reported, ok(&[1, 2, 3, 4]));
}

/// Defect 21, FENCE of a SEND: it waits for READs even where pass-through may overtake writes.
#[test]
fn defect_21_a_fenced_send_waits_for_reads_even_unordered() {
    let mut rig = Setup::spray(2).fragment(128).unordered().rig();
    rig.post([rig::read(1, 256)]);
    let fenced = SendFlags::SIGNALED | SendFlags::FENCE;
    rig.post([rig::send(2, 8).with_flags(fenced)]);
    assert_eq!(rig.rails[0].sends().len(), 1, "only the READ's fragment");
    rig.rails[0].complete(1);
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.rails[0].sends().len(), 0);
    rig.rails[1].complete(1);
    assert_eq!(rig.poll_ids(), ok(&[1]));
    assert_eq!(rig.rails[0].sends()[0].opcode, Opcode::Send);
    assert_eq!(rig.run_dry(), [done(2, WcOpcode::SEND, 8)]);
}

/// Defect 21, FENCE: an earlier READ that is not yet posted counts too. Here DQPLB's span holds up
/// the request ahead of the READ, while rail 0 has room for an atomic.
#[test]
fn defect_21_a_fenced_atomic_waits_for_reads_that_wait_themselves() {
    let mut rig = Setup::dqplb(2).fragment(128).depth(8).unordered().rig();
    let peer = polyrail_core::virtual_qp::PeerWindow { window: 17, receives_per_rail: 8 };
    rig.qp.set_peer_window(peer).unwrap();
    rig.post([rig::write_imm(1, 128, 0), rig::write_imm(2, 128, 0), rig::read(3, 128)]);
    rig.post([rig::fetch_add(4).with_flags(SendFlags::SIGNALED | SendFlags::FENCE)]);
    let opcodes: Vec<_> = rig.rails[0].sends().iter().map(|request| request.opcode).collect();
    assert_eq!(opcodes, [Opcode::RdmaWriteWithImm], "span 1: request 2 and the READ wait");
    assert_eq!(rig.run_dry().iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [1, 2, 3, 4]);
}
