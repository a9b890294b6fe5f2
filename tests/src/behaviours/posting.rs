//! Batches, chains, back-pressure and refusals.

use super::pair::{Pair, Side, pattern, recv};
use super::{End, Fixture, Memory};
use polyrail_core::hardware::{CommitError, QueuePair, Refusal, SendBatch};
use polyrail_core::internals::Tag;
use polyrail_core::verbs::{DEVICE_ADDRESSES, LocalBuffer, SendFlags, SendRequest, Sge, WcStatus};

/// The number on Linux; the traits return errno values.
const EINVAL: i32 = 22;

const REFUSED: Result<(), CommitError> =
    Err(CommitError { accepted: 0, refusal: Refusal::Driver(EINVAL) });

pub(super) fn one_completion_retires_an_unsignaled_chain<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    pair.near.memory.write(0, &pattern(8_000, 1));
    let write = |wr_id: u64| {
        let flags = if wr_id == 7 { SendFlags::SIGNALED } else { SendFlags::empty() };
        SendRequest { flags, ..pair.write(wr_id, wr_id as usize * 1000, 1000) }
    };
    let chain: Vec<_> = (0..8).map(write).collect();
    pair.near.post(&chain).unwrap();
    assert_eq!(pair.near.ends(1), [(7, WcStatus::SUCCESS)]);
    assert_eq!(pair.far.memory.read(0, 8_000), pattern(8_000, 1));
    pair.near.stays_quiet();
}

pub(super) fn a_dropped_batch_posts_nothing<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    pair.near.memory.write(0, b"no yes");
    let dropped = pair.write(1, 0, 2);
    let posted = pair.write(2, 3, 3);
    let mut batch = pair.near.qp.start_send();
    batch.add(&dropped);
    drop(batch);
    pair.near.post(&[posted]).unwrap();
    assert_eq!(pair.near.ends(1), [(2, WcStatus::SUCCESS)]);
    assert_eq!(pair.far.memory.read(0, 6), b"\0\0\0yes");
}

pub(super) fn a_full_queue_is_back_pressure<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    let depth = pair.near.qp.limits().max_send_wr;
    // Devices that round up have more slots than they grant.
    let too_many: Vec<_> =
        (0..u64::from(4 * depth)).map(|wr_id| pair.write(wr_id, 0, 64)).collect();
    let refused = pair.near.post(&too_many).expect_err("more than the queue holds");
    assert_eq!(refused.refusal, Refusal::QueueFull);
    // 0 if the driver takes a batch whole or not at all.
    assert!(refused.accepted <= depth);
    let done = |wr_id: usize| (wr_id as u64, WcStatus::SUCCESS);
    let accepted = refused.accepted as usize;
    assert_eq!(pair.near.ends(accepted), (0..accepted).map(done).collect::<Vec<_>>());
    for wr_id in accepted..too_many.len() {
        pair.near.post(&too_many[wr_id..=wr_id]).expect("room again");
        assert_eq!(pair.near.ends(1), [done(wr_id)]);
    }
    pair.near.stays_quiet();
}

pub(super) fn sends_before_rts_are_refused<F: Fixture>(fixture: &F) {
    let pair = Pair::new(fixture);
    let mut unconnected = Side::new(fixture, End::Near, 0, None);
    assert_eq!(unconnected.post(&[pair.write(1, 0, 8)]), REFUSED);
    unconnected.stays_quiet();
}

pub(super) fn receives_on_a_queue_pair_with_a_shared_queue_are_refused<F: Fixture>(fixture: &F) {
    let srq = fixture.create_srq(End::Near, 0, 8);
    let mut side = Side::new(fixture, End::Near, 0, Some(&srq));
    assert_eq!(side.recv(1, Sge::EMPTY), REFUSED);
}

/// The bit that marks the engine's tags, also on a failure, which does not name its queue.
pub(super) fn a_shared_queue_refuses_names_that_could_be_tags<F: Fixture>(fixture: &F) {
    let mut srq = fixture.create_srq(End::Near, 0, 8);
    assert_eq!(recv(&mut srq, u64::MAX >> 1, Sge::EMPTY), Ok(()));
    for wr_id in [Tag::MARK, u64::MAX, Tag::MARK | 5] {
        assert_eq!(recv(&mut srq, wr_id, Sge::EMPTY), REFUSED);
    }
}

pub(super) fn an_inline_request_at_a_device_address_is_refused<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    let flags = SendFlags::INLINE | SendFlags::SIGNALED;
    let write = SendRequest { flags, ..pair.write(1, 0, 8) };
    // SAFETY: nothing is registered there.
    let elsewhere = unsafe { LocalBuffer::new(DEVICE_ADDRESSES, 8) }.sge(write.sge.lkey());
    assert_eq!(pair.near.post(&[SendRequest { sge: elsewhere, ..write }]), REFUSED);
    pair.near.post(&[SendRequest { wr_id: 2, ..write }]).unwrap();
    assert_eq!(pair.near.ends(1), [(2, WcStatus::SUCCESS)]);
}

pub(super) fn an_inline_request_that_is_too_long_is_refused<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    let too_long = pair.near.qp.limits().max_inline_data + 1;
    let request = pair.write(1, 0, too_long);
    let flags = SendFlags::INLINE | SendFlags::SIGNALED;
    assert_eq!(pair.near.post(&[SendRequest { flags, ..request }]), REFUSED);
    pair.near.post(&[SendRequest { wr_id: 2, ..request }]).unwrap();
    assert_eq!(pair.near.ends(1), [(2, WcStatus::SUCCESS)]);
}
