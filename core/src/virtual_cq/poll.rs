//! Polling: completions come in runs of one virtual queue pair, which takes a run at a time; what
//! passes straight through is handed over at once, the rings are drained after that, both within
//! the caller's budget.

use super::target::DirectCompletions;
use super::{CompletionTarget, Event, POLL_BATCH, Polled, QpSet, VirtualCq, VirtualWc};
use crate::hardware::CompletionQueue;
use crate::routing::{Role, Route};
use crate::verbs::{Completion, DeviceId};
use arrayvec::ArrayVec;
use core::mem::MaybeUninit;

/// Virtual queue pairs that one poll looks at for something to say without a completion. With
/// more attached, polls take turns.
const LOOKS: usize = 16;

/// A caller's sink and what it may still be given.
struct Budget<F> {
    left: usize,
    events: usize,
    sink: F,
}

impl<F: FnMut(Event)> Budget<F> {
    const fn new(left: usize, sink: F) -> Self {
        Self { left, events: 0, sink }
    }

    #[inline]
    fn give(&mut self, event: Event) {
        self.left = self.left.saturating_sub(1);
        self.events += 1;
        (self.sink)(event);
    }
}

impl<C: CompletionQueue, const CQS: usize, const ROUTES: usize> VirtualCq<C, CQS, ROUTES> {
    /// Polls every completion queue in turn and hands at most `budget` events to `sink`.
    ///
    /// Takes at most `budget` physical completions, or one batch of [`POLL_BATCH`] if that is
    /// more, so the work of a poll is bounded. What is complete beyond the budget stays where it
    /// is and comes out first next time. `qps` holds the attached virtual queue pairs at their
    /// indices; completions of one that is missing there are foreign.
    #[inline]
    pub fn poll<S: QpSet + ?Sized>(
        &mut self,
        qps: &mut S,
        budget: usize,
        sink: impl FnMut(Event),
    ) -> Polled {
        let mut budget = Budget::new(budget, sink);
        let mut polled = Polled::default();
        let mut turns = Turns::new(self.next_cq, self.cqs.len(), budget.left.max(POLL_BATCH));
        let mut touched = Touched::new();
        self.registry.dequeue_into(&mut touched);
        let mut looked = false;
        loop {
            for index in &touched {
                self.drain(*index, qps, &mut budget);
            }
            touched.clear();
            if let Some((at, limit)) = turns.next(budget.left) {
                let taken = self.take_from(at, limit, qps, &mut touched, &mut budget, &mut polled);
                turns.took(taken, limit);
            } else if looked {
                break;
            } else {
                self.look_around(qps, &mut touched);
                looked = true;
            }
        }
        self.next_cq = turns.next_poll_begins_with();
        polled.events = budget.events;
        polled
    }

    /// [`poll`](Self::poll) of one completion queue only, by its place, for priorities: takes one
    /// batch of at most [`POLL_BATCH`] completions, or `budget` if that is less. What was complete
    /// before and found no budget comes after this queue's completions.
    pub fn poll_cq<S: QpSet + ?Sized>(
        &mut self,
        cq: usize,
        qps: &mut S,
        budget: usize,
        sink: impl FnMut(Event),
    ) -> Polled {
        let mut budget = Budget::new(budget, sink);
        let mut polled = Polled::default();
        let mut touched = Touched::new();
        if cq < self.cqs.len() {
            let limit = budget.left.min(POLL_BATCH);
            self.take_from(cq, limit, qps, &mut touched, &mut budget, &mut polled);
        }
        self.finish(qps, &mut touched, &mut budget);
        polled.events = budget.events;
        polled
    }

    /// The next event, if there is one. There may be none although completions came: they can
    /// belong to requests that are not finished. As [`poll`](Self::poll), it takes one batch of
    /// them at most.
    pub fn poll_one<S: QpSet + ?Sized>(&mut self, qps: &mut S) -> (Option<Event>, Polled) {
        let mut next = None;
        let polled = self.poll(qps, 1, |event| next = Some(event));
        (next, polled)
    }

