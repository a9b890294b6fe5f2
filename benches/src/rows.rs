//! The rows of the report: what is measured, and what the engine must reach.

use crate::arrivals::{ARRIVALS, Arrivals};
use crate::null::{NullCq, NullQp};
use crate::random::XorShift;
use crate::rig::Rig;
use crate::workload::{
    Contender, FRAGMENT, FRAGMENTS, OUTSTANDING, RAILS, SMALL, contender, prepared_contender,
};
use crate::{baseline, engine, floor};
use polyrail_core::verbs::Opcode;
use polyrail_core::virtual_qp::Scheme;
use std::hint::black_box;

/// Virtual queue pairs of the two routes rows.
const MANY: usize = 4096;

/// Virtual queue pairs that `routes_random_4096` is compared with.
const FEW: usize = 32;

/// Places of a routing table for `MANY` queue pairs, and of one for `FEW`.
const MANY_ROUTES: usize = 8192;
const FEW_ROUTES: usize = 64;

/// Bytes of a request of 16 fragments.
const LARGE: u32 = FRAGMENTS * FRAGMENT;

/// One row.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Its name.
    pub name: &'static str,
    /// What one operation is.
    pub work: &'static str,
    /// Operations of one burst.
    pub operations: usize,
    /// The same physical work done raw; of the routes rows, the engine with the smaller table.
    pub floor: fn() -> Contender,
    /// The seeds' design; of the routes rows, with the larger table.
    pub baseline: fn() -> Contender,
    /// Ours.
    pub engine: fn() -> Contender,
    /// At most so many times the floor.
    pub floor_limit: f64,
    /// At most this part of the baseline.
    pub baseline_limit: Option<f64>,
}

