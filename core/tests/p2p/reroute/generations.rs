//! One end is one queue pair ahead: its messages about the next one state what became of the
//! previous one.

use super::{arrives, under_way};
use crate::rig::{Connection, Rig, Setup};
use polyrail_core::hardware::Refusal;
use polyrail_core::p2p::ConnectionEnd;
use polyrail_core::verbs::WcStatus;
use polyrail_core::virtual_qp::{FailedBecause, RailEvent, RailEventKind, RailState};

const FENCED: Option<(RailState, u16)> = Some((RailState::Fenced, 0));

/// The place whose queue pairs fail.
const PLACE: usize = 2;

/// The last message of the end that is ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Newest {
    Failed,
    Fenced,
    Ready,
}

const ALL: [Newest; 3] = [Newest::Failed, Newest::Fenced, Newest::Ready];

/// The receiver's queue pair of the next generation is there, and perhaps failed, before the sender
/// received that the previous one is Fenced at the receiver: it receives only messages about the
/// next one.
fn receiver_is_ahead(rig: &mut Rig, newest: Newest) {
    assert!(rig.sender().fail_queue_pair(PLACE));
    rig.settle();
    assert_eq!(rig.sender().queue_pair_state(PLACE), FENCED);
    carry_there(rig);
    rig.settle();
    assert_eq!(rig.receiver().queue_pair_state(PLACE), Some((RailState::Down, 0)));
    let (_, far) = rig.new_pair(PLACE);
    rig.connections[0].far[PLACE] = far.at;
    let Rig { connections, far_cq, .. } = rig;
    let receiver = &mut connections[0].receiver;
    let old = receiver.replace_queue_pair((far_cq, 0), PLACE, 1, far, PLACE as u8);
    assert!(old.is_ok());
    if newest != Newest::Ready {
        assert!(receiver.fail_queue_pair(PLACE));
    }
    if newest == Newest::Fenced {
        rig.settle();
    }
}

/// Carries the sender's messages.
fn carry_there(rig: &mut Rig) {
    let Connection { sender, receiver, .. } = &mut rig.connections[0];
    while let Some(control) = sender.next_control() {
        receiver.control(control).expect("a correct peer");
    }
}

/// Carries the receiver's messages.
fn carry_back(rig: &mut Rig) {
    let Connection { sender, receiver, .. } = &mut rig.connections[0];
    while let Some(control) = receiver.next_control() {
        sender.control(control).expect("a correct peer");
    }
}

/// The same the other way round.
fn sender_is_ahead(rig: &mut Rig, newest: Newest) {
    assert!(rig.receiver().fail_queue_pair(PLACE));
    rig.settle();
    assert_eq!(rig.receiver().queue_pair_state(PLACE), FENCED);
    carry_back(rig);
    rig.settle();
    assert_eq!(rig.sender().queue_pair_state(PLACE), Some((RailState::Down, 0)));
    let (near, _) = rig.new_pair(PLACE);
    let at = near.at;
    rig.connections[0].near[PLACE] = at;
    let Rig { connections, near_cq, .. } = rig;
    let sender = &mut connections[0].sender;
    let old = sender.replace_queue_pair((near_cq, 0), PLACE, 1, near, PLACE as u8);
    assert!(old.is_ok());
    if newest == Newest::Failed {
        // Nothing was posted to it: it is drained as soon as its driver moves it to the error
        // state.
        rig.fabric.refuse_error(at, Some(Refusal::Driver(5)));
    }
    if newest != Newest::Ready {
        assert!(rig.sender().fail_queue_pair(PLACE));
    }
    rig.fabric.refuse_error(at, None);
}

/// Generation and kind of each event that was not taken yet.
fn events(take: impl FnMut() -> Option<(usize, RailEvent)>) -> Vec<(u16, RailEventKind)> {
    std::iter::from_fn(take).map(|(_, event)| (event.generation, event.kind)).collect()
}

/// A Fenced end that receives a message of generation g + 1 uses the previous `arrived` first
/// (table of [messages](polyrail_core::docs::rails_that_fail#messages-between-the-ends)): the
/// shares of generation g are lost, or have arrived.
#[test]
fn shares_of_a_generation_are_settled_by_a_message_of_the_next_one() {
    for newest in ALL {
        for arrived in [false, true] {
            let (mut rig, send, recv) = under_way();
            if arrived {
                rig.fabric.execute(rig.near(PLACE));
                rig.poll_far();
            }
            receiver_is_ahead(&mut rig, newest);
            carry_back(&mut rig);
            arrives(&mut rig, send, recv);
            let again = super::moved(&mut rig).len();
            assert_eq!(again, usize::from(!arrived), "{newest:?}, arrived: {arrived}");
        }
    }
}

