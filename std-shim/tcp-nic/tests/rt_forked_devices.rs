//! Forks: a program of its own, because its children have all descriptors.

mod support;

use polyrail_tcp_nic::{Device, DeviceOptions};
use std::io::ErrorKind;
use std::net::TcpStream;
use support::{exchange, pair, thread, wait};

/// A child that only waits.
struct Child(libc::pid_t);

impl Child {
    fn new() -> Self {
        // SAFETY: the child calls only functions that are safe after a fork.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            loop {
                // SAFETY: no memory is involved.
                unsafe { libc::pause() };
            }
        }
        Self(pid)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: no memory is involved.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

/// A child keeps the descriptors of its parent open, and with them what the parent has closed.
#[test]
fn devices_that_are_closed_are_not_served_although_a_child_has_them() {
    let (mut near, mut far) = pair("127.5.4.1", "127.5.5.1");
    exchange(&mut near, &mut far, 1);
    // More than there are I/O threads.
    let open = |number| Device::open(&format!("127.5.4.{number}"), &DeviceOptions::default());
    let count = std::thread::available_parallelism().unwrap().get().min(100) as u8;
    let devices: Vec<_> = (10..12 + count).map(|number| open(number).unwrap()).collect();
    let queues: Vec<_> = devices.iter().map(|device| device.create_cq(8).unwrap()).collect();
    let listeners: Vec<_> = devices.iter().map(Device::address).collect();
    let child = Child::new();
    drop((queues, devices));
    for to in &listeners {
        // An I/O thread that was looking at the device when its owner left closes it, and resets
        // what has connected meanwhile.
        wait("the end of a listener", || {
            let refused = TcpStream::connect(to).err();
            refused.is_some_and(|error| error.kind() == ErrorKind::ConnectionRefused)
        });
    }
    // The port is free, although the child has the descriptor.
    let options = DeviceOptions { port: listeners[0].port(), ..DeviceOptions::default() };
    drop(Device::open("127.5.4.10", &options).unwrap());
    assert!(!thread::spins());
    drop(child);
    exchange(&mut near, &mut far, 2);
}
