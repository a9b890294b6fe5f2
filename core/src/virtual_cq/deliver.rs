//! Hands events over to the caller's sink, as far as the budget allows. Completions that pass
//! through, and those that targets return at once, are handed over before their batch ends.

use super::cq::{Backlog, Saved};
use crate::completion::{CompletionTarget, DirectCompletions, Event, POLL_BATCH, VirtualWc};
use crate::verbs::{Completion, DeviceId};
use arrayvec::ArrayVec;

/// The virtual queue pairs to be drained: at most one for each completion of a batch.
pub(super) type Touched = ArrayVec<u16, POLL_BATCH>;

/// A caller's sink, and the number of events that it may still get.
pub(super) struct Budget<F> {
    pub(super) left: usize,
    pub(super) sink: F,
}

impl<F: FnMut(Event)> Budget<F> {
    pub(super) const fn new(left: usize, sink: F) -> Self {
        Self { left, sink }
    }

    /// Hands an event over, which the budget allows.
    #[inline]
    pub(super) fn give(&mut self, event: Event) {
        self.left -= 1;
        (self.sink)(event);
    }

    /// Hands an event over, or keeps it in `backlog` if the budget is used up.
    #[cold]
    #[inline(never)]
    pub(super) fn give_or_keep(&mut self, event: Event, backlog: &mut Backlog) {
        if self.left > 0 {
            self.give(event);
        } else {
            keep(event, backlog);
        }
    }
}

/// Keeps an event for which there is room: no more completions are polled than the backlog takes.
#[cold]
fn keep(event: Event, backlog: &mut Backlog) {
    let kept = backlog.push_back(event);
    debug_assert!(kept.is_ok(), "the backlog overflows");
}

/// Completions that are not routed yet. If a sink panics, they are saved for the next poll.
pub(super) struct Unrouted<'a> {
    pub(super) rest: &'a [Completion],
    pub(super) device: DeviceId,
    pub(super) saved: &'a mut Saved,
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

/// Hands over completions that targets with several rails return at once. If the sink panics, the
/// rest waits in the backlog.
#[inline(never)]
pub(super) fn hand_over(
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

/// A run of completions of the only rail of a virtual queue pair, on its way to the sink. Also if
/// the sink panics, the completions that it got are counted, and the others stay unrouted.
struct Handing<'a, 'c, T: CompletionTarget + ?Sized> {
    qp: &'a mut T,
    unrouted: &'a mut Unrouted<'c>,
    /// The unrouted completions behind those that were handed over.
    rest: &'c [Completion],
    failed: u32,
}

impl<T: CompletionTarget + ?Sized> Handing<'_, '_, T> {
    /// Counts the completions before `rest`, which were handed over.
    #[inline(always)]
    fn end(&mut self) {
        let all = self.unrouted.rest;
        let given = all.len() - self.rest.len();
        self.qp.count_passed(given);
        if self.failed != 0 {
            self.qp.note_passed_failures(&all[..given]);
        }
        self.unrouted.rest = self.rest;
    }
}

impl<T: CompletionTarget + ?Sized> Drop for Handing<'_, '_, T> {
    #[cold]
    fn drop(&mut self) {
        // The sink panicked: it got the first of the rest, and only this one is lost.
        if let [_, rest @ ..] = self.rest {
            self.rest = rest;
        }
        self.end();
    }
}

/// Hands over the completions, from the front, of one queue pair that is the only rail of its
/// virtual one.
#[inline(always)]
pub(super) fn pass_through<T: CompletionTarget + ?Sized>(
    qp: &mut T,
    unrouted: &mut Unrouted<'_>,
    budget: &mut Budget<impl FnMut(Event)>,
    backlog: &mut Backlog,
) {
    let all = unrouted.rest;
    let Some(Completion { qp_num, .. }) = all.first().copied() else { return };
    if budget.left == 0 {
        return keep_passed(qp, unrouted, backlog);
    }
    // The completions that the budget does not allow.
    let beyond = all.len().saturating_sub(budget.left);
    let virtual_qp_num = qp.virtual_qp_num();
    let imm_order = qp.imm_order();
    let mut handing = Handing { qp, unrouted, rest: all, failed: 0 };
    while handing.rest.len() > beyond
        && let Some((completion, rest)) = handing.rest.split_first()
        && completion.qp_num == qp_num
    {
        // Success is 0, so a sum of bits finds a failure in the run without a branch for each.
        handing.failed |= completion.status.0;
        let wc = VirtualWc::pass_through(virtual_qp_num, imm_order, completion);
        (budget.sink)(Event::Completion(wc));
        handing.rest = rest;
    }
    budget.left -= all.len() - handing.rest.len();
    handing.end();
    // Its drop is for panics only: what it needs is then kept in memory, not in each pass of the
    // loop.
    core::mem::forget(handing);
}

/// Puts a run of completions that pass through into the backlog, because there is no budget.
#[cold]
#[inline(never)]
fn keep_passed<T: CompletionTarget + ?Sized>(
    qp: &mut T,
    unrouted: &mut Unrouted<'_>,
    backlog: &mut Backlog,
) {
    let mut runs = unrouted.rest.chunk_by(|one, next| one.qp_num == next.qp_num);
    let Some(run) = runs.next() else { return };
    unrouted.rest = &unrouted.rest[run.len()..];
    let virtual_qp_num = qp.virtual_qp_num();
    let imm_order = qp.imm_order();
    let mut failed = 0;
    for completion in run {
        failed |= completion.status.0;
        let wc = VirtualWc::pass_through(virtual_qp_num, imm_order, completion);
        keep(Event::Completion(wc), backlog);
    }
    qp.count_passed(run.len());
    if failed != 0 {
        qp.note_passed_failures(run);
    }
}
