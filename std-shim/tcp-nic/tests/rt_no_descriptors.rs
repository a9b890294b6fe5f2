//! A process without file descriptors: alone in its program, since it takes them all.

mod namespace;
mod support;

use namespace::{Namespace, turn};
use polyrail_core::verbs::WcStatus;
use polyrail_nic_parts::error::vendor;
use polyrail_nic_parts::event::AsyncEvent;
use polyrail_nic_parts::options::{ConnectOptions, QpCap};
use polyrail_nic_parts::state::QpState;
use polyrail_tcp_nic::{Device, DeviceOptions, OpenError, QpInit, connect_pair};
use socket2::{Domain, Socket, Type};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;
use support::{LONG, Side, exchange, pair, raw, thread, wait};

/// File descriptors that a process may have in these tests.
const MOST: u64 = 256;

/// Takes all descriptors that this process may have, until the files are dropped.
fn no_descriptor() -> Vec<File> {
    // SAFETY: zeros are a limit.
    let mut limit: libc::rlimit = unsafe { std::mem::zeroed() };
    // SAFETY: a limit, which the call writes.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) }, 0);
    limit.rlim_cur = MOST.min(limit.rlim_max);
    // SAFETY: a limit, which the call copies.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

/// Returns the processor time of this process without that of the calling thread. It takes no
/// descriptor.
fn time_of_others() -> Duration {
    let used = |who| {
        // SAFETY: zeros are values of the type.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: the call writes the value.
        assert_eq!(unsafe { libc::getrusage(who, &raw mut usage) }, 0);
        [usage.ru_utime, usage.ru_stime]
            .iter()
            .map(|time| Duration::new(time.tv_sec as u64, 1000 * time.tv_usec as u32))
            .sum::<Duration>()
    };
    used(libc::RUSAGE_SELF).saturating_sub(used(libc::RUSAGE_THREAD))
}

/// Fails if an I/O thread works all the time.
fn assert_rests() {
    let before = time_of_others();
    // A thread that spins gets at least a tenth of a processor, however busy the machine is.
    std::thread::sleep(Duration::from_secs(2));
    let used = time_of_others() - before;
    assert!(used < Duration::from_millis(200), "{used:?} of processor time");
}

fn open(address: &str) -> Result<Device, OpenError> {
    Device::open(address, &DeviceOptions::default())
}

/// Whether the reason is that the process has no descriptor.
fn lacks_descriptors(error: &OpenError) -> bool {
    let (OpenError::List(source) | OpenError::Listen { source, .. } | OpenError::Thread(source)) =
        error
    else {
        return false;
    };
    source.raw_os_error() == Some(libc::EMFILE)
}

#[test]
fn a_device_opens_whole_or_not_at_all() {
    let _turn = turn();
    // Another test's device may still be open.
    thread::wait_until_none();
    let mut files = no_descriptor();
    let count = |files: &mut Vec<File>| {
        let free: Vec<_> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
        let count = free.len();
        files.extend(free);
        count
    };
    files.truncate(files.len() - 20);
    let device = open("127.6.0.1").unwrap();
    let takes = 20 - count(&mut files);
    drop(device);
    // To look for threads takes two.
    files.truncate(files.len() - 2);
    thread::wait_until_none();
    // Listing addresses takes one, which is free again before the device takes any. The second
    // list, after that, is made later if it fails.
    for free in 0..=takes {
        count(&mut files);
        files.truncate(files.len() - free);
        match open("127.6.0.1") {
            Ok(device) => {
                assert!(free >= takes, "{free} are too few");
                assert_eq!(count(&mut files), free - takes, "of {free}");
                drop(device);
            }
            Err(error) => {
                assert!(lacks_descriptors(&error), "{free}: {error:?}");
                assert!(free < takes, "{free} are enough: {error:?}");
                assert_eq!(count(&mut files), free, "a device that was not opened keeps some");
            }
        }
    }
}

#[test]
fn objects_of_an_open_device_are_refused_with_the_reason_and_made_later() {
    let _turn = turn();
    let device = open("127.6.1.1").unwrap();
    let files = no_descriptor();
    let errors = [device.create_cq(8).err(), device.create_channel().err()].map(Option::unwrap);
    for (error, what) in errors.iter().zip(["completion queue", "completion channel"]) {
        assert_eq!(error.errno(), libc::EMFILE, "{error}");
        assert_eq!(error.to_string(), format!("cannot create a {what}: errno 24"));
    }
    drop(files);
    let cq = device.create_cq(8).unwrap();
    let files = no_descriptor();
    // Neither memory nor queue pairs take one before they are connected.
    let pd = device.alloc_pd().unwrap();
    let qp = pd.create_qp(&QpInit::new(&cq, QpCap::default())).unwrap();
    qp.to_init(&ConnectOptions::default()).unwrap();
    drop(files);
}

/// Two ends that are connected, and two that are not.
fn four(network: u8) -> [Side; 4] {
    let address = |host| format!("127.6.{network}.{host}");
    let (near, far) = pair(&address(1), &address(2));
    let (own, peer) = (Side::on(&near.device), Side::on(&far.device));
    [near, far, own, peer]
}

#[test]
fn queue_pairs_connect_once_there_are_descriptors() {
    let _turn = turn();
    let [mut near, mut far, mut own, mut peer] = four(2);
    exchange(&mut near, &mut far, 1);
    let files = no_descriptor();
    connect_pair(&own.qp, &peer.qp, &ConnectOptions::default()).unwrap();
    own.post(own.write_to(&peer.buffer, 0, 8)).unwrap();
    assert_rests();
    assert!(!own.qp.is_connected() && own.poll().is_empty());
    exchange(&mut near, &mut far, 2);
    drop(files);
    assert_eq!(own.completion().status, WcStatus::SUCCESS);
    exchange(&mut own, &mut peer, 3);
}

#[test]
fn requests_of_a_queue_pair_that_gets_no_descriptor_fail_after_their_limit() {
    let _turn = turn();
    let [mut near, mut far, mut own, peer] = four(3);
    exchange(&mut near, &mut far, 1);
    let files = no_descriptor();
    let options = ConnectOptions { timeout: 14, retry_cnt: 1, ..ConnectOptions::default() };
    connect_pair(&own.qp, &peer.qp, &options).unwrap();
    own.post(own.write_to(&peer.buffer, 0, 8)).unwrap();
    let failed = own.completion();
    let expected = (WcStatus::RETRY_EXC_ERR, vendor::NO_CONNECTION);
    assert_eq!((failed.status, failed.vendor_err), expected);
    assert_eq!(own.qp.state(), QpState::Err);
    // A queue pair that is its own peer needs two at once.
    let mut alone = near.another();
    alone.connect(0, &alone.as_remote(0), &options).unwrap();
    let write = near.write_to(&near.buffer, 0, 8);
    support::post(&mut alone, &write).unwrap();
    assert_eq!(near.completion().status, WcStatus::RETRY_EXC_ERR);
    exchange(&mut near, &mut far, 2);
    drop(files);
}

/// Begins to connect with a socket that was made before.
fn connect(socket: Socket, listener: SocketAddr) -> TcpStream {
    socket.connect(&listener.into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

#[test]
fn peers_that_come_when_there_is_no_descriptor_are_accepted_later() {
    let _turn = turn();
    let [mut near, mut far, own, _] = four(4);
    exchange(&mut near, &mut far, 1);
    let sockets: Vec<_> =
        (0..3).map(|_| Socket::new(Domain::IPV4, Type::STREAM, None).unwrap()).collect();
    let files = no_descriptor();
    let listener = own.device.address();
    let mut streams: Vec<_> = sockets.into_iter().map(|socket| connect(socket, listener)).collect();
    let hello = raw::hello(1, own.qp.as_remote(0).qp_num, raw::NUMBER, [7; 16]);
    for stream in &mut streams {
        stream.write_all(&hello).unwrap();
    }
    assert_rests();
    exchange(&mut near, &mut far, 2);
    for stream in &streams {
        stream.set_nonblocking(true).unwrap();
        assert!(stream.peek(&mut [0]).is_err(), "no one accepts");
        stream.set_nonblocking(false).unwrap();
    }
    drop(files);
    for stream in &mut streams {
        let mut challenge = [0; 28];
        stream.read_exact(&mut challenge).unwrap();
        assert_eq!((&challenge[..8], challenge[10]), (&b"polyrail"[..], 0));
    }
}

/// The list of addresses takes a descriptor.
#[test]
fn a_change_of_an_interface_is_noticed_once_there_are_descriptors() {
    let Some(mut namespace) = Namespace::enter() else { return };
    namespace.link("eth0");
    namespace.run("ip addr add 10.99.0.1/32 dev eth0");
    let device = open("10.99.0.1").unwrap();
    wait("carrier", || device.is_up());
    while device.next_event().is_some() {}
    let files = no_descriptor();
    namespace.run("ip addr del 10.99.0.1/32 dev eth0");
    assert_rests();
    assert!(device.is_up(), "it cannot be known");
    drop(files);
    let lost = Some(AsyncEvent::PortError { port: 1 });
    wait("the loss of the address", || device.next_event() == lost);
    assert!(!device.is_up());
}
