//! Tags: written once for every physical request, read once for every completion.

use criterion::{Criterion, criterion_group, criterion_main};
use polyrail_core::internals::{Tag, TagKind};
use std::hint::black_box;

fn tag(c: &mut Criterion) {
    let mut group = c.benchmark_group("tag");
    let rail = Tag::new(TagKind::Send, 3, 5);
    group.bench_function("write", |b| {
        let mut sequence = 0;
        b.iter(|| {
            sequence += 1;
            black_box(rail).plus(sequence).last().wr_id()
        });
    });
    let wr_id = rail.plus(77).last().wr_id();
    group.bench_function("read", |b| {
        b.iter(|| {
            let tag = Tag::from_wr_id(black_box(wr_id));
            (tag.kind(), tag.rail(), tag.sequence(), tag.is_last())
        });
    });
    group.finish();
}

criterion_group!(benches, tag);
criterion_main!(benches);
