//! The unreported requests of a handle, of one kind, and the outcomes that were not taken yet.

use super::HANDLE_DEPTH;
use super::outcome::{Outcome, SubmitError};
use crate::sync::RingArc;
use polyrail_core::spsc::{Consumer, PopError, Producer, Ring};

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
///            reserve              report                  take
///     Free ──────────► Waiting ───────────► Done ────────────────► Free
///                         │      abandon               report
///                         └───────────────► Abandoned ───────────► Free
/// ```
#[derive(Clone, Copy, Debug)]
enum Slot<O: Outcome> {
    Free,
    /// The caller's name for the request.
    Waiting {
        name: O::Name,
    },
    Done(O),
    /// Its `Pending` was dropped.
    Abandoned,
}

/// The side of [`Replies`](super::replies::Replies) that belongs to the handle and its
/// [`Pending`](super::Pending)s.
#[derive(Debug)]
pub(super) struct Inbox<O: Outcome> {
    reports: ReportConsumer<O>,
    slots: Box<[Slot<O>]>,
    /// The free slots.
    free: Vec<u16>,
    /// The thread has dropped its end of the ring.
    closed: bool,
}

impl<O: Outcome> Inbox<O> {
    pub(super) fn new(reports: ReportConsumer<O>) -> Self {
        let free = (0..HANDLE_DEPTH as u16).rev().collect();
        Self { reports, slots: [Slot::Free; HANDLE_DEPTH].into(), free, closed: false }
    }

    /// Reserves a slot for a request.
    pub(super) fn reserve(&mut self, name: O::Name) -> Result<u16, SubmitError> {
        if self.free.is_empty() {
            self.receive();
        }
        if self.closed {
            return Err(SubmitError::ThreadGone);
        }
        let slot = self.free.pop().ok_or(SubmitError::Full)?;
        self.slots[usize::from(slot)] = Slot::Waiting { name };
        Ok(slot)
    }

    /// Frees a slot.
    pub(super) fn release(&mut self, slot: u16) {
        self.slots[usize::from(slot)] = Slot::Free;
        self.free.push(slot);
    }

    /// Takes all reports from the ring.
    fn receive(&mut self) {
        loop {
            match self.reports.pop() {
                Ok(report) => self.note(report),
                Err(PopError::Empty) => return,
                Err(PopError::Closed) => {
                    self.closed = true;
                    return;
                }
            }
        }
    }

    fn note(&mut self, Report { slot, outcome }: Report<O>) {
        match self.slots[usize::from(slot)] {
            Slot::Waiting { name } => {
                self.slots[usize::from(slot)] = Slot::Done(outcome.named(name));
            }
            Slot::Abandoned => self.release(slot),
            Slot::Free | Slot::Done(_) => unreachable!("slot {slot} was reported twice"),
        }
    }

    /// Takes the outcome of a request and frees its slot, if the request has ended.
    pub(super) fn take(&mut self, slot: u16) -> Option<O> {
        self.receive();
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
