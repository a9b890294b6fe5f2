//! A connection that fails drains its queue pairs before it gives buffers back.

use crate::device::Step;
use crate::rig::{Rig, Setup};
use polyrail_core::hardware::Refusal;
use polyrail_core::p2p::{CallError, ConnectionEnd, Failure, RecvHandle, SendHandle};
use polyrail_core::verbs::WcStatus;

fn under_way() -> (Rig, SendHandle, RecvHandle) {
    let mut rig = Setup::rails(2).rig();
    let (source, target) = (rig.source(256), rig.target(256));
    let (send, recv) = rig.start(&source, &target, 256);
    (rig, send, recv)
}

#[test]
fn a_rail_that_fails_fails_the_connection_with_its_status() {
    let (mut rig, send, _) = under_way();
    rig.fabric.fail(rig.near(1), WcStatus::RETRY_EXC_ERR);
    rig.poll_near();
    let failure = *rig.sender().failure().expect("it failed");
    let Failure::Rail(error) = failure else { panic!("{failure}") };
    assert_eq!((error.status, error.qp_num), (WcStatus::RETRY_EXC_ERR, rig.near(1) as u32 + 1));
    assert!(rig.fabric.is_error(rig.near(0)), "all queue pairs are moved to the error state");
    rig.poll_near();
    assert!(rig.sender().is_drained());
    assert_eq!(rig.sender().test(send), Err(CallError::Failed(failure)));
    assert_eq!(rig.sender().test(send), Err(CallError::NoRequest { number: 1 }), "told once");
    assert_eq!(rig.sender().unfinished(), 0);
}

#[test]
fn a_send_gives_its_buffer_back_only_when_all_is_drained() {
    let (mut rig, send, _) = under_way();
    // The device reads the buffer, until its driver does what it is asked.
    rig.fabric.refuse_error(rig.near(0), Some(Refusal::Driver(16)));
    rig.fabric.fail(rig.near(1), WcStatus::RETRY_EXC_ERR);
    for _ in 0..3 {
        rig.poll_near();
        assert_eq!(rig.sender().test(send), Ok(false));
    }
    rig.fabric.refuse_error(rig.near(0), None);
    rig.poll_near();
    rig.poll_near();
    assert!(matches!(rig.sender().test(send), Err(CallError::Failed(Failure::Rail(_)))));
}

/// In the error state one more message may complete, until `last_wqe_reached` is true.
#[test]
fn a_receive_gives_its_buffers_back_only_when_no_message_can_come() {
    let (mut rig, _, recv) = under_way();
    let (far, near) = (rig.far(0), rig.near(0));
    rig.fabric.hold_word(far, true);
    rig.receiver().fail();
    for _ in 0..3 {
        rig.poll_far();
        assert_eq!(rig.receiver().test(recv), Ok(None));
    }
    assert_eq!(rig.fabric.execute_late(near), Step::Done, "one more message");
    rig.poll_far();
    assert_eq!(rig.receiver().test(recv), Ok(None));
    rig.fabric.hold_word(far, false);
    rig.poll_far();
    assert_eq!(rig.fabric.execute_late(near), Step::Idle);
    assert_eq!(rig.receiver().test(recv), Err(CallError::Failed(Failure::Owner)));
}

#[test]
fn entries_without_a_completion_are_drained_behind_one_that_has() {
    let mut setup = Setup::rails(1);
    setup.max_send_wr = 32;
    let mut rig = setup.rig();
    let target = rig.target(64);
    let far = rig.far(0);
    rig.fabric.flush_signaled_only(far);
    let recv = rig.irecv(&target, 64);
    rig.receiver().fail();
    assert!(!rig.receiver().is_drained());
    rig.poll_far();
    rig.poll_far();
    assert!(rig.receiver().is_drained());
    assert_eq!(rig.receiver().test(recv), Err(CallError::Failed(Failure::Owner)));
}

