//! Polling. Events that wait from earlier polls are handed over first. Then the completion queues
//! are polled in turn. Completions come in runs of one virtual queue pair, which takes a run at a
//! time, and reports what it has finished, all within the caller's budget.

use super::cq::VirtualCq;
use super::deliver::{Budget, Touched, Unrouted, hand_over, pass_through};
use super::routing::Route;
use crate::completion::{
    CompletionTarget, DirectCompletions, Event, POLL_BATCH, Polled, Role, TargetSet,
};
use crate::hardware::CompletionQueue;
use crate::verbs::{Completion, DeviceId};
use core::mem::MaybeUninit;

/// Limit of the virtual queue pairs that one poll checks for something to do without a completion.
/// If more are attached, successive polls check them in turn.
const LOOKS: usize = 16;

impl<C: CompletionQueue, const CQS: usize, const ROUTES: usize> VirtualCq<C, CQS, ROUTES> {
    /// Polls every completion queue in turn and hands at most `budget` events to `sink`.
    ///
    /// The work of a poll is bounded. It takes at most `budget` physical completions, or one batch
    /// of [`POLL_BATCH`] from each queue if that is more. It visits the virtual queue pairs that
    /// wait for budget, and 16 others. (If a queue pair of a receiver of messages has failed, the
    /// poll takes everything that its completion queue holds.)
    ///
    /// Completed requests beyond the budget come first in the next poll, beginning with the virtual
    /// queue pair that has waited longest. Requests over several rails wait in their rings, and
    /// completions that pass through wait in a backlog of [`POLL_BATCH`] events; the two take
    /// turns. The completion queues are polled in any case, unless the backlog is full or the
    /// budget is 0.
    ///
    /// `qps` holds the attached virtual queue pairs at their indices. Completions of a virtual
    /// queue pair that is missing there are foreign.
    ///
    /// # Panics
    ///
    /// If `sink` panics. Nothing is lost: the next poll goes on with the next event.
    #[inline]
    pub fn poll<S: TargetSet + ?Sized>(
        &mut self,
        qps: &mut S,
        budget: usize,
        sink: impl FnMut(Event),
    ) -> Polled {
        let allowed = budget;
        let mut budget = Budget::new(budget, sink);
        let mut polled = Polled::default();
        let mut turns = Turns::<CQS>::new(self.next_cq, self.cqs.len(), budget.left);
        let mut touched = Touched::new();
        self.begin(qps, &mut budget);
        if self.has_waiting() {
            self.hand_over_waiting(qps, &mut budget, &mut polled);
        }
        let mut drained = None;
        while let Some((at, limit)) = turns.next(budget.left, POLL_BATCH - self.backlog.len()) {
            let taken = self.take_and_drain(at, limit, qps, &mut touched, &mut budget, &mut polled);
            turns.took(taken, limit);
            drained = touched.last().copied().or(drained);
        }
        touched.clear();
        self.look_around(qps, drained, &mut touched);
        if !touched.is_empty() {
            self.drain_all(&mut touched, qps, &mut budget);
        }
        self.next_cq = turns.next_poll_begins_with();
        self.polling = false;
        polled.events = allowed - budget.left;
        polled
    }

    /// Returns whether a poll has something to do without a completion: to hand over events that
    /// found no budget, to offer a driver requests that it refused, or to look after a queue pair
    /// that is [Draining](crate::virtual_qp::RailState::Draining) and completes nothing more. Then
    /// an owner must not wait for a completion, because none may come; it polls again, after a
    /// pause if it likes. The result covers all virtual queue pairs after
    /// [`polls_before_waiting`](Self::polls_before_waiting) polls.
    #[inline]
    pub fn needs_poll(&self) -> bool {
        // After a poll whose sink panicked, it is not known what waits.
        self.polling || self.has_waiting()
    }

    /// Returns whether something is known to wait for a poll.
    #[inline]
    fn has_waiting(&self) -> bool {
        self.registry.has_queued() || !self.backlog.is_empty()
    }

    /// Returns the number of consecutive polls, with an unlimited budget, that must find nothing
    /// before an owner may wait for a completion (unless a poll is [needed](Self::needs_poll)). It
    /// is more than one with many virtual queue pairs, because each poll visits only some of those
    /// that took no completions.
    pub fn polls_before_waiting(&self) -> usize {
        self.registry.to_look_at().div_ceil(LOOKS).max(1)
    }

