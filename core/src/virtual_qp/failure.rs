//! What happens when a rail fails, and how its owner learns of it.

use super::VirtualQp;
use super::dispatch::bytes_of;
use super::error::{ProtocolError, RailError, RailId};
use super::slot::SlotState;
use crate::hardware::{QueuePair, Refusal};
use crate::tag::Tag;
use crate::verbs::{Completion, DeviceId, WcStatus};

/// What a full queue is in errno.
const ENOMEM: i32 = 12;

/// How a virtual queue pair is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpState {
    /// All rails are in service.
    Ready,
    /// Some rails are out of service.
    Degraded,
    /// A rail failed. What is in flight is reported with its real status, the rest as flushed, and
    /// new posts are refused. Receives count as in flight while a queue pair holds them, so
    /// SPRAY's are reported once their owner has moved the notify queue pair to the error state.
    /// (With one rail, the physical queue pair answers for itself.)
    Error,
}

/// A set of rails, the notify queue pair included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RailSet(u16);

impl RailSet {
    pub(super) const EMPTY: Self = Self(0);

    const fn bit(rail: RailId) -> u16 {
        match rail {
            RailId::Data(rail) => 1 << rail,
            RailId::Notify => 1 << Tag::NOTIFY_RAIL,
        }
    }

    #[inline]
    pub(super) fn insert(&mut self, rail: RailId) {
        self.0 |= Self::bit(rail);
    }

    /// Whether no rail is in the set.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether this rail is in the set.
    #[inline]
    pub const fn contains(self, rail: RailId) -> bool {
        self.0 & Self::bit(rail) != 0
    }
}

impl Iterator for RailSet {
    type Item = RailId;

    fn next(&mut self) -> Option<RailId> {
        let bit = self.0.trailing_zeros() as u8;
        self.0 &= self.0.wrapping_sub(1);
        match bit {
            16.. => None,
            Tag::NOTIFY_RAIL => Some(RailId::Notify),
            rail => Some(RailId::Data(rail)),
        }
    }
}

impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize>
    VirtualQp<Q, RAILS, DEPTH, WRS>
{
    /// How the virtual queue pair is.
    pub fn state(&self) -> QpState {
        if self.failed {
            QpState::Error
        } else if self.rails.iter().all(|rail| rail.up) {
            QpState::Ready
        } else {
            QpState::Degraded
        }
    }

    /// The first failure: which rail, which status, where. Stays.
    pub fn first_error(&self) -> Option<RailError> {
        self.first_error
    }

    /// The first thing that no correct NIC or peer produces, since the last call, if any.
    pub fn take_protocol_error(&mut self) -> Option<ProtocolError> {
        self.protocol_error.take()
    }

    /// Protocol errors in all.
    pub fn protocol_errors(&self) -> u64 {
        self.protocol_errors
    }

    /// The rails on which nothing was completed since the previous call although there was something to
    /// do: their oldest request is the same, or their driver refuses, as a full queue does, what they
    /// are to post.
    ///
    /// Some drivers never complete a request whose peer is gone. The engine reads no clock: call
    /// this at a period longer than any request may take, and move the queue pairs that it names
    /// to the error state, which flushes them. With one rail nothing is tracked, so nothing is
    /// named.
    ///
    /// A driver that refuses and has nothing in flight that could make room, or only the front of a
    /// batch whose rest it owes, can end by itself no more: then the virtual queue pair is in the error
    /// state too, and [`first_error`](Self::first_error) has ENOMEM for the refusal.
    pub fn check_stalled(&mut self) -> RailSet {
        // A request that was refused and forgotten is not waited for.
        let waits = self.sends.unfinished_count() > 0 || self.deferred.is_waiting();
        let Self { rails, notify, retry, refill, .. } = self;
        let mut stalled = RailSet::EMPTY;
        let mut never = None;
        for rail in rails.iter_mut().chain(notify) {
            // Receives that are posted make room for more when they complete, be it late.
            let refuses_all = refill.contains(rail.id) && rail.recvs.is_empty();
            let refuses = (waits && retry.contains(rail.id)) || refuses_all;
            if !rail.check_stalled(refuses) {
                continue;
            }
            stalled.insert(rail.id);
            if refuses && rail.sends.waits_for_driver() {
                never = never.or(Some(rail.refusal_error(ENOMEM, 0)));
            }
        }
        if let Some(error) = never.filter(|_| !self.failed) {
            self.fail(error);
        }
        stalled
    }

    /// Takes a rail out of service, or back in: a rail out of service gets no new fragments, and
    /// what is in flight on it completes.
    ///
    /// For maintenance, or on a port event. The virtual queue pair is Degraded meanwhile. With
    /// rail 0 out of service, pass-through requests are refused. What would leave requests waiting
    /// for ever is ignored, and false returned: to take the last rail out of service, or rail 0
    /// while pass-through requests wait for it.
    pub fn set_rail_in_service(&mut self, rail: u8, in_service: bool) -> bool {
        let others = self.rails.iter().enumerate().any(|(at, r)| r.up && at != rail as usize);
        let Some(chosen) = self.rails.get_mut(rail as usize) else { return false };
        let waited_for = rail == 0 && self.deferred.is_waiting();
        if !in_service && (!others || waited_for) {
            return false;
        }
        chosen.up = in_service;
        self.update_ready(rail as usize);
        // Requests that found no rail may find this one.
        self.settle();
        true
    }

    #[cold]
    pub(super) fn note_protocol_error(&mut self, error: ProtocolError) {
        self.protocol_error = self.protocol_error.or(Some(error));
        self.protocol_errors += 1;
    }

    /// A completion failed, so its queue pair is in the error state.
    #[cold]
    pub(super) fn completion_failed(&mut self, id: RailId, completion: &Completion, offset: u32) {
        let Some(rail) = self.rail_mut(id) else { return };
        rail.errors += 1;
        let error = rail.completion_error(completion, offset);
        self.fail(error);
    }

    /// A driver took everything, and complained all the same: its rail failed.
    #[cold]
    pub(super) fn driver_complained(&mut self, id: RailId, refusal: Refusal) {
        let errno = match refusal {
            Refusal::QueueFull => ENOMEM,
            Refusal::Driver(errno) => errno,
        };
        let Some(rail) = self.rail_mut(id) else { return };
        let error = rail.refusal_error(errno, 0);
        self.fail(error);
    }

    /// Puts the virtual queue pair into the error state: what no rail has is cancelled.
    #[cold]
    pub(super) fn fail(&mut self, error: RailError) {
        self.first_error = self.first_error.or(Some(error));
        if !core::mem::replace(&mut self.failed, true) {
            self.withhold_rests();
        }
        self.fence_mark = None;
        while let Some(id) = self.sends.front_pending() {
            self.sends.slot(id).state.insert(SlotState::CANCELLED);
            self.sends.pop_pending();
        }
    }

    /// What drivers owe of batches that they took in part is not offered any more: nothing is sent for
    /// a request that was given up, nor past it.
    fn withhold_rests(&mut self) {
        for at in 0..self.rails.len() {
            let rail = &mut self.rails[at];
            let Some((batch, index, _)) = rail.sends.unfinished() else { continue };
            rail.sends.withhold(bytes_of(&batch, index, self.config.max_msg_size));
            self.sends.slot(batch.wr).state.insert(SlotState::CANCELLED);
        }
        let Some(notify) = &mut self.notify else { return };
        let Some((batch, index, _)) = notify.sends.unfinished() else { return };
        notify.sends.withhold(0);
        for never_sent in index..u32::from(batch.count) {
            self.notify_failed(&batch, never_sent, WcStatus::WR_FLUSH_ERR);
        }
    }

    /// In the error state: what a driver took of a batch has no signaled request behind it, so it is
    /// offered one that moves nothing.
    #[cold]
    pub(super) fn mark_end(&mut self, id: RailId) {
        let Some((batch, ..)) = self.rail_mut(id).and_then(|rail| rail.sends.unfinished()) else {
            return;
        };
        let slot = self.sends.slot(batch.wr);
        let remote_addr = slot.remote_addr;
        let (rail, rkey) = match id {
            RailId::Data(at) => {
                let rail = &mut self.rails[at as usize];
                let rkey = slot.keys[rail.keys_at as usize].rkey;
                (rail, rkey)
            }
            RailId::Notify => {
                let Some(notify) = &mut self.notify else { return };
                (notify, slot.notify_rkey)
            }
        };
        if rail.post_marker(remote_addr, rkey).is_err_and(|error| error.accepted == 0) {
            self.retry.insert(id);
        }
    }

    /// Whether this queue pair of this device is its only rail.
    #[inline]
    pub(crate) fn is_only_rail(&self, device: DeviceId, qp_num: u32) -> bool {
        !self.is_multi() && self.rails[0].is_at(device, qp_num)
    }

    /// Completions of the only rail: they passed straight through, and count.
    #[inline]
    pub(crate) fn note_single(&mut self, completions: &[Completion], any_failed: bool) {
        self.rails[0].completions += completions.len() as u64;
        if any_failed {
            self.note_single_failure(completions);
        }
    }

    #[cold]
    fn note_single_failure(&mut self, completions: &[Completion]) {
        let rail = &mut self.rails[0];
        for completion in completions.iter().filter(|completion| !completion.status.is_success()) {
            rail.errors += 1;
            let error = rail.completion_error(completion, 0);
            self.first_error = self.first_error.or(Some(error));
        }
        self.failed = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rail_set_lists_what_was_put_in() {
        let mut set = RailSet::EMPTY;
        set.insert(RailId::Notify);
        set.insert(RailId::Data(7));
        set.insert(RailId::Data(0));
        assert!(set.contains(RailId::Data(7)) && !set.contains(RailId::Data(1)));
        assert!(set.eq([RailId::Data(0), RailId::Data(7), RailId::Notify]));
        assert!(RailSet::EMPTY.is_empty());
    }
}
