//! Polling: completions come in runs of one virtual queue pair, which takes a run at a time; what
//! passes straight through is handed over at once, the rings are drained after that, both within
//! the caller's budget.

use super::budget::{Backlog, Budget, keep};
use super::cq::{Saved, VirtualCq};
use super::routing::Route;
use super::turns::Turns;
use crate::completion::{
    CompletionTarget, DirectCompletions, Event, POLL_BATCH, Polled, Role, TargetSet, VirtualWc,
};
use crate::hardware::CompletionQueue;
use crate::verbs::{Completion, DeviceId};
use arrayvec::ArrayVec;
use core::mem::MaybeUninit;

/// Virtual queue pairs that one poll looks at for something to say without a completion. With
/// more attached, polls take turns.
const LOOKS: usize = 16;

impl<C: CompletionQueue, const CQS: usize, const ROUTES: usize> VirtualCq<C, CQS, ROUTES> {
    /// Polls every completion queue in turn and hands at most `budget` events to `sink`.
    ///
    /// Takes at most `budget` physical completions, or one batch of [`POLL_BATCH`] from each queue if
    /// that is more, so the work of a poll is bounded. What is complete beyond the budget waits and
    /// comes out first next time, of the virtual queue pair that has waited longest: requests of
    /// several rails in their rings, what passes straight through in a backlog of [`POLL_BATCH`]
    /// events; the two take turns. The completion queues are polled in any case, unless the backlog is
    /// full or the budget 0. `qps` holds the attached virtual queue pairs at their indices; completions
    /// of one that is missing there are foreign.
    ///
    /// # Panics
    ///
    /// If `sink` does; nothing is lost, the next poll goes on with what comes next.
    #[inline]
    pub fn poll<S: TargetSet + ?Sized>(
        &mut self,
        qps: &mut S,
        budget: usize,
        sink: impl FnMut(Event),
    ) -> Polled {
        let mut budget = Budget::new(budget, sink);
        let mut polled = Polled::default();
        let mut turns = Turns::new(self.next_cq, self.cqs.len(), budget.left);
        let mut touched = Touched::new();
        self.begin(qps, &mut budget);
        if self.registry.queued() > 0 || !self.backlog.is_empty() {
            self.hand_over_waiting(qps, &mut budget);
        }
        let mut looked = false;
        loop {
            for index in &touched {
                self.drain(*index, qps, &mut budget);
            }
            touched.clear();
            let room = POLL_BATCH - self.backlog.len();
            if let Some((at, limit)) = turns.next(budget.left, room) {
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
        self.polling = false;
        polled.events = budget.events;
        polled
    }

    /// [`poll`](Self::poll) of one completion queue only, by its place, for priorities: takes one
    /// batch of at most [`POLL_BATCH`] completions, or `budget` if that is less. What found no
    /// budget before comes first.
    ///
    /// # Panics
    ///
    /// As [`poll`](Self::poll).
    pub fn poll_cq<S: TargetSet + ?Sized>(
        &mut self,
        cq: usize,
        qps: &mut S,
        budget: usize,
        sink: impl FnMut(Event),
    ) -> Polled {
        let mut budget = Budget::new(budget, sink);
        let mut polled = Polled::default();
        let mut touched = Touched::new();
        self.begin(qps, &mut budget);
        self.hand_over_backlog(&mut budget);
        let limit = budget.left.min(POLL_BATCH);
        if cq < self.cqs.len() && limit > 0 {
            self.take_from(cq, limit, qps, &mut touched, &mut budget, &mut polled);
        }
        self.finish(qps, &mut touched, &mut budget);
        polled.events = budget.events;
        polled
    }

    /// The next event, if there is one. There may be none although completions came: they can
    /// belong to requests that are not finished. As [`poll`](Self::poll), it takes one batch of
    /// each queue at most.
    pub fn poll_one<S: TargetSet + ?Sized>(&mut self, qps: &mut S) -> (Option<Event>, Polled) {
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
    ///
    /// # Panics
    ///
    /// If `sink` does. Then of `completions` those behind the batch of [`POLL_BATCH`] that it happened
    /// in are not taken, and none if it happened with what waited from before; nothing else is lost.
    /// Who has such a sink feeds nothing first, and then one batch: that one is taken in any case.
    #[allow(unsafe_code, reason = "a contract for the caller")]
    pub unsafe fn feed<S: TargetSet + ?Sized>(
        &mut self,
        qps: &mut S,
        device: DeviceId,
        completions: &[Completion],
        sink: impl FnMut(Event),
    ) -> usize {
        let mut budget = Budget::new(usize::MAX, sink);
        let mut touched = Touched::new();
        self.begin(qps, &mut budget);
        self.hand_over_backlog(&mut budget);
        for batch in completions.chunks(POLL_BATCH) {
            self.take(device, batch, qps, &mut touched, &mut budget);
            for index in touched.drain(..) {
                self.drain(index, qps, &mut budget);
            }
        }
        self.finish(qps, &mut touched, &mut budget);
        budget.events
    }

    /// Begins a poll. After one whose sink panicked, goes on where that stopped.
    #[inline]
    fn begin<S: TargetSet + ?Sized>(
        &mut self,
        qps: &mut S,
        budget: &mut Budget<impl FnMut(Event)>,
    ) {
        if core::mem::replace(&mut self.polling, true) {
            self.resume(qps, budget);
        }
    }

    #[cold]
    #[inline(never)]
    fn resume<S: TargetSet + ?Sized>(
        &mut self,
        qps: &mut S,
        budget: &mut Budget<impl FnMut(Event)>,
    ) {
        // Those that took completions had no chance to go on, nor have those that do now.
        self.registry.enqueue_all();
        self.hand_over_backlog(budget);
        if let Some((device, completions)) = self.unrouted.take() {
            self.take(device, &completions, qps, &mut Touched::new(), budget);
        }
    }

    /// Hands over what found no budget in earlier polls.
    // Not in line, as everything else that hands events over seldom: the sink is in line where it is
    // called in a loop.
    #[inline(never)]
    fn hand_over_waiting<S: TargetSet + ?Sized>(
        &mut self,
        qps: &mut S,
        budget: &mut Budget<impl FnMut(Event)>,
    ) {
        self.rings_first = !self.rings_first;
        for rings in [self.rings_first, !self.rings_first] {
            if rings {
                // Whoever has more to say than the budget allows waits behind all others.
                for _ in 0..self.registry.queued() {
                    if budget.left == 0 {
                        break;
                    }
                    let Some(index) = self.registry.dequeue() else { break };
                    self.drain(index, qps, budget);
                }
            } else {
                self.hand_over_backlog(budget);
            }
        }
    }

    /// Hands over what passed straight through in earlier polls and found no budget. Before anything
    /// that passes straight through now, which may be of the same queue pair.
    #[inline(never)]
    fn hand_over_backlog(&mut self, budget: &mut Budget<impl FnMut(Event)>) {
        while budget.left > 0
            && let Some(event) = self.backlog.pop_front()
        {
            budget.give(event);
        }
    }

    /// Drains those that had to wait, then those touched, then whoever else has something to say.
    fn finish<S: TargetSet + ?Sized>(
        &mut self,
        qps: &mut S,
        touched: &mut Touched,
        budget: &mut Budget<impl FnMut(Event)>,
    ) {
        self.hand_over_waiting(qps, budget);
        for index in touched.drain(..) {
            self.drain(index, qps, budget);
        }
        self.look_around(qps, touched);
        for index in touched.drain(..) {
            self.drain(index, qps, budget);
        }
        self.polling = false;
    }

    /// Polls one completion queue for at most `limit` completions and returns how many came.
    #[inline]
    fn take_from<S: TargetSet + ?Sized>(
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
    // In line, so that what the sink counts can stay in registers.
    #[inline(always)]
    fn take<S: TargetSet + ?Sized>(
        &mut self,
        device: DeviceId,
        completions: &[Completion],
        qps: &mut S,
        touched: &mut Touched,
        budget: &mut Budget<impl FnMut(Event)>,
    ) {
        let Self { routes, backlog, unrouted, .. } = self;
        let mut direct = DirectCompletions::new();
        let mut unrouted = Unrouted { rest: completions, device, saved: unrouted };
        while let Some(first) = unrouted.rest.first() {
            let rest = unrouted.rest;
            match routes.find(device, first.qp_num) {
                Some(Route { index, role: Role::Single, virtual_qp_num, .. }) => {
                    let qp = resolve(qps, *index, *virtual_qp_num)
                        .filter(|qp| qp.is_only_rail(device, first.qp_num));
                    if let Some(qp) = qp {
                        pass_through(qp, &mut unrouted, budget, backlog);
                        continue;
                    }
                }
                Some(Route { index, role, virtual_qp_num, .. }) => {
                    if touched.last() != Some(index) {
                        touched.push(*index);
                    }
                    let qp = resolve(qps, *index, *virtual_qp_num);
                    let taken = qp.map_or(0, |qp| qp.complete(device, *role, rest, &mut direct));
                    if taken > 0 {
                        unrouted.rest = &rest[taken..];
                        if !direct.is_empty() {
                            hand_over(&mut direct, budget, backlog);
                        }
                        continue;
                    }
                }
                None => {}
            }
            unrouted.rest = &rest[1..];
            budget.give_or_keep(Event::Foreign { device, completion: *first }, backlog);
        }
    }

    /// Lets a virtual queue pair go on, and hands over what it has finished. What the budget does
    /// not allow is queued.
    #[inline(always)]
    fn drain<S: TargetSet + ?Sized>(
        &mut self,
        index: u16,
        qps: &mut S,
        budget: &mut Budget<impl FnMut(Event)>,
    ) {
        let Some(qp) = qps.target(index) else { return };
        qp.pump();
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
    fn look_around<S: TargetSet + ?Sized>(&mut self, qps: &mut S, touched: &mut Touched) {
        for _ in 0..self.registry.to_look_at().min(LOOKS) {
            let Some(index) = self.registry.look() else { return };
            if qps.target(index).is_some_and(|qp| qp.wants_poll()) {
                touched.push(index);
            }
        }
    }
}

/// The virtual queue pairs to be drained: at most one for each completion of a batch.
type Touched = ArrayVec<u16, POLL_BATCH>;

/// The virtual queue pair at an index, if it is still the one that was attached there.
#[inline]
fn resolve<S: TargetSet + ?Sized>(
    qps: &mut S,
    index: u16,
    virtual_qp_num: u32,
) -> Option<&mut S::Target> {
    qps.target(index).filter(|qp| qp.virtual_qp_num() == virtual_qp_num)
}

/// Completions that have not been looked at. Should a sink panic, they are saved for the next poll.
struct Unrouted<'a> {
    rest: &'a [Completion],
    device: DeviceId,
    saved: &'a mut Saved,
}

impl Drop for Unrouted<'_> {
    // A call that takes `self` would keep it in memory, with a store for each completion.
    #[inline(always)]
    fn drop(&mut self) {
        if !self.rest.is_empty() {
            save(self.saved, self.device, self.rest);
        }
    }
}

#[cold]
#[inline(never)]
fn save(saved: &mut Saved, device: DeviceId, rest: &[Completion]) {
    *saved = Some((device, rest.iter().copied().collect()));
}

/// Hands over what passed through several rails. Should the sink panic, the rest waits in the backlog.
#[inline(never)]
fn hand_over(
    direct: &mut DirectCompletions,
    budget: &mut Budget<impl FnMut(Event)>,
    backlog: &mut Backlog,
) {
    struct Rest<'a> {
        direct: &'a mut DirectCompletions,
        next: usize,
        backlog: &'a mut Backlog,
    }

    impl Drop for Rest<'_> {
        #[inline]
        fn drop(&mut self) {
            for wc in &self.direct[self.next..] {
                keep(Event::Completion(*wc), self.backlog);
            }
            self.direct.clear();
        }
    }

    let mut rest = Rest { direct, next: 0, backlog };
    // What the budget does not allow is kept by the drop.
    while budget.left > 0
        && let Some(wc) = rest.direct.get(rest.next).copied()
    {
        rest.next += 1;
        budget.give(Event::Completion(wc));
    }
}

/// Counts the completions of the only rail of a virtual queue pair, also if the sink panics.
struct Counted<'a, T: CompletionTarget + ?Sized> {
    qp: &'a mut T,
    completions: &'a [Completion],
    count: usize,
    failed: u32,
}

