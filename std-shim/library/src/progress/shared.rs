//! State that the thread, its owner and all handles share, and what wakes the thread.

use crate::sync::{AtomicBool, Mutex, MutexGuard, Thread, current, is_current, poll, system_call};
use polyrail_core::spsc::Doorbell;
use polyrail_process::{Forked, Process};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, PoisonError};
use std::task::Wake;
use std::time::Duration;

/// Locks, even if an earlier holder panicked.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread that drives a set.
#[derive(Debug)]
pub(super) struct Driver {
    /// Set by the thread before it ever sleeps, or wakes a task.
    thread: OnceLock<Thread>,
    process: Process,
}

impl Driver {
    /// A thread that this process starts.
    pub(super) fn new() -> Self {
        Self { thread: OnceLock::new(), process: Process::current() }
    }

    /// Whether it is the calling thread, which then runs a waker.
    pub(super) fn is_current(&self) -> bool {
        self.thread.get().is_some_and(is_current)
    }

    /// Refuses forks of the process that started the thread: they do not have it.
    #[inline]
    pub(super) fn check_process(&self) -> Result<(), Forked> {
        self.process.check()
    }

    /// Whether the calling process is a fork of the one that started the thread.
    #[inline]
    pub(super) fn is_forked(&self) -> bool {
        !self.process.is_current()
    }
}

/// What a kind of thread shares with its owner and its handles.
pub(super) trait Mailbox {
    /// The thread ends and takes nothing any more.
    fn end(&self);
}

/// State that is read often and written seldom, so that it stays in every processor's cache. `P` is
/// the thread's side of a handle, `X` the mailbox of its kind of set.
#[derive(Debug)]
pub(super) struct Shared<P, X> {
    /// Whether the thread sleeps.
    bell: Doorbell,
    pub(super) driver: Arc<Driver>,
    /// The thread sleeps on it if it also waits for completions.
    alarm: Option<Alarm>,
    /// The thread accepts no more requests.
    closing: AtomicBool,
    /// Ports that the thread has not adopted yet; `None` once it adopts no more.
    newcomers: Mutex<Option<Vec<P>>>,
    /// Whether there are any.
    has_newcomers: AtomicBool,
    /// What else this kind of thread shares.
    pub(super) mailbox: X,
}

impl<P, X> Shared<P, X> {
    pub(super) fn new(mailbox: X, alarm: Option<Alarm>) -> Self {
        Self {
            bell: Doorbell::new(),
            driver: Arc::new(Driver::new()),
            alarm,
            closing: AtomicBool::new(false),
            newcomers: Mutex::new(Some(Vec::new())),
            has_newcomers: AtomicBool::new(false),
            mailbox,
        }
    }

    /// Wakes the thread if it sleeps. To be called after every change that the thread has to see.
    pub(super) fn wake(&self) {
        // A fork shares the alarm with its parent, whose thread has nothing to do.
        if !self.bell.ring() || self.driver.is_forked() {
            return;
        }
        match &self.alarm {
            Some(alarm) => alarm.ring(),
            None => _ = self.driver.thread.get().map(Thread::unpark),
        }
    }

    /// Returns the alarm on which the thread sleeps if it also waits for completions.
    pub(super) const fn alarm(&self) -> Option<&Alarm> {
        self.alarm.as_ref()
    }

    /// Has the thread drain and end.
    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.wake();
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Returns the mailbox, except in a fork, where a lock that the thread held stays locked.
    pub(super) fn owned_mailbox(&self) -> Option<&X> {
        (!self.driver.is_forked()).then_some(&self.mailbox)
    }

    /// Hands the port of a new handle to the thread. If the thread is gone, the port is dropped,
    /// and the handle finds its rings closed.
    pub(super) fn introduce(&self, port: P) {
        if self.driver.is_forked() {
            return;
        }
        if let Some(newcomers) = lock(&self.newcomers).as_mut() {
            newcomers.push(port);
            self.has_newcomers.store(true, Ordering::Release);
        }
        self.wake();
    }
}

