//! Rails that fail while others take over, and return with new queue pairs.

use super::engine::{Engines, Side};
use super::pair::{DEPTH, pattern};
use super::{End, Fixture, LIMIT, Memory, Retries};
use polyrail_core::verbs::{RecvWr, WcStatus};
use polyrail_core::virtual_qp::{
    Config, QpState, RailEventKind, RailFailure, RailId, RailState, Scheme,
};
use std::time::Instant;

/// Bytes of each WRITE, and how many there are at a time.
const LENGTH: usize = 100_000;
const WRITES: u64 = 8;

/// Two ends whose rails are re-routed, and what they moved so far.
struct Rerouted<'f, F: Fixture> {
    fixture: &'f F,
    engines: Engines<F>,
    retries: Retries,
    /// Reports of either end.
    seen: [u64; 2],
}

impl<'f, F: Fixture> Rerouted<'f, F> {
    fn new(fixture: &'f F, scheme: Scheme, retries: Retries) -> Self {
        let reroute = RailFailure::Reroute;
        let config = Config { scheme, rail_failure: reroute, ..Config::default() };
        let engines = Engines::of(fixture, 2, config, retries);
        Self { fixture, engines, retries, seen: [0; 2] }
    }

    /// Polls both ends, and carries the messages between them.
    fn step(&mut self) {
        let Self { engines: Engines { near, far }, seen, .. } = self;
        for (side, seen) in [&mut *near, &mut *far].into_iter().zip(seen) {
            side.poll(|wc| {
                assert_eq!(wc.status, WcStatus::SUCCESS, "{wc:?}");
                *seen += 1;
            });
        }
        while let Some(message) = near.qp.next_control() {
            far.qp.control(message).expect("a correct peer");
        }
        while let Some(message) = far.qp.next_control() {
            near.qp.control(message).expect("a correct peer");
        }
    }

    fn step_until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !done(self) {
            self.step();
            assert!(start.elapsed() < LIMIT, "{what}: {:?}", self.engines.near.qp.failure());
        }
    }

    fn both_are(&self, rail: RailId, state: RailState) -> bool {
        let Engines { near, far } = &self.engines;
        [near, far].iter().all(|side| side.qp.rail_state(rail) == Some(state))
    }

    /// New data in the sender's memory, written with notifications.
    fn write(&mut self, round: u64) {
        let Engines { near, far } = &mut self.engines;
        near.memory.write(0, &pattern(WRITES as usize * LENGTH, round));
        for wr_id in 0..WRITES {
            far.qp.post_recv(&RecvWr::notification(wr_id)).expect("room");
        }
        for wr_id in 0..WRITES {
            self.engines.write(wr_id, wr_id as usize * LENGTH, LENGTH as u32);
        }
    }

    /// Everything that was written is reported, notified, and in place.
    fn finish(&mut self, round: u64) {
        let end = WRITES * (round + 1);
        self.step_until("reports", |ends| ends.seen == [end; 2]);
        let far = &self.engines.far;
        let expected = pattern(WRITES as usize * LENGTH, round);
        assert!(far.memory.read(0, expected.len()) == expected, "every byte");
        assert_eq!(far.qp.duplicates(), 0);
    }

    /// New queue pairs for a rail that is down at both ends.
    fn replace(&mut self, rail: RailId) {
        self.step_until("fenced", |ends| ends.both_are(rail, RailState::Down));
        let at = if let RailId::Data(at) = rail { usize::from(at) } else { 0 };
        let device = at % self.fixture.rails();
        let Engines { near, far } = &mut self.engines;
        let qp = |end, side: &mut Side<F>| {
            let cq = &side.cq.cqs()[at];
            self.fixture.create_qp(end, device, cq, None, DEPTH)
        };
        let (a, b) = (qp(End::Near, near), qp(End::Far, far));
        self.fixture.connect(device, &a, &b, self.retries);
        for (side, queue_pair) in [(near, a), (far, b)] {
            let generation = side.qp.rail_generation(rail).expect("a rail") + 1;
            let replaced = side.qp.replace_rail(&mut side.cq, 0, rail, generation, queue_pair);
            drop(replaced.expect("it fits"));
        }
        self.step_until("back", |ends| ends.both_are(rail, RailState::InService));
        assert_eq!(self.engines.near.qp.state(), QpState::Ready);
    }
}

/// Each rail in turn fails with requests in flight; they survive, and it returns.
fn fails_and_returns<F: Fixture>(fixture: &F, scheme: Scheme) {
    let mut ends = Rerouted::new(fixture, scheme, Retries::MANY);
    let notify = scheme.uses_notify_qp().then_some(RailId::Notify);
    let rails = [RailId::Data(0), RailId::Data(1)].into_iter().chain(notify);
    for (round, rail) in (0..).zip(rails) {
        ends.write(round);
        assert!(ends.engines.near.qp.fail_rail(rail));
        ends.replace(rail);
        ends.finish(round);
    }
}

pub(super) fn spray_survives_each_rail<F: Fixture>(fixture: &F) {
    fails_and_returns(fixture, Scheme::Spray);
}

pub(super) fn dqplb_survives_each_rail<F: Fixture>(fixture: &F) {
    fails_and_returns(fixture, Scheme::Dqplb);
}

/// A link is lost in the middle of traffic, and comes back.
pub(super) fn requests_survive_a_lost_link<F: Fixture>(fixture: &F) {
    let rail = RailId::Data(1);
    // A receiver that is polled late is no failure.
    let retries = Retries { rnr_retry: 7, ..Retries::FEW };
    let mut ends = Rerouted::new(fixture, Scheme::Dqplb, retries);
    fixture.set_link(1, false);
    ends.write(0);
    ends.finish(0);
    fixture.set_link(1, true);
    // The new queue pairs are not to fail, even if the process does not run for a while.
    ends.retries = Retries::MANY;
    ends.replace(rail);
    ends.write(1);
    ends.finish(1);
    let events: Vec<_> = std::iter::from_fn(|| ends.engines.near.qp.take_rail_event())
        .map(|event| event.kind)
        .collect();
    let [
        RailEventKind::Failed { .. },
        RailEventKind::Fenced { again, .. },
        RailEventKind::Returned,
    ] = events[..]
    else {
        panic!("{events:?}")
    };
    assert!(again > 0, "something was in flight");
}
