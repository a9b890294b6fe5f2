//! Requests are reported when they are done, ahead of their turn.
//!
//! Such a request is handed out with the completion that makes it so. It keeps its place in the ring until
//! those before it are done: the ring's cursors pass it, and nothing else changes.

use super::qp::VirtualQp;
use super::slot::{SendSlot, SlotState};
use crate::completion::{DirectCompletions, VirtualWc};
use crate::hardware::QueuePair;

impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize>
    VirtualQp<Q, RAILS, DEPTH, WRS>
{
    /// A batch of a request's fragments is retired. Reports the request, if it is done and need not wait for its
    /// turn.
    #[cold]
    #[inline(never)]
    pub(super) fn batch_retired(&mut self, id: u64, direct: &mut DirectCompletions) {
        let Self { ahead, sends, reroute, .. } = self;
        let slot = sends.slot(id);
        if slot.is_done_ahead() && !reroute.awaits_fence {
            direct.push(ahead.report(slot));
        }
    }

    /// The oldest request that is to be reported ahead of its turn and was not, since what made it so was no
    /// completion: the peer's word of what arrived, or the end of all.
    #[cold]
    pub(super) fn report_ahead(&mut self) -> Option<VirtualWc> {
        let id = self.next_ahead()?;
        let Self { ahead, sends, .. } = self;
        Some(ahead.report(sends.slot(id)))
    }

    /// Forgets the pending requests from `id` on, of which nothing is posted. Returns how many there were, buffers of
    /// lists included.
    #[cold]
    pub(super) fn take_back_from(&mut self, id: u64) -> usize {
        let (mut count, mut any) = (0, false);
        while self.sends.pending_ids().end > id
            && let Some(slot) = self.sends.take_back()
        {
            self.parts -= usize::from(slot.state.contains(SlotState::PART));
            any |= slot.state.contains(SlotState::WHEN_DONE);
            count += 1;
        }
        if any {
            let mut alive = self.sends.alive().filter_map(|id| self.sends.find(id));
            let others = alive.any(|slot| slot.state.contains(SlotState::WHEN_DONE));
            self.ahead
                .note_others(others || self.header.first_state.contains(SlotState::WHEN_DONE));
        }
        count
    }

    /// Whether there is such a request.
    pub(super) fn has_ahead(&self) -> bool {
        self.next_ahead().is_some()
    }

    fn next_ahead(&self) -> Option<u64> {
        if self.reroute.awaits_fence {
            return None;
        }
        let is_due = |id: &u64| self.sends.find(*id).is_some_and(SendSlot::is_done_ahead);
        self.sends.posted_ids().find(is_due)
    }

    /// What must hold between the ring and what is counted here.
    pub(super) fn ahead_invariants(&self) {
        let reported = self.sends.iter().filter(|slot| slot.state.contains(SlotState::REPORTED));
        assert_eq!(reported.count(), self.ahead.count(), "reported, and still to be passed");
        assert!(self.health.needs_care || !self.has_ahead(), "what is done is reported");
    }
}
