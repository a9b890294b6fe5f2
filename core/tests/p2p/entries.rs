//! Clear-to-send entries: how they are written, and read in any order of visibility.

use crate::rig::{SLOTS, Setup};
use polyrail_core::p2p::{EntryForm, NotNow};
use polyrail_core::verbs::{Opcode, SendFlags};

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
    let target = rig.target(64);
    let far = rig.far(0);
    for _ in 0..4 {
        let _ = rig.irecv(&target, 64);
    }
    assert_eq!(rig.try_irecv(&[(&target, 0, 64, 0)]), Err(NotNow::NoCredits.into()));
    let signaled = |rig: &crate::rig::Rig| {
        rig.fabric
            .posted(far)
            .iter()
            .filter(|request| request.flags.contains(SendFlags::SIGNALED))
            .count()
    };
    assert_eq!(signaled(&rig), 4);
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
