//! The ring of requests, beside the map and deques that it replaces.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use polyrail_benches::baseline;
use polyrail_benches::engine::WRS;
use polyrail_benches::workload::OUTSTANDING;
use polyrail_core::internals::WrTracker;
use std::hint::black_box;

/// As large as the engine's record of a request.
type Slot = [u64; 12];

fn tracker(c: &mut Criterion) {
    let mut group = c.benchmark_group("tracker");
    group.throughput(Throughput::Elements(OUTSTANDING as u64));
    group.bench_function("ring", |b| {
        let mut ring = Box::new(WrTracker::<Slot, WRS>::new([0; 12]));
        b.iter(|| {
            let ring = black_box(&mut *ring);
            for number in 0..OUTSTANDING as u64 {
                let id = ring.add([number; 12]).expect("there is room");
                black_box(ring.find_mut(id));
                ring.pop_pending();
            }
            while ring.front_in_flight().is_some() {
                ring.pop_in_flight();
            }
            while let Some(id) = ring.front_finished() {
                black_box(ring.find(id));
                ring.pop_finished();
            }
        });
    });
    group.bench_function("map and deques", |b| {
        let mut tracker = baseline::WrTracker::default();
        b.iter(|| {
            let tracker = black_box(&mut tracker);
            for number in 0..OUTSTANDING as u64 {
                let id = tracker.add(baseline::ActiveWr::recv(number));
                black_box(tracker.find(id)).expect("it was just added");
                tracker.pop_pending();
            }
            while let Some(id) = tracker.front_finished() {
                black_box(tracker.find(id)).expect("it is unreported");
                tracker.remove(id);
                tracker.pop_finished();
            }
        });
    });
    group.finish();
}

criterion_group!(benches, tracker);
criterion_main!(benches);