/// A receive that is flushed with a dying queue pair is not there any more, and has not arrived.
#[test]
fn a_shared_receive_that_dies_with_a_queue_pair_is_counted() {
    let (mut rig, _, recv) = under_way();
    let far = rig.far(1);
    let before = rig.connections[0].receiver.accounts().nth(1).expect("two").posted();
    rig.fabric.take_receive(far);
    rig.poll_far();
    let after = rig.connections[0].receiver.accounts().nth(1).expect("two").posted();
    assert_eq!(after, before - 1);
    assert!(matches!(rig.receiver().failure(), Some(Failure::Rail(_))));
    rig.poll_far();
    assert!(matches!(rig.receiver().test(recv), Err(CallError::Failed(Failure::Rail(_)))));
}

/// Receive completions of dead queue pairs lower the count.
#[test]
fn completions_that_come_after_the_failure_are_counted_and_do_nothing_else() {
    let (mut rig, _, recv) = under_way();
    let near = [rig.near(0), rig.near(1)];
    assert_eq!(near.map(|near| rig.fabric.execute(near)), [Step::Done; 2]);
    rig.receiver().fail();
    // The invariants of the rig compare the count with what is there.
    rig.poll_far();
    let accounts = rig.connections[0].receiver.accounts();
    assert!(accounts.map(|account| account.posted()).eq([511, 511]));
    assert_eq!(rig.receiver().test(recv), Err(CallError::Failed(Failure::Owner)));
}

#[test]
fn what_had_arrived_before_the_failure_has_arrived() {
    let (mut rig, send, recv) = under_way();
    rig.fabric.run();
    rig.poll();
    rig.sender().fail();
    rig.receiver().fail();
    assert!(rig.sent(send));
    assert_eq!(rig.received(recv).expect("arrived").sizes(), [256]);
}

#[test]
fn a_device_that_is_gone_is_ended_by_its_owner() {
    let (mut rig, send, recv) = under_way();
    for place in 0..2 {
        rig.fabric.refuse_error(rig.near(place), Some(Refusal::Driver(19)));
        rig.fabric.refuse_error(rig.far(place), Some(Refusal::Driver(19)));
    }
    rig.sender().fail();
    rig.receiver().fail();
    rig.poll();
    assert_eq!(rig.sender().test(send), Ok(false));
    assert_eq!(rig.receiver().test(recv), Ok(None));
    for place in 0..2 {
        // SAFETY: nothing is executed any more in this test.
        unsafe {
            assert!(rig.sender().lose_queue_pair(place));
            assert!(rig.receiver().lose_queue_pair(place));
        }
    }
    // SAFETY: there is none.
    unsafe { assert!(!rig.sender().lose_queue_pair(2) && !rig.receiver().lose_queue_pair(2)) };
    assert_eq!(rig.sender().test(send), Err(CallError::Failed(Failure::Owner)));
    assert_eq!(rig.receiver().test(recv), Err(CallError::Failed(Failure::Owner)));
}

#[test]
fn queue_pairs_that_make_no_progress_are_named() {
    let (mut rig, ..) = under_way();
    let stalled = |rig: &mut Rig| {
        let mut places = vec![];
        rig.sender().check_stalled(|place| places.push(place));
        places
    };
    assert_eq!(stalled(&mut rig), [0; 0], "the first look");
    rig.fabric.run_only(rig.near(0));
    rig.poll_near();
    assert_eq!(stalled(&mut rig), [1]);
    rig.settle();
    assert_eq!(stalled(&mut rig), [0; 0]);
}

