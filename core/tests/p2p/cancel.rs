//! Messages and receives that are taken back: nothing is written after the result, both ends have the
//! same one, and the slot is free for others.

use crate::device::Step;
use crate::rig::{Rig, SLOTS, Setup};
use polyrail_core::hardware::Refusal;
use polyrail_core::p2p::{
    CallError, CancelError, ConnectionEnd, Control, Failure, NotNow, ProtocolError, RecvHandle,
    SendHandle,
};
use polyrail_core::verbs::{Opcode, WcStatus};
use polyrail_core::virtual_qp::{ControlError, FailedBecause, RailEventKind, RailState};

/// A message of 1000 bytes over these rails, posted and not executed.
fn under_way(rails: u8) -> (Rig, SendHandle, RecvHandle) {
    let mut rig = Setup::rerouting(rails).rig();
    let (source, target) = (rig.source(1000), rig.target(1000));
    let (send, recv) = rig.start(&source, &target, 1000);
    rig.fabric.clear_log();
    (rig, send, recv)
}

fn taken_back(number: u64) -> CallError {
    CallError::TakenBack { number }
}

/// Both ends say that this message was taken back, once each.
fn assert_taken_back(rig: &mut Rig, send: SendHandle, recv: RecvHandle) {
    let number = send.number();
    assert_eq!(rig.sender().test(send), Err(taken_back(number)));
    assert_eq!(rig.receiver().test(recv).unwrap_err(), taken_back(number));
    assert_eq!(rig.sender().test(send), Err(CallError::NoRequest { number }));
    assert_eq!(rig.receiver().test(recv).unwrap_err(), CallError::NoRequest { number });
}

/// Messages go through all slots as before.
fn assert_as_new(rig: &mut Rig) {
    let (source, target) = (rig.source(700), rig.target(700));
    for _ in 0..2 * SLOTS {
        assert_eq!(rig.message(&source, &target, 700, 700), 700);
    }
    assert_eq!(target.bytes(), source.bytes());
    assert_eq!((rig.sender().unfinished(), rig.receiver().unfinished()), (0, 0));
    assert_eq!(rig.sender().failure(), None);
    assert_eq!(rig.receiver().failure(), None);
}

/// Both ends fence what is to be fenced; no request is executed meanwhile.
fn fence(rig: &mut Rig) {
    for _ in 0..12 {
        rig.carry();
        rig.poll();
    }
}

/// New queue pairs in the places of all that are Down at both ends.
fn replace_all(rig: &mut Rig) {
    for place in 0..usize::from(rig.setup.rails) {
        if rig.sender().queue_pair_state(place).unwrap().0 == RailState::Down {
            rig.replace(place, place);
        }
    }
    rig.carry();
}

#[test]
fn a_message_under_way_is_fenced_and_void_at_both_ends() {
    let (mut rig, send, recv) = under_way(3);
    // The share of rail 2 arrives, and its acknowledgement does not come.
    assert_eq!(rig.fabric.execute(rig.near(2)), Step::Done);
    rig.sender().cancel(send).unwrap();
    assert_eq!(rig.sender().being_taken_back(), 1);
    rig.poll();
    assert_eq!(rig.sender().test(send), Ok(false), "it may be delivered yet");
    let stragglers = [0, 1].map(|place| rig.near(place));
    rig.sender().fence_cancelled();
    for place in 0..3 {
        assert!(rig.sender().asks_for_fence(place), "rail {place} carries a share");
    }
    fence(&mut rig);
    assert_eq!(rig.sender().being_taken_back(), 0);
    assert!(rig.fabric.is_error(rig.far(0)));
    for straggler in stragglers {
        assert_eq!(rig.fabric.straggle(straggler, true), Step::Dead, "nothing is written any more");
    }
    let number = send.number();
    assert_eq!(rig.sender().test(send), Err(taken_back(number)), "at once");
    assert_eq!(rig.sender().test(send), Err(CallError::NoRequest { number }));
    assert!(rig.receiver().test(recv).unwrap().is_none(), "it does not know yet");
    rig.fabric.clear_log();
    replace_all(&mut rig);
    rig.recover();
    assert_eq!(rig.receiver().test(recv).unwrap_err(), taken_back(number));
    let data = rig.take_data();
    assert!(data.iter().all(|(_, request)| request.opcode == Opcode::RdmaWriteWithImm), "{data:?}");
    assert_eq!(data.len(), 2, "of the shares that did not arrive, a signal each");
    assert_as_new(&mut rig);
}

