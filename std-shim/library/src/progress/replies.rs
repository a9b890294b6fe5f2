//! Reports from the thread about the requests of one handle, of one kind.

use super::HANDLE_DEPTH;
use super::inbox::{Inbox, Report, ReportProducer, ReportRing};
use super::outcome::{Outcome, SubmitError};
use super::shared::{Driver, lock};
use crate::sync::{AtomicBool, AtomicWaker, Mutex, fence};
use polyrail_core::spsc::Ring;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;

/// The state that a handle shares with its [`Pending`](super::Pending)s.
///
/// The lock makes them one consumer of the ring of reports: a handle and its `Pending`s may be in
/// different threads, and each check takes the reports for all of them. The lock is held for one
/// check. The progress thread has only the wakers, so it never waits for the lock.
#[derive(Debug)]
pub(super) struct Replies<O: Outcome> {
    pub(super) inbox: Mutex<Inbox<O>>,
    /// By slot, the task that waits for the request.
    pub(super) waiters: Arc<[Waiter]>,
    /// The thread that carries the requests out.
    pub(super) driver: Arc<Driver>,
}

/// A handle's side of the slots of its requests of one kind.
#[derive(Debug)]
pub(super) struct Slots<O: Outcome> {
    pub(super) replies: Arc<Replies<O>>,
    /// Free slots. The handle takes all that are free at once, so that one lock serves many
    /// requests.
    free: Vec<u16>,
}

impl<O: Outcome> Slots<O> {
    pub(super) fn new(replies: Replies<O>) -> Self {
        Self { replies: Arc::new(replies), free: (0..HANDLE_DEPTH as u16).rev().collect() }
    }

    /// Reserves a slot for a request.
    #[inline]
    pub(super) fn reserve(&mut self) -> Result<u16, SubmitError> {
        if self.free.is_empty() {
            lock(&self.replies.inbox).take_free(&mut self.free)?;
        }
        self.free.pop().ok_or(SubmitError::Full)
    }

    /// Takes back a slot whose request was not handed over.
    pub(super) fn release(&mut self, slot: u16) {
        self.free.push(slot);
    }
}

/// The place of a task that waits for a request.
///
/// A task registers and then looks for its report; the thread reports and then looks for registered
/// tasks. Each executes a fence between its two steps, so at least one of them sees the other's
/// first step. One fence of the thread serves many reports, and slots whose requests are only
/// checked now and then cost no wake-up.
#[derive(Debug)]
pub(super) struct Waiter {
    /// A task has waited for the current request of this slot, or an earlier one.
    waits: AtomicBool,
    waker: AtomicWaker,
}

impl Waiter {
    fn new() -> Self {
        Self { waits: AtomicBool::new(false), waker: AtomicWaker::new() }
    }

    /// Registers a task. The task looks for its report afterwards, since an earlier report does not
    /// wake it.
    pub(super) fn register(&self, waker: &Waker) {
        self.waker.register(waker);
        self.waits.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Removes the task.
    pub(super) fn forget(&self) {
        drop(self.waker.take());
    }

    /// Wakes the task. To be called after a report and a fence.
    fn wake(&self) {
        if self.waits.load(Ordering::Acquire) {
            self.wake_in_any_case();
        }
    }

    /// Wakes the task if there is one. A panic of its waker ends here, because the thread has other
    /// tasks, too. The panic hook has reported it.
    fn wake_in_any_case(&self) {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| self.waker.wake())) {
            // Dropping it may panic again.
            std::mem::forget(payload);
        }
    }
}

/// The tasks that wait for requests of a handle. The thread wakes all of them when it drops this.
#[derive(Debug)]
struct Waiters(Arc<[Waiter]>);

impl Drop for Waiters {
    fn drop(&mut self) {
        self.0.iter().for_each(Waiter::wake_in_any_case);
    }
}

/// The thread's side: reports how requests end.
#[derive(Debug)]
pub(super) struct Reporter<O: Outcome> {
    reports: ReportProducer<O>,
    /// Reports that are not in the ring yet.
    noted: Vec<Report<O>>,
    // Dropped after `reports`: a task that it wakes finds the ring closed.
    waiters: Waiters,
}

impl<O: Outcome> Drop for Reporter<O> {
    fn drop(&mut self) {
        // Requests that ended before a panic keep their outcomes.
        self.wake();
    }
}

/// Makes both sides of the ring of reports, for requests that `driver` carries out.
pub(super) fn replies<O: Outcome>(driver: &Arc<Driver>) -> (Replies<O>, Reporter<O>) {
    let ring = ReportRing::default();
    let Ok((reports, receiver)) = Ring::split_shared(ring) else { unreachable!("a new ring") };
    let waiters: Arc<[Waiter]> = (0..HANDLE_DEPTH).map(|_| Waiter::new()).collect();
    let inbox = Mutex::new(Inbox::new(receiver));
    let replies = Replies { inbox, waiters: Arc::clone(&waiters), driver: Arc::clone(driver) };
    let noted = Vec::with_capacity(HANDLE_DEPTH);
    (replies, Reporter { reports, noted, waiters: Waiters(waiters) })
}

impl<O: Outcome> Reporter<O> {
    pub(super) fn report(&mut self, slot: u16, outcome: O) {
        self.note(slot, outcome);
        self.wake();
    }

    /// Notes a report, one of many. The caller calls [`wake`](Self::wake) afterwards.
    pub(super) fn note(&mut self, slot: u16, outcome: O) {
        self.noted.push(Report { slot, outcome });
    }

    /// Hands all noted reports to the handle at once, and wakes the tasks that wait for them.
    pub(super) fn wake(&mut self) {
        if self.noted.is_empty() {
            return;
        }
        let mut noted = self.noted.iter().copied();
        self.reports.push_batch(&mut noted);
        // The ring has as many places as the handle has slots, so reports are left only if the
        // handle and its `Pending`s are gone.
        debug_assert!(
            noted.next().is_none() || self.reports.is_closed(),
            "a slot was reported twice"
        );
        fence(Ordering::SeqCst);
        for report in self.noted.drain(..) {
            self.waiters.0[usize::from(report.slot)].wake();
        }
    }
}