/// All rows, in the order of the issue.
pub const ROWS: [Row; 10] = [
    Row {
        name: "single_post",
        work: "1 rail, 4 KiB WRITE, post",
        operations: OUTSTANDING,
        floor: || {
            let rig = Rig::single();
            let (wire, mut single) = (rig.wire.clone(), floor::Single::new(rig));
            contender(move || {
                black_box(&mut single).post();
                wire.forget();
            })
        },
        baseline: || {
            let rig = Rig::single();
            let (wire, mut sender) = (rig.wire.clone(), baseline_writes(rig, SMALL));
            contender(move || {
                black_box(&mut sender).post();
                wire.forget();
            })
        },
        engine: || {
            let rig = Rig::single();
            let (wire, mut sender) = (rig.wire.clone(), engine_single(rig));
            contender(move || {
                black_box(&mut sender).post_writes();
                wire.forget();
            })
        },
        floor_limit: 1.3,
        baseline_limit: None,
    },
    Row {
        name: "single_poll",
        work: "1 rail, completion",
        operations: OUTSTANDING,
        floor: || {
            let rig = Rig::single();
            let (wire, mut single) = (rig.wire.clone(), floor::Single::new(rig));
            single.post();
            single.poll();
            contender(move || {
                wire.replay(OUTSTANDING);
                black_box(black_box(&mut single).poll());
            })
        },
        baseline: || {
            let rig = Rig::single();
            let (wire, mut sender) = (rig.wire.clone(), baseline_writes(rig, SMALL));
            sender.cycle();
            contender(move || {
                wire.replay(OUTSTANDING);
                black_box(black_box(&mut sender).poll());
            })
        },
        engine: || {
            let rig = Rig::single();
            let (wire, mut sender) = (rig.wire.clone(), engine_single(rig));
            sender.post_writes();
            sender.poll();
            contender(move || {
                wire.replay(OUTSTANDING);
                black_box(black_box(&mut sender).poll());
            })
        },
        floor_limit: 1.4,
        baseline_limit: None,
    },
    Row {
        name: "single_cycle",
        work: "1 rail, post to reported completion",
        operations: OUTSTANDING,
        floor: || {
            let mut single = floor::Single::new(Rig::single());
            contender(move || {
                let single = black_box(&mut single);
                single.post();
                black_box(single.poll());
            })
        },
        baseline: || baseline_cycle(baseline_writes(Rig::single(), SMALL)),
        engine: || engine_cycle(engine_single(Rig::single())),
        floor_limit: 1.4,
        baseline_limit: None,
    },
    Row {
        name: "multi1_cycle",
        work: "4 rails, 1 fragment, post to reported completion",
        operations: OUTSTANDING,
        floor: || {
            let mut striped = floor::Striped::new(Rig::striped(), FRAGMENT);
            contender(move || {
                black_box(black_box(&mut striped).multi1());
            })
        },
        baseline: || baseline_cycle(baseline_writes(Rig::striped(), FRAGMENT)),
        engine: || engine_cycle(engine_striped(Rig::striped(), Scheme::Spray, FRAGMENT)),
        floor_limit: 2.4,
        baseline_limit: Some(1.0 / 4.0),
    },
    Row {
        name: "multi16_cycle",
        work: "4 rails, 1 MiB in 16 fragments",
        operations: OUTSTANDING,
        floor: || {
            let mut striped = floor::Striped::new(Rig::striped(), LARGE);
            contender(move || {
                black_box(black_box(&mut striped).multi16());
            })
        },
        baseline: || baseline_cycle(baseline_writes(Rig::striped(), LARGE)),
        engine: || engine_cycle(engine_striped(Rig::striped(), Scheme::Spray, LARGE)),
        floor_limit: 1.7,
        baseline_limit: Some(1.0 / 6.0),
    },
    Row {
        name: "spray_imm16_cycle",
        work: "the same with imm and notify",
        operations: OUTSTANDING,
        floor: || {
            let mut striped = floor::Striped::new(Rig::striped_with_notify(), LARGE);
            contender(move || {
                black_box(black_box(&mut striped).spray_imm16());
            })
        },
        baseline: || {
            let (rig, scheme) = (Rig::striped_with_notify(), baseline::Scheme::Spray);
            let opcode = Opcode::RdmaWriteWithImm;
            baseline_cycle(baseline::Sender::striped(rig, scheme, opcode, LARGE))
        },
        engine: || {
            let rig = Rig::striped_with_notify();
            engine_cycle_with_imm(engine_striped(rig, Scheme::Spray, LARGE))
        },
        floor_limit: 1.8,
        baseline_limit: Some(1.0 / 6.0),
    },
    Row {
        name: "dqplb_imm16_cycle",
        work: "the same, DQPLB sender",
        operations: OUTSTANDING,
        floor: || {
            let mut striped = floor::Striped::new(Rig::striped(), LARGE);
            contender(move || {
                black_box(black_box(&mut striped).dqplb_imm16());
            })
        },
        baseline: || {
            let (rig, scheme) = (Rig::striped(), baseline::Scheme::Dqplb);
            let opcode = Opcode::RdmaWriteWithImm;
            baseline_cycle(baseline::Sender::striped(rig, scheme, opcode, LARGE))
        },
        engine: || engine_cycle_with_imm(engine_striped(Rig::striped(), Scheme::Dqplb, LARGE)),
        floor_limit: 1.7,
        baseline_limit: Some(1.0 / 6.0),
    },
    Row {
        name: "dqplb_recv_ooo",
        work: "DQPLB receiver, out of order, with repost, per completion",
        operations: ARRIVALS,
        floor: || {
            let (arrivals, rig) = arriving();
            let receiver = floor::Receiver::new(rig);
            received(arrivals, receiver, |receiver| {
                black_box(receiver.receive());
            })
        },
        baseline: || {
            let (arrivals, rig) = arriving();
            let receiver = baseline::Receiver::new(rig);
            received(arrivals, receiver, |receiver| {
                black_box(receiver.receive());
            })
        },
        engine: || {
            let (arrivals, rig) = arriving();
            let receiver = engine::Receiver::new(rig);
            received(arrivals, receiver, |receiver| {
                black_box(receiver.receive());
            })
        },
        floor_limit: 2.2,
        baseline_limit: None,
    },
    Row {
        name: "routes_idle_4096",
        work: "single_cycle, 1 of 4096 registered works / of 1",
        operations: OUTSTANDING,
        floor: || engine_many::<FEW_ROUTES>(1, |_| 0),
        baseline: || baseline_many(MANY, |_| MANY / 2),
        engine: || engine_many::<MANY_ROUTES>(MANY, |_| MANY / 2),
        floor_limit: 1.1,
        baseline_limit: None,
    },
    Row {
        name: "routes_random_4096",
        work: "single_cycle, random of 4096 / of 32",
        operations: OUTSTANDING,
        floor: || engine_many::<FEW_ROUTES>(FEW, |random| random.below(FEW)),
        baseline: || baseline_many(MANY, |random| random.below(MANY)),
        engine: || engine_many::<MANY_ROUTES>(MANY, |random| random.below(MANY)),
        floor_limit: 2.5,
        baseline_limit: None,
    },
];

