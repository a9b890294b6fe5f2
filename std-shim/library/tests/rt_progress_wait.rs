//! Progress threads that sleep on completion channels.

mod fixture;

use fixture::{Host, connect_sets, submit};
use polyrail::endpoint::{EndpointBuilder, NamedRailEvent};
use polyrail::nic::{Fabric, Fault, When};
use polyrail::progress::{ProgressOptions, ProgressThread, RequestError};
use polyrail::verbs::{RecvWr, SendWr, WcStatus};
use polyrail::virtual_qp::{RailEventKind, RailFailure, RailId, Scheme};
use std::collections::HashSet;
use std::time::{Duration, Instant};

const LENGTH: usize = 1 << 16;

/// Two sets, each in the care of a thread that waits.
struct Threads {
    near: Host,
    far: Host,
    threads: [ProgressThread; 2],
}

fn threads(builder: EndpointBuilder, members: usize) -> Threads {
    threads_with(ProgressOptions::default(), builder, members)
}

fn threads_with(options: ProgressOptions, builder: EndpointBuilder, members: usize) -> Threads {
    let fabric = Fabric::threaded();
    let builder = builder.connect_options(fixture::impatient()).completion_channel(0);
    let [near, far] = ["near", "far"].map(|name| Host::new(&fabric, name, 2, LENGTH));
    let shapes = vec![(builder, [0, 1].as_slice()); members];
    let mut sets = [near.set(&shapes), far.set(&shapes)];
    let [a, b] = &mut sets;
    connect_sets(a, b);
    Threads {
        near,
        far,
        threads: sets.map(|set| ProgressThread::spawn_with(set, options).unwrap()),
    }
}

#[test]
fn requests_pass_between_threads_that_sleep_in_between() {
    for scheme in [Scheme::Spray, Scheme::Dqplb] {
        for rails in [1, 4] {
            let world = threads(EndpointBuilder::new().rails(rails).scheme(scheme), 3);
            let [near, far] = &world.threads;
            let keys = world.near.buffer.toward(&world.far.buffer.remote()).unwrap();
            for round in 0..30 {
                for qp in 0..3 {
                    let mut sends = near.handle(qp).unwrap();
                    let mut receives = far.handle(qp).unwrap();
                    let notified = submit(|| receives.post_recv(&RecvWr::notification(round)));
                    let local = world.near.buffer.local(0, LENGTH as u32).unwrap();
                    let addr = world.far.buffer.addr();
                    let wr = SendWr::write_with_imm(round, local, addr, 3, &keys);
                    let sent = submit(|| sends.post_send(&wr));
                    assert_eq!(pollster::block_on(sent).unwrap().status, WcStatus::SUCCESS);
                    assert_eq!(pollster::block_on(notified).unwrap().status, WcStatus::SUCCESS);
                }
                // Long enough for both to fall asleep, sometimes.
                std::thread::sleep(Duration::from_millis(round % 4));
            }
            for thread in world.threads {
                assert!(thread.shutdown().unwrap().qps().all(|qp| qp.first_error().is_none()));
            }
        }
    }
}

#[test]
fn what_fails_wakes_those_who_wait() {
    // A peer that is gone, and a device of one's own that is.
    for goes in ["far", "near"] {
        let world = threads(EndpointBuilder::new(), 1);
        let mut sends = world.threads[0].handle(0).unwrap();
        let mut receive = |wr_id| sends.post_recv(&RecvWr::notification(wr_id)).unwrap();
        let waits = receive(1);
        std::thread::sleep(Duration::from_millis(20));
        let host = if goes == "far" { &world.far } else { &world.near };
        for device in &host.devices {
            device.inject(When::Now, Fault::DeviceGone);
        }
        if goes == "far" {
            let keys = world.near.buffer.toward(&world.far.buffer.remote()).unwrap();
            let local = world.near.buffer.local(0, 64).unwrap();
            let wr = SendWr::write(2, local, world.far.buffer.addr(), &keys);
            let sent = sends.post_send(&wr).unwrap().wait().unwrap();
            assert_eq!(sent.status, WcStatus::RETRY_EXC_ERR);
            assert_eq!(waits.wait().unwrap().status, WcStatus::WR_FLUSH_ERR);
        } else {
            assert_eq!(waits.wait(), Err(RequestError::Abandoned));
        }
        assert!(sends.endpoint_error().is_some(), "{goes}");
    }
}

/// One that sleeps has few rounds, and looks at rails all the same.
#[test]
fn a_silent_rail_is_found_soon_by_a_thread_that_sleeps() {
    let stall_timeout = Some(Duration::from_millis(40));
    let options = ProgressOptions { stall_timeout, ..ProgressOptions::default() };
    let world = threads_with(options, EndpointBuilder::new(), 1);
    let keys = world.near.buffer.toward(&world.far.buffer.remote()).unwrap();
    let mut sends = world.threads[0].handle(0).unwrap();
    let local = world.near.buffer.local(0, 64).unwrap();
    let wr = SendWr::write(2, local, world.far.buffer.addr(), &keys);
    for device in &world.near.devices {
        device.inject(When::Now, Fault::Silent(true));
    }
    let begin = Instant::now();
    let sent = sends.post_send(&wr).unwrap().wait().unwrap();
    assert_eq!(sent.status, WcStatus::WR_FLUSH_ERR);
    // In rounds of 10 ms, 256 from one look to the next would take half a minute.
    assert!(begin.elapsed() < Duration::from_secs(8), "{:?}", begin.elapsed());
}

#[test]
fn rails_come_back_while_the_threads_wait() {
    let world = threads(EndpointBuilder::new().rail_failure(RailFailure::Reroute), 1);
    let keys = world.near.buffer.toward(&world.far.buffer.remote()).unwrap();
    let mut sends = world.threads[0].handle(0).unwrap();
    let local = world.near.buffer.local(0, LENGTH as u32).unwrap();
    let wr = SendWr::write(2, local, world.far.buffer.addr(), &keys);
    for fault in [Fault::LinkDown, Fault::LinkUp] {
        world.near.devices[1].inject(When::Now, fault);
        let sent = sends.post_send(&wr).unwrap();
        assert_eq!(sent.wait().unwrap().status, WcStatus::SUCCESS);
        // Those on the second device fail, and return.
        let begin = Instant::now();
        let mut rails = HashSet::new();
        while rails.len() < 2 {
            assert!(begin.elapsed() < fixture::LONG, "{fault:?}, {rails:?}");
            while let Some((_, NamedRailEvent { event, .. })) = world.threads[0].take_rail_event() {
                let is_awaited = match event.kind {
                    RailEventKind::Returned => fault == Fault::LinkUp,
                    RailEventKind::Failed { .. } => fault == Fault::LinkDown,
                    RailEventKind::Fenced { .. } => false,
                };
                if is_awaited {
                    rails.insert(event.rail);
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(rails, [1, 3].map(RailId::Data).into());
    }
    let sent = sends.post_send(&wr).unwrap();
    assert_eq!(sent.wait().unwrap().status, WcStatus::SUCCESS);
}
