//! What the sender sends again: the shares that did not arrive, and no others.

use super::{DOWN, arrives, moved, under_way};
use crate::device::Step;
use crate::rig::{Rig, SLOTS, Setup};
use polyrail_core::hardware::Refusal;
use polyrail_core::p2p::{CallError, ConnectionEnd, Mask, NotNow};
use polyrail_core::verbs::{Opcode, WcStatus};
use polyrail_core::virtual_qp::RailState;

#[test]
fn a_share_that_did_not_arrive_is_sent_again_with_the_record_and_the_full_mask() {
    let (mut rig, send, recv) = under_way();
    rig.fabric.fail(rig.near(1), WcStatus::RETRY_EXC_ERR);
    arrives(&mut rig, send, recv);
    let moved = moved(&mut rig);
    let [(place, 1, mask, 8)] = moved[..] else { panic!("{moved:?}") };
    assert!(place != 1 && mask == Mask::first(3));
    assert_eq!(rig.sender().queue_pair_state(1), DOWN);
    assert_eq!(rig.receiver().queue_pair_state(1), DOWN);
    assert_eq!(rig.sender().failure(), None);
}

/// What arrived is not sent again, though its acknowledgement was lost.
#[test]
fn a_share_that_arrived_is_not_sent_again() {
    let (mut rig, send, recv) = under_way();
    assert_eq!(rig.fabric.execute(rig.near(1)), Step::Done);
    rig.fabric.fail(rig.near(1), WcStatus::RETRY_EXC_ERR);
    arrives(&mut rig, send, recv);
    assert_eq!(moved(&mut rig), []);
}

/// Nothing is sent again before the peer's fence, since what was lost may still be carried out.
#[test]
fn nothing_is_sent_again_before_the_peers_fence() {
    let (mut rig, send, recv) = under_way();
    let near = rig.near(1);
    rig.fabric.fail(near, WcStatus::RETRY_EXC_ERR);
    rig.settle();
    assert!(!rig.sent(send) && rig.received(recv).is_none());
    assert_eq!(moved(&mut rig), []);
    // It was on its way all the time.
    assert_eq!(rig.fabric.straggle(near, false), Step::Done);
    arrives(&mut rig, send, recv);
    assert_eq!(moved(&mut rig), [], "it is counted");
}

/// ERR and an empty poll are not the fence: it needs `last_wqe_reached`, and an empty poll after
/// it.
#[test]
fn the_fence_waits_for_the_word_that_no_more_receives_can_complete() {
    let (mut rig, send, recv) = under_way();
    let (near, far) = (rig.near(1), rig.far(1));
    rig.fabric.hold_word(far, true);
    rig.fabric.fail(near, WcStatus::RETRY_EXC_ERR);
    rig.recover();
    assert!(rig.fabric.is_error(far));
    assert_eq!(rig.receiver().queue_pair_state(1).expect("there").0, RailState::Draining);
    assert_eq!(rig.fabric.straggle(near, true), Step::Done, "one more message");
    rig.fabric.hold_word(far, false);
    arrives(&mut rig, send, recv);
    assert_eq!(moved(&mut rig), []);
}

/// The same message completes between the word and the poll.
#[test]
fn what_the_completion_queue_holds_at_the_word_is_taken_before_the_fence() {
    let mut rig = Setup::rerouting(2).rig();
    let (source, target) = (rig.source(64), rig.target(64));
    let mut handles = vec![];
    for _ in 0..8 {
        let recv = rig.irecv(&target, 64);
        rig.settle();
        handles.push((rig.isend(&source, 64), recv));
    }
    let (near, far) = ([rig.near(0), rig.near(1)], rig.far(1));
    for near in near {
        while rig.fabric.execute(near) == Step::Done {}
    }
    rig.receiver().fail_queue_pair(1);
    assert!(rig.fabric.is_error(far));
    let before = rig.receiver().next_control().expect("it failed");
    rig.sender().control(before).expect("a correct peer");
    rig.recover();
    rig.assert_done(handles);
    assert_eq!(moved(&mut rig), [], "all had arrived");
}

