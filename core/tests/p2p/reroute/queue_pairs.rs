//! How queue pairs fail and return at both ends, whichever end reports it.

use super::{DOWN, arrives, under_way};
use crate::rig::{Rig, Setup};
use polyrail_core::p2p::{BuildError, CardError, ConnectionEnd, Control, Failure};
use polyrail_core::verbs::WcStatus;
use polyrail_core::virtual_qp::{
    ControlError, ControlMessage, FailedBecause, RailEventKind, RailId, RailReport, RailState,
    ReportedState,
};

#[test]
fn both_ends_go_the_same_way_whichever_notices_first() {
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
        let (place, event) = rig.sender().take_rail_event().expect("an event");
        let why = if who == 1 { FailedBecause::Peer } else { FailedBecause::Owner };
        assert_eq!((place, event.rail), (2, RailId::Data(2)));
        assert_eq!(event.kind, RailEventKind::Failed { why, refused: None });
        let (_, event) = rig.sender().take_rail_event().expect("another");
        assert_eq!(event.kind, RailEventKind::Fenced { arrived: 0, again: 1 });
        assert_eq!(rig.sender().take_rail_event(), None);
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
    let (send, recv) = rig.start(&source, &target, 1000);
    rig.fabric.fail(rig.near(1), WcStatus::RETRY_EXC_ERR);
    arrives(&mut rig, send, recv);
}

#[test]
fn a_mistake_of_a_program_fails_the_connection_at_both_ends() {
    let (mut rig, send, recv) = under_way();
    rig.fabric.fail(rig.near(1), WcStatus::REM_ACCESS_ERR);
    rig.poll_near();
    assert!(matches!(rig.sender().failure(), Some(Failure::Rail(_))));
    let told = rig.sender().next_control().expect("an error");
    assert_eq!(told, Control::Rail { queue_pair: 0, message: ControlMessage::Error });
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

/// Whether a message waits for a rail: one that was refused because there is none, until a rail
/// returns.
#[test]
fn a_send_that_no_rail_takes_waits_for_one() {
    for is_offered in [false, true] {
        let mut setup = Setup::rerouting(2);
        setup.sender.min_rails = 0;
        let mut rig = setup.rig();
        let (source, target) = (rig.source(256), rig.target(256));
        let refused = |rig: &mut Rig| {
            let sent = rig.try_isend(&source, 256, 0);
            sent.is_err_and(|error| error.is_not_now())
        };
        assert!(refused(&mut rig) && !rig.sender().waits_for_rail(), "it waits for the peer");
        if is_offered {
            let _ = rig.irecv(&target, 256);
            rig.settle();
        }
        for place in 0..2 {
            assert!(rig.sender().fail_queue_pair(place));
        }
        rig.recover();
        assert!(rig.is_down(0) && rig.is_down(1));
        assert!(!rig.sender().waits_for_rail(), "no send was refused");
        assert!(refused(&mut rig) && rig.sender().waits_for_rail());
        rig.recover();
        rig.replace(0, 0);
        assert!(refused(&mut rig) && rig.sender().waits_for_rail(), "it is not in service yet");
        rig.carry();
        assert!(!rig.sender().waits_for_rail());
        assert!(rig.sender().fail_queue_pair(0));
        rig.recover();
        assert!(!rig.sender().waits_for_rail(), "no send was refused since");
        assert!(refused(&mut rig) && rig.sender().waits_for_rail());
    }
}

#[test]
fn the_link_of_the_ends_breaks_and_both_send_everything_again() {
    let (mut rig, send, recv) = under_way();
    rig.sender().fail_queue_pair(1);
    // Every message is lost.
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
        let news =
            RailReport { rail, generation, state, arrived, previous_arrived: 0, on_purpose: false };
        ControlMessage::Rail(news)
    };
    let cases = [
        Control::Rail { queue_pair: 9, message: news(0, 0, ReportedState::Failed, 0) },
        Control::Rail { queue_pair: 1, message: news(0, 0, ReportedState::Failed, 0) },
        Control::Rail { queue_pair: 1, message: news(1, 1, ReportedState::Ready, 0) },
        Control::Rail { queue_pair: 1, message: news(1, 0, ReportedState::Fenced, 2) },
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
    let control = Control::Rail { queue_pair: 0, message: ControlMessage::Error };
    assert_eq!(rig.sender().control(control), Err(ControlError::NotRerouting));
    assert_eq!(rig.receiver().control(control), Err(ControlError::NotRerouting));
    assert!(!rig.sender().fail_queue_pair(0) && !rig.receiver().fail_queue_pair(0));
    assert_eq!(rig.sender().failure(), None);
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
