//! A link that goes down.

use super::engine::{self, Engines};
use super::pair::{Pair, pattern};
use super::{Fixture, Memory, Retries};
use polyrail_core::verbs::WcStatus;
use polyrail_core::virtual_qp::{RailId, Scheme};

/// A rail whose link is down until this is dropped.
struct LinkDown<'f, F: Fixture> {
    fixture: &'f F,
    rail: usize,
}

impl<'f, F: Fixture> LinkDown<'f, F> {
    fn new(fixture: &'f F, rail: usize) -> Self {
        fixture.set_link(rail, false);
        Self { fixture, rail }
    }
}

impl<F: Fixture> Drop for LinkDown<'_, F> {
    fn drop(&mut self) {
        self.fixture.set_link(self.rail, true);
    }
}

pub(super) fn a_lost_link_fails_requests_and_a_new_connection_works_after<F: Fixture>(fixture: &F) {
    let mut pair = Pair::on(fixture, 1, Retries::FEW);
    let down = LinkDown::new(fixture, 1);
    pair.near.post(&[pair.write(1, 0, 8), pair.write(2, 0, 8)]).unwrap();
    let flushed = (2, WcStatus::WR_FLUSH_ERR);
    assert_eq!(pair.near.ends(2), [(1, WcStatus::RETRY_EXC_ERR), flushed]);
    drop(down);
    let mut pair = Pair::on(fixture, 1, Retries::MANY);
    pair.near.memory.write(0, &pattern(9_000, 4));
    pair.near.post(&[pair.write(3, 0, 9_000)]).unwrap();
    assert_eq!(pair.near.ends(1), [(3, WcStatus::SUCCESS)]);
    assert_eq!(pair.far.memory.read(0, 9_000), pattern(9_000, 4));
}

pub(super) fn the_engine_names_the_rail_whose_link_was_lost<F: Fixture>(fixture: &F) {
    for scheme in [Scheme::Spray, Scheme::Dqplb] {
        let mut engines = Engines::new(fixture, 2, scheme, Retries::FEW);
        let _down = LinkDown::new(fixture, 1);
        let error = engine::fails(&mut engines, WcStatus::RETRY_EXC_ERR);
        assert_eq!((error.rail, error.status), (RailId::Data(1), WcStatus::RETRY_EXC_ERR));
    }
}
