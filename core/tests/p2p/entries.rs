//! Clear-to-send entries: how they are written, and read in any order of visibility.

use crate::device::Step;
use crate::rig::{Rig, SLOTS, Setup};
use polyrail_core::hardware::Refusal;
use polyrail_core::p2p::{CallError, ConnectionEnd, EntryForm, Failure, NotNow, ProtocolError};
use polyrail_core::verbs::{Imm, Opcode, SendFlags};
use polyrail_core::virtual_cq::CompletionTarget;
use polyrail_core::virtual_qp::RailState;

/// An entry is believed when all of it is there, in whatever order words become visible; of several
/// entries, when all of all are.
#[test]
fn hashed_entries_are_taken_when_the_last_word_is_visible() {
    let mut order = 0x1234_5678_u64;
    for buffers in [1, 3] {
        for _ in 0..20 {
            let mut rig = Setup::rails(2).rig();
            let (source, target) = (rig.source(64), rig.target(64));
            // The second time around, the ring holds older entries.
            for round in 0..SLOTS + 3 {
                rig.fabric.tear(true);
                let offered: Vec<_> = (0..buffers).map(|tag| (&target, 0, 64, tag)).collect();
                let recv = rig.try_irecv(&offered).expect("there is room");
                rig.settle();
                while rig.fabric.hidden() > 0 {
                    let not_now = rig.try_isend(&source, 1, 0);
                    assert_eq!(not_now, Err(NotNow::NoEntry.into()), "round {round}");
                    order = order.wrapping_mul(6364136223846793005).wrapping_add(1);
                    rig.fabric.show((order >> 33) as usize % rig.fabric.hidden());
                }
                rig.fabric.tear(false);
                let send = |tag| rig.try_isend(&source, tag, tag).expect("all is there");
                let sends: Vec<_> = (0..buffers).map(send).collect();
                rig.settle();
                assert!(sends.into_iter().all(|send| rig.sent(send)));
                assert!(rig.received(recv).is_some());
            }
        }
    }
}

/// With several entries, each number counts.
#[test]
fn plain_entries_are_taken_when_every_number_is_visible() {
    let mut setup = Setup::rails(1);
    setup.sender.entry_form = EntryForm::Plain;
    let mut rig = setup.rig();
    let (source, target) = (rig.source(64), rig.target(64));
    for _ in 0..SLOTS + 3 {
        rig.fabric.tear(true);
        let offered = [(&target, 0, 64, 0), (&target, 0, 64, 1)];
        let recv = rig.try_irecv(&offered).expect("there is room");
        rig.settle();
        // In order, as these devices promise.
        while rig.fabric.hidden() > 0 {
            assert_eq!(rig.try_isend(&source, 1, 0), Err(NotNow::NoEntry.into()));
            rig.fabric.show(0);
        }
        rig.fabric.tear(false);
        let sends = [0, 1].map(|tag| rig.try_isend(&source, 9, tag).expect("all is there"));
        rig.settle();
        assert!(sends.into_iter().all(|send| rig.sent(send)));
        assert_eq!(rig.received(recv).expect("arrived").sizes(), [9, 9]);
    }
}

#[test]
fn all_entries_of_a_receive_are_one_write_inline_if_it_fits() {
    let mut rig = Setup::rails(2).rig();
    let target = rig.target(64);
    for (buffers, inline) in [(1, true), (2, false), (8, false)] {
        let offered: Vec<_> = (0..buffers).map(|tag| (&target, 0, 8, tag)).collect();
        let _ = rig.try_irecv(&offered).expect("there is room");
        rig.poll_far();
        rig.fabric.run();
        let log = rig.fabric.take_log();
        let [(_, request)] = log[..] else { panic!("{log:?}") };
        assert_eq!((request.opcode, request.sge.length()), (Opcode::RdmaWrite, buffers * 64));
        assert_eq!(request.flags.contains(SendFlags::INLINE), inline);
    }
}

