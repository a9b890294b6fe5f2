//! Faults of devices and links on request. For faults of drivers, see the crate `polyrail-faults`.

use polyrail_nic_parts::sync::{Apart, lock, nanos};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// When a fault happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// At once.
    Now,
    /// After the device has carried this many more payload bytes, of its own requests and its
    /// peers' together. A link that goes down this way cuts the message that crosses the mark: the
    /// bytes before it may have arrived, although the request fails.
    Bytes(u64),
    /// Before this step of a deterministic fabric, counted from the fabric's creation. Never on a
    /// threaded fabric.
    Step(u64),
}

/// A fault of a device, or its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// All ports go down. Requests through them are retried, then fail with RETRY_EXC_ERR.
    LinkDown,
    /// All ports come up.
    LinkUp,
    /// The device is unplugged: posting is refused with ENODEV, polling fails, and peers get no
    /// answers.
    DeviceGone,
    /// The next requests that need a receive here are answered "receiver not ready".
    ForceRnr {
        /// Number of requests, each retry included.
        requests: u32,
    },
    /// The next transitions of queue pairs to RTR fail with
    /// [`NoPath`](crate::ModifyError::NoPath), as over RoCE while no path to the peer's
    /// address is found. Zero ends it.
    RefuseRtr {
        /// Number of transitions.
        transitions: u32,
    },
    /// Transitions of queue pairs to RTR take this long, as over RoCE while the kernel searches for
    /// a path to the peer's address. Zero ends it.
    SearchPaths(Duration),
    /// Completions of this device become visible only after this time; zero ends it.
    DelayCompletions(Duration),
    /// The link drops requests without an error. They complete only when their queue pair is moved
    /// to ERR, as with drivers that never give up.
    Silent(bool),
    /// Acknowledgements are lost: requests are executed, but end with RETRY_EXC_ERR at the sender.
    LoseAcks(bool),
    /// Packets that arrive at the device are dropped, although its ports stay up and new queue
    /// pairs connect, as when a firewall filters RoCE's UDP port. Requests of its peers do not
    /// arrive, and its own requests are executed without an acknowledgement. All of them are
    /// retried, then fail with RETRY_EXC_ERR.
    DropArriving(bool),
    /// The device has an internal error: requests are executed, but fail. Its own requests fail
    /// with GENERAL_ERR. Its peers' requests fail with REM_OP_ERR, and their responders here enter
    /// ERR.
    FailRequests(bool),
    /// Queue pairs with a shared receive queue may take one more receive within this time after
    /// they entered ERR, for a message whose sender gets no answer. Zero ends it for queue pairs
    /// that are not in ERR yet. The last receive is not reached as long as that message may arrive.
    OneMoreReceive(Duration),
    /// Queue pairs that reach their last receive from a shared receive queue take one receive of
    /// it, which completes as flushed.
    TakeSharedReceive(bool),
}

/// Faults of one device, in any order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// The faults, and when they happen.
    pub faults: Vec<(When, Fault)>,
}

/// The present and planned faults of a device.
///
/// The fields that execution reads are atomics. The list behind the lock is read only when an
/// atomic shows that a fault is due.
#[derive(Debug)]
pub(crate) struct Faults {
    silent: AtomicBool,
    lose_acks: AtomicBool,
    drop_arriving: AtomicBool,
    fail_requests: AtomicBool,
    force_rnr: AtomicU32,
    refuse_rtr: AtomicU32,
    path_search: AtomicU64,
    delay: AtomicU64,
    one_more_receive: AtomicU64,
    take_shared_receive: AtomicBool,
    /// Payload bytes carried so far.
    bytes: Apart<AtomicU64>,
    /// The next mark in `planned`, and the next that cuts the link; `u64::MAX` means none.
    next_mark: AtomicU64,
    next_cut: AtomicU64,
    planned: Mutex<Vec<Planned>>,
}

#[derive(Clone, Copy, Debug)]
struct Planned {
    at: Mark,
    fault: Fault,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    Bytes(u64),
    Step(u64),
}

