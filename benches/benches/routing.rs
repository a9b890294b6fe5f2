//! The routing table: one look-up for every run of completions.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use polyrail_benches::random::XorShift;
use polyrail_benches::workload::DEVICE;
use polyrail_core::internals::{Reserved, Role, Route, RoutingTable};
use std::hint::black_box;

/// Look-ups of one pass: long enough that no branch predictor learns them by heart.
const LOOK_UPS: usize = 4096;

fn route(index: u16) -> Route {
    Route { index, role: Role::Single, virtual_qp_num: u32::from(index) }
}

/// Adds a route, for which there is room.
fn insert<const N: usize>(table: &mut RoutingTable<N>, qp_num: u32, index: u16) {
    table.insert(DEVICE, qp_num, route(index), Reserved::NOTHING).expect("there is room");
}

fn find<const N: usize>(c: &mut Criterion, routes: usize) {
    let mut table = Box::new(RoutingTable::<N>::new());
    for index in 0..routes as u16 {
        insert(&mut table, 0x40 + u32::from(index), index);
    }
    let mut random = XorShift::new();
    let wanted: Vec<_> = (0..LOOK_UPS).map(|_| 0x40 + random.below(routes) as u32).collect();
    let mut group = c.benchmark_group("routing");
    group.throughput(Throughput::Elements(LOOK_UPS as u64));
    group.bench_function(BenchmarkId::new("find", routes), |b| {
        b.iter(|| {
            for qp_num in &wanted {
                black_box(table.find(DEVICE, *qp_num));
            }
        });
    });
    group.finish();
}

fn attach<const N: usize>(c: &mut Criterion, routes: usize) {
    let mut table = Box::new(RoutingTable::<N>::new());
    for index in 0..routes as u16 - 1 {
        insert(&mut table, 0x40 + u32::from(index), index);
    }
    let qp_num = 0x40 + routes as u32;
    let index = routes as u16;
    c.benchmark_group("routing").bench_function(BenchmarkId::new("insert, remove", routes), |b| {
        b.iter(|| {
            insert(&mut table, black_box(qp_num), index);
            black_box(table.remove(DEVICE, black_box(qp_num)))
        });
    });
}

fn routing(c: &mut Criterion) {
    find::<64>(c, 32);
    find::<8192>(c, 4096);
    attach::<64>(c, 48);
    attach::<8192>(c, 6144);
}

criterion_group!(benches, routing);
criterion_main!(benches);
