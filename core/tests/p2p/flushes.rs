//! Flushes: a READ on each device over which an immediate of the message came.

use crate::rig::{Rig, Setup};
use polyrail_core::hardware::Refusal;
use polyrail_core::p2p::{CallError, ConnectionEnd, NotNow, Received};
use polyrail_core::verbs::{DeviceId, Opcode, WcStatus};

fn received(setup: &Setup, length: u32) -> (Rig, Received) {
    let mut rig = setup.rig();
    let (source, target) = (rig.source(1024), rig.target(1024));
    let recv = rig.irecv(&target, 1024);
    rig.settle();
    let send = rig.isend(&source, length);
    rig.settle();
    assert!(rig.sent(send));
    let received = rig.received(recv).expect("arrived");
    rig.fabric.clear_log();
    (rig, received)
}

/// Flushes it, to the end.
fn flush(rig: &mut Rig, received: &Received) {
    let flush = rig.receiver().flush(received).expect("there is room");
    rig.settle();
    assert_eq!(rig.receiver().test_flush(&flush), Ok(true));
}

fn setup(rails: u8) -> Setup {
    let mut setup = Setup::rails(rails);
    setup.flushes = true;
    setup
}

#[test]
fn each_device_that_carried_an_immediate_reads_and_no_other() {
    let mut setup = setup(4);
    setup.devices = 3;
    setup.sender.split =
        polyrail_core::p2p::SplitPolicy::Weighted { weights: [1, 0, 0, 1, 1, 1, 1, 1] };
    let (mut rig, received) = received(&setup, 1024);
    let flush = rig.receiver().flush(&received).expect("there is room");
    assert_eq!(rig.receiver().test_flush(&flush), Ok(false));
    rig.settle();
    assert_eq!(rig.receiver().test_flush(&flush), Ok(true));
    let log = rig.fabric.take_log();
    let [(at, request)] = log[..] else { panic!("rails 0 and 3 are both on device 0: {log:?}") };
    assert_eq!((at, request.opcode), (rig.connections[0].flushes[0], Opcode::RdmaRead));
}

#[test]
fn a_message_over_two_devices_is_flushed_on_both() {
    let (mut rig, received) = received(&setup(2), 1024);
    let flush = rig.receiver().flush(&received).expect("there is room");
    assert_eq!(rig.fabric.posted(rig.connections[0].flushes[0]).len(), 1);
    let second = rig.connections[0].flushes[1];
    while rig.fabric.execute(second) == crate::device::Step::Done {}
    rig.fabric.acknowledge(second);
    rig.poll_far();
    assert_eq!(rig.receiver().test_flush(&flush), Ok(false), "the first has not read");
    rig.settle();
    assert_eq!(rig.receiver().test_flush(&flush), Ok(true));
}

#[test]
fn messages_without_bytes_need_no_flush() {
    let (mut rig, received) = received(&setup(2), 0);
    let flush = rig.receiver().flush(&received).expect("nothing to do");
    assert_eq!(rig.receiver().test_flush(&flush), Ok(true));
    assert_eq!(rig.fabric.take_log().len(), 0);
}

#[test]
fn a_carrier_that_failed_is_an_error_and_never_success() {
    let (mut rig, received) = received(&setup(2), 1024);
    let flush = rig.receiver().flush(&received).expect("there is room");
    rig.fabric.fail(rig.connections[0].flushes[0], WcStatus::FATAL_ERR);
    rig.settle();
    let cannot = CallError::CannotFlush { device: DeviceId(100) };
    assert_eq!(rig.receiver().test_flush(&flush), Err(cannot));
    assert_eq!(rig.receiver().flush(&received).err(), Some(cannot));
    assert_eq!(rig.receiver().failure(), None, "messages go on");
}

/// Its driver never gives a READ up, so only the owner knows.
#[test]
fn a_flush_that_makes_no_progress_ends_when_its_owner_reports_that() {
    for reroutes in [false, true] {
        let mut setup = setup(2);
        setup.reroutes = reroutes;
        let (mut rig, received) = received(&setup, 1024);
        let stalled = |rig: &mut Rig| {
            let mut places = vec![];
            rig.receiver().check_stalled(|place| places.push(place));
            places
        };
        // A look has the entries completed.
        assert_eq!(stalled(&mut rig), [0; 0]);
        rig.settle();
        let flush = rig.receiver().flush(&received).expect("there is room");
        assert_eq!(stalled(&mut rig), [0; 0], "the first look");
        rig.fabric.run_only(rig.connections[0].flushes[0]);
        rig.poll_far();
        // Queue pairs for flushes are counted behind the others.
        assert_eq!(stalled(&mut rig), [3]);
        assert_eq!(rig.receiver().test_flush(&flush), Ok(false));
        assert!(rig.receiver().fail_queue_pair(3));
        let cannot = CallError::CannotFlush { device: DeviceId(101) };
        assert_eq!(rig.receiver().test_flush(&flush), Err(cannot));
        assert_eq!(rig.receiver().flush(&received).err(), Some(cannot));
        assert_eq!(stalled(&mut rig), [0; 0]);
        assert!(!rig.receiver().fail_queue_pair(3), "it has failed already");
        assert!(!rig.receiver().fail_queue_pair(4), "there is none");
        // Messages go on over both devices.
        rig.settle();
        let (source, target) = (rig.source(1024), rig.target(1024));
        assert_eq!(rig.message(&source, &target, 1024, 1024), 1024);
        assert_eq!(rig.receiver().failure(), None);
    }
}

