//! A flood of connections: in a program of its own, because it counts descriptors.

mod support;

use polyrail_nic_parts::options::ConnectOptions;
use polyrail_tcp_nic::connect_pair;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use support::raw::Greeted;
use support::{Side, exchange, raw};

/// Waits until the other end closes the connection, without a word.
fn closed(stream: &mut TcpStream) {
    match stream.read(&mut [0]) {
        Ok(0) => {}
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
        other => panic!("the connection is not closed: {other:?}"),
    }
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Three hundred connections that say nothing, and one that sends a byte a second.
#[test]
fn strangers_keep_nobody_from_connecting_and_are_closed() {
    const STRANGERS: usize = 300;
    let (mut near, mut far) = (Side::new("127.5.0.9"), Side::new("127.5.1.9"));
    connect_pair(&near.qp, &far.qp, &ConnectOptions::default()).unwrap();
    exchange(&mut near, &mut far, 1);
    let before = descriptors();
    // The lesser address connects, so honest queue pairs meet at the listener that is flooded.
    let flooded = far.device.address();
    // A peer that is far away: its proof comes late.
    let distant = Side::on(&far.device);
    distant.qp.to_rtr(&raw::address(), &ConnectOptions::default()).unwrap();
    let greeted = Greeted::to(flooded, distant.qp.as_remote(0).qp_num).unwrap();
    let mut strangers: Vec<_> = (0..STRANGERS).map(|_| raw::connect(flooded)).collect();
    let began = Instant::now();
    exchange(&mut near, &mut far, 2);
    let mut slow = raw::connect(flooded);
    let hello = raw::hello(1, far.qp.as_remote(0).qp_num, 1, [0; 16]);
    let mut honest = Side::on(&near.device);
    let mut other = Side::on(&far.device);
    connect_pair(&honest.qp, &other.qp, &ConnectOptions::default()).unwrap();
    exchange(&mut honest, &mut other, 3);
    // All strangers were accepted meanwhile.
    let proven = greeted.prove(&distant.qp.meeting().key.0);
    assert!(
        proven.is_ok() || began.elapsed() > Duration::from_secs(4),
        "{:?}",
        proven.as_ref().err()
    );
    drop((proven, distant));
    // The oldest go, and the newest stay until their time is over.
    closed(&mut strangers[0]);
    let newest = &mut strangers[STRANGERS - 1];
    newest.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    let is_open =
        newest.read(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
    assert!(is_open || began.elapsed() > Duration::from_secs(4), "the newest is closed");
    newest.set_read_timeout(Some(support::LONG)).unwrap();
    // The strangers' ends are in this process, too; 32 are enough for the two queue pairs.
    let open = descriptors() - before - STRANGERS;
    assert!(open <= 64 + 32, "{open} descriptors");
    for byte in hello {
        if slow.write_all(&[byte]).is_err() {
            break;
        }
        std::thread::sleep(Duration::from_millis(300));
    }
    closed(&mut slow);
    for mut stranger in strangers {
        closed(&mut stranger);
    }
    exchange(&mut near, &mut far, 4);
}
