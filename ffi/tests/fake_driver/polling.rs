//! Polls a driver that leaves fields unwritten, returns more than a batch, and fails.

use crate::fake::{QP_NUM, complete, fail, with};
use crate::fixture::open;
use polyrail_core::hardware::{CompletionQueue as _, CqError};
use polyrail_core::verbs::{Completion, WcOpcode, WcStatus};
use polyrail_ffi::{CqInit, Timestamps};
use std::mem::MaybeUninit;

fn poll(
    cq: &mut impl polyrail_core::hardware::CompletionQueue,
) -> Result<Vec<Completion>, CqError> {
    let mut out = [MaybeUninit::uninit(); 40];
    cq.poll(&mut out).map(<[Completion]>::to_vec)
}

#[test]
fn failed_completions_are_whole_although_drivers_write_four_fields() {
    let (context, _, mut classic) = open();
    let mut extended = context.create_extended_cq(&CqInit::new(8), Timestamps::empty()).unwrap();
    let both: [&mut dyn FnMut() -> Vec<Completion>; 2] =
        [&mut || poll(&mut classic).unwrap(), &mut || poll(&mut extended).unwrap()];
    for poll in both {
        complete(1, 0, WcOpcode::RECV.0, 99);
        complete(2, 12, 0, 0);
        let seen = poll();
        assert_eq!((seen[0].wr_id, seen[0].opcode, seen[0].byte_len), (1, WcOpcode::RECV, 99));
        assert_eq!((seen[1].wr_id, seen[1].status), (2, WcStatus::RETRY_EXC_ERR));
        assert!(seen.iter().all(|completion| completion.qp_num == QP_NUM));
        // Reading every byte checks that all of them are initialised.
        assert_eq!(format!("{seen:?}").matches("Completion").count(), 2);
        assert_eq!(poll(), []);
    }
}

#[test]
fn a_queue_that_was_resized_reports_its_new_capacity() {
    let (_, _, mut cq) = open();
    let handle = cq.handle().clone();
    cq.resize(200).unwrap();
    assert_eq!((cq.capacity(), handle.capacity()), (200, 200));
    fail("ibv_resize_cq", libc::ENOMEM);
    assert_eq!(cq.resize(300).map_err(|error| error.errno), Err(libc::ENOMEM));
    assert_eq!(cq.capacity(), 200);
}

#[test]
fn polling_goes_on_past_one_batch_up_to_the_room_there_is() {
    let (_, _, mut cq) = open();
    (0..50).for_each(|wr_id| complete(wr_id, 0, 0, 0));
    let ids = |seen: Vec<Completion>| seen.iter().map(|wc| wc.wr_id).collect::<Vec<_>>();
    assert_eq!(ids(poll(&mut cq).unwrap()), (0..40).collect::<Vec<_>>());
    assert_eq!(ids(poll(&mut cq).unwrap()), (40..50).collect::<Vec<_>>());
    assert_eq!(cq.poll(&mut []).map(<[Completion]>::len), Ok(0));
}

#[test]
fn a_broken_queue_hands_over_what_it_has_and_then_fails() {
    let (context, _, mut cq) = open();
    (0..32).for_each(|wr_id| complete(wr_id, 0, 0, 0));
    with(|state| state.poll_error = Some(-libc::EIO));
    assert_eq!(poll(&mut cq).map(|seen| seen.len()), Ok(32));
    let error = CqError { cq: cq.handle().id(), device: context.id(), errno: libc::EIO };
    assert_eq!(poll(&mut cq), Err(error));
    let mut extended = context.create_extended_cq(&CqInit::new(8), Timestamps::empty()).unwrap();
    assert_eq!(poll(&mut extended).map_err(|error| error.errno), Err(libc::EIO));
}