/// The owner waits for acknowledgements first: what has arrived needs no fence.
#[test]
fn what_is_acknowledged_in_time_is_delivered() {
    let (mut rig, send, recv) = under_way(3);
    rig.sender().cancel(send).unwrap();
    rig.settle();
    assert_eq!(rig.sender().being_taken_back(), 0);
    rig.sender().fence_cancelled();
    assert!(rig.sender().next_control().is_none(), "nothing is fenced");
    assert!(rig.sent(send) && rig.received(recv).is_some());
    assert_eq!(rig.sender().cancel(send), Err(CancelError::NoRequest { number: 1 }));
    assert_as_new(&mut rig);
}

#[test]
fn what_arrived_before_the_fence_is_delivered() {
    let (mut rig, send, recv) = under_way(2);
    for place in 0..2 {
        assert_eq!(rig.fabric.execute(rig.near(place)), Step::Done);
    }
    rig.sender().cancel(send).unwrap();
    rig.sender().fence_cancelled();
    // The peer's count says that all of it arrived.
    fence(&mut rig);
    assert!(rig.sent(send) && rig.received(recv).is_some());
}

/// Nothing of a lost share is sent again while the message is to be taken back.
#[test]
fn a_message_that_lost_a_share_is_void_without_another_fence() {
    let (mut rig, send, recv) = under_way(3);
    rig.fabric.fail(rig.near(1), WcStatus::RETRY_EXC_ERR);
    rig.poll_near();
    rig.sender().cancel(send).unwrap();
    rig.recover();
    let payload = |opcode| opcode == Opcode::RdmaWrite;
    assert!(!rig.take_data().iter().any(|(_, request)| payload(request.opcode)));
    assert_eq!(rig.sender().queue_pair_state(0).unwrap().0, RailState::InService);
    assert_taken_back(&mut rig, send, recv);
    assert_as_new(&mut rig);
}

/// Other messages lose what they have on the rails that are fenced, and it is sent again.
#[test]
fn other_messages_arrive_whole() {
    let (mut rig, send, recv) = under_way(2);
    let (source, target) = (rig.source(900), rig.target(900));
    let others = rig.start_unexecuted(&source, &target, 900);
    rig.sender().cancel(send).unwrap();
    rig.sender().fence_cancelled();
    fence(&mut rig);
    replace_all(&mut rig);
    rig.recover();
    rig.assert_done([others]);
    assert_eq!(target.bytes(), source.bytes());
    assert_taken_back(&mut rig, send, recv);
    assert_as_new(&mut rig);
}

/// For `min_rails`, queue pairs that are fenced on purpose count as in service.
#[test]
fn a_fence_on_purpose_is_no_failure() {
    let mut setup = Setup::rerouting(2);
    setup.sender.min_rails = 2;
    let mut rig = setup.rig();
    let (source, target) = (rig.source(1000), rig.target(1000));
    let (send, recv) = rig.start(&source, &target, 1000);
    rig.sender().cancel(send).unwrap();
    rig.sender().fence_cancelled();
    fence(&mut rig);
    assert!(rig.is_down(0) && rig.is_down(1));
    assert!(rig.sender().is_out_on_purpose(0) && rig.receiver().is_out_on_purpose(0));
    let (_, event) = rig.sender().take_rail_event().unwrap();
    let why = FailedBecause::OnPurpose;
    assert_eq!(event.kind, RailEventKind::Failed { why, refused: None });
    let (_, event) = rig.receiver().take_rail_event().unwrap();
    let why = FailedBecause::PeerOnPurpose;
    assert_eq!(event.kind, RailEventKind::Failed { why, refused: None });
    replace_all(&mut rig);
    rig.recover();
    assert_taken_back(&mut rig, send, recv);
    assert_as_new(&mut rig);
}

