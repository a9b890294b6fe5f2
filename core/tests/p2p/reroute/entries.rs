//! What the receiver writes again, and the receives that it has for shares that are moved.

use super::{DOWN, arrives, moved, under_way};
use crate::device::Step;
use crate::rig::{Rig, Setup};
use polyrail_core::p2p::{
    CallError, ConnectionEnd, Failure, ImmLayout, Mask, NotNow, ProtocolError, RecvHandle,
    SendHandle, Told,
};
use polyrail_core::verbs::WcStatus;
use polyrail_core::virtual_cq::CompletionTarget;

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

/// Before the peer's fence, an old copy could land over a newer entry.
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

/// Eight messages over two rails are posted, with just as many receives on either device, and rail
/// 0 fails.
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

/// Shares that are moved land on other devices, whose pools must have receives for them.
#[test]
fn the_pools_are_filled_up_for_moved_shares_before_the_fence_is_reported() {
    let (mut rig, handles) = just_enough();
    for _ in 0..4 {
        rig.poll();
        rig.carry();
    }
    assert_eq!(rig.sender().queue_pair_state(0), DOWN);
    // All come at once, and no end polls.
    rig.fabric.run_only(rig.near(1));
    assert_eq!(rig.fabric.rnr(), 0);
    rig.recover();
    rig.assert_done(handles);
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
    rig.assert_done(handles);
}

/// An owner may sleep when no target needs a poll. A receiver that holds a fence back for receives
/// needs one, since nothing else makes it ask the driver again.
#[test]
fn a_receiver_that_holds_a_fence_back_needs_polls() {
    let (mut rig, _) = just_enough();
    rig.fabric.refuse_receives_of(1, 30);
    for _ in 0..4 {
        rig.poll();
        rig.carry();
    }
    assert_eq!(rig.receiver().queue_pair_state(0), DOWN);
    assert_eq!(rig.receiver().next_control(), None);
    assert!(rig.receiver().needs_poll(), "its driver is to be asked again");
    for _ in 0..30 {
        rig.poll_far();
    }
    assert!(rig.receiver().next_control().is_some() && !rig.receiver().needs_poll());
}

/// Completions of a queue pair that is fenced lower the count, and do nothing else.
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

/// Whatever still comes of a queue pair that was given up, the peer has another count.
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

/// The count of a device that died with completions untaken is not the NIC's; its pool is
/// replaced.
#[test]
fn an_account_is_replaced_with_the_shared_queue_of_its_device() {
    let mut rig = Setup::rerouting(2).rig();
    let (source, target) = (rig.source(256), rig.target(256));
    let (send, recv) = rig.start(&source, &target, 256);
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
fn a_device_that_is_gone_is_not_asked_for_receives() {
    let mut rig = Setup::rerouting(2).rig();
    let (source, target) = (rig.source(256), rig.target(256));
    let (send, recv) = rig.start(&source, &target, 256);
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
