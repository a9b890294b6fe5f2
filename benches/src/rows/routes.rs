//! Many virtual queue pairs on one completion queue.

use super::Row;
use crate::contender::{Contender, whole};
use crate::random::XorShift;
use crate::rig::Rig;
use crate::workload::OUTSTANDING;
use crate::{baseline, engine, floor};
use std::hint::black_box;

/// Queue pairs of both rows.
const MANY: usize = 4096;

/// Places of a routing table for `MANY` queue pairs, and of one for a single queue pair.
const MANY_ROUTES: usize = 8192;
const FEW_ROUTES: usize = 64;

pub(super) const IDLE: Row = Row {
    name: "routes_idle_4096",
    work: "single_cycle, 1 of 4096 registered works / of 1",
    operations: OUTSTANDING,
    floor: || engine_many::<FEW_ROUTES>(1, |_| 0),
    baseline: || baseline_many(|_| MANY / 2),
    engine: || engine_many::<MANY_ROUTES>(MANY, |_| MANY / 2),
    instruction_limit: 1.0,
    time_limit: Some(1.1),
    baseline_limit: None,
};

pub(super) const RANDOM: Row = Row {
    name: "routes_random_4096",
    work: "single_cycle, random of 4096",
    operations: OUTSTANDING,
    floor: || {
        let mut many = floor::Many::new(Rig::many(MANY), targets(any));
        whole(move || {
            black_box(black_box(&mut many).scattered());
        })
    },
    baseline: || baseline_many(any),
    engine: || engine_many::<MANY_ROUTES>(MANY, any),
    instruction_limit: 1.87,
    time_limit: Some(1.9),
    baseline_limit: None,
};

/// Bursts of one pass: long enough that no branch predictor learns the targets by heart.
const BURSTS: usize = 512;

fn any(random: &mut XorShift) -> usize {
    random.below(MANY)
}

fn targets(mut next: impl FnMut(&mut XorShift) -> usize) -> Vec<u16> {
    let mut random = XorShift::new();
    (0..BURSTS * OUTSTANDING).map(|_| next(&mut random) as u16).collect()
}

fn engine_many<const ROUTES: usize>(
    count: usize,
    next: impl FnMut(&mut XorShift) -> usize,
) -> Box<dyn Contender> {
    let rig = Rig::many(count);
    let mut many = engine::Many::<_, _, ROUTES>::new(rig, targets(next));
    whole(move || {
        black_box(black_box(&mut many).scattered());
    })
}

fn baseline_many(next: impl FnMut(&mut XorShift) -> usize) -> Box<dyn Contender> {
    let mut many = baseline::Sender::many(Rig::many(MANY), targets(next));
    whole(move || {
        black_box(black_box(&mut many).scattered());
    })
}
