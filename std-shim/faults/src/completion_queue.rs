//! Completion queues of a faulty driver.

use crate::faults::Faults;
use crate::faulty::Faulty;
use crate::late::{Held, Late, Shown};
use crate::roster::Roster;
use polyrail_core::hardware::{CompletionQueue, CqError, CqId};
use polyrail_core::verbs::{Completion, DeviceId};
use std::mem::MaybeUninit;
use std::time::Instant;

/// Maximum number of completions per poll of the inner queue.
const BATCH: usize = 32;

impl Faults {
    /// Wraps a completion queue. Only completions of queue pairs that were
    /// [wrapped](Self::queue_pair) by the same [`Faults`] are delayed.
    pub fn completion_queue<C: CompletionQueue>(&self, inner: C) -> Faulty<C> {
        let late = Late::new(inner.capacity());
        Faulty { late, ..Faulty::new(inner, self) }
    }
}

/// Polls the inner queue for as many completions as there is room for, both here and, in case they
/// cannot be held back, in the caller's memory.
fn take(
    cq: &mut impl CompletionQueue,
    due: Instant,
    roster: &mut Roster,
    late: &mut Late,
    shown: &mut Shown<'_>,
) -> Result<(), CqError> {
    let device = cq.device();
    let mut batch = [const { MaybeUninit::uninit() }; BATCH];
    loop {
        if late.room() == 0 && shown.room() > 0 && roster.has_ended() {
            late.show_first(roster, shown);
        }
        let most = BATCH.min(late.room()).min(shown.room());
        if most == 0 {
            return Ok(());
        }
        let found = cq.poll(&mut batch[..most])?;
        for &completion in found {
            match roster.hold(device, completion.qp_num) {
                Some(owner) => late.push(Held { due, owner, completion }),
                None => shown.push(completion),
            }
        }
        if found.len() < most {
            return Ok(());
        }
    }
}

// SAFETY: each completion of the inner queue is returned once. The completions of a queue pair are
// either all held back, and returned in order, or none are. No queue pair gets completions of an
// earlier one with the same number: see `roster`.
unsafe impl<C: CompletionQueue> CompletionQueue for Faulty<C> {
    fn id(&self) -> CqId {
        self.inner.id()
    }

    fn device(&self) -> DeviceId {
        self.inner.device()
    }

    fn capacity(&self) -> u32 {
        self.inner.capacity()
    }

