//! Two connected queue pairs against a plain model of two memories: random requests of all kinds,
//! in any order and of any length, with receives that come late, and ends that fail or lose their
//! memory at any time. Every byte, the order of completions, and each exactly once.
//!
//! `MODEL_SEEDS=N` runs N cases of each kind (20), `MODEL_SEED=N` only the case N.

#[path = "../support/mod.rs"]
mod support;

mod check;
mod image;
mod traffic;

use image::Image;
use polyrail_core::verbs::{Completion, WcStatus};
use polyrail_nic_parts::state::QpState;
use polyrail_nic_parts::sync::SplitMix64;
use support::wait;
use traffic::{Region, World};

fn seeds() -> Vec<u64> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    match number("MODEL_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("MODEL_SEEDS").unwrap_or(20)).collect(),
    }
}

/// Tells which case failed.
struct Case(u64);

impl Drop for Case {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("MODEL_SEED={}", self.0);
        }
    }
}

#[test]
fn everything_that_is_posted_is_executed_once_and_in_order() {
    for seed in seeds() {
        let _case = Case(seed);
        let mut world = World::new(1, seed);
        let steps = 20 + world.rng.below(100);
        (0..steps).for_each(|_| world.step());
        world.post_missing_receives();
        wait("all completions", || {
            world.poll(0);
            world.poll(1);
            world.is_quiet()
        });
        for end in 0..2 {
            let (sends, receives) = world.completions(end);
            world.check_sends(end, &sends, None);
            world.check_receives(end, &receives, world.posted_receives(end));
            let expected = Image::after(&world, end, world.posted(end));
            world.check_image(end, &expected);
        }
    }
}

/// What became of the requests of an end: the first that failed, and how.
fn first_failure(sends: &[Completion]) -> Option<(u64, WcStatus)> {
    let failed = sends.iter().find(|completion| !completion.status.is_success())?;
    Some((failed.wr_id, failed.status))
}

/// Checks both ends after one has failed, and both have been flushed.
fn check_after_failure(world: &mut World, statuses: [&[WcStatus]; 2]) {
    for end in 0..2 {
        // The other end notices only when it has something to send.
        world.ends[end].qp.to_error().unwrap();
        assert_eq!(world.ends[end].qp.state(), QpState::Err);
    }
    wait("all completions", || {
        world.poll(0);
        world.poll(1);
        world.is_flushed()
    });
    for (end, permitted) in statuses.into_iter().enumerate() {
        let (sends, receives) = world.completions(end);
        let failure = first_failure(&sends);
        if let Some((_, status)) = failure {
            assert!(permitted.contains(&status), "end {end}: {status:?}");
        }
        world.check_sends(end, &sends, failure.map(|(wr_id, _)| wr_id));
        let good = receives.iter().take_while(|one| one.status.is_success()).count();
        world.check_receives(end, &receives, good);
        // Everything before the first failure was executed; what came later may have been.
        let executed = failure.map_or(world.posted(end), |(wr_id, _)| wr_id as usize);
        world.check_image_from(end, executed);
    }
}

#[test]
fn an_end_that_enters_err_is_written_no_more_and_flushes_everything_once() {
    for seed in seeds() {
        let _case = Case(seed);
        let mut world = World::new(2, seed);
        let steps = world.rng.below(60);
        (0..steps).for_each(|_| world.step());
        world.ends[0].qp.to_error().unwrap();
        let frozen = world.bytes(0);
        // The other end goes on.
        (0..20).for_each(|_| world.step_of(1));
        for _ in 0..20 {
            world.poll(0);
            world.poll(1);
            std::thread::yield_now();
        }
        assert!(world.bytes(0) == frozen, "it was written after it entered ERR");
        let (flushed, lost) = (WcStatus::WR_FLUSH_ERR, WcStatus::RETRY_EXC_ERR);
        check_after_failure(&mut world, [&[flushed], &[lost, flushed]]);
    }
}

#[test]
fn memory_that_is_deregistered_is_written_no_more_and_its_requests_fail() {
    for seed in seeds() {
        let _case = Case(seed);
        let mut world = World::new(3, seed);
        let steps = world.rng.below(60);
        (0..steps).for_each(|_| world.step());
        let region = Region::ALL[world.rng.below(Region::ALL.len())];
        world.ends[0].deregister(region);
        let frozen = world.ends[0].bytes(region);
        (0..20).for_each(|_| world.step());
        for _ in 0..20 {
            world.poll(0);
            world.poll(1);
            std::thread::yield_now();
        }
        assert!(world.ends[0].bytes(region) == frozen, "{region:?} was written");
        let any = [
            WcStatus::WR_FLUSH_ERR,
            WcStatus::RETRY_EXC_ERR,
            WcStatus::LOC_PROT_ERR,
            WcStatus::REM_ACCESS_ERR,
            WcStatus::REM_OP_ERR,
        ];
        check_after_failure(&mut world, [&any, &any]);
    }
}

#[test]
fn a_generator_draws_every_kind_of_request() {
    let mut rng = SplitMix64::new(1);
    let kinds: std::collections::BTreeSet<_> = (0..1000).map(|_| traffic::kind(&mut rng)).collect();
    assert_eq!(kinds.len(), traffic::KINDS);
}
