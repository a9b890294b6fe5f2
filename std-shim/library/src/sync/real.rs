//! What programs use.

pub(crate) use atomic_waker::AtomicWaker;
pub(crate) use pollster::block_on;
pub(crate) use rustix::event::poll;
pub(crate) use std::sync::atomic::{AtomicBool, fence};
pub(crate) use std::sync::{Arc as RingArc, Mutex, MutexGuard};
pub(crate) use std::thread::{JoinHandle, Thread, current, park, park_timeout};

/// Whether the calling thread is this one.
pub(crate) fn is_current(thread: &Thread) -> bool {
    thread.id() == current().id()
}

/// A thread that was not started yet.
pub(crate) fn new_thread() -> std::thread::Builder {
    std::thread::Builder::new()
}

/// Before a system call that another thread may see; only its model needs it.
#[inline(always)]
pub(crate) const fn system_call() {}
