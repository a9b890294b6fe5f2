//! A child of fork that lives on does not keep the address of its parent's metrics.

#[path = "../../process/tests/in_fork/mod.rs"]
mod in_fork;

use in_fork::in_fork;
use polyrail::metrics::{Exporter, Metrics, Target};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;

#[test]
fn the_address_is_free_while_a_child_lives() {
    let target = Target::Address("127.0.0.1:0".to_owned());
    let exporter = Exporter::start(Metrics::new("test"), &target).unwrap();
    let address = exporter.local_addr().unwrap();
    let (mut here, mut there) = UnixStream::pair().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            in_fork(|| {
                there.write_all(b"c").unwrap();
                there.read_exact(&mut [0]).unwrap();
            });
        });
        here.read_exact(&mut [0]).unwrap();
        // The child has the socket, and waits.
        drop(exporter);
        let refused = TcpStream::connect(address).map(drop);
        let bound = TcpListener::bind(address).map(drop);
        here.write_all(b"p").unwrap();
        refused.unwrap_err();
        bound.unwrap();
    });
}