    /// Takes completions of `device` that the caller has polled itself, oldest first, and hands
    /// over everything that they finish, and what became reportable without a completion. Returns the
    /// number of events.
    ///
    /// # Safety
    ///
    /// The completions were polled from a completion queue of this device, each is fed once, and those of
    /// one queue pair in the order in which they came: a buffer is reported because a completion says
    /// that the device is done with it.
    #[allow(unsafe_code, reason = "a contract for the caller")]
    pub unsafe fn feed<S: QpSet + ?Sized>(
        &mut self,
        qps: &mut S,
        device: DeviceId,
        completions: &[Completion],
        sink: impl FnMut(Event),
    ) -> usize {
        let mut budget = Budget::new(usize::MAX, sink);
        let mut touched = Touched::new();
        for batch in completions.chunks(POLL_BATCH) {
            self.take(device, batch, qps, &mut touched, &mut budget);
            for index in touched.drain(..) {
                self.drain(index, qps, &mut budget);
            }
        }
        self.finish(qps, &mut touched, &mut budget);
        budget.events
    }

    /// Drains those touched, then those that had to wait, then whoever else has something to say.
    fn finish<S: QpSet + ?Sized>(
        &mut self,
        qps: &mut S,
        touched: &mut Touched,
        budget: &mut Budget<impl FnMut(Event)>,
    ) {
        for stage in 0..3 {
            for index in touched.drain(..) {
                self.drain(index, qps, budget);
            }
            match stage {
                0 => self.registry.dequeue_into(touched),
                1 => self.look_around(qps, touched),
                _ => {}
            }
        }
    }

    /// Polls one completion queue for at most `limit` completions and says how many came.
    #[inline]
    fn take_from<S: QpSet + ?Sized>(
        &mut self,
        at: usize,
        limit: usize,
        qps: &mut S,
        touched: &mut Touched,
        budget: &mut Budget<impl FnMut(Event)>,
        polled: &mut Polled,
    ) -> usize {
        let mut batch = [const { MaybeUninit::uninit() }; POLL_BATCH];
        let cq = &mut self.cqs[at];
        let device = cq.device();
        match cq.poll(&mut batch[..limit]) {
            Ok(completions) => {
                self.take(device, completions, qps, touched, budget);
                completions.len()
            }
            Err(error) => {
                polled.error = polled.error.or(Some(error));
                0
            }
        }
    }

    /// Routes completions of one device, and notes the virtual queue pairs whose rings are to be
    /// drained. One look-up serves all completions in a row that are of one virtual queue pair.
    #[inline]
    fn take<S: QpSet + ?Sized>(
        &mut self,
        device: DeviceId,
        completions: &[Completion],
        qps: &mut S,
        touched: &mut Touched,
        budget: &mut Budget<impl FnMut(Event)>,
    ) {
        let mut direct = DirectCompletions::new();
        let mut rest = completions;
        while let Some(first) = rest.first() {
            let taken = match self.routes.find(device, first.qp_num) {
                Some(Route { index, role: Role::Single, virtual_qp_num, .. }) => {
                    let qp = resolve(qps, *index, *virtual_qp_num)
                        .filter(|qp| qp.is_only_rail(device, first.qp_num));
                    qp.map_or(0, |qp| pass_through(qp, rest, budget))
                }
                Some(Route { index, role, virtual_qp_num, .. }) => {
                    if touched.last() != Some(index) {
                        touched.push(*index);
                    }
                    let qp = resolve(qps, *index, *virtual_qp_num);
                    qp.map_or(0, |qp| qp.complete(device, *role, rest, &mut direct))
                }
                None => 0,
            };
            if taken == 0 {
                budget.give(Event::Foreign { device, completion: *first });
            }
            rest = &rest[taken.max(1)..];
            if !direct.is_empty() {
                direct.drain(..).for_each(|wc| budget.give(Event::Completion(wc)));
            }
        }
    }

