//! Queue pairs that fail cost no message: nothing lost, nothing twice, nothing overwritten.

use crate::device::Step;
use crate::rig::{Rig, Setup};
use polyrail_core::hardware::Refusal;
use polyrail_core::p2p::{
    BuildError, CallError, CardError, Control, Failure, ImmLayout, Mask, NotNow, ProtocolError,
    RecvHandle, SendHandle, Told,
};
use polyrail_core::verbs::{Opcode, WcStatus};
use polyrail_core::virtual_qp::{
    ControlError, ControlMessage, FailedBecause, RailEventKind, RailId, RailNews, RailState,
    ToldState,
};

const DOWN: Option<(RailState, u16)> = Some((RailState::Down, 0));

/// A message of 1000 bytes over three rails, posted and not executed.
fn under_way() -> (Rig, SendHandle, RecvHandle) {
    let mut rig = Setup::rerouting(3).rig();
    let (source, target) = (rig.source(1000), rig.target(1000));
    let recv = rig.irecv(&target, 1000);
    rig.settle();
    let send = rig.isend(&source, 1000);
    rig.fabric.clear_log();
    (rig, send, recv)
}

fn arrives(rig: &mut Rig, send: SendHandle, recv: RecvHandle) {
    rig.recover();
    assert!(rig.sent(send));
    assert_eq!(rig.received(recv).expect("arrived").sizes(), [1000]);
}

/// Requests with a moved immediate among those executed.
fn moved(rig: &mut Rig) -> Vec<(usize, u8, Mask, u32)> {
    let layout = ImmLayout::new(rig.setup.rails).expect("rails");
    let data = rig.take_data();
    let imms = data.iter().filter(|(_, request)| request.opcode == Opcode::RdmaWriteWithImm);
    let moved = imms.filter_map(|(place, request)| {
        let immediate = layout.decode(request.imm);
        let Told::Moved(rail) = immediate.told else { return None };
        Some((*place, rail, immediate.mask, request.sge.length()))
    });
    moved.collect()
}

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

/// Rule M: what arrived is not sent again, though its acknowledgement was lost.
#[test]
fn a_share_that_arrived_is_not_sent_again() {
    let (mut rig, send, recv) = under_way();
    assert_eq!(rig.fabric.execute(rig.near(1)), Step::Done);
    rig.fabric.fail(rig.near(1), WcStatus::RETRY_EXC_ERR);
    arrives(&mut rig, send, recv);
    assert_eq!(moved(&mut rig), []);
}

/// Rule M: nothing is sent again before the peer's fence, since what was lost may still be carried out.
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

/// Rule M: ERR and an empty poll are not the fence; the driver's word is, and an empty poll after it.
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
    for (send, recv) in handles {
        assert!(rig.sent(send) && rig.received(recv).is_some());
    }
    assert_eq!(moved(&mut rig), [], "all had arrived");
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

/// Rule M: the record may be what was lost; every moved share brings it.
#[test]
fn the_leaders_record_is_lost_and_comes_with_the_moved_share() {
    let mut setup = Setup::rerouting(2);
    setup.sender.separate_signal = Some(1);
    for fails in [0, 1] {
        let mut rig = setup.rig();
        let (source, target) = (rig.source(1000), rig.target(1000));
        let recv = rig.irecv(&target, 1000);
        rig.settle();
        let send = rig.isend(&source, 1000);
        rig.fabric.fail(rig.near(fails), WcStatus::RETRY_EXC_ERR);
        arrives(&mut rig, send, recv);
        assert_eq!(target.bytes(), source.bytes());
    }
}

#[test]
fn whoever_notices_first_both_ends_go_the_same_way() {
    for who in 0..3 {
        let (mut rig, send, recv) = under_way();
        match who {
            0 => assert!(rig.sender().fail_queue_pair(2)),
            1 => assert!(rig.receiver().fail_queue_pair(2)),
            _ => assert!(rig.sender().fail_queue_pair(2) && rig.receiver().fail_queue_pair(2)),
        }
        assert!(who == 1 || !rig.sender().fail_queue_pair(2), "it has failed already");
        rig.carry();
        arrives(&mut rig, send, recv);
        assert_eq!(rig.sender().queue_pair_state(2), DOWN);
        assert_eq!(rig.receiver().queue_pair_state(2), DOWN);
        let (place, event) = rig.sender().take_event().expect("an event");
        let why = if who == 1 { FailedBecause::Peer } else { FailedBecause::Owner };
        assert_eq!((place, event.rail), (2, RailId::Data(2)));
        assert_eq!(event.kind, RailEventKind::Failed { why, refused: None });
        let (_, event) = rig.sender().take_event().expect("another");
        assert_eq!(event.kind, RailEventKind::Fenced { arrived: 0, again: 1 });
        assert_eq!(rig.sender().take_event(), None);
    }
}

