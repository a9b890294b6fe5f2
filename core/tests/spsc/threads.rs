//! Threads, or loom's models of them.

#[cfg(polyrail_loom)]
pub(crate) use loom::thread::{JoinHandle, spawn, yield_now};
#[cfg(not(polyrail_loom))]
pub(crate) use std::thread::{JoinHandle, spawn, yield_now};

/// A place for one thread to sleep: a wake-up that comes first ends the sleep at once. (Loom's
/// model of `park` loses those that meet a thread which yields.)
#[cfg(polyrail_loom)]
pub(crate) type Bed = loom::sync::Notify;

/// A place for one thread to sleep: a wake-up that comes first ends the sleep at once.
#[cfg(not(polyrail_loom))]
pub(crate) struct Bed(std::thread::Thread);

#[cfg(not(polyrail_loom))]
impl Bed {
    /// For the calling thread.
    pub(crate) fn new() -> Self {
        Self(std::thread::current())
    }

    pub(crate) fn wait(&self) {
        std::thread::park();
    }

    pub(crate) fn notify(&self) {
        self.0.unpark();
    }
}
