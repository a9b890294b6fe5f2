//! What was posted before a progress thread began is carried out, though no handle has a request.

mod fixture;

use fixture::{ALL_ACCESS, Host, LONG};
use polyrail::endpoint::{Endpoint, EndpointBuilder, connect_endpoints};
use polyrail::memory::RegisteredBuffer;
use polyrail::nic::{DeviceConfig, Fabric};
use polyrail::p2p::{self, P2pBuilder, RecvBuffer};
use polyrail::progress::ProgressThread;
use polyrail::progress::messages::P2pThread;
use polyrail::verbs::{DeviceKeys, RecvWr, SendWr, WcStatus};
use std::num::NonZeroU64;
use std::thread::{sleep, yield_now};
use std::time::{Duration, Instant};

const BYTES: usize = 1 << 20;

/// After this time, a thread that has nothing to do sleeps.
const UNTIL_IT_SLEEPS: Duration = Duration::from_millis(500);

/// Two connected endpoints, and memory that both may access.
struct Pair {
    near: Endpoint,
    far: Endpoint,
    host: Host,
    keys: Vec<DeviceKeys>,
}

impl Pair {
    fn new() -> Self {
        let host = Host::new(&Fabric::threaded(), "both", 1, BYTES);
        let build = || -> Endpoint { EndpointBuilder::new().build(&host.all()).unwrap() };
        let (mut near, mut far) = (build(), build());
        connect_endpoints(&mut near, &mut far).unwrap();
        let keys = host.buffer.toward(&host.buffer.remote()).unwrap();
        Self { near, far, host, keys }
    }
}

/// A write of 64 bytes that notifies.
fn notify<'a>(host: &'a Host, keys: &'a [DeviceKeys], imm: u32) -> SendWr<'a> {
    let local = host.buffer.local(0, 64).unwrap();
    SendWr::write_with_imm(1, local, host.buffer.addr(), imm, keys)
}

/// A poll posts the notification, which then meets no receive for a while.
#[test]
fn a_notification_arrives() {
    let Pair { mut near, mut far, host, keys } = Pair::new();
    near.post_send(&notify(&host, &keys, 7)).unwrap();
    let _thread = ProgressThread::spawn(near).unwrap();
    sleep(UNTIL_IT_SLEEPS);
    far.post_recv(&RecvWr::notification(2)).unwrap();
    let begin = Instant::now();
    let wc = loop {
        let mut received = None;
        let polled = far.poll_with(1, |event| received = event.completion());
        assert!(polled.error.is_none());
        if let Some(received) = received {
            break received;
        }
        assert!(begin.elapsed() < LONG, "the notification never comes");
        yield_now();
    };
    assert_eq!((wc.wr_id, wc.status, wc.imm), (2, WcStatus::SUCCESS, Some(7)));
}

/// Polls post those that the notify queue pair has no room for.
#[test]
fn every_receive_takes_a_notification() {
    let Pair { mut near, mut far, host, keys } = Pair::new();
    let mut receives = 0;
    while far.post_recv(&RecvWr::notification(receives)).is_ok() {
        receives += 1;
    }
    let _thread = ProgressThread::spawn(far).unwrap();
    sleep(UNTIL_IT_SLEEPS);
    let begin = Instant::now();
    let (mut posted, mut completed) = (0, 0);
    while completed < receives {
        if posted < receives && near.post_send(&notify(&host, &keys, 7)).is_ok() {
            posted += 1;
        }
        let polled = near.poll_with(64, |event| {
            if let Some(wc) = event.completion() {
                assert_eq!(wc.status, WcStatus::SUCCESS);
                completed += 1;
            }
        });
        assert!(polled.error.is_none());
        assert!(begin.elapsed() < LONG, "{completed} of {receives} notifications");
        yield_now();
    }
}

#[test]
fn a_message_arrives_that_takes_longer_than_the_thread_looks_for_work() {
    let fabric = Fabric::threaded();
    let bytes_per_second = NonZeroU64::new(BYTES as u64);
    let config = DeviceConfig { bytes_per_second, ..DeviceConfig::named("near") };
    let domain = fabric.create_device(config).alloc_pd().unwrap();
    let buffer = RegisteredBuffer::new(BYTES, ALL_ACCESS, &[&domain]).unwrap();
    let host = Host::new(&fabric, "far", 1, BYTES);
    let mut near = P2pBuilder::new().build(&[&domain]).unwrap();
    let mut far = P2pBuilder::new().build(&host.all()).unwrap();
    p2p::connect_endpoints(&mut near, &mut far).unwrap();
    let begin = Instant::now();
    let offered = RecvBuffer {
        local: host.buffer.local(0, BYTES as u32).unwrap(),
        tag: 1,
        keys: &host.buffer.own_keys(),
    };
    let receive = far.irecv(&[offered]).unwrap();
    let local = buffer.local(0, BYTES as u32).unwrap();
    while near.isend(local, 1, &buffer.own_keys()).is_err() {
        assert!(far.poll(64).error.is_none() && begin.elapsed() < LONG);
    }
    let _thread = P2pThread::spawn(near).unwrap();
    while far.test_recv(receive).unwrap().is_none() {
        assert!(far.poll(64).error.is_none());
        assert!(begin.elapsed() < LONG, "the message never comes");
        yield_now();
    }
}
