//! DQPLB's receive window: noting fragments, and moving past those in turn once for a batch.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use polyrail_benches::random::XorShift;
use polyrail_benches::workload::{DEPTH, FRAGMENTS, POLL, RAILS};
use polyrail_core::internals::SequenceWindow;
use polyrail_core::internals::{SequenceImm, SequenceNumber};
use std::hint::black_box;

/// Numbers of one poll, in the order of their arrival.
fn window(c: &mut Criterion) {
    let mut group = c.benchmark_group("window");
    group.throughput(Throughput::Elements(POLL as u64));
    let in_turn: [u32; POLL] = std::array::from_fn(|at| at as u32);
    let mut shuffled = in_turn;
    let mut random = XorShift::new();
    for at in (1..POLL).rev() {
        shuffled.swap(at, random.below(at + 1));
    }
    for (name, order) in [("in turn", in_turn), ("shuffled", shuffled)] {
        group.bench_function(name, |b| {
            let mut window = Box::new(SequenceWindow::<RAILS, DEPTH>::new());
            let mut base = SequenceNumber::ZERO;
            b.iter(|| {
                for ahead in &order {
                    let number = base.advance(*ahead);
                    let last = ahead % FRAGMENTS == FRAGMENTS - 1;
                    let arrival = window.insert(SequenceImm { number, last });
                    black_box(arrival).expect("the number lies in the window");
                }
                base = base.advance(POLL as u32);
                black_box(window.advance())
            });
        });
    }
    group.finish();
}

criterion_group!(benches, window);
criterion_main!(benches);
