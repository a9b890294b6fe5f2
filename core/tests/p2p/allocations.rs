//! Nothing allocates after set-up.

use crate::rig::{Rig, Setup};
use polyrail_core::p2p::{ConnectionEnd, RecvBuffer};
use polyrail_core::verbs::WcStatus;
use polyrail_core::virtual_qp::{RailEventKind, RailState};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: everything is System's, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn counted<R>(act: impl FnOnce() -> R) -> R {
    let before = COUNT.get();
    let result = act();
    assert_eq!(COUNT.get(), before, "it allocates");
    result
}

#[test]
fn allocations_are_counted() {
    let before = COUNT.get();
    drop(std::hint::black_box(Box::new(7)));
    assert_eq!(COUNT.get() - before, 1);
}

#[test]
fn isend_irecv_test_and_polls_allocate_nothing() {
    let mut setup = Setup::rails(3);
    setup.limit = 100;
    let mut rig = setup.rig();
    rig.fabric.reserve();
    let (source, target) = (rig.source(4096), rig.target(4096));
    let buffers = [(0, 2000), (2000, 2000)].map(|(offset, length)| {
        let (local, tag) = (target.local(offset, length), offset);
        RecvBuffer { local, tag, keys: &target.keys }
    });
    for round in 0..200 {
        let count = 1 + round % 2;
        let connection = &mut rig.connections[0];
        let recv = counted(|| connection.receiver.irecv(&buffers[..count])).expect("room");
        rig.fabric.run();
        let connection = &mut rig.connections[0];
        let sends = [0, 2000].map(|tag| {
            let buffer = source.local(0, 1500);
            (tag < count * 2000).then(|| {
                counted(|| connection.sender.isend(buffer, tag as u32, &source.keys)).expect("room")
            })
        });
        rig.fabric.run();
        let connection = &mut rig.connections[0];
        let near = counted(|| rig.near_cq.poll(&mut connection.sender, 64, |_| {}));
        let far = counted(|| rig.far_cq.poll(&mut connection.receiver, 64, |_| {}));
        assert_eq!((near.error, far.error), (None, None));
        for send in sends.into_iter().flatten() {
            assert_eq!(counted(|| connection.sender.test(send)), Ok(true));
        }
        let received = counted(|| connection.receiver.test(recv)).expect("it works");
        assert_eq!(received.expect("arrived").sizes().len(), count);
    }
}

/// Lets the devices work, and both ends take what comes of it, which must not allocate.
fn go_on(rig: &mut Rig) {
    for _ in 0..8 {
        rig.fabric.run();
        let connection = &mut rig.connections[0];
        let near = counted(|| rig.near_cq.poll(&mut connection.sender, 64, |_| {}));
        let far = counted(|| rig.far_cq.poll(&mut connection.receiver, 64, |_| {}));
        assert_eq!((near.error, far.error), (None, None));
        counted(|| rig.carry());
    }
}

#[test]
fn a_rail_that_fails_and_returns_allocates_nothing() {
    let mut rig = Setup::rerouting(2).rig();
    rig.fabric.reserve();
    let (source, target) = (rig.source(4096), rig.target(4096));
    let (mut again, mut returned) = (0, 0);
    for round in 0..60 {
        let connection = &mut rig.connections[0];
        let buffer = RecvBuffer { local: target.local(0, 4096), tag: 0, keys: &target.keys };
        let recv = counted(|| connection.receiver.irecv(&[buffer])).expect("room");
        go_on(&mut rig);
        let sender = &mut rig.connections[0].sender;
        let send = counted(|| sender.isend(source.local(0, 4000), 0, &source.keys)).expect("room");
        if round % 20 == 5 {
            rig.fabric.fail(rig.connections[0].near[1], WcStatus::RETRY_EXC_ERR);
        }
        go_on(&mut rig);
        let connection = &mut rig.connections[0];
        assert_eq!(counted(|| connection.sender.test(send)), Ok(true));
        let received = counted(|| connection.receiver.test(recv)).expect("it works");
        assert_eq!(received.expect("arrived").sizes(), [4000]);
        if round % 20 == 10 {
            assert!(rig.is_down(1));
            let pair = rig.new_pair(1);
            counted(|| rig.put(1, 1, pair));
            go_on(&mut rig);
            let state = rig.sender().queue_pair_state(1);
            assert_eq!(state.map(|(state, _)| state), Some(RailState::InService));
        }
        while let Some((_, event)) = counted(|| rig.connections[0].sender.take_rail_event()) {
            match event.kind {
                RailEventKind::Fenced { again: shares, .. } => again += shares,
                RailEventKind::Returned => returned += 1,
                RailEventKind::Failed { .. } => {}
            }
        }
    }
    assert_eq!((again, returned), (3, 3));
}
