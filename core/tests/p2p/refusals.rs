//! Drivers that refuse: not now, nothing lost, nothing twice.

use crate::rig::{Rig, Setup};
use polyrail_core::hardware::Refusal;
use polyrail_core::p2p::{CallError, Failure, NotNow};

const FULL: Refusal = Refusal::QueueFull;

#[test]
fn an_entry_that_is_refused_changes_nothing() {
    let mut rig = Setup::rails(2).rig();
    let (source, target) = (rig.source(256), rig.target(256));
    for refusal in [FULL, Refusal::Driver(22)] {
        rig.fabric.refuse(rig.far(0), 0, refusal);
        let refused = NotNow::Refused { rail: 0, refusal };
        assert_eq!(rig.try_irecv(&[(&target, 0, 256, 0)]), Err(refused.into()));
        assert_eq!(rig.receiver().unfinished(), 0);
    }
    assert_eq!(rig.message(&source, &target, 256, 256), 256);
}

#[test]
fn a_message_of_which_the_first_rail_takes_nothing_changes_nothing() {
    for refusal in [FULL, Refusal::Driver(22)] {
        let mut rig = Setup::rails(2).rig();
        let (source, target) = (rig.source(256), rig.target(256));
        let recv = rig.irecv(&target, 256);
        rig.settle();
        rig.fabric.clear_log();
        rig.fabric.refuse(rig.near(0), 0, refusal);
        let refused = NotNow::Refused { rail: 0, refusal };
        assert_eq!(rig.try_isend(&source, 256, 0), Err(refused.into()));
        assert!(rig.try_isend(&source, 256, 0).is_ok());
        rig.settle();
        assert_eq!(rig.take_data().len(), 2, "nothing twice");
        assert_eq!(rig.received(recv).expect("arrived").sizes(), [256]);
    }
}

/// The second rail's driver, or a batch in the middle: what is missing follows with later polls.
#[test]
fn what_a_driver_takes_in_part_is_completed_by_polls() {
    for (place, accepted) in [(1, 0), (0, 1), (0, 2), (1, 1), (1, 2)] {
        let mut setup = Setup::rails(2);
        setup.max_msg_size = 128;
        let mut rig = setup.rig();
        let (source, target) = (rig.source(1024), rig.target(1024));
        let recv = rig.irecv(&target, 1024);
        rig.settle();
        rig.fabric.clear_log();
        rig.fabric.refuse(rig.near(place), accepted, FULL);
        let send = rig.isend(&source, 1000);
        rig.fabric.refuse(rig.near(place), 0, FULL);
        rig.poll_near();
        rig.settle();
        assert!(rig.sent(send));
        assert_eq!(rig.received(recv).expect("arrived").sizes(), [1000]);
        assert_eq!(target.bytes()[..1000], source.bytes()[..1000]);
        // Four pieces and a signal on each rail.
        assert_eq!(rig.take_data().len(), 10, "nothing twice");
    }
}

/// A queue pair whose driver took a part of a share takes the rest before any other share.
#[test]
fn a_queue_pair_with_an_unfinished_batch_is_left_out() {
    let mut rig = Setup::rails(2).rig();
    let (source, target) = (rig.source(256), rig.target(256));
    let recvs = [rig.irecv(&target, 256), rig.irecv(&target, 256)];
    rig.settle();
    rig.fabric.clear_log();
    rig.fabric.refuse(rig.near(1), 0, FULL);
    let first = rig.isend(&source, 256);
    let second = rig.isend(&source, 256);
    let lengths = |rig: &Rig, place| {
        let posted = rig.fabric.posted(rig.near(place));
        posted.iter().map(|request| request.sge.length()).collect::<Vec<_>>()
    };
    assert_eq!(lengths(&rig, 0), [128, 256]);
    assert_eq!(lengths(&rig, 1), [0; 0]);
    rig.settle();
    assert!(rig.sent(first) && rig.sent(second));
    let sizes = recvs.map(|recv| rig.received(recv).expect("arrived").sizes()[0]);
    assert_eq!(sizes, [256; 2]);
}

/// A refusal for good, when parts of the message are out already, fails its rail.
#[test]
fn a_refusal_for_good_in_the_middle_fails_the_connection() {
    for (place, accepted) in [(1, 0), (0, 1)] {
        let mut setup = Setup::rails(2);
        setup.max_msg_size = 128;
        let mut rig = setup.rig();
        let (source, target) = (rig.source(1024), rig.target(1024));
        let recv = rig.irecv(&target, 1024);
        rig.settle();
        rig.fabric.refuse(rig.near(place), accepted, Refusal::Driver(22));
        let send = rig.isend(&source, 1024);
        let failure = *rig.sender().failure().expect("a rail failed");
        let Failure::Rail(error) = failure else { panic!("{failure}") };
        assert_eq!(error.errno, Some(22));
        rig.settle();
        assert_eq!(rig.sender().test(send), Err(CallError::Failed(failure)));
        assert_eq!(rig.receiver().test(recv), Ok(None), "nobody told this end");
        rig.receiver().peer_failed();
        rig.settle();
        assert_eq!(rig.receiver().test(recv), Err(CallError::Failed(Failure::Peer)));
    }
}

/// The entries of a receive are one message, and no port is given a longer one than it takes.
#[test]
fn a_receive_has_as_many_buffers_as_one_message_has_entries() {
    // Whichever end has the shorter ports: entries leave one and reach the other.
    for (max_msg_size, near_max_msg_size) in [(256, u32::MAX), (1 << 20, 256)] {
        let mut setup = Setup { near_max_msg_size, ..Setup::rails(2) };
        setup.max_msg_size = max_msg_size;
        let mut rig = setup.rig();
        let target = rig.target(256);
        let buffers: Vec<_> = (0..5).map(|tag| (&target, 0, 16, tag)).collect();
        assert_eq!(rig.try_irecv(&buffers), Err(CallError::Buffers { buffers: 5 }));
        assert!(rig.try_irecv(&buffers[..4]).is_ok());
    }
}