impl Faults {
    pub(crate) fn new() -> Self {
        Self {
            silent: AtomicBool::new(false),
            lose_acks: AtomicBool::new(false),
            drop_arriving: AtomicBool::new(false),
            fail_requests: AtomicBool::new(false),
            force_rnr: AtomicU32::new(0),
            refuse_rtr: AtomicU32::new(0),
            path_search: AtomicU64::new(0),
            delay: AtomicU64::new(0),
            one_more_receive: AtomicU64::new(0),
            take_shared_receive: AtomicBool::new(false),
            bytes: Apart::new(AtomicU64::new(0)),
            next_mark: AtomicU64::new(u64::MAX),
            next_cut: AtomicU64::new(u64::MAX),
            planned: Mutex::new(Vec::new()),
        }
    }

    pub(crate) fn is_silent(&self) -> bool {
        self.silent.load(Relaxed)
    }

    pub(crate) fn set_silent(&self, silent: bool) {
        self.silent.store(silent, Relaxed);
    }

    pub(crate) fn loses_acks(&self) -> bool {
        self.lose_acks.load(Relaxed)
    }

    pub(crate) fn set_loses_acks(&self, loses: bool) {
        self.lose_acks.store(loses, Relaxed);
    }

    pub(crate) fn drops_arriving(&self) -> bool {
        self.drop_arriving.load(Relaxed)
    }

    pub(crate) fn set_drops_arriving(&self, drops: bool) {
        self.drop_arriving.store(drops, Relaxed);
    }

    pub(crate) fn fails_requests(&self) -> bool {
        self.fail_requests.load(Relaxed)
    }

    pub(crate) fn set_fails_requests(&self, fails: bool) {
        self.fail_requests.store(fails, Relaxed);
    }

    /// Returns how long completions are delayed, in nanoseconds.
    pub(crate) fn delay(&self) -> u64 {
        self.delay.load(Relaxed)
    }

    pub(crate) fn set_delay(&self, delay: Duration) {
        self.delay.store(nanos(delay), Relaxed);
    }

    /// Returns how long a queue pair in ERR still takes one receive, in nanoseconds.
    pub(crate) fn one_more_receive(&self) -> u64 {
        self.one_more_receive.load(Relaxed)
    }

    pub(crate) fn set_one_more_receive(&self, within: Duration) {
        self.one_more_receive.store(nanos(within), Relaxed);
    }

    pub(crate) fn takes_shared_receive(&self) -> bool {
        self.take_shared_receive.load(Relaxed)
    }

    pub(crate) fn set_takes_shared_receive(&self, takes: bool) {
        self.take_shared_receive.store(takes, Relaxed);
    }

    pub(crate) fn add_forced_rnr(&self, requests: u32) {
        self.force_rnr.fetch_add(requests, Relaxed);
    }

    /// Returns whether requests are answered "receiver not ready".
    pub(crate) fn forces_rnr(&self) -> bool {
        self.force_rnr.load(Relaxed) != 0
    }

    /// Counts a request, and returns whether it is answered "receiver not ready".
    pub(crate) fn takes_forced_rnr(&self) -> bool {
        self.forces_rnr()
            && self.force_rnr.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok()
    }

    pub(crate) fn set_refused_rtr(&self, transitions: u32) {
        self.refuse_rtr.store(transitions, Relaxed);
    }

    /// Returns how many transitions to RTR are still refused.
    pub(crate) fn refused_rtr(&self) -> u32 {
        self.refuse_rtr.load(Relaxed)
    }

    /// Counts a transition to RTR, and returns whether it is refused.
    pub(crate) fn refuses_rtr(&self) -> bool {
        self.refuse_rtr.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok()
    }

    /// Returns how long transitions to RTR take, in nanoseconds.
    pub(crate) fn path_search(&self) -> u64 {
        self.path_search.load(Relaxed)
    }

    pub(crate) fn set_path_search(&self, search: Duration) {
        self.path_search.store(nanos(search), Relaxed);
    }