#[test]
fn a_new_queue_pair_takes_the_place_of_one_that_failed() {
    let (mut rig, send, recv) = under_way();
    rig.fabric.fail(rig.near(1), WcStatus::RETRY_EXC_ERR);
    arrives(&mut rig, send, recv);
    // On another device of each end than before.
    rig.replace(1, 2);
    assert_eq!(rig.sender().queue_pair_state(1), Some((RailState::Joining, 1)));
    rig.carry();
    assert_eq!(rig.sender().queue_pair_state(1), Some((RailState::InService, 1)));
    assert_eq!(rig.receiver().queue_pair_state(1), Some((RailState::InService, 1)));
    let (source, target) = (rig.source(1000), rig.target(1000));
    rig.fabric.clear_log();
    assert_eq!(rig.message(&source, &target, 1000, 1000), 1000);
    assert_eq!(target.bytes(), source.bytes());
    let mut places: Vec<_> = rig.take_data().into_iter().map(|(place, _)| place).collect();
    places.sort_unstable();
    assert_eq!(places, [0, 1, 2]);
    // And fails again.
    let recv = rig.irecv(&target, 1000);
    rig.settle();
    let send = rig.isend(&source, 1000);
    rig.fabric.fail(rig.near(1), WcStatus::RETRY_EXC_ERR);
    arrives(&mut rig, send, recv);
}

/// Entries written before a rail moved have keys for its new device.
#[test]
fn entries_written_before_a_rail_moves_to_another_device_serve_it_still() {
    let mut rig = Setup::rerouting(2).rig();
    let (source, target) = (rig.source(1000), rig.target(1000));
    let recv = rig.irecv(&target, 1000);
    rig.recover();
    rig.sender().fail_queue_pair(1);
    rig.recover();
    rig.replace(1, 0);
    rig.carry();
    let send = rig.isend(&source, 1000);
    rig.recover();
    assert!(rig.sent(send));
    assert_eq!(rig.received(recv).expect("arrived").sizes(), [1000]);
    assert_eq!(target.bytes(), source.bytes());
}

#[test]
fn entries_that_were_lost_are_written_again_by_another_device() {
    let mut rig = Setup::rerouting(2).rig();
    let (source, target) = (rig.source(1000), rig.target(1000));
    let recv = rig.irecv(&target, 1000);
    let far = rig.far(0);
    rig.fabric.fail(far, WcStatus::RETRY_EXC_ERR);
    rig.settle();
    assert_eq!(rig.try_isend(&source, 1, 0), Err(NotNow::NoEntry.into()));
    rig.recover();
    let send = rig.isend(&source, 1000);
    arrives(&mut rig, send, recv);
}

/// Rule M: before the peer's fence, an old copy could land over a newer entry.
#[test]
fn entries_are_written_again_after_the_peers_fence_only_and_hold_their_slot() {
    let mut rig = Setup::rerouting(2).rig();
    let (source, target) = (rig.source(1000), rig.target(1000));
    let recv = rig.irecv(&target, 1000);
    let (far, other) = (rig.far(0), rig.far(1));
    rig.fabric.fail(far, WcStatus::RETRY_EXC_ERR);
    rig.poll_far();
    rig.poll_far();
    assert_eq!(rig.fabric.posted(other).len(), 0, "the peer's queue pair is not fenced");
    rig.carry();
    rig.poll();
    rig.carry();
    rig.poll();
    rig.carry();
    assert!(rig.is_down(0));
    let again = rig.fabric.posted(other);
    assert_eq!(again.len(), 1);
    // It is executed, and not acknowledged.
    assert_eq!(rig.fabric.execute(other), Step::Done);
    let send = rig.isend(&source, 1000);
    rig.fabric.run_only(rig.near(1));
    rig.poll();
    assert!(rig.sent(send) && rig.received(recv).is_some());
    let recvs: Vec<_> = (1..crate::rig::SLOTS).map(|_| rig.irecv(&target, 1000)).collect();
    let taken = CallError::NotNow(NotNow::SlotTaken { number: 1 });
    assert_eq!(rig.try_irecv(&[(&target, 0, 1000, 0)]), Err(taken), "until it is acknowledged");
    rig.recover();
    let _ = rig.irecv(&target, 1000);
    drop(recvs);
}