/// Entries of the generation before are written again, once.
#[test]
fn entries_of_a_generation_are_written_again_after_a_message_of_the_next_one() {
    for newest in ALL {
        let mut rig = Setup::rerouting(3).rig();
        let (source, target) = (rig.source(1000), rig.target(1000));
        let mut recvs: Vec<_> = (0..3).map(|_| rig.irecv(&target, 1000)).collect();
        rig.poll_far();
        let (near, far) = (rig.near(PLACE), rig.far(PLACE));
        assert_eq!(rig.fabric.posted(far).len(), 1, "slot 2 goes by device 2");
        rig.fabric.fail(far, WcStatus::RETRY_EXC_ERR);
        rig.fabric.fail(near, WcStatus::RETRY_EXC_ERR);
        sender_is_ahead(&mut rig, newest);
        carry_there(&mut rig);
        rig.recover();
        for recv in recvs.drain(..) {
            let send = rig.isend(&source, 1000);
            arrives(&mut rig, send, recv);
        }
    }
}

/// An owner reads what happened in the order in which it happened: the end of one queue pair before
/// the failure of the next one.
#[test]
fn events_come_in_order_when_the_next_generation_is_adopted() {
    let failed = |why| RailEventKind::Failed { why, refused: None };
    let fenced = |arrived, again| RailEventKind::Fenced { arrived, again };
    for arrived in [0, 1] {
        let (mut rig, ..) = under_way();
        if arrived == 1 {
            rig.fabric.execute(rig.near(PLACE));
            rig.poll_far();
        }
        receiver_is_ahead(&mut rig, Newest::Failed);
        let sender = &mut rig.connections[0].sender;
        assert_eq!(events(|| sender.take_rail_event()), [(0, failed(FailedBecause::Owner))]);
        carry_back(&mut rig);
        let expected = [(0, fenced(arrived, 1 - arrived)), (1, failed(FailedBecause::Peer))];
        let sender = &mut rig.connections[0].sender;
        assert_eq!(events(|| sender.take_rail_event()), expected);
        rig.recover();
        let sender = &mut rig.connections[0].sender;
        assert_eq!(events(|| sender.take_rail_event()), [(1, fenced(0, 0))]);
    }
    let (mut rig, ..) = under_way();
    sender_is_ahead(&mut rig, Newest::Failed);
    let receiver = &mut rig.connections[0].receiver;
    assert_eq!(events(|| receiver.take_rail_event()), [(0, failed(FailedBecause::Owner))]);
    carry_there(&mut rig);
    let receiver = &mut rig.connections[0].receiver;
    let expected = [(0, fenced(0, 0)), (1, failed(FailedBecause::Peer))];
    assert_eq!(events(|| receiver.take_rail_event()), expected);
}

/// A message that lost a share to a failure that it may be the cause of is blamed for it, whichever
/// generation the peer reports.
#[test]
fn a_failure_is_blamed_on_its_messages_though_a_message_of_the_next_generation_came() {
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
        rig.poll_near();
        let generation = rig.sender().queue_pair_state(place).expect("a place").1;
        carry_there(&mut rig);
        rig.poll_far();
        rig.poll_far();
        let down = Some((RailState::Down, generation));
        assert_eq!(rig.receiver().queue_pair_state(place), down);
        let (_, far) = rig.new_pair(place);
        rig.connections[0].far[place] = far.at;
        let Rig { connections, far_cq, .. } = &mut rig;
        let receiver = &mut connections[0].receiver;
        let next = generation + 1;
        let old = receiver.replace_queue_pair((far_cq, 0), place, next, far, place as u8);
        assert!(old.is_ok() && receiver.fail_queue_pair(place));
        rig.carry();
        rounds += 1;
        assert!(rounds < 10);
        if rig.sender().failure().is_none() {
            rig.poll_far();
            rig.poll_far();
            rig.carry();
            rig.replace(place, place);
            rig.carry();
        }
    }
    assert_eq!(rounds, 5, "twice as many as there are rails, and one more");
}

/// What is written again counts once: for the queue pair that had it, not for the one that was
/// never there.
#[test]
fn entries_that_are_written_again_count_once() {
    for newest in ALL {
        let mut rig = Setup::rerouting(3).rig();
        let target = rig.target(1000);
        let _recvs: Vec<_> = (0..3).map(|_| rig.irecv(&target, 1000)).collect();
        rig.poll_far();
        let (near, far) = (rig.near(PLACE), rig.far(PLACE));
        rig.fabric.fail(far, WcStatus::RETRY_EXC_ERR);
        rig.fabric.fail(near, WcStatus::RETRY_EXC_ERR);
        sender_is_ahead(&mut rig, newest);
        carry_there(&mut rig);
        let receiver = &mut rig.connections[0].receiver;
        let mut told = Vec::new();
        for (generation, kind) in events(|| receiver.take_rail_event()) {
            if let RailEventKind::Fenced { again, .. } = kind {
                told.push((generation, again));
            }
        }
        let again: u32 = told.iter().map(|(_, again)| again).sum();
        assert_eq!(again, 1, "{newest:?}: {told:?}");
    }
}
