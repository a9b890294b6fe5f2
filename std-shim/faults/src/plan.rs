//! Planned faults, which wait for their batch, poll or query.

use crate::fault::WorkQueue;
use polyrail_core::hardware::Refusal;

/// A fault of the batches of one kind of queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchFault {
    pub(crate) queue: WorkQueue,
    /// Number of batches that pass before.
    pub(crate) skip: u32,
    /// Number of batches that are affected then.
    pub(crate) repeat: u32,
    /// What happens to each of them.
    pub(crate) cut: Cut,
}

/// Where a batch ends for the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    /// Number of requests that are accepted.
    pub(crate) requests: u32,
    /// The error for the next request, if there is one.
    pub(crate) refusal: Refusal,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    batches: Vec<BatchFault>,
    errno: i32,
    failing_polls: u32,
    unknown_last_wqes: u32,
}

impl Plan {
    pub(crate) fn add(&mut self, fault: BatchFault) {
        if fault.repeat > 0 {
            self.batches.push(fault);
        }
    }

    pub(crate) fn fail_polls(&mut self, errno: i32, polls: u32) {
        self.errno = errno;
        self.failing_polls = polls;
    }

    pub(crate) fn delay_last_wqe(&mut self, asks: u32) {
        self.unknown_last_wqes = asks;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.batches.is_empty() && self.failing_polls == 0 && self.unknown_last_wqes == 0
    }

    /// Returns what happens to the present batch. Waiting faults count it and let it pass. If
    /// several are due, the oldest affects it, and the others stay for the next batch.
    pub(crate) fn on_commit(&mut self, queue: WorkQueue) -> Option<Cut> {
        let mut hit = None;
        for fault in self.batches.iter_mut().filter(|fault| fault.queue == queue) {
            if fault.skip > 0 {
                fault.skip -= 1;
            } else if hit.is_none() {
                fault.repeat -= 1;
                hit = Some(fault.cut);
            }
        }
        self.batches.retain(|fault| fault.repeat > 0);
        hit
    }

    /// Returns the code with which the present poll fails.
    pub(crate) fn on_poll(&mut self) -> Option<i32> {
        self.failing_polls = self.failing_polls.checked_sub(1)?;
        Some(self.errno)
    }

    /// Returns whether the present query comes too early.
    pub(crate) fn on_last_wqe(&mut self) -> Option<()> {
        self.unknown_last_wqes = self.unknown_last_wqes.checked_sub(1)?;
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_hit_the_batch_that_they_were_planned_for() {
        let cut = Cut { requests: 2, refusal: Refusal::Driver(5) };
        let full = Cut { requests: 0, refusal: Refusal::QueueFull };
        let mut plan = Plan::default();
        plan.add(BatchFault { queue: WorkQueue::Send, skip: 1, repeat: 1, cut });
        plan.add(BatchFault { queue: WorkQueue::Recv, skip: 0, repeat: 2, cut: full });
        plan.add(BatchFault { queue: WorkQueue::Recv, skip: 0, repeat: 0, cut });
        let sends = [(); 3].map(|()| plan.on_commit(WorkQueue::Send));
        assert_eq!(sends, [None, Some(cut), None]);
        let receives = [(); 3].map(|()| plan.on_commit(WorkQueue::Recv));
        assert_eq!(receives, [Some(full), Some(full), None]);
        assert!(plan.is_empty());
    }

    #[test]
    fn of_two_faults_for_one_batch_the_second_is_applied_to_the_next() {
        let cut = |requests| Cut { requests, refusal: Refusal::QueueFull };
        let mut plan = Plan::default();
        for requests in [1, 2] {
            let cut = cut(requests);
            plan.add(BatchFault { queue: WorkQueue::Send, skip: 1, repeat: 1, cut });
        }
        let struck = [(); 4].map(|()| plan.on_commit(WorkQueue::Send));
        assert_eq!(struck, [None, Some(cut(1)), Some(cut(2)), None]);
    }

    #[test]
    fn polls_fail_as_often_as_planned() {
        let mut plan = Plan::default();
        plan.fail_polls(4, 2);
        assert_eq!([(); 3].map(|()| plan.on_poll()), [Some(4), Some(4), None]);
        plan.fail_polls(4, 2);
        plan.fail_polls(0, 0);
        assert!(plan.is_empty() && plan.on_poll().is_none());
    }

    #[test]
    fn the_last_wqe_is_not_known_as_often_as_planned() {
        let mut plan = Plan::default();
        plan.delay_last_wqe(2);
        assert_eq!([(); 3].map(|()| plan.on_last_wqe()), [Some(()), Some(()), None]);
        assert!(plan.is_empty());
    }
}
