//! A rail fails: its queue pair is moved to the error state.

use crate::hardware::QueuePair;
use crate::rail::{FailedBecause, PhysicalRail, RailError, RailId, RailState, Rails};
use crate::verbs::Completion;
use crate::virtual_qp::parts::front_bytes;
use crate::virtual_qp::qp::VirtualQp;

impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize>
    VirtualQp<Q, RAILS, DEPTH, WRS>
{
    /// The owner reports that the queue pair of a rail is gone: what is in flight on it counts as
    /// flushed, and none of its completions are awaited. For devices that are gone, and completion
    /// queues that broke. Returns whether that changed anything.
    ///
    /// Poll until nothing comes before, if the completion queue can still be polled: receives whose
    /// completions were not taken count as never arrived, and if the peer knows better, which an
    /// acknowledgement is enough for, it has to [give up](super::super::Failure::CompletionsLost).
    ///
    /// # Safety
    ///
    /// The device will access no memory through this queue pair any more: it was reset, or the
    /// device was removed. Buffers of what was in flight are posted again, reported, and given
    /// back.
    #[allow(unsafe_code, reason = "a contract for the caller")]
    pub unsafe fn lose_rail(&mut self, rail: RailId) -> bool {
        if !self.reroute.is_on {
            return false;
        }
        self.stop_rail(rail, FailedBecause::Lost);
        let Some(lost) = self.rail_mut(rail) else { return false };
        // A rail that is Fenced or Down has nothing in flight that could be ended.
        if lost.health.lifecycle.state() != RailState::Draining && !self.health.failed {
            return false;
        }
        let Some(lost) = self.rail_mut(rail) else { return false };
        // A virtual queue pair that failed as a whole did not stop this rail, so nothing is marked.
        if !lost.sends.is_losing() {
            lost.sends.begin_loss();
        }
        while self.rail(rail).is_some_and(|lost| !lost.sends.is_empty()) {
            self.lose_front(rail);
        }
        let Some(lost) = self.rail_mut(rail) else { return false };
        // They count as not arrived. If the peer has acknowledgements for some, its `fenced`
        // finds that the count is too small.
        lost.recvs.flush_all();
        lost.health.note_gone();
        self.offers.sends.remove(rail);
        if self.health.failed {
            self.abandon_lost(rail);
        }
        self.health.needs_recovery = true;
        self.pump_all();
        true
    }

    /// A rail failed. If others may do better they take over, else the virtual queue pair has
    /// failed.
    #[cold]
    pub(in crate::virtual_qp) fn rail_failed(&mut self, error: RailError) {
        Rails::rail_failed(self, error.rail, FailedBecause::Error(error));
    }

    /// Whether the virtual queue pair can go on without this rail, and the rail is the cause.
    pub(in crate::virtual_qp) const fn survives(&self, error: &RailError) -> bool {
        self.reroute.is_on && !self.health.failed && error.is_of_rail()
    }

    /// A driver refused a request for good, or a part of it.
    #[cold]
    pub(in crate::virtual_qp) fn request_refused(&mut self, id: u64, error: RailError) {
        if !self.survives(&error) {
            // If another rail takes over, the request is posted again and must not carry the
            // failure.
            self.sends.slot(id).fail(error.status);
        }
        self.rail_failed(error);
    }

    /// Whether what fails on this rail is lost, and posted again.
    pub(in crate::virtual_qp) fn is_losing(&self, id: RailId) -> bool {
        self.rail(id).is_some_and(|rail| rail.sends.is_losing())
    }

    /// Request `index` of the front batch of a rail failed. Returns whether it is lost rather than
    /// failed.
    #[cold]
    pub(in crate::virtual_qp) fn send_lost(
        &mut self,
        id: RailId,
        index: u32,
        completion: &Completion,
    ) -> bool {
        let cut = self.cut();
        let Some(rail) = self.rail(id) else { return false };
        let fragments = rail.sends.front().filter(|batch| batch.content.is_fragments());
        let offset =
            fragments.map_or(0, |batch| batch.offset + front_bytes(&self.sends, batch, index, cut));
        let error = rail.completion_error(completion, offset);
        if !self.survives(&error) {
            return false;
        }
        self.rail_failed(error);
        // Too few rails may be left, and then the virtual queue pair has failed just now.
        if !self.is_losing(id) {
            return false;
        }
        let Some(rail) = self.rail_mut(id) else { return false };
        rail.errors += 1;
        // A flush proves nothing about the requests before it: not every driver completes
        // unsignaled requests.
        rail.sends.note_failed(index, !error.is_flush());
        let is_last = rail.sends.front().is_some_and(|batch| u32::from(batch.count) == index + 1);
        if is_last || rail.sends.ends_at(index) {
            self.lose_front(id);
        }
        true
    }

    /// The front batch of a rail is lost, but for what of it is acknowledged.
    fn lose_front(&mut self, id: RailId) {
        let front = self.rail(id).and_then(|rail| rail.sends.front_acknowledged());
        let bytes =
            front.map_or(0, |(batch, count)| front_bytes(&self.sends, &batch, count, self.cut()));
        if let Some(rail) = self.rail_mut(id) {
            rail.sends.lose_front(bytes);
        }
    }

    /// If the front batch of a rail that failed was taken in part, it is lost, even if all of the
    /// part that was taken arrived: the rest was never posted. Returns whether it is.
    pub(in crate::virtual_qp) fn lose_withheld(&mut self, id: RailId) -> bool {
        let withheld = self.rail(id).is_some_and(|rail| rail.sends.front_is_withheld());
        if withheld {
            self.lose_front(id);
        }
        withheld
    }

    /// A receive completed without having taken anything. Returns whether it is to be posted again.
    #[cold]
    pub(in crate::virtual_qp) fn receive_lost(
        &mut self,
        id: RailId,
        completion: &Completion,
    ) -> bool {
        let Some(rail) = self.rail_mut(id) else { return false };
        let error = rail.completion_error(completion, 0);
        // A receive with a bad buffer would fail each queue pair that it is posted to.
        if !self.survives(&error) || !error.is_of_rail_of_receive() {
            return false;
        }
        if let Some(rail) = self.rail_mut(id) {
            rail.errors += 1;
            rail.recvs.note_flushed();
        }
        self.rail_failed(error);
        true
    }
}