/// A device took completions with it, so that the signal comes again, but not what had come with
/// it.
#[test]
fn what_a_lost_device_had_brought_is_flushed_there_or_not_at_all() {
    for is_gone in [false, true] {
        let mut setup = setup(2);
        setup.reroutes = true;
        let mut rig = setup.rig();
        let (source, target) = (rig.source(1000), rig.target(1000));
        let (send, recv) = rig.start(&source, &target, 1000);
        rig.fabric.run();
        rig.poll_near();
        assert!(rig.sent(send));
        rig.fabric.lose_completions(rig.far_cq.cqs()[1].at);
        rig.counts_pools = false;
        // SAFETY: it executes nothing more.
        unsafe { assert!(rig.receiver().lose_queue_pair(1)) };
        rig.recover();
        let received = rig.received(recv).expect("arrived");
        if is_gone {
            // So is the one that flushes: those are counted behind the others.
            // SAFETY: as above.
            unsafe { assert!(rig.receiver().lose_queue_pair(3)) };
        }
        rig.fabric.clear_log();
        let flush = rig.receiver().flush(&received);
        if is_gone {
            assert_eq!(flush.err(), Some(CallError::CannotFlush { device: DeviceId(101) }));
            continue;
        }
        rig.settle();
        assert_eq!(rig.receiver().test_flush(&flush.expect("there is room")), Ok(true));
        let readers: Vec<_> = rig.fabric.take_log().iter().map(|(at, _)| *at).collect();
        assert_eq!(readers, rig.connections[0].flushes, "both devices");
    }
}

#[test]
fn a_device_without_a_flush_queue_pair_cannot_be_flushed() {
    let (mut rig, received) = received(&Setup::rails(1), 1024);
    let cannot = CallError::CannotFlush { device: DeviceId(100) };
    assert_eq!(rig.receiver().flush(&received).err(), Some(cannot));
}

#[test]
fn a_flush_that_is_refused_is_for_later() {
    let (mut rig, received) = received(&setup(1), 1024);
    rig.fabric.refuse(rig.connections[0].flushes[0], 0, Refusal::QueueFull);
    let refused = NotNow::Refused { rail: 0, refusal: Refusal::QueueFull };
    assert_eq!(rig.receiver().flush(&received).err(), Some(refused.into()));
    flush(&mut rig, &received);
}

/// The first of its devices has room, and is not asked to read time and again while the second one
/// has none.
#[test]
fn a_flush_that_finds_no_room_on_one_device_reads_on_none() {
    let (mut rig, received) = received(&setup(2), 1024);
    let [first, second] = [0, 1].map(|at| rig.connections[0].flushes[at]);
    while rig.receiver().flush(&received).is_ok() {
        while rig.fabric.execute(first) == crate::device::Step::Done {}
        rig.fabric.acknowledge(first);
        rig.poll_far();
    }
    rig.fabric.clear_log();
    for _ in 0..3 {
        assert_eq!(rig.receiver().flush(&received).err(), Some(NotNow::NoCredits.into()));
    }
    assert!(rig.fabric.posted(first).is_empty());
    assert!(!rig.fabric.posted(second).is_empty());
    rig.settle();
    flush(&mut rig, &received);
}

/// The same if the second one cannot be flushed any more.
#[test]
fn a_flush_that_one_device_cannot_do_reads_on_none() {
    let (mut rig, received) = received(&setup(2), 1024);
    let flush = rig.receiver().flush(&received).expect("there is room");
    let [first, second] = [0, 1].map(|at| rig.connections[0].flushes[at]);
    rig.fabric.fail(second, WcStatus::FATAL_ERR);
    rig.settle();
    let cannot = CallError::CannotFlush { device: DeviceId(101) };
    assert_eq!(rig.receiver().test_flush(&flush), Err(cannot));
    assert_eq!(rig.receiver().flush(&received).err(), Some(cannot));
    assert!(rig.fabric.posted(first).is_empty());
}

/// What the first one was given already ends as any other READ, and the next attempt is one of its
/// own.
#[test]
fn a_driver_that_refuses_the_second_read_costs_the_first_once_more() {
    let (mut rig, received) = received(&setup(2), 1024);
    let [first, second] = [0, 1].map(|at| rig.connections[0].flushes[at]);
    rig.fabric.refuse(second, 0, Refusal::QueueFull);
    let refused = NotNow::Refused { rail: 1, refusal: Refusal::QueueFull };
    assert_eq!(rig.receiver().flush(&received).err(), Some(refused.into()));
    assert_eq!(rig.fabric.posted(first).len(), 1);
    let flush = rig.receiver().flush(&received).expect("now it does");
    assert_eq!(rig.fabric.posted(first).len(), 2);
    while rig.fabric.execute(second) == crate::device::Step::Done {}
    rig.fabric.acknowledge(second);
    rig.poll_far();
    assert_eq!(rig.receiver().test_flush(&flush), Ok(false), "the first has not read");
    rig.settle();
    assert_eq!(rig.receiver().test_flush(&flush), Ok(true));
}