/// Other threads of the process, which send repair messages, wake the thread, too.
impl<P: Send, X: Send + Sync> Wake for Shared<P, X> {
    fn wake(self: Arc<Self>) {
        Self::wake(&self);
    }
}

/// The thread's methods.
impl<P, X> Shared<P, X> {
    /// Records which thread to wake.
    pub(super) fn enter(&self) {
        // Called once.
        _ = self.driver.thread.set(current());
    }

    /// Takes the ports that were introduced since the last call.
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

    /// Runs a last check and the sleep that follows it. A change that the check does not see
    /// [wakes](Self::wake) the thread, because the bell is armed before.
    pub(super) fn while_armed(&self, check_and_sleep: impl FnOnce()) {
        self.bell.arm();
        check_and_sleep();
        self.bell.disarm();
    }

    /// Refuses requests and new ports from now on.
    fn leave(&self)
    where
        X: Mailbox,
    {
        self.closing.store(true, Ordering::Release);
        let newcomers = lock(&self.newcomers).take();
        drop(newcomers);
        self.mailbox.end();
    }
}

/// The thread's reference to the shared state. However the thread ends, dropping it leaves no
/// handle waiting.
#[derive(Debug)]
pub(super) struct Presence<P, X: Mailbox>(pub(super) Arc<Shared<P, X>>);

impl<P, X: Mailbox> Drop for Presence<P, X> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// Events that the owner of the thread has not read. Only the newest are kept, since an owner need
/// not read them.
#[derive(Debug)]
pub(super) struct RecentEvents<E>(Mutex<VecDeque<E>>);

/// The number of events that are kept.
const MOST_EVENTS: usize = 256;

impl<E> Default for RecentEvents<E> {
    fn default() -> Self {
        Self(Mutex::new(VecDeque::new()))
    }
}

impl<E> RecentEvents<E> {
    pub(super) fn push(&self, event: E) {
        let mut events = lock(&self.0);
        if events.len() == MOST_EVENTS {
            events.pop_front();
        }
        events.push_back(event);
    }

    /// Takes the oldest event.
    pub(super) fn pop(&self) -> Option<E> {
        lock(&self.0).pop_front()
    }
}

/// A file descriptor that wakes a thread which waits for completion channels at the same time.
#[derive(Debug)]
pub(super) struct Alarm(OwnedFd);

impl Alarm {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Ends the current sleep, or the next one.
    pub(super) fn ring(&self) {
        system_call();
        // It fails only at 2^64 - 1 unread rings, and then the alarm rings already.
        _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Sleeps until the alarm rings, `completions` can be read, or `timeout` is over. Returns
    /// whether `completions` can be read.
    pub(super) fn sleep(
        &self,
        completions: Option<BorrowedFd<'_>>,
        timeout: Option<Duration>,
    ) -> bool {
        let own = PollFd::from_borrowed_fd(self.0.as_fd(), PollFlags::IN);
        let of_completions = completions.unwrap_or(self.0.as_fd());
        let mut both = [own, PollFd::from_borrowed_fd(of_completions, PollFlags::IN)];
        let watched = 1 + usize::from(completions.is_some());
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        // A signal wakes it as well, and nothing else goes wrong: the file descriptors are open.
        _ = poll(&mut both[..watched], timeout.as_ref());
        system_call();
        // Clears the alarm; it fails if there was no ring.
        _ = rustix::io::read(&self.0, &mut [0; 8]);
        completions.is_some() && !both[1].revents().is_empty()
    }
}

#[cfg(test)]
mod rt_tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn it_ends_a_sleep_that_has_not_begun_once() {
        let [alarm, other] = [(); 2].map(|()| Alarm::new().unwrap());
        alarm.ring();
        assert!(!alarm.sleep(None, None));
        let begin = Instant::now();
        let nap = Duration::from_millis(5);
        assert!(!alarm.sleep(Some(other.0.as_fd()), Some(nap)));
        assert!(begin.elapsed() >= nap);
        other.ring();
        assert!(alarm.sleep(Some(other.0.as_fd()), None));
    }
}
