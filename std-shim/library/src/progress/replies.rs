//! The way back from the thread, for one handle's requests of one kind.

use super::HANDLE_DEPTH;
use super::inbox::{Inbox, Report, ReportProducer, ReportRing};
use super::pending::Outcome;
use crate::sync::{AtomicBool, AtomicWaker, Mutex, fence};
use polyrail_core::spsc::Ring;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;

/// What a handle and its [`Pending`](super::Pending)s share.
///
/// The lock makes them one consumer of the ring of reports: a handle and its Pendings may be in
/// different threads, and each check takes the reports of all. It is held for one check. The progress
/// thread never waits for it, since it only knows the wakers, and neither do other handles.
#[derive(Debug)]
pub(super) struct Replies<O: Outcome> {
    pub(super) inbox: Mutex<Inbox<O>>,
    /// For each slot, the task that waits for its request.
    pub(super) waiters: Arc<[Waiter]>,
}

/// A task that waits for a request, or none.
///
/// A task says that it waits and then looks for its report; the thread reports and then looks who waits. A fence
/// lies between the two steps of each, so at least one of them sees what the other did. The thread needs one for
/// many reports, and wakes nobody who only looks now and then.
#[derive(Debug)]
pub(super) struct Waiter {
    /// A task has waited for a request in this slot, this one or an earlier one.
    waits: AtomicBool,
    waker: AtomicWaker,
}

impl Waiter {
    fn new() -> Self {
        Self { waits: AtomicBool::new(false), waker: AtomicWaker::new() }
    }

    /// To be woken from now on; what was reported before is to be looked for after this.
    pub(super) fn register(&self, waker: &Waker) {
        self.waker.register(waker);
        self.waits.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Nobody waits any more.
    pub(super) fn forget(&self) {
        drop(self.waker.take());
    }

    /// After a report and a fence.
    fn wake(&self) {
        if self.waits.load(Ordering::Acquire) {
            self.waker.wake();
        }
    }
}

/// Those who wait for a handle's requests; all are woken when the thread drops them.
#[derive(Debug)]
struct Waiters(Arc<[Waiter]>);

impl Drop for Waiters {
    fn drop(&mut self) {
        self.0.iter().for_each(|waiter| waiter.waker.wake());
    }
}

/// The thread's side: reports how requests ended.
#[derive(Debug)]
pub(super) struct Reporter<O: Outcome> {
    reports: ReportProducer<O>,
    /// Reports that the handle was not given yet.
    noted: Vec<Report<O>>,
    // After `reports`: a task that is woken at the end finds the ring closed.
    waiters: Waiters,
}

impl<O: Outcome> Drop for Reporter<O> {
    fn drop(&mut self) {
        // What ended before a panic has its outcome.
        self.wake();
    }
}

/// Makes both sides.
pub(super) fn replies<O: Outcome>() -> (Replies<O>, Reporter<O>) {
    let ring = ReportRing::default();
    let Ok((reports, receiver)) = Ring::split_shared(ring) else { unreachable!("a new ring") };
    let waiters: Arc<[Waiter]> = (0..HANDLE_DEPTH).map(|_| Waiter::new()).collect();
    let inbox = Mutex::new(Inbox::new(receiver));
    let replies = Replies { inbox, waiters: Arc::clone(&waiters) };
    let noted = Vec::with_capacity(HANDLE_DEPTH);
    (replies, Reporter { reports, noted, waiters: Waiters(waiters) })
}

impl<O: Outcome> Reporter<O> {
    pub(super) fn report(&mut self, slot: u16, outcome: O) {
        self.note(slot, outcome);
        self.wake();
    }

    /// Reports one of many; [`wake`](Self::wake) follows.
    pub(super) fn note(&mut self, slot: u16, outcome: O) {
        self.noted.push(Report { slot, outcome });
    }

    /// Gives the handle what was noted, all at once, and wakes those who wait for it.
    pub(super) fn wake(&mut self) {
        if self.noted.is_empty() {
            return;
        }
        let mut noted = self.noted.iter().copied();
        self.reports.push_batch(&mut noted);
        // What is left is of a handle that is gone, with its `Pending`s: it has no more slots than the ring.
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