    fn poll<'o>(
        &mut self,
        out: &'o mut [MaybeUninit<Completion>],
    ) -> Result<&'o [Completion], CqError> {
        let Self { inner, faults, late, .. } = self;
        if let Some(errno) = faults.on_poll() {
            return Err(CqError { cq: inner.id(), device: inner.device(), errno });
        }
        let delay = faults.delay();
        if delay.is_zero() && late.is_empty() {
            return inner.poll(out);
        }
        let now = Instant::now();
        // Locked, so that no queue pair leaves the roster between a completion and its entry in
        // `late`.
        let mut roster = faults.roster();
        let mut shown = Shown::new(out);
        late.show_due(now, &mut roster, &mut shown);
        match take(inner, now + delay, &mut roster, late, &mut shown) {
            // Polled completions are returned first; the next poll returns the error again.
            Err(error) if shown.is_empty() => return Err(error),
            _ => {}
        }
        // If the delay is over, the completions just polled are due.
        late.show_due(now, &mut roster, &mut shown);
        Ok(shown.into_slice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::DriverFault;
    use crate::roster::Serial;
    use polyrail_core::verbs::WcOpcode;
    use std::collections::VecDeque;
    use std::time::Duration;

    const DEVICE: DeviceId = DeviceId(7);
    const QP_NUM: u32 = 17;
    const CAPACITY: u32 = 4;
    /// Longer than any test.
    const DELAY: Duration = Duration::from_secs(3600);
    const NOTHING: [u64; 0] = [];

    /// A queue with the completions that a test puts into it.
    #[derive(Debug, Default)]
    struct Scripted {
        completions: VecDeque<Completion>,
        broken: bool,
    }

    // SAFETY: nothing is posted, so there are no buffers.
    unsafe impl CompletionQueue for Scripted {
        fn id(&self) -> CqId {
            CqId(3)
        }

        fn device(&self) -> DeviceId {
            DEVICE
        }

        fn capacity(&self) -> u32 {
            CAPACITY
        }

        fn poll<'o>(
            &mut self,
            out: &'o mut [MaybeUninit<Completion>],
        ) -> Result<&'o [Completion], CqError> {
            if self.broken {
                return Err(CqError { cq: self.id(), device: DEVICE, errno: 5 });
            }
            let mut shown = Shown::new(out);
            while shown.room() > 0
                && let Some(completion) = self.completions.pop_front()
            {
                shown.push(completion);
            }
            Ok(shown.into_slice())
        }
    }

    /// Makes a queue with these completions, which are delayed, of a queue pair on the roster.
    fn delayed(wr_ids: std::ops::Range<u64>) -> Faulty<Scripted> {
        delayed_of(wr_ids).0
    }

    fn delayed_of(wr_ids: std::ops::Range<u64>) -> (Faulty<Scripted>, Serial) {
        let faults = Faults::new();
        let serial = faults.roster().enroll(DEVICE, QP_NUM);
        faults.inject(DriverFault::DelayCompletions(DELAY));
        let mut cq = faults.completion_queue(Scripted::default());
        add(&mut cq, QP_NUM, wr_ids);
        (cq, serial)
    }

    fn add(cq: &mut Faulty<Scripted>, qp_num: u32, wr_ids: std::ops::Range<u64>) {
        let completion = |wr_id| Completion::success(qp_num, wr_id, WcOpcode::RDMA_WRITE);
        cq.inner.completions.extend(wr_ids.map(completion));
    }

    fn poll<const N: usize>(cq: &mut Faulty<Scripted>) -> Vec<u64> {
        let mut out = [MaybeUninit::uninit(); N];
        let completions = cq.poll(&mut out).unwrap();
        completions.iter().map(|completion| completion.wr_id).collect()
    }

    #[test]
    fn completions_show_when_they_are_due_in_their_order() {
        let mut cq = delayed(0..2);
        assert_eq!(poll::<8>(&mut cq), NOTHING);
        cq.late.make_due();
        add(&mut cq, QP_NUM, 2..3);
        assert_eq!(poll::<8>(&mut cq), [0, 1]);
        assert_eq!(poll::<8>(&mut cq), NOTHING);
        cq.late.make_due();
        assert_eq!(poll::<8>(&mut cq), [2]);
    }

    #[test]
    fn without_a_delay_nothing_overtakes_what_is_held_back() {
        let mut cq = delayed(0..1);
        assert_eq!(poll::<8>(&mut cq), NOTHING);
        cq.faults.lift();
        add(&mut cq, QP_NUM, 1..3);
        assert_eq!(poll::<8>(&mut cq), NOTHING);
        cq.late.make_due();
        assert_eq!(poll::<8>(&mut cq), [0, 1, 2]);
        add(&mut cq, QP_NUM, 3..4);
        assert_eq!(poll::<8>(&mut cq), [3]);
    }

    #[test]
    fn the_last_that_is_held_back_shows_with_what_comes_behind_it() {
        let mut cq = delayed(0..1);
        assert_eq!(poll::<8>(&mut cq), NOTHING);
        cq.faults.lift();
        cq.late.make_due();
        add(&mut cq, QP_NUM, 1..3);
        assert_eq!(poll::<8>(&mut cq), [0, 1, 2]);
    }

    #[test]
    fn little_memory_of_the_caller_loses_nothing() {
        let mut cq = delayed(0..10);
        let mut shown = Vec::new();
        while shown.len() < 10 {
            let some = poll::<3>(&mut cq);
            assert!(some.len() <= 3);
            shown.extend(some);
            cq.late.make_due();
        }
        assert_eq!(shown, (0..10).collect::<Vec<_>>());
        assert_eq!(poll::<0>(&mut cq), NOTHING);
    }

    #[test]
    fn no_more_is_taken_than_there_is_room_for() {
        let mut cq = delayed(0..40);
        assert_eq!(poll::<32>(&mut cq), NOTHING);
        assert_eq!(poll::<32>(&mut cq), NOTHING);
        assert_eq!(cq.inner.completions.len(), 40 - CAPACITY as usize);
        cq.late.make_due();
        assert_eq!(poll::<32>(&mut cq), [0, 1, 2, 3]);
        assert_eq!(cq.inner.completions.len(), 40 - 2 * CAPACITY as usize);
    }

    #[test]
    fn completions_of_other_queue_pairs_pass() {
        let mut cq = delayed(0..1);
        add(&mut cq, QP_NUM + 1, 10..12);
        assert_eq!(poll::<8>(&mut cq), [10, 11]);
    }

    #[test]
    fn what_a_destroyed_queue_pair_left_behind_is_not_its_successors() {
        let (mut cq, first) = delayed_of(0..2);
        assert_eq!(poll::<8>(&mut cq), NOTHING);
        cq.faults.roster().dismiss(first);
        cq.faults.roster().enroll(DEVICE, QP_NUM);
        add(&mut cq, QP_NUM, 5..6);
        assert_eq!(poll::<8>(&mut cq), NOTHING);
        cq.late.make_due();
        assert_eq!(poll::<8>(&mut cq), [5]);
    }

    #[test]
    fn a_queue_pair_ends_when_nothing_of_it_is_held_back_and_nothing_is_from_then_on() {
        let (mut cq, first) = delayed_of(0..1);
        assert_eq!(poll::<8>(&mut cq), NOTHING);
        assert!(!cq.faults.roster().end(first));
        cq.late.make_due();
        assert_eq!(poll::<8>(&mut cq), [0]);
        add(&mut cq, QP_NUM, 1..3);
        assert!(cq.faults.roster().end(first));
        assert_eq!(poll::<8>(&mut cq), [1, 2]);
    }

    #[test]
    fn what_is_held_back_of_others_is_not_in_the_way_of_one_that_ended() {
        let (mut cq, first) = delayed_of(0..0);
        let others = 10..10 + u64::from(CAPACITY);
        cq.faults.roster().enroll(DEVICE, QP_NUM + 1);
        add(&mut cq, QP_NUM + 1, others.clone());
        assert_eq!(poll::<8>(&mut cq), NOTHING);
        assert!(cq.faults.roster().end(first));
        add(&mut cq, QP_NUM, 1..3);
        let shown = poll::<8>(&mut cq);
        assert!(shown.ends_with(&[1, 2]), "{shown:?}");
    }

    #[test]
    fn a_queue_that_breaks_shows_what_was_due_before_its_error() {
        let mut cq = delayed(0..1);
        assert_eq!(poll::<8>(&mut cq), NOTHING);
        cq.inner.broken = true;
        cq.late.make_due();
        assert_eq!(poll::<8>(&mut cq), [0]);
        cq.poll(&mut [MaybeUninit::uninit()]).unwrap_err();
    }
}
