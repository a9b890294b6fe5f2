//! Forks while another thread opens devices: the child, in which that thread does not exist, opens
//! its own.
//!
//! Threads start meanwhile. In a program whose `main` is Rust's, std then holds a lock of its own
//! for a moment (that of the handler of stack overflows), which a child would wait for without end
//! when it starts a thread. So `main` is C's here, as in a program that embeds the C library.

#![no_main]

#[path = "../../process/tests/in_fork/mod.rs"]
mod in_fork;

use in_fork::in_fork;
use libtest_mimic::{Arguments, Trial};
use polyrail_tcp_nic::{Device, DeviceOptions};
use std::ffi::{c_char, c_int};
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

#[unsafe(no_mangle)]
extern "C" fn main(_: c_int, _: *const *const c_char) -> c_int {
    let test = Trial::test("a_child_waits_for_no_thread_of_its_parent", || {
        a_child_waits_for_no_thread_of_its_parent();
        Ok(())
    });
    // On this thread: others would start and end meanwhile.
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    c_int::from(libtest_mimic::run(&arguments, vec![test]).has_failed())
}
