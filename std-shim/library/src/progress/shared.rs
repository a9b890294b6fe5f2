//! What the thread, its owner and all handles share.

use super::alarm::Alarm;
use super::lock::lock;
use crate::sync::{AtomicBool, Mutex, Thread, current};
use polyrail_core::spsc::Doorbell;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

/// Read often and written seldom, so that it stays in every processor's cache. `P` is the thread's side of a handle,
/// `X` what a kind of thread shares besides.
#[derive(Debug)]
pub(super) struct Shared<P, X> {
    /// Whether the thread sleeps.
    bell: Doorbell,
    /// The thread; set by itself, before it ever sleeps.
    thread: OnceLock<Thread>,
    /// What it sleeps on, if it waits for completions too.
    alarm: Option<Alarm>,
    /// The thread takes no more requests.
    closing: AtomicBool,
    /// Handles that the thread does not know yet; `None` when it takes no more.
    newcomers: Mutex<Option<Vec<P>>>,
    /// Whether there are any.
    has_newcomers: AtomicBool,
    /// What this kind of thread shares besides.
    pub(super) news: X,
}

impl<P, X> Shared<P, X> {
    pub(super) fn new(news: X, alarm: Option<Alarm>) -> Self {
        Self {
            bell: Doorbell::new(),
            thread: OnceLock::new(),
            alarm,
            closing: AtomicBool::new(false),
            newcomers: Mutex::new(Some(Vec::new())),
            has_newcomers: AtomicBool::new(false),
            news,
        }
    }

    /// To be called after anything that the thread has to see.
    pub(super) fn wake(&self) {
        if !self.bell.ring() {
            return;
        }
        match &self.alarm {
            Some(alarm) => alarm.ring(),
            None => _ = self.thread.get().map(Thread::unpark),
        }
    }

    /// What the thread sleeps on, if it waits for completions too.
    pub(super) fn alarm(&self) -> Option<&Alarm> {
        self.alarm.as_ref()
    }

    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.wake();
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// The thread has ended.
    pub(super) fn is_gone(&self) -> bool {
        lock(&self.newcomers).is_none()
    }

    /// Hands a handle's other side to the thread. If that is gone, the handle learns it by its
    /// rings.
    pub(super) fn introduce(&self, side: P) {
        if let Some(newcomers) = lock(&self.newcomers).as_mut() {
            newcomers.push(side);
            self.has_newcomers.store(true, Ordering::Release);
        }
        self.wake();
    }
}

/// The thread's methods.
impl<P, X> Shared<P, X> {
    /// Records which thread it is.
    pub(super) fn enter(&self) {
        // Called once.
        _ = self.thread.set(current());
    }

    /// The handles that were made since the last call.
    pub(super) fn take_newcomers(&self) -> Vec<P> {
        if !self.has_newcomers() {
            return Vec::new();
        }
        self.has_newcomers.store(false, Ordering::Relaxed);
        lock(&self.newcomers).as_mut().map(std::mem::take).unwrap_or_default()
    }

    pub(super) fn has_newcomers(&self) -> bool {
        self.has_newcomers.load(Ordering::Acquire)
    }

    /// Sleeps, unless a last check shows something to do.
    pub(super) fn sleep(&self, something_to_do: impl FnOnce() -> bool, sleep: impl FnOnce()) {
        self.while_armed(|| {
            if !something_to_do() {
                sleep();
            }
        });
    }

    /// The same where the last check and the sleep are one. From before the check on, whoever has something for the
    /// thread [wakes](Self::wake) it.
    pub(super) fn while_armed(&self, check_and_sleep: impl FnOnce()) {
        self.bell.arm();
        check_and_sleep();
        self.bell.disarm();
    }

    /// The thread ends: no handle is adopted any more.
    pub(super) fn leave(&self) {
        self.closing.store(true, Ordering::Release);
        let newcomers = lock(&self.newcomers).take();
        drop(newcomers);
    }
}

/// The thread's hold of what is shared; however the thread ends, nobody waits for it afterwards.
#[derive(Debug)]
pub(super) struct Presence<P, X>(pub(super) Arc<Shared<P, X>>);

impl<P, X> Drop for Presence<P, X> {
    fn drop(&mut self) {
        self.0.leave();
    }
}
