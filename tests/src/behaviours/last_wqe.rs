//! Queue pairs in ERR whose receives come from a shared receive queue.

use super::pair::{Pair, Side, recv};
use super::{End, Fixture, LIMIT, Retries};
use polyrail_core::hardware::{QueuePair, Refusal};
use polyrail_core::verbs::{Opcode, Sge, WcStatus};
use std::time::Instant;

const EINVAL: Refusal = Refusal::Driver(22);

/// Asks until it is known.
fn wait_for_last_wqe(qp: &mut impl QueuePair) {
    let start = Instant::now();
    while !qp.last_wqe_reached().expect("a driver that knows") {
        assert!(start.elapsed() < LIMIT, "no end");
    }
}

pub(super) fn the_last_shared_receive_is_known_and_takes_no_completion_along<F: Fixture>(
    fixture: &F,
) {
    let mut srq = fixture.create_srq(End::Far, 0, 8);
    (1..=3).for_each(|wr_id| recv(&mut srq, wr_id, Sge::EMPTY).unwrap());
    let mut pairs = [1, 2].map(|_| {
        let near = Side::new(fixture, End::Near, 0, None);
        let far = Side::new(fixture, End::Far, 0, Some(&srq));
        fixture.connect(0, &near.qp, &far.qp, Retries::MANY);
        Pair { near, far }
    });
    let [ends, stays] = &mut pairs;
    let notify = ends.request(7, Opcode::RdmaWriteWithImm, 0, 0);
    ends.near.post(&[notify, notify]).unwrap();
    assert_eq!(ends.near.ends(2), [(7, WcStatus::SUCCESS); 2]);
    assert_eq!(ends.far.qp.last_wqe_reached(), Err(EINVAL), "it is not in ERR");
    ends.far.qp.enter_error().unwrap();
    wait_for_last_wqe(&mut ends.far.qp);
    assert_eq!(ends.far.ends(2), [(1, WcStatus::SUCCESS), (2, WcStatus::SUCCESS)]);
    ends.far.stays_quiet();
    assert_eq!(ends.far.qp.last_wqe_reached(), Ok(true), "for good");
    assert_eq!(ends.far.qp.enter_error(), Ok(()));
    stays.near.post(&[stays.request(8, Opcode::RdmaWriteWithImm, 0, 0)]).unwrap();
    assert_eq!(stays.near.ends(1), [(8, WcStatus::SUCCESS)]);
    assert_eq!(stays.far.ends(1), [(3, WcStatus::SUCCESS)]);
}

pub(super) fn a_queue_pair_with_receives_of_its_own_knows_no_last_one<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    pair.far.recv(1, Sge::EMPTY).unwrap();
    pair.far.qp.enter_error().unwrap();
    assert_eq!(pair.far.qp.last_wqe_reached(), Err(EINVAL));
    assert_eq!(pair.far.ends(1), [(1, WcStatus::WR_FLUSH_ERR)]);
}
