//! Nothing allocates after set-up. Programs that run this have the
//! [`CountingAllocator`](crate::allocations::CountingAllocator).

use super::engine::Engines;
use super::pair::{DEPTH, Pair, post, recv};
use super::{Fixture, LIMIT, Memory, Retries};
use crate::allocations::allocations;
use polyrail_core::hardware::CompletionQueue;
use polyrail_core::verbs::{Opcode, RecvWr, SendRequest, SendWr, Sge};
use polyrail_core::virtual_qp::Scheme;
use std::mem::MaybeUninit;
use std::time::Instant;

/// Allocations of five rounds, after one to warm up.
fn allocations_of(mut round: impl FnMut()) -> u64 {
    let before = allocations();
    drop(std::hint::black_box(Box::new(7)));
    assert_eq!(allocations() - before, 1, "allocations are not counted");
    round();
    let before = allocations();
    (0..5).for_each(|_| round());
    allocations() - before
}

fn take(cq: &mut impl CompletionQueue, count: usize) {
    let mut taken = 0;
    let start = Instant::now();
    let mut out = [MaybeUninit::uninit(); 8];
    while taken < count {
        let polled = cq.poll(&mut out).expect("a working completion queue");
        assert!(polled.iter().all(|wc| wc.status.is_success()));
        taken += polled.len();
        assert!(start.elapsed() < LIMIT, "{taken} of {count} completions");
    }
}

pub(super) fn physical_queues_do_not_allocate<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    let atomic = SendRequest { compare_add: 1, ..pair.request(3, Opcode::FetchAdd, 0, 8) };
    let requests = [
        pair.write(1, 0, 9_000),
        pair.request(2, Opcode::RdmaRead, 0, 9_000),
        atomic,
        pair.request(4, Opcode::RdmaWriteWithImm, 0, 100),
        pair.request(5, Opcode::Send, 0, 100),
    ];
    let into = pair.far.sge(0, 100);
    let count = allocations_of(|| {
        recv(&mut pair.far.qp, 1, Sge::EMPTY).unwrap();
        recv(&mut pair.far.qp, 2, into).unwrap();
        post(&mut pair.near.qp, &requests).unwrap();
        take(&mut pair.near.cq, requests.len());
        take(&mut pair.far.cq, 2);
    });
    assert_eq!(count, 0);
}

pub(super) fn the_engine_does_not_allocate<F: Fixture>(fixture: &F) {
    for (rails, scheme) in [(2, Scheme::Spray), (2, Scheme::Dqplb), (1, Scheme::Spray)] {
        let mut engines = Engines::new(fixture, rails, scheme, Retries::MANY);
        let count = allocations_of(|| burst(&mut engines));
        assert_eq!(count, 0, "{scheme:?} over {rails} rails");
    }
}

/// Writes of more fragments than there are credits, with notifications.
fn burst<F: Fixture>(engines: &mut Engines<F>) {
    const WRITES: usize = 4;
    let Engines { near, far } = engines;
    let to = far.memory.addr();
    for wr_id in 0..WRITES as u64 {
        far.qp.post_recv(&RecvWr::notification(wr_id)).expect("room");
        let local = near.memory.local(0, 8192 * DEPTH / 2);
        let wr = SendWr::write_with_imm(wr_id, local, to, 1, &near.keys);
        near.qp.post_send(&wr).expect("room");
    }
    let mut reported = [0, 0];
    let start = Instant::now();
    while reported != [WRITES; 2] {
        for (side, count) in [&mut *near, &mut *far].into_iter().zip(&mut reported) {
            side.poll(|wc| {
                assert!(wc.status.is_success(), "{wc:?}");
                *count += 1;
            });
        }
        assert!(start.elapsed() < LIMIT, "only {reported:?} of {WRITES}");
    }
}