    /// Payload bytes carried so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Returns how many of `length` bytes pass before the link is cut.
    pub(crate) fn room(&self, length: u32) -> u32 {
        let cut = self.next_cut.load(Relaxed);
        if cut == u64::MAX {
            return length;
        }
        let left = cut.saturating_sub(self.bytes());
        u32::try_from(left).map_or(length, |left| left.min(length))
    }

    /// Counts `length` bytes; returns whether a planned fault is due now.
    pub(crate) fn count(&self, length: u32) -> bool {
        let before = self.bytes.fetch_add(u64::from(length), Relaxed);
        before + u64::from(length) >= self.next_mark.load(Relaxed)
    }

    pub(crate) fn plan_bytes(&self, after: u64, fault: Fault) {
        let at = Mark::Bytes(self.bytes().saturating_add(after));
        let mut planned = lock(&self.planned);
        planned.push(Planned { at, fault });
        self.refresh_marks(&planned);
    }

    pub(crate) fn plan_step(&self, step: u64, fault: Fault) {
        lock(&self.planned).push(Planned { at: Mark::Step(step), fault });
    }

    /// Removes and returns the next fault whose bytes have been carried.
    pub(crate) fn take_due_bytes(&self) -> Option<Fault> {
        let bytes = self.bytes();
        self.take(|at| matches!(at, Mark::Bytes(mark) if mark <= bytes))
    }

    /// Removes and returns the next fault whose step has come.
    pub(crate) fn take_due_step(&self, step: u64) -> Option<Fault> {
        self.take(|at| matches!(at, Mark::Step(mark) if mark <= step))
    }

    /// Returns the next step with a fault.
    pub(crate) fn next_step(&self) -> Option<u64> {
        let planned = lock(&self.planned);
        let steps = planned.iter().filter_map(|planned| match planned.at {
            Mark::Step(step) => Some(step),
            Mark::Bytes(_) => None,
        });
        steps.min()
    }

    fn take(&self, due: impl Fn(Mark) -> bool) -> Option<Fault> {
        let mut planned = lock(&self.planned);
        let index = planned.iter().position(|planned| due(planned.at))?;
        let fault = planned.remove(index).fault;
        self.refresh_marks(&planned);
        Some(fault)
    }

    fn refresh_marks(&self, planned: &[Planned]) {
        let nearest = |wanted: fn(&Fault) -> bool| {
            let marks = planned.iter().filter_map(|planned| match planned.at {
                Mark::Bytes(mark) if wanted(&planned.fault) => Some(mark),
                _ => None,
            });
            marks.min().unwrap_or(u64::MAX)
        };
        self.next_mark.store(nearest(|_| true), Relaxed);
        self.next_cut.store(nearest(|fault| matches!(fault, Fault::LinkDown)), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_leaves_room_up_to_its_mark() {
        let faults = Faults::new();
        assert_eq!(faults.room(100), 100);
        assert!(!faults.count(10));
        faults.plan_bytes(50, Fault::LinkDown);
        faults.plan_bytes(20, Fault::LinkUp);
        assert_eq!(faults.room(100), 50);
        assert!(faults.count(30));
        assert_eq!(faults.take_due_bytes(), Some(Fault::LinkUp));
        assert_eq!(faults.take_due_bytes(), None);
        assert_eq!(faults.room(100), 20);
        assert!(faults.count(20));
        assert_eq!(faults.take_due_bytes(), Some(Fault::LinkDown));
        assert_eq!(faults.room(100), 100);
    }

    #[test]
    fn steps_are_taken_in_their_turn() {
        let faults = Faults::new();
        faults.plan_step(7, Fault::LinkDown);
        assert_eq!(faults.next_step(), Some(7));
        assert_eq!(faults.take_due_step(6), None);
        assert_eq!(faults.take_due_step(8), Some(Fault::LinkDown));
        assert_eq!(faults.next_step(), None);
    }

    #[test]
    fn forced_rnr_is_used_up() {
        let faults = Faults::new();
        faults.add_forced_rnr(2);
        let taken: Vec<bool> = (0..3).map(|_| faults.takes_forced_rnr()).collect();
        assert_eq!(taken, [true, true, false]);
    }
}