/// A share that waits for credits is not posted to its end, and needs no fence once what was posted
/// of it has arrived.
#[test]
fn a_share_that_waits_for_credits_ends_with_its_signal() {
    let mut setup = Setup::rerouting(2);
    (setup.max_send_wr, setup.max_msg_size) = (4, 256);
    let mut rig = setup.rig();
    let (source, target) = (rig.source(5000), rig.target(5000));
    let (send, recv) = rig.start(&source, &target, 5000);
    rig.fabric.clear_log();
    rig.sender().cancel(send).unwrap();
    rig.settle();
    assert_eq!(rig.sender().test(send), Err(taken_back(1)));
    assert_eq!(rig.receiver().test(recv).unwrap_err(), taken_back(1));
    for place in 0..2 {
        assert_eq!(rig.sender().queue_pair_state(place), Some((RailState::InService, 0)));
    }
    let data = rig.take_data();
    assert_eq!(data.len(), 2 * (4 + 1), "what was posted, and a signal for each rail");
    assert_as_new(&mut rig);
}

/// One send of a receive of several buffers, which is not posted: its buffer waits for another one.
#[test]
fn one_send_of_several_is_taken_back_alone() {
    let mut rig = Setup::rerouting(2).rig();
    let (source, target) = (rig.source(256), rig.target(256));
    let recv = rig.try_irecv(&[(&target, 0, 100, 7), (&target, 128, 100, 8)]).unwrap();
    rig.settle();
    let first = rig.try_isend(&source, 100, 7).unwrap();
    rig.sender().cancel(first).unwrap();
    assert_eq!(rig.sender().cancel(first), Err(CancelError::AlreadyCancelled { number: 1 }));
    assert_eq!(rig.try_isend(&source, 100, 7), Err(NotNow::NoSuchTag.into()), "not tested");
    let other = rig.try_isend(&source, 100, 8).unwrap();
    rig.settle();
    assert!(rig.received(recv).is_none(), "one buffer has no send");
    assert_eq!(rig.sender().test(first), Err(taken_back(1)));
    let again = rig.try_isend(&source, 50, 7).unwrap();
    rig.settle();
    assert!(rig.sent(again) && rig.sent(other));
    assert_eq!(rig.received(recv).unwrap().sizes(), [50, 100]);
    assert_as_new(&mut rig);
}

/// The sender has sent nothing: it never will, and the next send goes to the next receive.
#[test]
fn a_receive_without_a_message_is_given_back_at_once() {
    let mut rig = Setup::rerouting(2).rig();
    let (source, target, next) = (rig.source(500), rig.target(500), rig.target(500));
    let recv = rig.irecv(&target, 500);
    rig.settle();
    rig.receiver().cancel(recv).unwrap();
    assert_eq!(rig.receiver().being_taken_back(), 1);
    assert_eq!(rig.receiver().cancel(recv), Err(CancelError::AlreadyCancelled { number: 1 }));
    assert!(rig.received(recv).is_none(), "nobody has asked yet");
    rig.carry();
    assert_eq!(rig.receiver().being_taken_back(), 0);
    assert_eq!(rig.receiver().test(recv).unwrap_err(), taken_back(1));
    assert_eq!(rig.receiver().unfinished(), 0);
    let other = rig.irecv(&next, 500);
    rig.settle();
    let send = rig.isend(&source, 500);
    assert_eq!(send.number(), 2);
    rig.settle();
    rig.assert_done([(send, other)]);
    assert_eq!(next.bytes(), source.bytes());
    assert!(target.bytes().iter().all(|byte| *byte == 0));
    assert_as_new(&mut rig);
}

/// The turn of a receive that is given back comes after those before it; all slots can be.
#[test]
fn receives_are_given_back_in_any_order() {
    let mut rig = Setup::rerouting(2).rig();
    let (source, target) = (rig.source(500), rig.target(500));
    for turn in 0..4 {
        let all: Vec<_> = (0..SLOTS).map(|_| rig.irecv(&target, 500)).collect();
        let wanted = [0, 3, SLOTS - 1][turn % 3];
        for (at, recv) in all.iter().enumerate().rev().filter(|(at, _)| *at != wanted) {
            rig.receiver().cancel(*recv).unwrap_or_else(|error| panic!("{at}: {error}"));
        }
        rig.recover();
        for recv in all.iter().enumerate().filter(|(at, _)| *at != wanted).map(|(_, recv)| *recv) {
            assert_eq!(rig.receiver().test(recv).unwrap_err(), taken_back(recv.number()));
        }
        let send = rig.isend(&source, 500);
        assert_eq!(send.number(), all[wanted].number());
        rig.settle();
        rig.assert_done([(send, all[wanted])]);
    }
    assert_as_new(&mut rig);
}

