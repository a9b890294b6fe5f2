//! The list of the queue pairs of one end; and the end's own failure.

use super::error::Failure;
use super::lane::Lane;
use crate::hardware::QueuePair;
use crate::rail::Reroute;
use crate::verbs::DeviceId;
use arrayvec::ArrayVec;
use core::ops::{Deref, DerefMut};

/// The queue pairs of one end.
#[derive(Debug)]
pub(super) struct Lanes<Q, const QPS: usize, const DEPTH: usize> {
    pub(super) all: ArrayVec<Lane<Q, DEPTH>, QPS>,
    /// Whether other queue pairs take over from one that fails, and the messages about that.
    pub(super) reroute: Reroute,
    /// Why the connection failed.
    pub(super) failure: Option<Failure>,
    /// A poll has something to do beyond its completions.
    pub(super) needs_recovery: bool,
    /// For each number of a queue pair modulo theirs, where one of that number was found last: rails complete in
    /// turns, so the place of the last completion tells nothing.
    hints: [u8; HINTS],
}

/// Devices number queue pairs one after the other: those of one end seldom share a hint.
const HINTS: usize = 16;

impl<Q, const QPS: usize, const DEPTH: usize> Deref for Lanes<Q, QPS, DEPTH> {
    type Target = [Lane<Q, DEPTH>];

    #[inline]
    fn deref(&self) -> &[Lane<Q, DEPTH>] {
        &self.all
    }
}

impl<Q, const QPS: usize, const DEPTH: usize> DerefMut for Lanes<Q, QPS, DEPTH> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [Lane<Q, DEPTH>] {
        &mut self.all
    }
}

impl<Q: QueuePair, const QPS: usize, const DEPTH: usize> Lanes<Q, QPS, DEPTH> {
    pub(super) const fn new(all: ArrayVec<Lane<Q, DEPTH>, QPS>, reroute: Reroute) -> Self {
        Self { all, reroute, failure: None, needs_recovery: false, hints: [0; HINTS] }
    }

    /// A queue pair and its place.
    #[inline]
    pub(super) fn find(
        &mut self,
        device: DeviceId,
        qp_num: u32,
    ) -> Option<(usize, &mut Lane<Q, DEPTH>)> {
        let place = usize::from(self.hints[qp_num as usize % HINTS]);
        if self.all.get(place).is_some_and(|lane| lane.is_at(device, qp_num)) {
            return Some((place, &mut self.all[place]));
        }
        self.search(device, qp_num)
    }

    /// The same where the hint does not help; the next time it does.
    #[inline(never)]
    fn search(&mut self, device: DeviceId, qp_num: u32) -> Option<(usize, &mut Lane<Q, DEPTH>)> {
        let place = self.all.iter().position(|lane| lane.is_at(device, qp_num))?;
        self.hints[qp_num as usize % HINTS] = place as u8;
        Some((place, &mut self.all[place]))
    }

    /// Whether other queue pairs take over from one that fails.
    pub(super) const fn reroutes(&self) -> bool {
        self.reroute.is_on
    }

    /// The end has failed: nothing more is posted. Returns whether that is new.
    pub(super) fn give_up(&mut self, failure: Failure) -> bool {
        let is_new = self.failure.is_none();
        if is_new {
            self.failure = Some(failure);
            self.needs_recovery = true;
            self.reroute.sends_error = self.reroute.is_on;
            self.all.iter_mut().for_each(Lane::stop);
        }
        is_new
    }

    /// Calls `each` with the place of each queue pair whose oldest request is still the same one.
    pub(super) fn find_stalled(&mut self, each: impl FnMut(usize)) {
        let lanes = self.all.iter_mut().enumerate();
        lanes.filter_map(|(place, lane)| lane.check_stalled().then_some(place)).for_each(each);
    }

    /// Whether a queue pair has failed, and what that means for requests is not settled.
    pub(super) fn awaits_fence(&self) -> bool {
        self.all.iter().any(|lane| lane.health.lifecycle.awaits_fence())
    }
}
