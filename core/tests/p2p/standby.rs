//! Rails that stand by while another rail is in service. `Sender`, "Standby rails".

use crate::rig::{Rig, Setup, build_error};
use polyrail_core::hardware::Refusal;
use polyrail_core::p2p::{BuildError, CallError, ConnectionEnd, Mask, NotNow};
use polyrail_core::virtual_qp::RailCounters;

/// Two rails, of which rail 1 stands by at both ends, with this many queue pairs each.
fn standby(each: usize) -> Rig {
    let mut setup = Setup::rerouting(2);
    setup.sender.standby = Mask::of(1);
    (setup.each, setup.max_send_wr) = (each, 4);
    setup.rig()
}

/// Requests that rail 1 was given at the sender and at the receiver.
fn on_rail_1(rig: &mut Rig) -> [u64; 2] {
    let requests = |counters: Option<RailCounters>| counters.map_or(0, |all| all.send_requests);
    let places = || (1..4).step_by(2);
    let sent = places().map(|place| requests(rig.sender().counters(place))).sum();
    [sent, places().map(|place| requests(rig.receiver().counters(place))).sum()]
}

/// Fails the queue pair of a place, and waits until it is Down at both ends.
fn fail(rig: &mut Rig, place: usize) {
    assert!(rig.sender().fail_queue_pair(place));
    rig.recover();
    assert!(rig.is_down(place));
}

#[test]
fn nothing_goes_over_a_standby_rail_while_a_home_rail_is_in_service() {
    for each in [1, 2] {
        let mut rig = standby(each);
        let (source, target) = (rig.source(512), rig.target(512));
        let recvs: Vec<_> = (0..8)
            .map(|_| {
                let recv = rig.irecv(&target, 512);
                rig.settle();
                recv
            })
            .collect();
        // Of one request each, all over rail 0: it runs out of credits.
        let room = 4 * each;
        let sends: Vec<_> = (0..room).map(|_| rig.isend(&source, 512)).collect();
        if room < 8 {
            let full = CallError::NotNow(NotNow::NoCredits);
            assert_eq!(rig.try_isend(&source, 512, 0), Err(full));
        }
        rig.settle();
        rig.assert_done(sends.into_iter().zip(recvs));
        assert_eq!(on_rail_1(&mut rig), [0, 0]);
    }
}

#[test]
fn a_standby_rail_takes_over_from_the_last_queue_pair_of_the_home_rails() {
    for each in [1, 2] {
        let mut rig = standby(each);
        let (source, target) = (rig.source(512), rig.target(512));
        let messages = |rig: &mut Rig| {
            for _ in 0..3 {
                assert_eq!(rig.message(&source, &target, 512, 512), 512);
            }
        };
        // A message that is lost with its queue pair, and entries that are.
        let (send, recv) = rig.start(&source, &target, 512);
        let offered = rig.irecv(&target, 512);
        for place in (0..2 * each).step_by(2) {
            assert_eq!(on_rail_1(&mut rig), [0, 0], "rail 0 has a queue pair in service");
            fail(&mut rig, place);
        }
        rig.assert_done([(send, recv)]);
        let sent = rig.isend(&source, 512);
        rig.settle();
        rig.assert_done([(sent, offered)]);
        messages(&mut rig);
        let taken_over = on_rail_1(&mut rig);
        assert!(taken_over[0] >= 4 && taken_over[1] >= 3, "{taken_over:?}");
        rig.replace(0, 0);
        rig.recover();
        let before = on_rail_1(&mut rig);
        messages(&mut rig);
        assert_eq!(on_rail_1(&mut rig), before, "one queue pair of rail 0 is back");
    }
}

/// A share that needs more requests than its queue pair has room for is completed where it began.
#[test]
fn the_rest_of_a_share_stays_on_the_standby_rail() {
    let mut setup = Setup::rerouting(2);
    setup.sender.standby = Mask::of(1);
    (setup.max_msg_size, setup.max_send_wr) = (128, 4);
    let mut rig = setup.rig();
    let (source, target) = (rig.source(2048), rig.target(2048));
    fail(&mut rig, 0);
    let recv = rig.irecv(&target, 2048);
    rig.settle();
    let send = rig.isend(&source, 2048);
    assert!(!rig.sent(send));
    rig.replace(0, 0);
    rig.carry();
    rig.settle();
    rig.assert_done([(send, recv)]);
    assert_eq!(target.bytes(), source.bytes());
    // 16 pieces and a signal.
    assert_eq!(on_rail_1(&mut rig)[0], 17);
}

/// Without rail 1, nothing changes; with no rail, messages wait for any.
#[test]
fn a_standby_rail_that_fails_unused_is_missed_only_when_it_is_needed() {
    let mut setup = Setup::rerouting(2);
    (setup.sender.standby, setup.sender.min_rails) = (Mask::of(1), 0);
    let mut rig = setup.rig();
    let (source, target) = (rig.source(512), rig.target(512));
    fail(&mut rig, 1);
    assert_eq!(rig.message(&source, &target, 512, 512), 512);
    let recv = rig.irecv(&target, 512);
    rig.settle();
    fail(&mut rig, 0);
    assert_eq!(rig.try_isend(&source, 512, 0), Err(CallError::NotNow(NotNow::NoCredits)));
    rig.replace(1, 1);
    rig.recover();
    let send = rig.isend(&source, 512);
    rig.settle();
    rig.assert_done([(send, recv)]);
}

/// Drivers that refuse do not open the standby rails.
#[test]
fn a_home_rail_whose_driver_refuses_is_in_service() {
    let mut rig = standby(1);
    let (source, target) = (rig.source(512), rig.target(512));
    let recv = rig.irecv(&target, 512);
    rig.settle();
    rig.fabric.refuse(rig.near(0), 0, Refusal::QueueFull);
    assert!(rig.try_isend(&source, 512, 0).is_err());
    let send = rig.isend(&source, 512);
    rig.settle();
    rig.assert_done([(send, recv)]);
    assert_eq!(on_rail_1(&mut rig), [0, 0]);
}

#[test]
fn standby_rails_that_cannot_stand_by_are_refused() {
    let error = |mut setup: Setup, standby| {
        setup.sender.standby = standby;
        build_error(&setup)
    };
    for standby in [Mask::first(2), Mask::of(2), Mask::of(0) | Mask::of(7)] {
        let refused = BuildError::Standby { standby, rails: 2 };
        assert_eq!(error(Setup::rerouting(2), standby), Some(refused));
    }
    assert_eq!(error(Setup::rerouting(2), Mask::of(0)), None);
    let refused = BuildError::StandbyNeedsReroute { standby: Mask::of(1) };
    assert_eq!(error(Setup::rails(2), Mask::of(1)), Some(refused));
}