    /// Polls only the completion queue at index `cq`, for callers that give queues priorities.
    /// Takes one batch of at most [`POLL_BATCH`] completions, or `budget` if that is less. Events
    /// that found no budget before come first. The queue is polled in any case, unless the backlog
    /// is full or the budget is 0. If there is no queue at this index, nothing is polled.
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
        let allowed = budget;
        let mut budget = Budget::new(budget, sink);
        let mut polled = Polled::default();
        let mut touched = Touched::new();
        self.begin(qps, &mut budget);
        self.hand_over_waiting(qps, &mut budget, &mut polled);
        let limit = allowed.min(POLL_BATCH - self.backlog.len());
        if cq < self.cqs.len() && limit > 0 {
            self.take_and_drain(cq, limit, qps, &mut touched, &mut budget, &mut polled);
        }
        self.finish(qps, &mut touched, &mut budget);
        polled.events = allowed - budget.left;
        polled
    }

    /// Returns the next event, if there is one. There may be none although completions arrived,
    /// because they can belong to requests that are not finished. Like [`poll`](Self::poll), it
    /// takes at most one batch from each queue.
    pub fn poll_one<S: TargetSet + ?Sized>(&mut self, qps: &mut S) -> (Option<Event>, Polled) {
        let mut next = None;
        let polled = self.poll(qps, 1, |event| next = Some(event));
        (next, polled)
    }

    /// Takes completions of `device` that the caller has polled itself, oldest first, and hands
    /// over everything that they finish, and what became reportable without a completion. Returns
    /// the number of events.
    ///
    /// # Safety
    ///
    /// The completions were polled from a completion queue of this device. Each is fed once, and
    /// completions of one queue pair are fed in the order in which they were polled. The engine
    /// returns buffers to their owners because a completion proves that the device is done with
    /// them.
    ///
    /// # Panics
    ///
    /// If `sink` panics. Completions behind the current batch of [`POLL_BATCH`] are then not taken,
    /// or none are if the event had waited from before; nothing else is lost. With such a sink,
    /// feed an empty slice first, and then one batch at a time: that batch is taken in any case.
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
            touched.clear();
            self.take(device, batch, qps, &mut touched, &mut budget);
            self.drain_touched(&touched, qps, &mut budget);
        }
        // A completion queue that a target has to see empty is the owner's to poll, and to report
        // on.
        self.hand_over_waiting(qps, &mut budget, &mut Polled::default());
        self.finish(qps, &mut touched, &mut budget);
        usize::MAX - budget.left
    }

    /// Begins a poll. If the sink of the previous poll panicked, goes on where that poll stopped.
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

    /// Drains other virtual queue pairs that have something to report: all but the last one that
    /// was touched, which was just drained.
    fn finish<S: TargetSet + ?Sized>(
        &mut self,
        qps: &mut S,
        touched: &mut Touched,
        budget: &mut Budget<impl FnMut(Event)>,
    ) {
        let drained = touched.last().copied();
        touched.clear();
        self.look_around(qps, drained, touched);
        if !touched.is_empty() {
            self.drain_all(touched, qps, budget);
        }
        self.polling = false;
    }

    /// Polls one completion queue for at most `limit` completions, and drains the virtual queue
    /// pairs that took some, which are in `touched` then. Returns the number of completions.
    // Every virtual queue pair that takes completions is drained: no later completion may come to
    // make it do what these allow.
    #[inline(always)]
    fn take_and_drain<S: TargetSet + ?Sized>(
        &mut self,
        at: usize,
        limit: usize,
        qps: &mut S,
        touched: &mut Touched,
        budget: &mut Budget<impl FnMut(Event)>,
        polled: &mut Polled,
    ) -> usize {
        touched.clear();
        let taken = self.take_from(at, limit, qps, touched, budget, polled);
        self.drain_touched(touched, qps, budget);
        taken
    }

    #[inline(always)]
    fn drain_touched<S: TargetSet + ?Sized>(
        &mut self,
        touched: &Touched,
        qps: &mut S,
        budget: &mut Budget<impl FnMut(Event)>,
    ) {
        for index in touched {
            self.drain(*index, qps, budget);
        }
    }

    /// Polls one completion queue for at most `limit` completions. Returns their number.
    // Inline: most polls of a busy-polling program find nothing, and a call would be a fifth of
    // their cost.
    #[inline(always)]
    pub(super) fn take_from<S: TargetSet + ?Sized>(
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
            // Most polls of a busy-polling program end here.
            Ok([]) => 0,
            Ok(completions) => {
                self.taken[at] += completions.len() as u64;
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
    pub(super) fn take<S: TargetSet + ?Sized>(
        &mut self,
        device: DeviceId,
        completions: &[Completion],
        qps: &mut S,
        touched: &mut Touched,
        budget: &mut Budget<impl FnMut(Event)>,
    ) {
        let Self { routes, backlog, unrouted, .. } = self;
        debug_assert!(budget.left == 0 || backlog.is_empty(), "what waits is older");
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
                    // Completions come in runs. A repetition in `touched` is harmless, and bounded
                    // by the batch.
                    if touched.last() != Some(index) {
                        touched.push(*index);
                    }
                    let qp = resolve(qps, *index, *virtual_qp_num);
                    let taken =
                        qp.map_or(0, |qp| qp.take_completions(device, *role, rest, &mut direct));
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
            // No virtual queue pair knows it: it may be of a queue pair that the caller has made.
            budget.give_or_keep(Event::Foreign { device, completion: *first }, backlog);
        }
    }

    /// Runs the next steps of a virtual queue pair, and hands over what it has finished. If the
    /// budget does not suffice, the virtual queue pair is queued.
    #[inline(always)]
    fn drain<S: TargetSet + ?Sized>(
        &mut self,
        index: u16,
        qps: &mut S,
        budget: &mut Budget<impl FnMut(Event)>,
    ) {
        let Some(qp) = qps.target(index) else { return };
        qp.pump_all();
        while budget.left > 0 {
            let Some(wc) = qp.report() else { break };
            budget.give(Event::Completion(wc));
        }
        if qp.needs_poll() && !(budget.left > 0 && self.hand_over_flushed(index, qps, budget)) {
            self.registry.enqueue(index);
        }
    }

    /// Outlined copy of [`drain`](Self::drain) for callers that are not hot.
    #[inline(never)]
    pub(super) fn drain_apart<S: TargetSet + ?Sized>(
        &mut self,
        index: u16,
        qps: &mut S,
        budget: &mut Budget<impl FnMut(Event)>,
    ) {
        self.drain(index, qps, budget);
    }

    /// Drains several virtual queue pairs, for callers that are not hot.
    #[inline(never)]
    fn drain_all<S: TargetSet + ?Sized>(
        &mut self,
        touched: &mut Touched,
        qps: &mut S,
        budget: &mut Budget<impl FnMut(Event)>,
    ) {
        for index in touched.drain(..) {
            self.drain_apart(index, qps, budget);
        }
    }

    /// Finds virtual queue pairs that have something to do without a completion, among some of
    /// them. Skips the one that was drained last.
    #[inline]
    fn look_around<S: TargetSet + ?Sized>(
        &mut self,
        qps: &mut S,
        drained: Option<u16>,
        touched: &mut Touched,
    ) {
        // The usual case of one virtual queue pair: it was drained just now, or there is none.
        if self.registry.to_look_at() == usize::from(drained.is_some()) {
            return;
        }
        self.registry.look(LOOKS, |index| {
            if drained != Some(index) && qps.target(index).is_some_and(|qp| qp.needs_poll()) {
                touched.push(index);
            }
        });
    }
}

