//! Whole virtual queue pairs: post to report, by request size and scheme; arrivals to report.

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use polyrail_benches::arrivals::{ARRIVALS, Arrivals};
use polyrail_benches::engine::{Receiver, Sender};
use polyrail_benches::null::{NullCq, NullQp};
use polyrail_benches::rig::Rig;
use polyrail_benches::workload::{FRAGMENT, OUTSTANDING, RAILS, SMALL};
use polyrail_core::virtual_qp::Scheme;
use std::cell::RefCell;

fn single(c: &mut Criterion) {
    let mut group = c.benchmark_group("1 rail");
    group.throughput(Throughput::Elements(OUTSTANDING as u64));
    let mut sender = Sender::<NullQp, NullCq, 1>::new(Rig::single(), Scheme::Spray, SMALL);
    group.bench_function("write", |b| {
        b.iter(|| {
            sender.post_writes();
            sender.poll()
        });
    });
    group.finish();
}

fn send(c: &mut Criterion) {
    let mut group = c.benchmark_group("4 rails, by fragments");
    group.throughput(Throughput::Elements(OUTSTANDING as u64));
    for fragments in [1, 4, 16] {
        let length = fragments * FRAGMENT;
        let plain = Sender::<_, _, RAILS>::new(Rig::striped(), Scheme::Spray, length);
        let notified =
            Sender::<_, _, RAILS>::new(Rig::striped_with_notify(), Scheme::Spray, length);
        let numbered = Sender::<_, _, RAILS>::new(Rig::striped(), Scheme::Dqplb, length);
        let mut bench = |name, mut sender: Sender<NullQp, NullCq, RAILS>, imm| {
            group.bench_function(BenchmarkId::new(name, fragments), |b| {
                b.iter(|| {
                    if imm {
                        sender.post_writes_with_imm()
                    } else {
                        sender.post_writes()
                    }
                    sender.poll()
                });
            });
        };
        bench("write", plain, false);
        bench("write with imm, SPRAY", notified, true);
        bench("write with imm, DQPLB", numbered, true);
    }
    group.finish();
}

fn receive(c: &mut Criterion) {
    let mut group = c.benchmark_group("4 rails, per arrival");
    group.throughput(Throughput::Elements(ARRIVALS as u64));
    let rig = Rig::striped();
    let mut arrivals = Arrivals::new(rig.wire.clone(), rig.inboxes.clone());
    let receiver = RefCell::new(Receiver::new(rig));
    group.bench_function("receive, DQPLB, out of order", |b| {
        b.iter_batched(
            || arrivals.deliver(),
            |()| receiver.borrow_mut().receive(),
            BatchSize::PerIteration,
        );
    });
    group.finish();
}

criterion_group!(benches, single, send, receive);
criterion_main!(benches);
