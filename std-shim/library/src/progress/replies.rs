//! The way back from the thread, for one handle's requests of one kind.

use super::depth::HANDLE_DEPTH;
use super::inbox::Inbox;
use super::outcome::{Outcome, Report};
use super::rings::{ReportProducer, ReportRing};
use atomic_waker::AtomicWaker;
use polyrail_core::spsc::{PushError, Ring};
use std::sync::{Arc, Mutex};

/// What a handle and its [`Pending`](super::Pending)s share.
///
/// The lock makes them one consumer of the ring of reports: a handle and its Pendings may be in
/// different threads, and each check takes the reports of all. It is held for one check. The progress
/// thread never waits for it, since it only knows the wakers, and neither do other handles.
#[derive(Debug)]
pub(super) struct Replies<O: Outcome> {
    pub(super) inbox: Mutex<Inbox<O>>,
    /// For each slot, the waker of the task that waits for its request.
    pub(super) wakers: Arc<[AtomicWaker]>,
}

/// The wakers of a handle; all are woken when the thread drops them.
#[derive(Debug)]
struct Wakers(Arc<[AtomicWaker]>);

impl Drop for Wakers {
    fn drop(&mut self) {
        self.0.iter().for_each(AtomicWaker::wake);
    }
}

/// The thread's side: reports how requests ended.
#[derive(Debug)]
pub(super) struct Reporter<O: Outcome> {
    reports: ReportProducer<O>,
    // After `reports`: a task that is woken at the end finds the ring closed.
    wakers: Wakers,
}

/// Makes both sides.
pub(super) fn replies<O: Outcome>() -> (Replies<O>, Reporter<O>) {
    let ring = ReportRing::default();
    let Ok((reports, receiver)) = Ring::split_shared(ring) else { unreachable!("a new ring") };
    let wakers: Arc<[AtomicWaker]> = (0..HANDLE_DEPTH).map(|_| AtomicWaker::new()).collect();
    let replies = Replies { inbox: Mutex::new(Inbox::new(receiver)), wakers: Arc::clone(&wakers) };
    (replies, Reporter { reports, wakers: Wakers(wakers) })
}

impl<O: Outcome> Reporter<O> {
    pub(super) fn report(&mut self, slot: u16, outcome: O) {
        match self.reports.push(Report { slot, outcome }) {
            Ok(()) => self.wakers.0[usize::from(slot)].wake(),
            // The handle and its `Pending`s are gone.
            Err(PushError::Closed(_)) => {}
            Err(PushError::Full(_)) => unreachable!("a handle has no more slots than the ring"),
        }
    }
}