type NullSender<const RAILS: usize> = engine::Sender<NullQp, NullCq, RAILS>;
type NullBaseline = baseline::Sender<NullQp, NullCq>;

fn engine_single(rig: Rig) -> NullSender<1> {
    engine::Sender::new(rig, Scheme::Spray, SMALL)
}

fn engine_striped(rig: Rig, scheme: Scheme, length: u32) -> NullSender<RAILS> {
    engine::Sender::new(rig, scheme, length)
}

fn engine_cycle<const RAILS: usize>(mut sender: NullSender<RAILS>) -> Contender {
    contender(move || {
        let sender = black_box(&mut sender);
        sender.post_writes();
        black_box(sender.poll());
    })
}

fn engine_cycle_with_imm(mut sender: NullSender<RAILS>) -> Contender {
    contender(move || {
        let sender = black_box(&mut sender);
        sender.post_writes_with_imm();
        black_box(sender.poll());
    })
}

fn baseline_writes(rig: Rig, length: u32) -> NullBaseline {
    baseline::Sender::striped(rig, baseline::Scheme::Spray, Opcode::RdmaWrite, length)
}

fn baseline_cycle(mut sender: NullBaseline) -> Contender {
    contender(move || {
        black_box(black_box(&mut sender).cycle());
    })
}

fn arriving() -> (Arrivals, Rig) {
    let rig = Rig::striped();
    (Arrivals::new(rig.wire.clone(), rig.inboxes.clone()), rig)
}

/// Only what the receiver does is timed; what the null device does for the sender is not.
fn received<R: 'static>(
    arrivals: Arrivals,
    receiver: R,
    mut receive: impl FnMut(&mut R) + 'static,
) -> Contender {
    prepared_contender(
        (arrivals, receiver),
        |(arrivals, _)| arrivals.deliver(),
        move |(_, receiver)| receive(black_box(receiver)),
    )
}

/// Bursts of one pass: long enough that no branch predictor learns the targets by heart.
const BURSTS: usize = 512;

fn targets(mut next: impl FnMut(&mut XorShift) -> usize) -> Vec<u16> {
    let mut random = XorShift::new();
    (0..BURSTS * OUTSTANDING).map(|_| next(&mut random) as u16).collect()
}

fn engine_many<const ROUTES: usize>(
    count: usize,
    next: impl FnMut(&mut XorShift) -> usize,
) -> Contender {
    let rig = Rig::many(count);
    let mut many = engine::Many::<_, _, ROUTES>::new(rig, targets(next));
    contender(move || {
        black_box(black_box(&mut many).scattered());
    })
}

fn baseline_many(count: usize, next: impl FnMut(&mut XorShift) -> usize) -> Contender {
    let mut many = baseline::Sender::many(Rig::many(count), targets(next));
    contender(move || {
        black_box(black_box(&mut many).scattered());
    })
}
