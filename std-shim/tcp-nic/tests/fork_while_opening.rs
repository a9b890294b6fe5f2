//! Forks while another thread opens devices: the child, in which that thread does not exist, opens
//! its own.

#[path = "../../process/tests/in_fork/mod.rs"]
mod in_fork;

use in_fork::in_fork;
use polyrail_tcp_nic::{Device, DeviceOptions};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

fn open(address: &str) {
    drop(Device::open(address, &DeviceOptions::default()).unwrap());
}

/// Ends the thread also if the test fails.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_child_waits_for_no_thread_of_its_parent() {
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                open("127.5.6.1");
            }
        });
        let _done = Done(&is_done);
        for _ in 0..100 {
            in_fork(|| open("127.5.6.2"));
        }
    });
}