impl<T: CompletionTarget + ?Sized> Drop for Counted<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.qp.count_passed(&self.completions[..self.count], self.failed != 0);
    }
}

/// Hands over the completions, from the front, of one queue pair that is the only rail of its virtual
/// one.
#[inline(always)]
fn pass_through<T: CompletionTarget + ?Sized>(
    qp: &mut T,
    unrouted: &mut Unrouted<'_>,
    budget: &mut Budget<impl FnMut(Event)>,
    backlog: &mut Backlog,
) {
    let (virtual_qp_num, imm_order) = (qp.virtual_qp_num(), qp.imm_order());
    let completions = unrouted.rest;
    let Some(Completion { qp_num, .. }) = completions.first().copied() else { return };
    let mut counted = Counted { qp, completions, count: 0, failed: 0 };
    if budget.left < completions.len() {
        // Apart, so that the usual case is a loop that nothing but the sink interrupts.
        let mut rest = completions.iter();
        while let Some(completion) = rest.next()
            && completion.qp_num == qp_num
        {
            unrouted.rest = rest.as_slice();
            counted.count += 1;
            counted.failed |= completion.status.0;
            let wc = VirtualWc::pass_through(virtual_qp_num, imm_order, completion);
            budget.give_or_keep(Event::Completion(wc), backlog);
        }
        return;
    }
    let mut rest = completions.iter();
    while let Some(completion) = rest.next()
        && completion.qp_num == qp_num
    {
        // Taken off first: should the sink panic, only this one is lost.
        unrouted.rest = rest.as_slice();
        counted.count += 1;
        counted.failed |= completion.status.0;
        let wc = VirtualWc::pass_through(virtual_qp_num, imm_order, completion);
        (budget.sink)(Event::Completion(wc));
    }
    budget.left -= counted.count;
    budget.events += counted.count;
}
