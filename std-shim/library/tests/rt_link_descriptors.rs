//! A listener, and a side that connects, in a process without file descriptors. Alone in its
//! process, since it takes them all.

mod fixture;

use polyrail::endpoint::{Endpoint, EndpointBuilder};
use polyrail::link::{Arrivals, Hello, Link, Listener, Message, NoPurpose, Timeouts};
use polyrail::nic::Fabric;
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(600);

#[test]
fn links_are_accepted_and_connected_once_there_are_descriptors() {
    let fabric = Fabric::threaded();
    let host = fixture::Host::new(&fabric, "a", 2, 4096);
    let endpoint: Endpoint = EndpointBuilder::new().build(&host.all()).unwrap();
    let reach = endpoint.address().into();
    let hello = Hello { reach, buffer: host.buffer.remote(), purpose: None, session: None };
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // Far more than this test takes, so that only the lack of descriptors makes room.
    let timeouts = Timeouts { message: 10 * LONG, ..Timeouts::default() };
    let mut arrivals = Arrivals::<NoPurpose>::default();
    let mut refused = 0;
    let mut step = |arrivals: &mut Arrivals<NoPurpose>| {
        arrivals.step(&listener, &timeouts, |_, _| refused += 1).unwrap()
    };
    let mut silent: Vec<_> = (0..3).map(|_| TcpStream::connect(address).unwrap()).collect();
    let begin = Instant::now();
    while arrivals.fds().count() < 3 {
        assert!(step(&mut arrivals).is_empty() && begin.elapsed() < LONG);
    }
    let mut peer = TcpStream::connect(address).unwrap();
    peer.write_all(&Message::Hello(hello.clone()).encode()).unwrap();
    let mut files = Vec::new();
    let limit = libc::rlimit { rlim_cur: 128, rlim_max: 128 };
    // SAFETY: a limit, which the call copies.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
    while let Ok(file) = File::open("/dev/null") {
        files.push(file);
    }
    let arrival = loop {
        if let Some(arrival) = step(&mut arrivals).pop() {
            break arrival;
        }
        assert!(begin.elapsed() < LONG);
        thread::sleep(Duration::from_millis(1));
    };
    assert_eq!(arrival.hello, hello);
    assert!(refused > 0);
    // The one that was silent longest has lost its place.
    assert!(silent[0].read(&mut [0]).is_err());
    // Peers that lost their places left some.
    while let Ok(file) = File::open("/dev/null") {
        files.push(file);
    }
    let patient = Timeouts { connect: LONG, ..timeouts };
    // The first lookup of a process: until one has succeeded, glibc reports an unknown name.
    let name = format!("localhost:{}", address.port());
    let connecting = thread::spawn(move || Link::<NoPurpose>::connect(&name, &patient));
    thread::sleep(Duration::from_millis(100));
    assert!(!connecting.is_finished());
    drop(files);
    connecting.join().unwrap().unwrap();
}