/// Most entries have no completion, which does not mean that their rail makes no progress.
#[test]
fn receivers_whose_entries_are_unanswered_are_named_only_if_these_are_late() {
    let mut rig = Setup::rails(2).rig();
    let target = rig.target(256);
    let stalled = |rig: &mut Rig| {
        let mut places = vec![];
        rig.receiver().check_stalled(|place| places.push(place));
        places
    };
    let _ = rig.irecv(&target, 256);
    rig.settle();
    for _ in 0..3 {
        assert_eq!(stalled(&mut rig), [0; 0], "it was carried out, as far as is known");
        rig.settle();
    }
    // The second one goes by the other rail, which carries out nothing.
    let _ = rig.irecv(&target, 256);
    rig.poll_far();
    assert_eq!(stalled(&mut rig), [0; 0], "the first look");
    for _ in 0..2 {
        assert_eq!(stalled(&mut rig), [1]);
    }
    rig.settle();
    assert_eq!(stalled(&mut rig), [0; 0]);
}

#[test]
fn the_first_failure_is_kept() {
    let (mut rig, ..) = under_way();
    rig.sender().peer_failed();
    rig.sender().fail();
    rig.poll_near();
    assert_eq!(rig.sender().failure(), Some(&Failure::Peer));
}

/// Completions of queue pairs that are not attached any more come out as foreign, and are the
/// pool's.
#[test]
fn receives_that_unknown_queue_pairs_take_are_the_pools() {
    let (mut rig, ..) = under_way();
    rig.fabric.run();
    assert!(rig.far_cq.detach(0));
    rig.connections.remove(0);
    // The accounts went with their connection: the rig's count holds for the pool's own count.
    let pools = std::mem::take(&mut rig.pools);
    rig.poll_far();
    let taken: Vec<_> = rig.foreign[1].drain(..).collect();
    assert!(!taken.is_empty());
    let mut pools = pools;
    let mut counted = 0;
    for event in taken {
        let polyrail_core::virtual_cq::Event::Foreign { device, completion } = event else {
            panic!("{event:?}")
        };
        let pool = pools.iter_mut().find(|pool| pool.device() == device).expect("one of them");
        counted += i64::from(pool.note_foreign(&completion));
    }
    assert_eq!(counted, 2);
    assert_eq!(pools.iter().map(|pool| pool.unowned()).sum::<i64>(), -counted);
    let mut srq = rig.srqs[0].clone();
    assert_eq!(pools[0].settle(&mut srq), Ok(1));
    assert_eq!(pools[0].unowned(), 0);
}

/// The queue is full, and its last requests have no completion.
#[test]
fn a_full_queue_is_drained_behind_one_that_has_a_completion() {
    let mut setup = Setup::rerouting(2);
    (setup.max_send_wr, setup.devices) = (10, 1);
    let mut rig = setup.rig();
    let (source, target) = (rig.source(64), rig.target(64));
    let far = rig.far(0);
    rig.fabric.flush_signaled_only(far);
    // The third, the sixth and the ninth are signaled; the first two wait for the third to end.
    (0..2).for_each(|_| assert_eq!(rig.message(&source, &target, 64, 64), 64));
    for _ in 0..8 {
        let _ = rig.irecv(&target, 64);
        rig.poll_far();
    }
    let posted = rig.fabric.posted(far);
    let signaled = |at: usize| posted[at].flags.contains(polyrail_core::verbs::SendFlags::SIGNALED);
    assert!(posted.len() == 8 && !signaled(7));
    assert!(rig.receiver().fail_queue_pair(0));
    rig.recover();
    rig.recover();
    assert!(rig.is_down(0));
}

/// An isend that does not fit looks at the entries, and leaves nothing to be tested.
#[test]
fn what_was_only_looked_at_is_not_unfinished() {
    let mut rig = Setup::rails(2).rig();
    let (source, target) = (rig.source(256), rig.target(128));
    let _recv = rig.irecv(&target, 128);
    rig.settle();
    assert!(matches!(rig.try_isend(&source, 256, 0), Err(CallError::TooLong { .. })));
    assert_eq!(rig.sender().unfinished(), 0);
    rig.sender().fail();
    rig.settle();
    assert_eq!(rig.sender().unfinished(), 0);
}
