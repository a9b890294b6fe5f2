//! The engine over drivers with faults: what only costs time loses no byte, and what is refused for
//! good is reported.

use super::engine::{Engines, delivers};
use super::{End, Fixture, LIMIT, Retries, Wrapped};
use polyrail_core::hardware::Refusal;
use polyrail_core::verbs::WcStatus;
use polyrail_core::virtual_qp::{QpState, RailId, Scheme};
use polyrail_faults::{DriverFault, WorkQueue};
use std::time::{Duration, Instant};

const EIO: i32 = 5;

/// Delivers over drivers into which faults were injected. All of them are applied.
fn delivers_despite<F: Fixture>(fixture: &F, inject: impl Fn(&Wrapped<'_, F>)) {
    for scheme in [Scheme::Spray, Scheme::Dqplb] {
        let wrapped = Wrapped::new(fixture);
        inject(&wrapped);
        delivers(&wrapped, 2, scheme);
        let waiting = |rail| wrapped.driver(End::Near, rail).is_waiting();
        assert!(!(0..2).any(waiting), "a fault was not applied");
    }
}

pub(super) fn a_driver_that_takes_batches_in_parts_costs_no_byte<F: Fixture>(fixture: &F) {
    delivers_despite(fixture, |wrapped| {
        for nth_batch in 0..8 {
            let queue = WorkQueue::Send;
            let requests = nth_batch % 3;
            let refusal = Refusal::QueueFull;
            let fault = DriverFault::AcceptOnly { queue, nth_batch, requests, refusal };
            wrapped.inject(End::Near, fault);
        }
    });
}

pub(super) fn a_driver_that_is_full_several_times_costs_no_byte<F: Fixture>(fixture: &F) {
    delivers_despite(fixture, |wrapped| {
        let queue = WorkQueue::Send;
        wrapped.inject(End::Near, DriverFault::QueueFull { queue, commits: 5 });
    });
}

pub(super) fn a_driver_whose_completions_come_late_costs_no_byte<F: Fixture>(fixture: &F) {
    const DELAY: Duration = Duration::from_millis(2);
    let start = Instant::now();
    delivers_despite(fixture, |wrapped| {
        for end in [End::Near, End::Far] {
            wrapped.inject(end, DriverFault::DelayCompletions(DELAY));
        }
    });
    assert!(start.elapsed() >= DELAY);
}

pub(super) fn the_engine_goes_on_after_polls_that_fail<F: Fixture>(fixture: &F) {
    let wrapped = Wrapped::new(fixture);
    let mut engines = Engines::new(&wrapped, 2, Scheme::Dqplb, Retries::MANY);
    engines.write(1, 0, 100_000);
    let driver = wrapped.driver(End::Near, 1);
    driver.inject(DriverFault::FailPolls { errno: EIO, polls: 3 });
    let near = &mut engines.near;
    let start = Instant::now();
    while driver.is_waiting() {
        let polled = near.cq.poll(&mut *near.qp, 16, |event| panic!("{event:?} of half the rails"));
        assert!(polled.error.is_none_or(|error| error.errno == EIO), "{polled:?}");
        assert!(start.elapsed() < LIMIT);
    }
    let [sent, _] = engines.reports(1, 0);
    assert_eq!((sent[0].wr_id, sent[0].status), (1, WcStatus::SUCCESS));
}

pub(super) fn the_engine_names_the_rail_whose_driver_refuses<F: Fixture>(fixture: &F) {
    for (scheme, requests) in [(Scheme::Spray, 0), (Scheme::Spray, 2), (Scheme::Dqplb, 2)] {
        let wrapped = Wrapped::new(fixture);
        let mut engines = Engines::new(&wrapped, 2, scheme, Retries::MANY);
        let queue = WorkQueue::Send;
        let refusal = Refusal::Driver(EIO);
        let fault = DriverFault::AcceptOnly { queue, nth_batch: 0, requests, refusal };
        wrapped.driver(End::Near, 1).inject(fault);
        engines.write(1, 0, 100_000);
        let [ends, _] = engines.reports(1, 0);
        assert_eq!((ends[0].wr_id, ends[0].status), (1, WcStatus::GENERAL_ERR));
        assert_eq!(engines.near.qp.state(), QpState::Error);
        let error = engines.near.qp.first_error().expect("an error was reported");
        assert_eq!((error.rail, error.errno), (RailId::Data(1), Some(EIO)));
    }
}
