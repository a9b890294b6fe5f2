//! Once queues have memory for what is outstanding, nothing allocates: posting, polling,
//! completing, failing, stepping.

mod support;

use polyrail_core::hardware::{
    CompletionQueue as _, QueuePair as _, ReceiveQueue as _, RecvBatch as _, SendBatch as _,
};
use polyrail_core::verbs::{Completion, Opcode, RecvRequest, SendFlags, SendRequest};
use polyrail_software_nic::{Fabric, Fault, QpCap, When};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::mem::MaybeUninit;
use support::*;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: guaranteed by the caller.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.with(Cell::get);
    work();
    ALLOCATIONS.with(Cell::get) - before
}

/// Polls both sides until nothing comes; returns how many completions there were.
fn drain(pair: &mut Pair) -> usize {
    let mut out: [MaybeUninit<Completion>; 32] = [MaybeUninit::uninit(); 32];
    let mut total = 0;
    let mut idle = 0;
    while idle < 2 {
        pair.fabric.run_until_idle(100_000);
        let count =
            pair.a.cq.poll(&mut out).unwrap().len() + pair.b.cq.poll(&mut out).unwrap().len();
        total += count;
        idle = if count == 0 { idle + 1 } else { 0 };
    }
    total
}

fn traffic(pair: &mut Pair, requests: &[SendRequest]) -> usize {
    let mut batch = pair.b.qp.start_recv();
    (0..32).for_each(|wr_id| batch.add(&RecvRequest { wr_id, sge: nothing() }));
    batch.commit().unwrap();
    let mut batch = pair.a.qp.start_send();
    requests.iter().for_each(|request| batch.add(request));
    batch.commit().unwrap();
    drain(pair)
}

fn requests(pair: &Pair) -> Vec<SendRequest> {
    let opcodes = [Opcode::RdmaWrite, Opcode::RdmaWriteWithImm, Opcode::RdmaRead, Opcode::FetchAdd];
    let request = |i: u64| {
        let opcode = opcodes[i as usize % 4];
        let inline =
            if opcode == Opcode::RdmaWrite { SendFlags::INLINE } else { SendFlags::empty() };
        SendRequest { flags: SendFlags::SIGNALED | inline, ..pair.request(i, opcode, 64, 8) }
    };
    (0..128).map(request).collect()
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(1)))), 1);
}

#[test]
fn traffic_allocates_nothing() {
    for fabric in [Fabric::threaded(), Fabric::deterministic(1)] {
        let mut pair = Pair::with(fabric, QpCap::default(), &impatient());
        let requests = requests(&pair);
        let mut completions = 0;
        let first = allocations(|| completions = traffic(&mut pair, &requests));
        assert!(first > 0, "the queues begin with memory for fewer requests");
        assert_eq!(completions, 128 + 32);
        for _ in 0..5 {
            let count = allocations(|| completions = traffic(&mut pair, &requests));
            assert_eq!((completions, count), (128 + 32, 0));
        }
    }
}

#[test]
fn failing_and_flushing_allocate_nothing() {
    for fabric in [Fabric::threaded(), Fabric::deterministic(1)] {
        let mut pair = Pair::with(fabric, QpCap::default(), &impatient());
        let mut requests = requests(&pair);
        traffic(&mut pair, &requests);
        requests[40].rkey = 1;
        requests[40].opcode = Opcode::RdmaRead;
        requests[40].flags = SendFlags::SIGNALED;
        let mut completions = 0;
        let count = allocations(|| completions = traffic(&mut pair, &requests));
        assert_eq!((completions, count), (128 + 32, 0));
    }
}

#[test]
fn events_allocate_nothing_however_many_are_not_read() {
    let device = Pair::impatient().a.device;
    let mut reader = device.event_cursor();
    let count = allocations(|| {
        for _ in 0..1000 {
            device.inject(When::Now, Fault::LinkDown);
            device.inject(When::Now, Fault::LinkUp);
        }
        while device.next_event_of(&mut reader).is_some() {}
    });
    assert_eq!((count, device.next_event_of(&mut reader)), (0, None));
}
