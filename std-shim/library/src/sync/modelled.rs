//! Models of them for loom. File descriptors are real, and are polled in a loop.
//!
//! A timeout of less than a millisecond expires at once, and a longer one never. Long timeouts are
//! for conditions without notification, so a test that depends on one has lost a notification.

pub(crate) use loom::future::block_on;
pub(crate) use loom::sync::atomic::{AtomicBool, fence};
pub(crate) use loom::sync::{Mutex, MutexGuard};
pub(crate) use loom::thread::JoinHandle;

use loom::sync::Notify;
use loom::sync::atomic::{AtomicUsize, Ordering};
use rustix::event::{PollFd, Timespec};
use rustix::io::Result;
use stable_deref_trait::{CloneStableDeref, StableDeref};
use std::ops::Deref;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

/// A timeout that is over at once is shorter.
const LONG: Duration = Duration::from_millis(1);

/// What its users expect of it: who registers sees what was done before a wake-up that came too
/// early.
#[derive(Debug, Default)]
pub(crate) struct AtomicWaker(Mutex<Option<Waker>>);

impl AtomicWaker {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    fn exchange(&self, waker: Option<Waker>) -> Option<Waker> {
        let mut place = self.0.lock().expect("a panic ends the model");
        std::mem::replace(&mut *place, waker)
    }

    pub(crate) fn register(&self, waker: &Waker) {
        drop(self.exchange(Some(waker.clone())));
    }

    pub(crate) fn take(&self) -> Option<Waker> {
        self.exchange(None)
    }

    pub(crate) fn wake(&self) {
        self.take().into_iter().for_each(Waker::wake);
    }
}

/// Shares a ring. Loom sees that the last owner to drop it sees the writes of the others.
#[derive(Debug, Default)]
pub(crate) struct RingArc<T>(loom::sync::Arc<T>);

impl<T> Clone for RingArc<T> {
    fn clone(&self) -> Self {
        Self(loom::sync::Arc::clone(&self.0))
    }
}

impl<T> Deref for RingArc<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

// SAFETY: loom's `Arc` is one of the standard library, whose owners are counted.
unsafe impl<T> StableDeref for RingArc<T> {}
// SAFETY: as above; clones share what they refer to.
unsafe impl<T> CloneStableDeref for RingArc<T> {}

loom::thread_local! {
    /// Where a thread sleeps. (Loom's model of `park` loses wake-ups that meet a thread which
    /// yields.)
    static BED: Arc<Notify> = Arc::new(Notify::new());
}

fn bed() -> Arc<Notify> {
    BED.with(Arc::clone)
}

/// A thread, to be woken.
#[derive(Debug)]
pub(crate) struct Thread(Arc<Notify>);

impl Thread {
    pub(crate) fn unpark(&self) {
        self.0.notify();
    }
}

pub(crate) fn current() -> Thread {
    Thread(bed())
}

/// Whether the calling thread is this one.
pub(crate) fn is_current(thread: &Thread) -> bool {
    Arc::ptr_eq(&thread.0, &bed())
}

pub(crate) fn park() {
    bed().wait();
}

pub(crate) fn park_timeout(timeout: Duration) {
    if timeout < LONG { loom::thread::yield_now() } else { park() }
}

/// A thread that was not started yet, with room for a progress thread's stack.
pub(crate) fn new_thread() -> loom::thread::Builder {
    loom::thread::Builder::new().stack_size(1 << 17)
}

loom::lazy_static! {
    static ref SYSTEM_CALLS: AtomicUsize = AtomicUsize::new(0);
}

/// Before a system call that another thread may see: other threads may come first, and see what was
/// done before.
pub(crate) fn system_call() {
    SYSTEM_CALLS.fetch_add(1, Ordering::AcqRel);
}

pub(crate) fn poll(fds: &mut [PollFd<'_>], timeout: Option<&Timespec>) -> Result<usize> {
    let is_short =
        timeout.is_some_and(|timeout| *timeout < Timespec::try_from(LONG).expect("it is short"));
    loop {
        system_call();
        let ready = rustix::event::poll(fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
        if ready > 0 {
            return Ok(ready);
        }
        loom::thread::yield_now();
        if is_short {
            return Ok(0);
        }
    }
}