/// A completion queue that could not be polled was not seen empty: what it holds counts, once it
/// can be polled again.
#[test]
fn a_completion_queue_that_cannot_be_polled_is_not_seen_empty() {
    let (mut rig, send, recv) = under_way();
    assert_eq!(rig.fabric.execute(rig.near(1)), Step::Done);
    let queue = rig.far_cq.cqs()[1].at;
    rig.fabric.break_queue(queue, true);
    assert!(rig.receiver().fail_queue_pair(1));
    for _ in 0..4 {
        let Rig { connections, far_cq, .. } = &mut rig;
        let polled = far_cq.poll(&mut connections[0].receiver, usize::MAX, |_| ());
        assert!(polled.error.is_some());
        rig.carry();
        let state = rig.receiver().queue_pair_state(1).expect("a place").0;
        assert_eq!(state, RailState::Draining, "nobody knows what has arrived");
    }
    rig.fabric.break_queue(queue, false);
    arrives(&mut rig, send, recv);
    assert_eq!(moved(&mut rig), [], "it had arrived");
}

#[test]
fn a_request_that_was_reported_is_never_written_again() {
    let (mut rig, send, recv) = under_way();
    let near = rig.near(1);
    rig.fabric.fail(near, WcStatus::RETRY_EXC_ERR);
    arrives(&mut rig, send, recv);
    assert_eq!(
        rig.fabric.straggle(near, true),
        Step::Dead,
        "the peer's queue pair answers nothing"
    );
}

#[test]
fn several_buffers_and_long_messages_are_sent_again() {
    let mut setup = Setup::rerouting(2);
    setup.max_msg_size = 128;
    for accepted in 0..6 {
        let mut rig = setup.rig();
        let (source, target) = (rig.source(1000), rig.target(2000));
        let offered = [(&target, 0, 1000, 0), (&target, 1000, 1000, 1)];
        let recv = rig.try_irecv(&offered).expect("room");
        rig.settle();
        let sends = [(1000, 0), (777, 1)].map(|(length, tag)| rig.try_isend(&source, length, tag));
        // Some of its requests are executed when rail 0, the leader, fails.
        for _ in 0..accepted {
            assert_eq!(rig.fabric.execute(rig.near(0)), Step::Done);
        }
        rig.fabric.fail(rig.near(0), WcStatus::RETRY_EXC_ERR);
        rig.recover();
        assert!(sends.into_iter().all(|send| rig.sent(send.expect("its tag"))));
        assert_eq!(rig.received(recv).expect("arrived").sizes(), [1000, 777]);
        assert_eq!(target.bytes()[..1000], source.bytes()[..]);
        assert_eq!(target.bytes()[1000..1777], source.bytes()[..777]);
    }
}

/// The record may be what was lost; every moved share brings it.
#[test]
fn the_leaders_record_is_lost_and_comes_with_the_moved_share() {
    let mut setup = Setup::rerouting(2);
    setup.sender.separate_signal = Some(1);
    for fails in [0, 1] {
        let mut rig = setup.rig();
        let (source, target) = (rig.source(1000), rig.target(1000));
        let (send, recv) = rig.start(&source, &target, 1000);
        rig.fabric.fail(rig.near(fails), WcStatus::RETRY_EXC_ERR);
        arrives(&mut rig, send, recv);
        assert_eq!(target.bytes(), source.bytes());
    }
}

/// The better answer: the receiver's device dies with completions that were not taken.
#[test]
fn acknowledged_shares_whose_completions_were_lost_are_signaled_again_without_payload() {
    let mut rig = Setup::rerouting(2).rig();
    let (source, target) = (rig.source(1000), rig.target(1000));
    let (send, recv) = rig.start(&source, &target, 1000);
    rig.fabric.run();
    rig.poll_near();
    assert!(rig.sent(send), "the sender's caller was told, and uses the buffer for something else");
    source.fill(|_| 0x11);
    rig.fabric.lose_completions(rig.far_cq.cqs()[1].at);
    rig.counts_pools = false;
    // SAFETY: it executes nothing more.
    unsafe { assert!(rig.receiver().lose_queue_pair(1)) };
    rig.fabric.clear_log();
    rig.recover();
    assert_eq!(rig.received(recv).expect("arrived").sizes(), [1000]);
    let expected: Vec<_> = (0..1000).map(|at| at as u8 ^ 0x5a).collect();
    assert_eq!(target.bytes(), expected);
    let data = rig.take_data();
    let [(0, request)] = data[..] else { panic!("{data:?}") };
    assert_eq!((request.opcode, request.sge.length()), (Opcode::RdmaWriteWithImm, 8));
}

#[test]
fn with_all_rails_down_messages_wait_for_one() {
    let mut setup = Setup::rerouting(2);
    setup.sender.min_rails = 0;
    let mut rig = setup.rig();
    let (source, target) = (rig.source(1000), rig.target(1000));
    let (send, recv) = rig.start(&source, &target, 1000);
    rig.fabric.fail(rig.near(0), WcStatus::RETRY_EXC_ERR);
    rig.fabric.fail(rig.near(1), WcStatus::RETRY_EXC_ERR);
    rig.recover();
    assert!(!rig.sent(send) && rig.is_down(0) && rig.is_down(1));
    assert_eq!(rig.try_irecv(&[(&target, 0, 8, 0)]), Err(NotNow::NoCredits.into()));
    rig.replace(1, 1);
    arrives(&mut rig, send, recv);
    assert_eq!(target.bytes(), source.bytes());
}