/// The better answer: the receiver's device dies with completions that nobody had taken.
#[test]
fn acknowledged_shares_whose_completions_were_lost_are_told_of_again_without_payload() {
    let mut rig = Setup::rerouting(2).rig();
    let (source, target) = (rig.source(1000), rig.target(1000));
    let recv = rig.irecv(&target, 1000);
    rig.settle();
    let send = rig.isend(&source, 1000);
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

/// Eight messages over two rails are posted, with just as many receives on either device, and rail 0 fails.
fn just_enough() -> (Rig, Vec<(SendHandle, RecvHandle)>) {
    let mut setup = Setup::rerouting(2);
    setup.limit = 16;
    let mut rig = setup.rig();
    let (source, target) = (rig.source(256), rig.target(256));
    (0..8).for_each(|_| assert_eq!(rig.message(&source, &target, 256, 256), 256));
    let recvs: Vec<_> = (0..8).map(|_| rig.irecv(&target, 256)).collect();
    rig.settle();
    let handles = recvs.into_iter().map(|recv| (rig.isend(&source, 256), recv)).collect();
    assert_eq!(rig.fabric.receives(1), 8);
    rig.fabric.fail(rig.near(0), WcStatus::RETRY_EXC_ERR);
    (rig, handles)
}

/// Rule M: shares that are moved land on other devices, whose pools must have receives for them.
#[test]
fn the_pools_are_filled_up_for_moved_shares_before_the_fence_is_told() {
    let (mut rig, handles) = just_enough();
    for _ in 0..4 {
        rig.poll();
        rig.carry();
    }
    assert_eq!(rig.sender().queue_pair_state(0), DOWN);
    // All come at once, and nobody polls.
    rig.fabric.run_only(rig.near(1));
    assert_eq!(rig.fabric.rnr(), 0);
    rig.recover();
    for (send, recv) in handles {
        assert!(rig.sent(send) && rig.received(recv).is_some());
    }
}

#[test]
fn a_fence_waits_for_a_pool_that_is_not_full() {
    let (mut rig, handles) = just_enough();
    rig.fabric.refuse_receives_of(1, 30);
    for _ in 0..4 {
        rig.poll();
        rig.carry();
    }
    assert_ne!(rig.sender().queue_pair_state(0), DOWN, "it was not told");
    for _ in 0..20 {
        rig.poll();
        rig.carry();
    }
    assert_eq!(rig.sender().queue_pair_state(0), DOWN);
    rig.fabric.run_only(rig.near(1));
    assert_eq!(rig.fabric.rnr(), 0);
    rig.recover();
    for (send, recv) in handles {
        assert!(rig.sent(send) && rig.received(recv).is_some());
    }
}

/// Rule M: completions of a queue pair that is fenced lower the count, and do nothing else.
#[test]
fn completions_of_a_fenced_queue_pair_lower_the_count_and_do_nothing_else() {
    let (mut rig, send, recv) = under_way();
    rig.fabric.fail(rig.near(1), WcStatus::RETRY_EXC_ERR);
    arrives(&mut rig, send, recv);
    let posted = rig.connections[0].receiver.accounts().nth(1).expect("three").posted();
    rig.fabric.take_receive(rig.far(1));
    rig.poll_far();
    let after = rig.connections[0].receiver.accounts().nth(1).expect("three").posted();
    assert_eq!((after, rig.receiver().failure()), (posted - 1, None));
}

#[test]
fn a_flushed_receive_never_counts_as_arrived() {
    let (mut rig, send, recv) = under_way();
    rig.fabric.take_receive(rig.far(1));
    rig.poll_far();
    assert!(rig.fabric.is_error(rig.far(1)));
    arrives(&mut rig, send, recv);
    let moved = moved(&mut rig);
    assert!(matches!(moved[..], [(_, 1, _, 8)]), "{moved:?}");
}

#[test]
fn a_mistake_of_a_program_fails_the_connection_and_the_peer_is_told() {
    let (mut rig, send, recv) = under_way();
    rig.fabric.fail(rig.near(1), WcStatus::REM_ACCESS_ERR);
    rig.poll_near();
    assert!(matches!(rig.sender().failure(), Some(Failure::Rail(_))));
    let told = rig.sender().next_control().expect("an error");
    assert_eq!(told, Control { queue_pair: 0, message: ControlMessage::Error });
    assert_eq!(rig.receiver().control(told), Ok(()));
    assert_eq!(rig.receiver().failure(), Some(&Failure::Peer));
    rig.recover();
    assert!(rig.sender().test(send).is_err() && rig.receiver().test(recv).is_err());
}

#[test]
fn fewer_rails_than_there_must_be_fail_the_connection() {
    let mut setup = Setup::rerouting(2);
    setup.sender.min_rails = 2;
    let mut rig = setup.rig();
    rig.sender().fail_queue_pair(0);
    let too_few = Failure::TooFewRails { in_service: 1, min_rails: 2 };
    assert_eq!(rig.sender().failure(), Some(&too_few));
}

#[test]
fn with_all_rails_down_messages_wait_for_one() {
    let mut setup = Setup::rerouting(2);
    setup.sender.min_rails = 0;
    let mut rig = setup.rig();
    let (source, target) = (rig.source(1000), rig.target(1000));
    let recv = rig.irecv(&target, 1000);
    rig.settle();
    let send = rig.isend(&source, 1000);
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

#[test]
fn the_link_of_the_ends_breaks_and_both_tell_everything_again() {
    let (mut rig, send, recv) = under_way();
    rig.sender().fail_queue_pair(1);
    // Whatever is told is lost.
    for _ in 0..5 {
        while rig.sender().next_control().is_some() {}
        while rig.receiver().next_control().is_some() {}
        rig.settle();
    }
    rig.receiver().fail_queue_pair(1);
    while rig.receiver().next_control().is_some() {}
    rig.settle();
    while rig.receiver().next_control().is_some() {}
    rig.sender().control_lost();
    rig.receiver().control_lost();
    arrives(&mut rig, send, recv);
    rig.sender().control_lost();
    rig.carry();
    assert!(rig.receiver().ignored_controls() > 0);
}

#[test]
fn messages_that_no_correct_peer_sends_fail_the_connection() {
    let news = |rail, generation, state, arrived| {
        let rail = RailId::Data(rail);
        let news = RailNews { rail, generation, state, arrived, previous_arrived: 0 };
        ControlMessage::Rail(news)
    };
    let cases = [
        Control { queue_pair: 9, message: news(0, 0, ToldState::Failed, 0) },
        Control { queue_pair: 1, message: news(0, 0, ToldState::Failed, 0) },
        Control { queue_pair: 1, message: news(1, 1, ToldState::Ready, 0) },
        Control { queue_pair: 1, message: news(1, 0, ToldState::Fenced, 2) },
    ];
    for control in cases {
        let (mut rig, ..) = under_way();
        let error = rig.sender().control(control).expect_err("no correct peer");
        assert_eq!(rig.sender().failure(), Some(&Failure::Control(error)));
        let (mut rig, ..) = under_way();
        let error = rig.receiver().control(control).expect_err("no correct peer");
        assert_eq!(rig.receiver().failure(), Some(&Failure::Control(error)));
    }
}

#[test]
fn ends_that_do_not_reroute_take_no_messages() {
    let mut rig = Setup::rails(2).rig();
    let control = Control { queue_pair: 0, message: ControlMessage::Error };
    assert_eq!(rig.sender().control(control), Err(ControlError::NotRerouting));
    assert_eq!(rig.receiver().control(control), Err(ControlError::NotRerouting));
    assert!(!rig.sender().fail_queue_pair(0) && !rig.receiver().fail_queue_pair(0));
    assert_eq!(rig.sender().failure(), None);
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
fn a_moved_immediate_of_a_rail_that_is_not_fenced_is_refused() {
    let (mut rig, send, recv) = under_way();
    rig.fabric.fail(rig.near(1), WcStatus::RETRY_EXC_ERR);
    arrives(&mut rig, send, recv);
    let target = rig.target(8);
    let _ = rig.irecv(&target, 8);
    let layout = ImmLayout::new(3).expect("three");
    let immediate =
        polyrail_core::p2p::Immediate { slot: 1, mask: Mask::first(3), told: Told::Moved(2) };
    rig.fabric.deliver_imm(rig.far(0), layout.encode(immediate), 8);
    rig.poll_far();
    let error = ProtocolError::NotFenced { slot: 1, rail: 2 };
    assert_eq!(rig.receiver().failure(), Some(&Failure::Protocol(error)));
}

#[test]
fn one_rail_alone_cannot_be_rerouted_and_both_ends_must_want_it() {
    use polyrail_core::p2p::{Ports, ReceiverCard};
    assert_eq!(crate::rig::build_error(&Setup::rerouting(1)), Some(BuildError::NothingToRerouteTo));
    let mut setup = Setup::rerouting(2);
    setup.sender.min_rails = 3;
    let min_rails = Some(BuildError::MinRails { min_rails: 3, rails: 2 });
    assert_eq!(crate::rig::build_error(&setup), min_rails);
    let rig = Setup::rerouting(2).rig();
    let card = rig.connections[0].receiver.card();
    let ports = Ports { reroutes: false, ..card.ports };
    let card = ReceiverCard { ports, ..card };
    let refused = crate::rig::connect_error(&Setup::rerouting(2), &card);
    assert_eq!(refused, Some(CardError::Reroutes { theirs: false }));
}

/// Rule M: whatever still comes of a queue pair that was given up, the peer was told another number.
#[test]
fn completions_of_a_queue_pair_that_was_lost_are_not_looked_at() {
    let (mut rig, send, recv) = under_way();
    assert_eq!(rig.fabric.execute(rig.near(1)), Step::Done);
    // SAFETY: it executes nothing more.
    unsafe { assert!(rig.receiver().lose_queue_pair(1)) };
    rig.carry();
    rig.poll_near();
    rig.carry();
    assert_eq!(rig.sender().queue_pair_state(1), DOWN);
    // Now the completion is there after all; and the share, moved.
    arrives(&mut rig, send, recv);
    assert!(matches!(moved(&mut rig)[..], [(_, 1, _, 8)]));
    assert_eq!(rig.receiver().failure(), None);
}

/// A failure must not need more receives than there may be.
#[test]
fn irecv_promises_no_more_than_a_failure_leaves_room_for() {
    let mut setup = Setup::rerouting(2);
    setup.limit = 5;
    let mut rig = setup.rig();
    let (source, target) = (rig.source(256), rig.target(256));
    let recvs = [rig.irecv(&target, 256), rig.irecv(&target, 256)];
    let full = rig.try_irecv(&[(&target, 0, 256, 0)]);
    assert!(matches!(full, Err(CallError::NotNow(NotNow::PoolFull { .. }))));
    rig.settle();
    let sends = [rig.isend(&source, 256), rig.isend(&source, 256)];
    rig.fabric.fail(rig.near(0), WcStatus::RETRY_EXC_ERR);
    rig.recover();
    assert!(sends.into_iter().all(|send| rig.sent(send)));
    assert!(recvs.into_iter().all(|recv| rig.received(recv).is_some()));
}

/// Rule M: the count of a device that died with completions untaken is not the NIC's; its pool is made anew.
#[test]
fn an_account_is_replaced_with_the_shared_queue_of_its_device() {
    let mut rig = Setup::rerouting(2).rig();
    let (source, target) = (rig.source(256), rig.target(256));
    let recv = rig.irecv(&target, 256);
    rig.settle();
    let send = rig.isend(&source, 256);
    rig.fabric.run();
    rig.poll_near();
    rig.lose_device(1);
    rig.recover();
    assert!(rig.sent(send) && rig.received(recv).is_some());
    rig.replace(1, 1);
    rig.carry();
    for _ in 0..600 {
        assert_eq!(rig.message(&source, &target, 256, 256), 256);
    }
    assert_eq!(rig.fabric.rnr(), 0);
    let account = rig.pools[0].open(rig.srqs[0].clone(), 0);
    assert!(account.is_err());
    let (srq, mut pool) = (rig.srqs[1].clone(), polyrail_core::p2p::Pool::new(rig.device(1), 9));
    let account = pool.open(srq, 9).expect("nine");
    assert!(rig.receiver().replace_account(account).is_err(), "it is in use");
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

#[test]
fn a_device_that_is_gone_is_not_asked_for_receives() {
    let mut rig = Setup::rerouting(2).rig();
    let (source, target) = (rig.source(256), rig.target(256));
    let recv = rig.irecv(&target, 256);
    rig.settle();
    let send = rig.isend(&source, 256);
    rig.fabric.lose_completions(rig.far_cq.cqs()[1].at);
    rig.fabric.kill(rig.far(1));
    rig.counts_pools = false;
    // SAFETY: it executes nothing more.
    unsafe { assert!(rig.receiver().lose_queue_pair(1)) };
    rig.recover();
    assert!(rig.sent(send) && rig.received(recv).is_some());
    rig.fabric.take_batches(1);
    rig.fabric.refuse_receives_of(1, 1);
    for _ in 0..600 {
        assert_eq!(rig.message(&source, &target, 256, 256), 256);
    }
    assert_eq!(rig.fabric.take_batches(1), [0; 0]);
}