    /// Lets a virtual queue pair go on, and hands over what it has finished. What the budget does
    /// not allow is queued.
    #[inline(always)]
    fn drain<S: QpSet + ?Sized>(
        &mut self,
        index: u16,
        qps: &mut S,
        budget: &mut Budget<impl FnMut(Event)>,
    ) {
        let Some(qp) = qps.qp(index) else { return };
        qp.settle();
        while budget.left > 0 {
            let Some(wc) = qp.next_report() else { break };
            budget.give(Event::Completion(wc));
        }
        if qp.wants_poll() {
            self.registry.enqueue(index);
        }
    }

    /// Looks at some of the virtual queue pairs for something to say without a completion.
    #[inline]
    fn look_around<S: QpSet + ?Sized>(&mut self, qps: &mut S, touched: &mut Touched) {
        for _ in 0..self.registry.to_look_at().min(LOOKS) {
            let Some(index) = self.registry.look() else { return };
            if qps.qp(index).is_some_and(|qp| qp.wants_poll()) {
                touched.push(index);
            }
        }
    }
}

/// The virtual queue pairs to be drained: at most one for each completion of a batch.
pub(super) type Touched = ArrayVec<u16, POLL_BATCH>;

/// Which completion queue is polled next, and for how much.
struct Turns {
    first: usize,
    next: usize,
    queues: usize,
    /// Completions that the poll may still take.
    allowance: usize,
    /// Queues in a row that gave less than they were asked for: they are empty.
    empty: usize,
}

impl Turns {
    const fn new(first: usize, queues: usize, allowance: usize) -> Self {
        Self { first, next: first, queues, allowance, empty: 0 }
    }

    /// The next queue and how many completions to ask it for.
    #[inline]
    fn next(&mut self, budget_left: usize) -> Option<(usize, usize)> {
        let limit = budget_left.min(self.allowance).min(POLL_BATCH);
        if limit == 0 || self.empty >= self.queues {
            return None;
        }
        let at = self.next;
        self.next = self.after(at);
        Some((at, limit))
    }

    #[inline]
    const fn took(&mut self, taken: usize, limit: usize) {
        self.allowance -= taken;
        self.empty = if taken == limit { 0 } else { self.empty + 1 };
    }

    #[inline]
    const fn after(&self, queue: usize) -> usize {
        if queue + 1 < self.queues { queue + 1 } else { 0 }
    }

    /// Another queue than this poll, also after full turns.
    #[inline]
    const fn next_poll_begins_with(&self) -> usize {
        if self.next == self.first { self.after(self.first) } else { self.next }
    }
}

/// The virtual queue pair at an index, if it is still the one that was attached there.
#[inline]
fn resolve<S: QpSet + ?Sized>(qps: &mut S, index: u16, virtual_qp_num: u32) -> Option<&mut S::Qp> {
    qps.qp(index).filter(|qp| qp.virtual_qp_num() == virtual_qp_num)
}

/// Hands over the completions, from the front, of one queue pair that is the only rail of its
/// virtual one, and says how many there were.
#[inline]
fn pass_through<T: CompletionTarget + ?Sized>(
    qp: &mut T,
    completions: &[Completion],
    budget: &mut Budget<impl FnMut(Event)>,
) -> usize {
    let virtual_qp_num = qp.virtual_qp_num();
    let qp_num = completions.first().map(|first| first.qp_num);
    let mut taken = 0;
    let mut failed = 0;
    for completion in completions {
        if Some(completion.qp_num) != qp_num {
            break;
        }
        failed |= completion.status.0;
        taken += 1;
        (budget.sink)(Event::Completion(VirtualWc::pass_through(virtual_qp_num, completion)));
    }
    budget.left = budget.left.saturating_sub(taken);
    budget.events += taken;
    qp.note_single(&completions[..taken], failed != 0);
    taken
}
