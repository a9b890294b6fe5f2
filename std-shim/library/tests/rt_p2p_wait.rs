//! Threads for messages that sleep on completion channels.

mod fixture;

use fixture::{Host, LONG, impatient};
use polyrail::nic::{Fabric, Fault, ProtectionDomain, When};
use polyrail::p2p::{P2P_ROUTES, P2pBuilder, RecvBuffer, connect_endpoints};
use polyrail::progress::messages::{P2pError, P2pHandle, P2pThread, PendingDone, PendingRecv};
use polyrail::virtual_qp::{RailEventKind, RailFailure};
use std::time::{Duration, Instant};

const LENGTH: u32 = 1 << 16;

/// A host whose endpoint is in the care of a thread that waits.
struct Side {
    host: Host,
    thread: P2pThread<ProtectionDomain, P2P_ROUTES>,
}

fn sides(builder: &P2pBuilder) -> [Side; 2] {
    let fabric = Fabric::threaded();
    let builder = builder.connect_options(impatient()).completion_channel(0);
    let hosts = ["near", "far"].map(|name| Host::new(&fabric, name, 2, LENGTH as usize));
    let mut ends = hosts.each_ref().map(|host| builder.build(&host.all()).unwrap());
    let [near, far] = &mut ends;
    connect_endpoints(near, far).unwrap();
    let mut threads = ends.map(|end| P2pThread::spawn(end).unwrap()).into_iter();
    hosts.map(|host| Side { host, thread: threads.next().unwrap() })
}

impl Side {
    fn send(&self, handle: &mut P2pHandle) -> PendingDone {
        let local = self.host.buffer.local(0, LENGTH).unwrap();
        handle.isend(local, 1, &self.host.buffer.own_keys()).unwrap()
    }

    fn offer(&self, handle: &mut P2pHandle) -> PendingRecv {
        let local = self.host.buffer.local(0, LENGTH).unwrap();
        let keys = self.host.buffer.own_keys();
        handle.irecv(&[RecvBuffer { local, tag: 1, keys: &keys }]).unwrap()
    }
}

#[test]
fn messages_pass_between_threads_that_sleep_in_between() {
    for rails in [1, 2] {
        let sides = sides(&P2pBuilder::new().rails(rails).split_threshold(1024));
        let mut handles = sides.each_ref().map(|side| side.thread.handle(0).unwrap());
        for round in 0..60 {
            let pause = || std::thread::sleep(Duration::from_millis(round % 4));
            let from = round as usize % 2;
            let to = 1 - from;
            // The buffer is there before the message, or the message before the buffer.
            let (sent, received) = if round.is_multiple_of(3) {
                let sent = sides[from].send(&mut handles[from]);
                pause();
                (sent, sides[to].offer(&mut handles[to]))
            } else {
                let received = sides[to].offer(&mut handles[to]);
                pause();
                (sides[from].send(&mut handles[from]), received)
            };
            assert_eq!(pollster::block_on(received).unwrap().sizes(), [LENGTH]);
            pollster::block_on(sent).unwrap();
            pause();
        }
    }
}

#[test]
fn what_fails_wakes_those_who_wait() {
    let [near, _far] = sides(&P2pBuilder::new());
    let mut handle = near.thread.handle(0).unwrap();
    let waits = near.offer(&mut handle);
    std::thread::sleep(Duration::from_millis(20));
    near.thread.give_up(0);
    assert!(matches!(waits.wait(), Err(P2pError::Call(_))));
    let [near, _far] = sides(&P2pBuilder::new());
    let mut handle = near.thread.handle(0).unwrap();
    let waits = near.offer(&mut handle);
    std::thread::sleep(Duration::from_millis(20));
    for device in &near.host.devices {
        device.inject(When::Now, Fault::DeviceGone);
    }
    assert!(waits.wait().is_err());
    assert!(handle.queue_error().is_some());
}

#[test]
fn rails_come_back_while_the_threads_wait() {
    let [near, far] = sides(&P2pBuilder::new().rail_failure(RailFailure::Reroute));
    let mut handles = [&near, &far].map(|side| side.thread.handle(0).unwrap());
    for fault in [Fault::LinkDown, Fault::LinkUp] {
        near.host.devices[1].inject(When::Now, fault);
        let begin = Instant::now();
        let mut awaited = 0;
        // Of both directions.
        while awaited < 2 {
            assert!(begin.elapsed() < LONG, "{fault:?}, {awaited}");
            while let Some(event) = near.thread.take_rail_event() {
                awaited += usize::from(match event.event.kind {
                    RailEventKind::Returned => fault == Fault::LinkUp,
                    RailEventKind::Failed { .. } => fault == Fault::LinkDown,
                    RailEventKind::Fenced { .. } => false,
                });
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let received = far.offer(&mut handles[1]);
        near.send(&mut handles[0]).wait().unwrap();
        assert_eq!(received.wait().unwrap().sizes(), [LENGTH]);
    }
}
