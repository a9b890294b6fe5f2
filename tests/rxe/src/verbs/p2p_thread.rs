//! Messages through threads that sleep on completion channels, over two rails, also while a link
//! goes down and comes up.

use super::p2p::{MOST, Memory, domains_at, is_second_time, memory_at};
use crate::fixture::Rails;
use polyrail::p2p::{P2P_ROUTES, P2pBuilder, RecvBuffer, connect_endpoints};
use polyrail::progress::messages::{P2pHandle, P2pThread, PendingDone, PendingRecv};
use polyrail::progress::{Outcome, Pending};
use polyrail::rdma::VerbsDomain;
use polyrail::virtual_qp::{RailEventKind, RailFailure};
use polyrail_tests::behaviours::{Fixture, LIMIT};
use std::thread;
use std::time::{Duration, Instant};

/// One end, in the care of a thread, with the memory that its messages are in.
struct Side {
    thread: P2pThread<VerbsDomain, P2P_ROUTES>,
    memory: Memory,
}

impl Side {
    fn handle(&self) -> P2pHandle {
        self.thread.handle(0).unwrap()
    }

    fn send(&self, handle: &mut P2pHandle, length: u32) -> PendingDone {
        let local = self.memory.local(0, length).unwrap();
        handle.isend(local, 1, &self.memory.own_keys()).unwrap()
    }

    fn offer(&self, handle: &mut P2pHandle) -> PendingRecv {
        let local = self.memory.local(0, MOST).unwrap();
        let keys = self.memory.own_keys();
        handle.irecv(&[RecvBuffer { local, tag: 1, keys: &keys }]).unwrap()
    }

    /// Waits until queue pairs of both directions have come back, or have failed.
    fn wait_until(&self, is_it: fn(&RailEventKind) -> bool) {
        let begin = Instant::now();
        let mut there = 0;
        while there < 2 {
            let event = self.thread.take_rail_event();
            there += usize::from(event.is_some_and(|event| is_it(&event.event.kind)));
            assert!(begin.elapsed() < LIMIT + Duration::from_secs(10), "{there} of 2");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

fn sides(builder: &P2pBuilder) -> [Side; 2] {
    let domains = ["A", "B"].map(domains_at);
    let mut ends = domains.each_ref().map(|domains| {
        builder.completion_channel(0).build(&domains.iter().collect::<Vec<_>>()).unwrap()
    });
    let [near, far] = &mut ends;
    connect_endpoints(near, far).unwrap();
    let mut threads = ends.map(|end| P2pThread::spawn(end).unwrap()).into_iter();
    domains.map(|domains| Side { memory: memory_at(&domains), thread: threads.next().unwrap() })
}

/// Waits, with a limit.
#[track_caller]
fn ended<O: Outcome>(mut pending: Pending<O>) -> O {
    let begin = Instant::now();
    loop {
        if let Some(outcome) = pending.try_take() {
            return outcome;
        }
        assert!(begin.elapsed() < LIMIT, "no outcome for too long");
        thread::sleep(Duration::from_micros(100));
    }
}

/// A message from one side to the other, whose buffer is offered before or after.
fn exchange([from, to]: [&Side; 2], handles: [&mut P2pHandle; 2], length: u32, seed: u32) {
    let [sends, receives] = handles;
    let pattern = vec![seed as u8; length as usize];
    from.memory.write_at(0, &pattern).unwrap();
    // Long enough to fall asleep, sometimes.
    let pause = || thread::sleep(Duration::from_millis((seed % 4 * 5).into()));
    let (sent, received) = if seed.is_multiple_of(2) {
        let received = to.offer(receives);
        pause();
        (from.send(sends, length), received)
    } else {
        let sent = from.send(sends, length);
        pause();
        (sent, to.offer(receives))
    };
    assert_eq!(ended(received).unwrap().sizes(), [length]);
    ended(sent).unwrap();
    let mut bytes = vec![0; length as usize];
    to.memory.read_at(0, &mut bytes).unwrap();
    assert!(bytes == pattern, "{length} bytes");
}

/// Both ways.
fn exchange_some([near, far]: [&Side; 2], [a, b]: &mut [P2pHandle; 2]) {
    for (seed, length) in (0..).step_by(2).zip([8, 0, 300_001, 65_537, 100]) {
        exchange([near, far], [a, b], length, seed + 1);
        exchange([far, near], [b, a], length, seed);
    }
}

pub(super) fn messages_pass_both_ways_between_threads_that_sleep(rails: &Rails) {
    if is_second_time(rails) {
        return;
    }
    let sides = sides(&P2pBuilder::new());
    let mut handles = sides.each_ref().map(Side::handle);
    (0..4).for_each(|_| exchange_some(sides.each_ref(), &mut handles));
    for side in sides {
        side.thread.shutdown().unwrap();
    }
}

pub(super) fn threads_that_sleep_go_on_without_a_link_and_with_it_again(rails: &Rails) {
    if is_second_time(rails) {
        return;
    }
    let sides = sides(&P2pBuilder::new().rail_failure(RailFailure::Reroute));
    let mut handles = sides.each_ref().map(Side::handle);
    for number in [1, 0] {
        exchange_some(sides.each_ref(), &mut handles);
        rails.set_link(number, false);
        sides[0].wait_until(|kind| matches!(kind, RailEventKind::Failed { .. }));
        exchange_some(sides.each_ref(), &mut handles);
        rails.set_link(number, true);
        let up = Instant::now();
        sides[0].wait_until(|kind| *kind == RailEventKind::Returned);
        println!("  link {number} up: the rail is back after {:.1?}", up.elapsed());
        exchange_some(sides.each_ref(), &mut handles);
    }
}