/// The sender has to fence, as if its own caller wanted that.
#[test]
fn a_receive_whose_message_is_under_way_is_fenced() {
    let (mut rig, send, recv) = under_way(3);
    rig.receiver().cancel(recv).unwrap();
    rig.carry();
    assert_eq!(rig.sender().being_taken_back(), 1);
    assert!(rig.received(recv).is_none());
    rig.sender().fence_cancelled();
    fence(&mut rig);
    // The answer comes by the owners' link, before there is a rail again.
    assert_taken_back(&mut rig, send, recv);
    assert_eq!(rig.receiver().unfinished(), 0);
    replace_all(&mut rig);
    rig.recover();
    assert_as_new(&mut rig);
}

/// Questions and answers that are lost with the link are repeated.
#[test]
fn a_link_that_breaks_loses_no_wish() {
    for is_asked in [false, true] {
        let mut rig = Setup::rerouting(2).rig();
        let target = rig.target(500);
        let recv = rig.irecv(&target, 500);
        rig.receiver().cancel(recv).unwrap();
        let question = rig.receiver().next_control().unwrap();
        assert_eq!(question, Control::Withdraw { number: 1 });
        if is_asked {
            rig.sender().control(question).unwrap();
            assert_eq!(rig.sender().next_control(), Some(Control::Withdrawn { number: 1 }));
        }
        rig.sender().control_lost();
        rig.receiver().control_lost();
        rig.recover();
        assert_eq!(rig.receiver().test(recv).unwrap_err(), taken_back(1));
        assert_as_new(&mut rig);
    }
}

/// A void message without an entry could be overtaken by an old copy of the entry.
#[test]
fn a_void_message_waits_for_the_entries() {
    let mut rig = Setup::rerouting(2).rig();
    let target = rig.target(500);
    let recv = rig.irecv(&target, 500);
    rig.receiver().cancel(recv).unwrap();
    rig.carry();
    rig.poll();
    assert_eq!(rig.receiver().test(recv).unwrap_err(), taken_back(1), "the promise is enough");
    assert!(rig.sender().owes_void_messages(), "the entry is on its way");
    assert!(rig.take_data().is_empty());
    rig.settle();
    assert!(!rig.sender().owes_void_messages());
    assert_eq!(rig.take_data().len(), 1);
    assert_as_new(&mut rig);
}

/// The step that sends the void message gives the connection up, and later polls drain it.
#[test]
fn a_void_message_that_leaves_too_few_rails_fails_a_connection_that_is_drained() {
    let mut setup = Setup::rerouting(2);
    setup.sender.min_rails = 2;
    let mut rig = setup.rig();
    let (source, target) = (rig.source(500), rig.target(500));
    let [_, second] = [(); 2].map(|()| rig.irecv(&target, 500));
    rig.settle();
    let send = rig.isend(&source, 500);
    rig.receiver().cancel(second).unwrap();
    (0..2).for_each(|place| rig.fabric.refuse(rig.near(place), 0, Refusal::Driver(22)));
    rig.carry();
    let failure = Failure::TooFewRails { in_service: 1, min_rails: 2 };
    assert_eq!(rig.sender().failure(), Some(&failure));
    assert_eq!(rig.sender().test(send), Ok(false), "its buffer may still be read");
    rig.settle();
    assert!(rig.sender().is_drained());
    assert_eq!(rig.sender().test(send), Err(CallError::Failed(failure)));
}

/// A correct peer has the first one done before it offers the second one of a slot.
#[test]
fn an_older_receive_of_a_slot_is_not_wanted_back_after_a_newer_one() {
    let (mut rig, send, recv) = under_way(2);
    let newer = send.number() + SLOTS as u64;
    for number in [newer, send.number()] {
        rig.sender().control(Control::Withdraw { number }).unwrap();
        rig.sender().invariants();
    }
    assert_eq!(rig.sender().being_taken_back(), 0);
    rig.settle();
    assert!(rig.sent(send) && rig.received(recv).is_some());
}

