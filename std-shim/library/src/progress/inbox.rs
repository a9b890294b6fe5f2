//! The unreported requests of a handle, of one kind, and the outcomes that were not taken yet.

use super::HANDLE_DEPTH;
use super::outcome::{Outcome, SubmitError};
use crate::sync::RingArc;
use polyrail_core::spsc::{Consumer, Producer, Ring};

/// A message from the thread to a handle: how a request ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Report<O> {
    pub(super) slot: u16,
    pub(super) outcome: O,
}

pub(super) type ReportRing<O> = RingArc<Ring<Report<O>, HANDLE_DEPTH>>;
pub(super) type ReportProducer<O> = Producer<Report<O>, HANDLE_DEPTH, ReportRing<O>>;
pub(super) type ReportConsumer<O> = Consumer<Report<O>, HANDLE_DEPTH, ReportRing<O>>;

/// The state of one place for a request.
///
/// ```text
///              report                  take
///     Open ───────────► Done ──────────────────► Open
///      │     abandon               report
///      └──────────────► Abandoned ─────────────► Open
/// ```
#[derive(Clone, Copy, Debug)]
enum Slot<O> {
    /// It has no request, or one that has not ended. Which of the two is not noted here, so that
    /// the handle reserves slots without the lock.
    Open,
    Done(O),
    /// Its `Pending` was dropped.
    Abandoned,
}

/// The side of [`Replies`](super::replies::Replies) that belongs to the handle and its
/// [`Pending`](super::Pending)s.
#[derive(Debug)]
pub(super) struct Inbox<O> {
    reports: ReportConsumer<O>,
    slots: Box<[Slot<O>]>,
    /// Free slots that the handle has not [taken](Self::take_free).
    free: Vec<u16>,
    /// The thread has dropped its end of the ring.
    closed: bool,
}

impl<O: Outcome> Inbox<O> {
    pub(super) fn new(reports: ReportConsumer<O>) -> Self {
        let free = Vec::with_capacity(HANDLE_DEPTH);
        Self { reports, slots: [Slot::Open; HANDLE_DEPTH].into(), free, closed: false }
    }

    /// Moves all free slots to `to`, the empty list of the handle.
    pub(super) fn take_free(&mut self, to: &mut Vec<u16>) -> Result<(), SubmitError> {
        if self.free.is_empty() {
            self.receive();
        }
        if self.closed {
            return Err(SubmitError::ThreadGone);
        }
        std::mem::swap(&mut self.free, to);
        Ok(())
    }

    /// Frees a slot.
    fn release(&mut self, slot: u16) {
        self.slots[usize::from(slot)] = Slot::Open;
        self.free.push(slot);
    }

    /// Takes all reports from the ring.
    fn receive(&mut self) {
        // Before the reports are taken: a ring that is closed gets no more.
        let is_closed = self.reports.is_closed();
        let Self { reports, slots, free, closed } = self;
        // As many as the ring holds. Their places are freed together, since each time takes a cache
        // line away from the thread.
        reports.pop_batch(HANDLE_DEPTH, |Report { slot, outcome }| {
            let place = &mut slots[usize::from(slot)];
            *place = match place {
                Slot::Open => Slot::Done(outcome),
                Slot::Abandoned => {
                    free.push(slot);
                    Slot::Open
                }
                Slot::Done(_) => unreachable!("slot {slot} was reported twice"),
            };
        });
        *closed |= is_closed;
    }

    /// Takes the outcome of a request and frees its slot, if the request has ended.
    pub(super) fn take(&mut self, slot: u16) -> Option<O> {
        // Looked for in the slot first: reports come in groups, and the thread owns the cache line
        // that shows whether there are more.
        if !matches!(self.slots[usize::from(slot)], Slot::Done(_)) {
            self.receive();
        }
        let outcome = match self.slots[usize::from(slot)] {
            Slot::Done(outcome) => outcome,
            _ if self.closed => O::ABANDONED,
            _ => return None,
        };
        self.release(slot);
        Some(outcome)
    }

    /// Records that the request's `Pending` was dropped.
    pub(super) fn abandon(&mut self, slot: u16) {
        match self.slots[usize::from(slot)] {
            Slot::Done(_) => self.release(slot),
            _ => self.slots[usize::from(slot)] = Slot::Abandoned,
        }
    }
}