/// Successive entries of one slot use one connection, whose order they keep.
#[test]
fn entries_go_by_the_first_queue_pair_of_each_device_slot_by_slot() {
    let mut setup = Setup::rails(4);
    (setup.devices, setup.each) = (2, 2);
    let mut rig = setup.rig();
    let target = rig.target(64);
    for _ in 0..SLOTS {
        let _ = rig.irecv(&target, 64);
    }
    rig.poll_far();
    rig.fabric.run();
    let log = rig.fabric.take_log();
    let places = log.iter().map(|(at, _)| *at);
    let expected = (0..SLOTS).map(|slot| rig.far(slot % 2));
    let (mut places, mut expected) = (places.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    places.sort_unstable();
    expected.sort_unstable();
    assert_eq!(places, expected);
}

/// No request waits for the completion of an entry, so the send queue is bounded by counting.
#[test]
fn full_is_back_pressure_and_every_quarter_is_signaled() {
    let mut setup = Setup::rails(1);
    setup.max_send_wr = 4;
    let mut rig = setup.rig();
    let (source, target) = (rig.source(64), rig.target(64));
    let (near, far) = (rig.near(0), rig.far(0));
    for _ in 0..4 {
        let recv = rig.irecv(&target, 64);
        // Executed, and not acknowledged.
        assert_eq!(rig.fabric.execute(far), Step::Done);
        let _ = rig.isend(&source, 64);
        rig.fabric.run_only(near);
        rig.poll_far();
        assert!(rig.received(recv).is_some());
    }
    assert_eq!(rig.try_irecv(&[(&target, 0, 64, 0)]), Err(NotNow::NoCredits.into()));
    let posted = rig.fabric.posted(far);
    let signaled = posted.iter().filter(|request| request.flags.contains(SendFlags::SIGNALED));
    assert_eq!(signaled.count(), 4);
    rig.settle();
    assert!(rig.try_irecv(&[(&target, 0, 64, 0)]).is_ok());
    setup.max_send_wr = 16;
    let mut rig = setup.rig();
    let (source, target) = (rig.source(8), rig.target(8));
    for _ in 0..800 {
        rig.message(&source, &target, 8, 8);
    }
    let counters = rig.connections[0].receiver.counters(0).expect("one queue pair");
    assert_eq!(counters.send_requests, 800);
    let completions = counters.completions - 800;
    assert_eq!(completions, 200, "one in four: a quarter of 16");
}

/// Offers receives with these numbers of buffers, and returns the bytes of each WRITE that the next
/// poll posts.
fn written_by_a_poll(rig: &mut Rig, receives: &[u32]) -> Vec<u32> {
    let target = rig.target(64);
    rig.fabric.run();
    rig.fabric.take_log();
    for buffers in receives {
        let offered: Vec<_> = (0..*buffers).map(|tag| (&target, 0, 8, tag)).collect();
        let _ = rig.try_irecv(&offered).expect("there is room");
    }
    assert!(!rig.fabric.run(), "the sender has an offer");
    assert!(rig.receiver().needs_poll());
    rig.poll_far();
    assert!(!rig.receiver().needs_poll());
    rig.fabric.run();
    let log = rig.fabric.take_log();
    log.iter().map(|(_, request)| request.sge.length()).collect()
}

#[test]
fn offers_between_two_polls_share_a_write() {
    let mut rig = Setup::rails(1).rig();
    let (source, target) = (rig.source(8), rig.target(8));
    // In front of the slots' end, where the ring ends.
    for _ in 0..3 {
        rig.message(&source, &target, 8, 8);
    }
    let first = rig.irecv(&target, 8);
    assert_eq!(rig.fabric.posted(rig.far(0)).len(), 1, "the sender had no other offer");
    assert_eq!(written_by_a_poll(&mut rig, &[1; 6]), [4 * 64, 2 * 64], "the ring ends behind four");
    assert!(rig.received(first).is_none());
    let sends: Vec<_> = (0..7).map(|_| rig.isend(&source, 8)).collect();
    rig.settle();
    assert!(rig.received(first).is_some());
    assert!(sends.into_iter().all(|send| rig.sent(send)));
}

#[test]
fn several_buffers_have_a_write_of_their_own() {
    let mut rig = Setup::rails(1).rig();
    let (source, target) = (rig.source(8), rig.target(8));
    let _ = rig.irecv(&target, 8);
    let written = written_by_a_poll(&mut rig, &[1, 1, 3, 1, 2]);
    assert_eq!(written, [2 * 64, 3 * 64, 64, 2 * 64]);
    for tag in [0, 0, 0, 0, 1, 2, 0, 0, 1] {
        assert!(rig.try_isend(&source, 8, tag).is_ok());
    }
}

#[test]
fn a_write_of_entries_is_not_longer_than_a_message() {
    let mut setup = Setup::rails(1);
    setup.max_msg_size = 128;
    let mut rig = setup.rig();
    let target = rig.target(8);
    let _ = rig.irecv(&target, 8);
    assert_eq!(written_by_a_poll(&mut rig, &[1; 5]), [128, 128, 64]);
}

/// A request that is refused leaves its offers where they were.
#[test]
fn offers_that_a_driver_refuses_follow_with_the_next_poll() {
    let mut rig = Setup::rails(1).rig();
    let (source, target) = (rig.source(8), rig.target(8));
    let recvs = [(); 3].map(|()| rig.irecv(&target, 8));
    // One poll may ask twice.
    (0..2).for_each(|_| rig.fabric.refuse(rig.far(0), 0, Refusal::QueueFull));
    rig.poll_far();
    assert_eq!(rig.fabric.posted(rig.far(0)).len(), 1);
    assert!(rig.receiver().needs_poll());
    rig.settle();
    let sends = [(); 3].map(|()| rig.isend(&source, 8));
    rig.settle();
    assert!(sends.into_iter().all(|send| rig.sent(send)));
    assert!(recvs.into_iter().all(|recv| rig.received(recv).is_some()));
}

/// No caller is left to be told that offers were refused for good.
#[test]
fn offers_that_a_driver_refuses_for_good_fail_their_rail() {
    for rails in [1, 2] {
        let mut setup = Setup::rails(rails);
        setup.reroutes = rails > 1;
        setup.devices = 1;
        let mut rig = setup.rig();
        let (source, target) = (rig.source(8), rig.target(8));
        let recvs = [(); 3].map(|()| rig.irecv(&target, 8));
        rig.fabric.refuse(rig.far(0), 0, Refusal::Driver(22));
        rig.recover();
        if rails == 1 {
            let failure = *rig.receiver().failure().expect("its only rail failed");
            assert!(matches!(failure, Failure::Rail(error) if error.errno == Some(22)));
            let failed = Err(CallError::Failed(failure));
            assert!(recvs.into_iter().all(|recv| rig.receiver().test(recv) == failed));
            continue;
        }
        let state = rig.receiver().queue_pair_state(0).map(|(state, _)| state);
        assert!(state.is_some_and(|state| state != RailState::InService), "{state:?}");
        let sends = [(); 3].map(|()| rig.isend(&source, 8));
        rig.recover();
        assert!(sends.into_iter().all(|send| rig.sent(send)));
        assert!(recvs.into_iter().all(|recv| rig.received(recv).is_some()));
    }
}

/// Nothing can arrive for an offer that the peer does not have.
#[test]
fn an_immediate_for_an_offer_that_was_not_sent_is_refused() {
    let mut rig = Setup::rails(1).rig();
    let target = rig.target(8);
    rig.settle();
    let _ = [rig.irecv(&target, 8), rig.irecv(&target, 8)];
    rig.fabric.deliver_imm(rig.far(0), Imm::from_number(1 | 1 << 8 | 1 << 9), 8);
    rig.poll_far();
    let error = Failure::Protocol(ProtocolError::NoReceive { slot: 1 });
    assert_eq!(rig.receiver().failure(), Some(&error));
}
