//! A handle's requests that are not reported, and the completions that came for them.

use super::error::{RequestError, SubmitError};
use super::message::{Lane, Report};
use super::rings::{HANDLE_DEPTH, ReportConsumer, SLOTS};
use polyrail_core::spsc::PopError;
use polyrail_core::virtual_cq::VirtualWc;

/// How a request ended.
pub(super) type RequestOutcome = Result<VirtualWc, RequestError>;

/// One place for an unreported request.
///
/// ```text
///            reserve              report                  take
///     Free ──────────► Waiting ───────────► Done ────────────────► Free
///                         │      abandon               report
///                         └───────────────► Abandoned ───────────► Free
/// ```
#[derive(Clone, Copy, Debug)]
enum Slot {
    Free,
    /// The caller's name for the request.
    Waiting {
        wr_id: u64,
    },
    Done(RequestOutcome),
    /// Its `Pending` was dropped.
    Abandoned,
}

/// The side of a port that belongs to the handle and its [`Pending`](super::Pending)s. Slots below
/// `HANDLE_DEPTH` are for sends, the others for receives.
#[derive(Debug)]
pub(super) struct Inbox {
    reports: ReportConsumer,
    slots: Box<[Slot]>,
    /// Free slots of each lane.
    free: [Vec<u16>; 2],
    /// No more reports will come.
    closed: bool,
}

impl Inbox {
    pub(super) fn new(reports: ReportConsumer) -> Self {
        let lane = |at: usize| (0..HANDLE_DEPTH).rev().map(move |n| (at * HANDLE_DEPTH + n) as u16);
        let free = [lane(0).collect(), lane(1).collect()];
        Self { reports, slots: [Slot::Free; SLOTS].into(), free, closed: false }
    }

    /// A slot for a request.
    pub(super) fn reserve(&mut self, lane: Lane, wr_id: u64) -> Result<u16, SubmitError> {
        if self.free[lane as usize].is_empty() {
            self.receive();
        }
        if self.closed {
            return Err(SubmitError::ThreadGone);
        }
        let slot = self.free[lane as usize].pop().ok_or(SubmitError::Full)?;
        self.slots[usize::from(slot)] = Slot::Waiting { wr_id };
        Ok(slot)
    }

    /// Frees a slot.
    pub(super) fn release(&mut self, slot: u16) {
        self.slots[usize::from(slot)] = Slot::Free;
        self.free[usize::from(slot) / HANDLE_DEPTH].push(slot);
    }

    /// Takes what the thread reported.
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

    fn note(&mut self, Report { slot, result }: Report) {
        match self.slots[usize::from(slot)] {
            Slot::Waiting { wr_id } => {
                let outcome = result.map(|wc| VirtualWc { wr_id, ..wc });
                self.slots[usize::from(slot)] = Slot::Done(outcome.map_err(RequestError::from));
            }
            Slot::Abandoned => self.release(slot),
            Slot::Free | Slot::Done(_) => unreachable!("slot {slot} was reported twice"),
        }
    }

    /// How the request ended, if it did; then its slot is free.
    pub(super) fn take(&mut self, slot: u16) -> Option<RequestOutcome> {
        self.receive();
        let outcome = match self.slots[usize::from(slot)] {
            Slot::Done(outcome) => outcome,
            _ if self.closed => Err(RequestError::Abandoned),
            _ => return None,
        };
        self.release(slot);
        Some(outcome)
    }

    /// The request's `Pending` was dropped.
    pub(super) fn abandon(&mut self, slot: u16) {
        match self.slots[usize::from(slot)] {
            Slot::Done(_) => self.release(slot),
            _ => self.slots[usize::from(slot)] = Slot::Abandoned,
        }
    }
}
