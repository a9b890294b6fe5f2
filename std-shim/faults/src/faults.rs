//! The handle with which tests inject faults.

use crate::fault::{DriverFault, WorkQueue};
use crate::plan::{BatchFault, Cut, Plan};
use crate::roster::Roster;
use polyrail_core::hardware::Refusal;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The faults of one device's driver. A cheap handle: clones refer to the same driver.
///
/// [Injected](Self::inject) faults affect every object that it has wrapped
/// ([`queue_pair`](Self::queue_pair), [`receive_queue`](Self::receive_queue),
/// [`completion_queue`](Self::completion_queue), [`domain`](Self::domain)). They may be injected
/// from any thread.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Shared>);

/// The atomics let batches and polls skip the lock as long as no fault is planned.
#[derive(Debug, Default)]
struct Shared {
    has_plan: AtomicBool,
    plan: Mutex<Plan>,
    delay_nanos: AtomicU64,
    roster: Mutex<Roster>,
}

/// Locks a mutex, poisoned or not: a driver continues after a thread of a test panicked.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Faults {
    /// Makes a driver without faults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Injects a fault.
    pub fn inject(&self, fault: DriverFault) {
        match fault {
            DriverFault::AcceptOnly { queue, nth_batch, requests, refusal } => {
                let cut = Cut { requests, refusal };
                self.change(|plan| plan.add(BatchFault { queue, skip: nth_batch, repeat: 1, cut }));
            }
            DriverFault::QueueFull { queue, commits } => {
                let cut = Cut { requests: 0, refusal: Refusal::QueueFull };
                self.change(|plan| plan.add(BatchFault { queue, skip: 0, repeat: commits, cut }));
            }
            DriverFault::DelayCompletions(delay) => self.set_delay(delay),
            DriverFault::FailPolls { errno, polls } => {
                self.change(|plan| plan.fail_polls(errno, polls));
            }
            DriverFault::DelayLastWqe { asks } => self.change(|plan| plan.delay_last_wqe(asks)),
        }
    }

    /// Ends all faults, including those that still wait for their batch. Completions that are held
    /// back keep their delay.
    pub fn lift(&self) {
        self.change(|plan| *plan = Plan::default());
        self.set_delay(Duration::ZERO);
    }

    /// Returns whether a fault still waits for its batch, poll or query.
    pub fn is_waiting(&self) -> bool {
        self.0.has_plan.load(Relaxed)
    }

    fn set_delay(&self, delay: Duration) {
        let nanos = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
        self.0.delay_nanos.store(nanos, Relaxed);
    }

    fn change<R>(&self, change: impl FnOnce(&mut Plan) -> R) -> R {
        let mut plan = lock(&self.0.plan);
        let result = change(&mut plan);
        self.0.has_plan.store(!plan.is_empty(), Relaxed);
        result
    }

    fn consult<R>(&self, ask: impl FnOnce(&mut Plan) -> Option<R>) -> Option<R> {
        if self.is_waiting() { self.change(ask) } else { None }
    }

    /// Returns what happens to the present batch.
    pub(crate) fn on_commit(&self, queue: WorkQueue) -> Option<Cut> {
        self.consult(|plan| plan.on_commit(queue))
    }

    /// Returns the code with which the present poll fails.
    pub(crate) fn on_poll(&self) -> Option<i32> {
        self.consult(Plan::on_poll)
    }

    /// Counts a query for the last receive, and returns whether it comes too early.
    pub(crate) fn delays_last_wqe(&self) -> bool {
        self.consult(Plan::on_last_wqe).is_some()
    }

    /// Returns how long completions are held back.
    pub(crate) fn delay(&self) -> Duration {
        Duration::from_nanos(self.0.delay_nanos.load(Relaxed))
    }

    /// Returns the queue pairs whose completions may be held back.
    pub(crate) fn roster(&self) -> MutexGuard<'_, Roster> {
        lock(&self.0.roster)
    }
}
