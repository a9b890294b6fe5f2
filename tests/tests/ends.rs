//! Two ends whose rails fail: by seed, and in every order of small worlds.
//!
//! `ENDS_SEEDS=n` runs n seeds; `simulate ends` runs many more of them. `ENDS_STATES=n` explores n states
//! of each small world, all of them if they are fewer.

use polyrail_core::virtual_qp::Scheme;
use polyrail_tests::ends::{Job, Kind, Shape, Summary, World};
use polyrail_tests::search::{Failure, attempt, explore};
use std::sync::atomic::{AtomicUsize, Ordering};

#[test]
fn the_worlds_of_all_seeds_keep_every_promise() {
    let seeds = std::env::var("ENDS_SEEDS").map_or(200, |seeds| seeds.parse().expect("a number"));
    let mut total = Summary::default();
    for seed in 1..=seeds {
        match attempt::<Shape>(seed, 600) {
            Ok(summary) => total += summary,
            Err(failure) => fails(seed, *failure),
        }
    }
    // Where nothing happens, nothing is found.
    let busy = total.requests > 2 * seeds && total.reports > total.requests;
    assert!(busy && total.failures > seeds && total.replaced > seeds, "{total:?}");
    assert!(total.stragglers > seeds / 20 && total.given_up > seeds / 20, "{total:?}");
}

fn fails(seed: u64, failure: Failure<Shape>) -> ! {
    let failure = failure.shortest();
    failure.show();
    panic!("seed {seed}: {}\n{:?}\n{:#?}", failure.message, failure.shape, failure.actions);
}

/// Two rails, the requests of one end, one failure of a queue pair.
fn small(scheme: Scheme, jobs: &[Job]) -> Shape {
    let mut shape = Shape::small(scheme);
    shape.jobs[0] = jobs.to_vec();
    shape.is_brief = true;
    shape
}

const WRITE: Job = Job::new(Kind::Write, 1);
const IMM: Job = Job::new(Kind::WriteImm, 1);
const TWO: Job = Job::new(Kind::WriteImm, 2);
const SEND: Job = Job::new(Kind::Send, 1);
const READ: Job = Job::new(Kind::Read, 1);

fn worlds() -> Vec<Shape> {
    use Scheme::{Dqplb, Spray};
    let spray: &[&[Job]] = &[
        &[IMM],
        &[SEND],
        &[IMM, IMM],
        &[TWO, WRITE],
        &[WRITE, IMM],
        &[WRITE, SEND],
        &[SEND, SEND],
        &[SEND, IMM],
        &[WRITE, WRITE.fenced()],
        &[WRITE, READ.fenced()],
    ];
    let dqplb: &[&[Job]] = &[
        &[IMM],
        &[TWO],
        &[IMM, IMM],
        &[TWO, IMM],
        &[WRITE, IMM],
        &[READ, IMM],
        &[WRITE, WRITE.fenced()],
    ];
    let spray = spray.iter().map(|jobs| small(Spray, jobs));
    spray.chain(dqplb.iter().map(|jobs| small(Dqplb, jobs))).collect()
}

#[test]
fn every_order_of_two_requests_and_a_failure_keeps_every_promise() {
    let most = std::env::var("ENDS_STATES").map_or(60, |most| most.parse().expect("a number"));
    let worlds = worlds();
    let (next, failures) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || {
        while let Some(shape) = worlds.get(next.fetch_add(1, Ordering::Relaxed)) {
            let name = format!("{:?} {:?}", shape.scheme, shape.jobs[0]);
            let begun = std::time::Instant::now();
            match explore(shape, |shape| World::new(shape.clone()), most) {
                Ok(explored) => println!("{name}: {explored:?} {:.1?}", begun.elapsed()),
                Err(failure) => {
                    failures.fetch_add(1, Ordering::Relaxed);
                    let failure = failure.shortest();
                    failure.show();
                    println!("{name}: {}\n{:#?}", failure.message, failure.actions);
                }
            }
        }
    };
    std::thread::scope(|scope| (0..2).for_each(|_| drop(scope.spawn(work))));
    assert_eq!(failures.into_inner(), 0, "worlds that break a promise");
}
