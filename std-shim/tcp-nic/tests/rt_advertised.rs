//! Devices that peers reach at another address than the device's own, through a host that passes
//! connections on, as one that translates addresses does.

mod support;

use polyrail_nic_parts::options::ConnectOptions;
use polyrail_tcp_nic::{Device, DeviceOptions, connect_pair};
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use support::{Side, exchange};

/// Accepts connections at its address, and passes their bytes on to another one.
struct Translator {
    address: SocketAddr,
    passed: Arc<AtomicUsize>,
}

impl Translator {
    fn new(listener: TcpListener, to: SocketAddr) -> Self {
        let address = listener.local_addr().unwrap();
        let passed = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&passed);
        // It ends with the process.
        thread::spawn(move || {
            for outer in listener.incoming() {
                let outer = outer.unwrap();
                let inner = TcpStream::connect(to).unwrap();
                counted.fetch_add(1, Ordering::Relaxed);
                for (from, to) in [(&outer, &inner), (&inner, &outer)] {
                    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    thread::spawn(move || {
                        // Either end may close the connection at any time.
                        _ = io::copy(&mut from, &mut to);
                        _ = to.shutdown(Shutdown::Write);
                    });
                }
            }
        });
        Self { address, passed }
    }
}

/// Connects a device to another one whose address is translated, and returns how many connections
/// were passed on.
fn passed(near: &str, far: &str, advertised: &str) -> usize {
    let outside = TcpListener::bind((advertised, 0)).unwrap();
    let advertised = outside.local_addr().unwrap();
    let options = DeviceOptions { advertised: Some(advertised), ..DeviceOptions::default() };
    let device = Device::open(far, &options).unwrap();
    assert_ne!(device.address(), advertised);
    let translator = Translator::new(outside, device.address());
    assert_eq!(device.advertised(), translator.address);
    let (mut near, mut far) = (Side::new(near), Side::on(&device));
    let remote = far.qp.as_remote(0);
    assert_eq!(remote.meeting.unwrap().port, translator.address.port());
    connect_pair(&near.qp, &far.qp, &ConnectOptions::default()).unwrap();
    exchange(&mut near, &mut far, 1);
    exchange(&mut far, &mut near, 2);
    translator.passed.load(Ordering::Relaxed)
}

/// Its own address would make the device connect to the peer.
#[test]
fn a_peer_connects_to_the_address_that_a_device_advertises() {
    assert_eq!(passed("127.9.0.5", "127.9.0.1", "127.9.0.9"), 1);
}

/// Its own address would make it wait for the peer.
#[test]
fn a_device_that_advertises_a_lesser_address_connects_to_its_peer() {
    assert_eq!(passed("127.9.1.5", "127.9.1.9", "127.9.1.1"), 0);
}

/// Both ends see the addresses of both.
#[test]
fn two_devices_behind_one_address_meet() {
    let [one, other] = ["127.9.2.1", "127.9.2.2"].map(|own| {
        let outside = TcpListener::bind("127.9.2.9:0").unwrap();
        let advertised = outside.local_addr().unwrap();
        let options = DeviceOptions { advertised: Some(advertised), ..DeviceOptions::default() };
        let device = Device::open(own, &options).unwrap();
        let translator = Translator::new(outside, device.address());
        (Side::on(&device), translator)
    });
    let (mut near, mut far) = (one.0, other.0);
    connect_pair(&near.qp, &far.qp, &ConnectOptions::default()).unwrap();
    exchange(&mut near, &mut far, 1);
    let passed = [one.1, other.1].map(|translator| translator.passed.load(Ordering::Relaxed));
    assert_eq!(passed.iter().sum::<usize>(), 1, "{passed:?}");
}
