//! One rail: posting, polling, and both.

use super::{NullBaseline, NullSender, Row, baseline_cycle, baseline_writes, engine_single};
use crate::contender::{Contender, whole};
use crate::floor;
use crate::null::{NullCq, NullQp};
use crate::rig::Rig;
use crate::workload::{OUTSTANDING, Reported, SMALL};
use std::hint::black_box;

pub(super) const POST: Row = Row {
    name: "single_post",
    work: "1 rail, 4 KiB WRITE, post",
    operations: OUTSTANDING,
    floor: || posting(floor::Single::new, floor::Single::post_writes),
    baseline: || posting(|rig| baseline_writes(rig, SMALL), NullBaseline::post),
    engine: || posting(engine_single, NullSender::post_writes),
    instruction_limit: 1.04,
    time_limit: Some(1.3),
    baseline_limit: None,
};

pub(super) const POLL: Row = Row {
    name: "single_poll",
    work: "1 rail, completion",
    operations: OUTSTANDING,
    floor: || floor_polling(floor::Single::poll),
    baseline: baseline_polling,
    engine: || engine_polling(NullSender::poll),
    instruction_limit: 1.31,
    time_limit: Some(1.4),
    baseline_limit: None,
};

pub(super) const CYCLE: Row = Row {
    name: "single_cycle",
    work: "1 rail, post to reported completion",
    operations: OUTSTANDING,
    floor: || {
        let mut single = floor::Single::new(Rig::single());
        whole(move || {
            let single = black_box(&mut single);
            single.post_writes();
            black_box(single.poll());
        })
    },
    baseline: || baseline_cycle(baseline_writes(Rig::single(), SMALL)),
    engine: || {
        let mut sender = engine_single(Rig::single());
        whole(move || {
            let sender = black_box(&mut sender);
            sender.post_writes();
            black_box(sender.poll());
        })
    },
    instruction_limit: 1.15,
    time_limit: Some(1.3),
    baseline_limit: None,
};

/// Posts only: the device forgets what completes.
fn posting<T: 'static>(
    make: impl FnOnce(Rig) -> T,
    post: impl Fn(&mut T) + 'static,
) -> Box<dyn Contender> {
    let rig = Rig::single();
    let wire = rig.wire.clone();
    let mut contender = make(rig);
    whole(move || {
        post(black_box(&mut contender));
        wire.forget();
    })
}

/// Polls only: the device repeats the completions of a burst that `cycle` has posted and polled.
fn polling<T: 'static>(
    make: impl FnOnce(Rig) -> T,
    cycle: impl FnOnce(&mut T),
    poll: impl Fn(&mut T) -> Reported + 'static,
) -> Box<dyn Contender> {
    let rig = Rig::single();
    let wire = rig.wire.clone();
    let mut contender = make(rig);
    cycle(&mut contender);
    whole(move || {
        wire.replay(OUTSTANDING);
        black_box(poll(black_box(&mut contender)));
    })
}

type NullFloor = floor::Single<NullQp, NullCq>;

/// The floor polls.
pub(super) fn floor_polling(
    poll: impl Fn(&mut NullFloor) -> Reported + 'static,
) -> Box<dyn Contender> {
    let cycle = |single: &mut NullFloor| {
        single.post_writes();
        single.poll();
    };
    polling(NullFloor::new, cycle, poll)
}

/// The baseline polls in the one way that it has.
pub(super) fn baseline_polling() -> Box<dyn Contender> {
    let cycle = |sender: &mut NullBaseline| {
        sender.cycle();
    };
    polling(|rig| baseline_writes(rig, SMALL), cycle, NullBaseline::poll)
}

/// The engine polls.
pub(super) fn engine_polling(
    poll: impl Fn(&mut NullSender<1>) -> Reported + 'static,
) -> Box<dyn Contender> {
    let cycle = |sender: &mut NullSender<1>| {
        sender.post_writes();
        sender.poll();
    };
    polling(engine_single, cycle, poll)
}