#[test]
fn what_cannot_be_taken_back_is_refused() {
    let mut rig = Setup::rails(2).rig();
    let (source, target) = (rig.source(500), rig.target(500));
    let (send, recv) = rig.start(&source, &target, 500);
    assert_eq!(rig.sender().cancel(send), Err(CancelError::NotRerouting));
    assert_eq!(rig.receiver().cancel(recv), Err(CancelError::NotRerouting));
    rig.settle();
    rig.assert_done([(send, recv)]);

    let mut rig = Setup::rerouting(2).rig();
    let (send, recv) = rig.start(&source_of(&rig), &rig.target(500), 500);
    rig.settle();
    let number = send.number();
    assert_eq!(rig.sender().cancel(send), Err(CancelError::TooLate { number }));
    assert_eq!(rig.receiver().cancel(recv), Err(CancelError::TooLate { number }));
    rig.assert_done([(send, recv)]);
    assert_eq!(rig.sender().cancel(send), Err(CancelError::NoRequest { number }));
    assert_eq!(rig.receiver().cancel(recv), Err(CancelError::NoRequest { number }));

    let (send, recv) = rig.start(&source_of(&rig), &rig.target(500), 500);
    rig.sender().fail();
    rig.recover();
    assert_eq!(rig.sender().cancel(send), Err(CancelError::Failed(Failure::Owner)));
    assert_eq!(rig.receiver().cancel(recv), Err(CancelError::Failed(Failure::Peer)));
}

fn source_of(rig: &Rig) -> crate::rig::Memory {
    rig.source(500)
}

/// What a wrong peer says about receives fails the connection, or changes nothing.
#[test]
fn a_wrong_peer_is_refused() {
    for number in [0, 1 + SLOTS as u64, u64::MAX] {
        let mut rig = Setup::rerouting(2).rig();
        let wrong = rig.sender().control(Control::Withdraw { number });
        assert_eq!(wrong, Err(ControlError::NoReceive { number }));
        assert!(matches!(rig.sender().failure(), Some(Failure::Control(_))));
    }
    for number in [0, 2] {
        let mut rig = Setup::rerouting(2).rig();
        let target = rig.target(500);
        let _ = rig.irecv(&target, 500);
        let wrong = rig.receiver().control(Control::Withdrawn { number });
        assert_eq!(wrong, Err(ControlError::NoReceive { number }));
    }
    // Not of its end.
    let mut rig = Setup::rerouting(2).rig();
    let wrong = rig.sender().control(Control::Withdrawn { number: 1 });
    assert_eq!(wrong, Err(ControlError::NoReceive { number: 1 }));
    // Nobody has asked: nothing changes.
    let (mut rig, send, recv) = under_way(2);
    rig.receiver().control(Control::Withdrawn { number: 1 }).unwrap();
    assert_eq!(rig.receiver().ignored_controls(), 1);
    rig.settle();
    rig.assert_done([(send, recv)]);
    rig.sender().control(Control::Withdraw { number: 1 }).unwrap();
    assert_eq!(rig.sender().ignored_controls(), 1, "it has arrived");
}

/// A peer that has given a receive back, and then writes to it, is found out.
#[test]
fn a_message_after_the_answer_fails_the_connection() {
    let (mut rig, _, recv) = under_way(2);
    rig.receiver().cancel(recv).unwrap();
    assert_eq!(rig.receiver().next_control(), Some(Control::Withdraw { number: 1 }));
    rig.receiver().control(Control::Withdrawn { number: 1 }).unwrap();
    assert_eq!(rig.receiver().test(recv).unwrap_err(), taken_back(1));
    rig.counts_pools = false;
    rig.settle();
    let failure = rig.receiver().failure().copied();
    assert!(matches!(failure, Some(Failure::Protocol(ProtocolError::GivenBack { slot: 0 }))));
}

/// The peer's card has no version of cancel, or another one.
#[test]
fn a_peer_of_another_version_is_asked_nothing() {
    let setup = Setup::rerouting(2);
    for version in [0, 2] {
        let mut rig = setup.rig_with_version(version);
        let (source, target) = (rig.source(500), rig.target(500));
        let (send, recv) = rig.start(&source, &target, 500);
        assert_eq!(rig.sender().cancel(send), Err(CancelError::Peer { version }));
        assert_eq!(rig.receiver().cancel(recv), Err(CancelError::Peer { version }));
        rig.settle();
        rig.assert_done([(send, recv)]);
    }
}