#[test]
fn a_message_behind_too_many_failures_of_devices_fails_the_connection() {
    let mut rig = Setup::rerouting(2).rig();
    let (source, target) = (rig.source(1000), rig.target(1000));
    let _ = rig.irecv(&target, 1000);
    rig.settle();
    let _ = rig.isend(&source, 1000);
    let mut rounds = 0;
    while rig.sender().failure().is_none() {
        let place = (0..2).find(|place| !rig.fabric.posted(rig.near(*place)).is_empty());
        let place = place.expect("it is sent again");
        rig.fabric.fail(rig.near(place), WcStatus::FATAL_ERR);
        for _ in 0..4 {
            rig.poll();
            rig.carry();
        }
        if rig.is_down(place) && rig.sender().failure().is_none() {
            rig.replace(place, place);
            rig.carry();
        }
        rounds += 1;
        assert!(rounds < 10);
    }
    assert_eq!(rounds, 5, "twice as many as there are rails, and one more");
}

/// A driver that refuses for good takes its rail along, and the message goes on.
#[test]
fn a_refusal_for_good_costs_a_rail_and_no_message() {
    for (place, accepted) in [(0, 0), (1, 0), (0, 1), (2, 1)] {
        let mut setup = Setup::rerouting(3);
        setup.max_msg_size = 128;
        let mut rig = setup.rig();
        let (source, target) = (rig.source(1000), rig.target(1000));
        let recv = rig.irecv(&target, 1000);
        rig.settle();
        rig.fabric.refuse(rig.near(place), accepted, Refusal::Driver(22));
        let send = match rig.try_isend(&source, 1000, 0) {
            Ok(send) => send,
            Err(error) => {
                assert!(error.is_not_now() && (place, accepted) == (0, 0));
                rig.isend(&source, 1000)
            }
        };
        arrives(&mut rig, send, recv);
        assert_eq!(target.bytes(), source.bytes());
        assert_eq!(rig.sender().queue_pair_state(place), DOWN);
    }
}

#[test]
fn a_message_that_was_refused_is_not_sent_again_when_a_rail_fails() {
    let mut rig = Setup::rerouting(2).rig();
    let (source, target) = (rig.source(1000), rig.target(1000));
    let recv = rig.irecv(&target, 1000);
    rig.settle();
    rig.fabric.clear_log();
    rig.fabric.refuse(rig.near(0), 0, Refusal::QueueFull);
    assert!(rig.try_isend(&source, 1000, 0).is_err());
    assert!(rig.sender().fail_queue_pair(1));
    rig.recover();
    assert_eq!(rig.take_data().len(), 0, "nothing was sent");
    let send = rig.isend(&source, 1000);
    arrives(&mut rig, send, recv);
    assert_eq!(rig.take_data().len(), 1);
}

/// `core/docs/messages.md`, "Why an 8-bit slot is safe": a lost share is sent again over another
/// rail, and its slot waits for it.
#[test]
fn a_slot_is_not_reused_while_an_immediate_of_it_may_come() {
    let mut rig = Setup::rerouting(2).rig();
    let (source, target) = (rig.source(1000), rig.target(1000));
    let first = rig.irecv(&target, 1000);
    rig.settle();
    let send = rig.isend(&source, 1000);
    // Rail 1's share is lost, and sent again by rail 0.
    rig.fabric.fail(rig.near(1), WcStatus::RETRY_EXC_ERR);
    rig.poll();
    for _ in 0..8 {
        rig.carry();
        rig.poll();
    }
    rig.fabric.clear_log();
    assert!(rig.is_down(1));
    let others: Vec<_> = (1..SLOTS).map(|_| rig.irecv(&target, 1000)).collect();
    let taken = CallError::NotNow(NotNow::SlotTaken { number: first.number() });
    assert!(rig.received(first).is_none());
    assert_eq!(rig.try_irecv(&[(&target, 0, 1000, 0)]), Err(taken), "a share is on its way");
    rig.recover();
    assert!(rig.sent(send) && rig.received(first).is_some());
    let again = rig.irecv(&target, 1000);
    assert_eq!(again.number() - first.number(), SLOTS as u64);
    drop(others);
}