/// The virtual queue pair at an index, if it is still the one that was attached there.
#[inline]
fn resolve<S: TargetSet + ?Sized>(
    qps: &mut S,
    index: u16,
    virtual_qp_num: u32,
) -> Option<&mut S::Target> {
    // The owner of the set may have put another one at this index since.
    qps.target(index).filter(|qp| qp.virtual_qp_num() == virtual_qp_num)
}

/// Which completion queue is polled next, and for how much. There are at most `CQS`.
struct Turns<const CQS: usize> {
    first: usize,
    next: usize,
    queues: usize,
    /// Completions that the poll may still take.
    allowance: usize,
    /// Queues asked so far, some perhaps twice.
    asked: usize,
    /// Queues in a row that gave less than they were asked for: they are empty.
    empty: usize,
}

impl<const CQS: usize> Turns<CQS> {
    /// The turns of a poll that begins with the queue at `first`.
    #[inline]
    fn new(first: usize, queues: usize, budget: usize) -> Self {
        // Completions that finish nothing cost no budget and free credits, so a small budget still
        // allows a batch from each queue.
        let allowance = if budget == 0 { 0 } else { budget.max(queues * POLL_BATCH) };
        // With one queue, the compiler removes all code for turns.
        let first = if CQS > 1 { first } else { 0 };
        Self { first, next: first, queues, allowance, asked: 0, empty: 0 }
    }

    /// The next queue and how many completions to ask it for, at most as many as there is `room`
    /// for. Without budget, each queue is asked once.
    #[inline]
    fn next(&mut self, budget_left: usize, room: usize) -> Option<(usize, usize)> {
        let limit = self.allowance.min(room);
        let asked_all = budget_left == 0 && self.asked >= self.queues;
        if limit == 0 || asked_all || self.empty >= self.queues {
            return None;
        }
        let at = self.next;
        self.next = self.after(at);
        self.asked += 1;
        Some((at, limit))
    }

    /// The queue asked last gave `taken` of the `limit` completions that it was asked for.
    #[inline]
    const fn took(&mut self, taken: usize, limit: usize) {
        self.allowance -= taken;
        // A queue that gave all that it was asked for may hold more.
        self.empty = if taken == limit { 0 } else { self.empty + 1 };
    }

    #[inline]
    const fn after(&self, queue: usize) -> usize {
        if CQS > 1 && queue + 1 < self.queues { queue + 1 } else { 0 }
    }

    /// Returns the queue that the next poll begins with: another one than this poll, also after
    /// full turns. If there was no room to ask any queue, it is the same one.
    // Otherwise, if every second poll has no room, the same queue would always be first in the
    // polls that have room.
    #[inline]
    const fn next_poll_begins_with(&self) -> usize {
        if self.next == self.first && self.asked > 0 { self.after(self.first) } else { self.next }
    }
}
