//! The list of the queue pairs of one end: how it is made, connected and searched; and the end's
//! failure.

use super::cancel::CANCEL_VERSION;
use super::card::Ports;
use super::error::{BuildError, Failure};
use super::immediate::SIZE_UNIT;
use super::lane::Lane;
use super::mask::Mask;
use crate::completion::{PhysicalQp, Role};
use crate::hardware::QueuePair;
use crate::rail::{MAX_RAILS, Reroute};
use crate::verbs::DeviceId;
use arrayvec::ArrayVec;
use core::ops::{Deref, DerefMut};

/// The queue pairs of one end.
#[derive(Debug)]
pub(super) struct Lanes<Q, const QPS: usize, const DEPTH: usize> {
    pub(super) all: ArrayVec<Lane<Q, DEPTH>, QPS>,
    /// Whether other queue pairs take over from one that fails, and the messages about that.
    pub(super) reroute: Reroute,
    /// Rails that stand by while another rail is in service.
    standby: Mask,
    /// Rails that may be given new shares and entries: the home rails, or all if no home rail is in
    /// service. Credits and failures of queue pairs are another matter.
    pub(super) open: Mask,
    /// Why the connection failed.
    pub(super) failure: Option<Failure>,
    /// A poll has something to do beyond its completions.
    pub(super) needs_recovery: bool,
    /// For each number of a queue pair modulo [`HINTS`], the place where one of that number was
    /// found last. The place of the last completion would be no hint, because rails complete in
    /// turns.
    hints: [u8; HINTS],
}

/// Devices number queue pairs one after the other, so two queue pairs of one end seldom share a
/// hint.
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
    pub(super) const fn new(
        all: ArrayVec<Lane<Q, DEPTH>, QPS>,
        reroute: Reroute,
        standby: Mask,
    ) -> Self {
        let (failure, needs_recovery, hints) = (None, false, [0; HINTS]);
        // All queue pairs begin in service, and at least one is of a home rail.
        Self { all, reroute, standby, open: standby.others(), failure, needs_recovery, hints }
    }

    /// Whether a queue pair may be given new shares and entries, credits aside.
    #[inline]
    pub(super) fn is_open(&self, lane: &Lane<Q, DEPTH>) -> bool {
        !(lane.own & self.open).is_empty()
    }

    /// Opens or closes the standby rails, after a queue pair has left service or returned.
    pub(super) fn update_open(&mut self) {
        self.open = self.open_now();
    }

    fn open_now(&self) -> Mask {
        let is_home = |lane: &Lane<Q, DEPTH>| {
            !self.standby.contains(lane.rail) && lane.health.lifecycle.is_in_service()
        };
        // A home rail is in service as long as one of its queue pairs is.
        let any_home = self.all.iter().any(is_home);
        if any_home { self.standby.others() } else { Mask::EMPTY.others() }
    }

    /// Whether a queue pair is in service.
    pub(super) fn any_in_service(&self) -> bool {
        self.all.iter().any(|lane| lane.health.lifecycle.is_in_service())
    }

    /// Checks what must hold between any two calls.
    pub(super) fn invariants(&self) {
        self.all.iter().for_each(|lane| lane.queue.invariants());
        assert_eq!(self.open, self.open_now(), "standby rails are open if no home rail works");
    }

    /// Returns a queue pair and its place.
    #[inline]
    pub(super) fn find(
        &mut self,
        device: DeviceId,
        qp_num: u32,
    ) -> Option<(usize, &mut Lane<Q, DEPTH>)> {
        // A hint may be stale or shared by two queue pairs, so the number is compared all the same.
        let place = usize::from(self.hints[qp_num as usize % HINTS]);
        if self.all.get(place).is_some_and(|lane| lane.is_at(device, qp_num)) {
            return Some((place, &mut self.all[place]));
        }
        self.search(device, qp_num)
    }

    /// Searches all queue pairs, and sets the hint for the next time.
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
            // Polls go on draining the queue pairs, also those whose driver refused just now.
            self.needs_recovery = true;
            // Without re-routing, the peer handles no messages.
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

/// Calls `each` for every queue pair with its role and the completion queue entries that its send
/// queue can need. The pool accounts for the entries of receives.
pub(super) fn list<Q: QueuePair, const DEPTH: usize>(
    lanes: &[Lane<Q, DEPTH>],
    first: usize,
    each: &mut dyn FnMut(&dyn PhysicalQp, Role, u32),
) {
    for (at, lane) in lanes.iter().enumerate() {
        each(&lane.qp, Role::Rail((first + at) as u8), lane.queue.limit());
    }
}

/// The number of requests that a queue pair must have room for: payload, and a signal behind it.
const LEAST_REQUESTS: u32 = 2;

/// Makes lanes of queue pairs: the first of each rail, then the second of each, and so on.
pub(super) fn lanes<Q: QueuePair, const QPS: usize, const DEPTH: usize>(
    queue_pairs: impl IntoIterator<Item = Q>,
    rails: u8,
    (reroutes, min_rails, standby): (bool, u8, Mask),
) -> Result<ArrayVec<Lane<Q, DEPTH>, QPS>, BuildError> {
    if rails == 0 || usize::from(rails) > MAX_RAILS {
        return Err(BuildError::Rails { rails });
    }
    if reroutes && rails == 1 {
        return Err(BuildError::NothingToRerouteTo);
    }
    if reroutes && min_rails > rails {
        return Err(BuildError::MinRails { min_rails, rails });
    }
    let all = Mask::first(rails);
    if standby & all != standby || standby == all {
        return Err(BuildError::Standby { standby, rails });
    }
    if !standby.is_empty() && !reroutes {
        return Err(BuildError::StandbyNeedsReroute { standby });
    }
    let mut lanes = ArrayVec::<Lane<Q, DEPTH>, QPS>::new();
    let count = |given| BuildError::QueuePairs { given, rails, max: QPS };
    for (place, qp) in queue_pairs.into_iter().enumerate() {
        let lane = Lane::new(qp, place, rails);
        lane.check(LEAST_REQUESTS)?;
        // The card states one device for each rail (`ports`).
        if lanes.get(usize::from(lane.rail)).is_some_and(|first| first.device != lane.device) {
            return Err(BuildError::Devices { rail: lane.rail });
        }
        lanes.try_push(lane).map_err(|_| count(place + 1))?;
    }
    // 0 is a multiple of every number of rails.
    if lanes.is_empty() || !lanes.len().is_multiple_of(usize::from(rails)) {
        return Err(count(lanes.len()));
    }
    Ok(lanes)
}

/// The devices of this end's rails, each once. Lanes know their places in this list.
pub(super) type Devices = ArrayVec<DeviceId, MAX_RAILS>;

/// Lists the devices of lanes, and sets the place of each lane's device.
pub(super) fn devices<Q, const DEPTH: usize>(lanes: &mut [Lane<Q, DEPTH>]) -> Devices {
    let mut devices = Devices::new();
    for lane in lanes {
        let known = devices.iter().position(|device| *device == lane.device);
        lane.device_at = known.unwrap_or(devices.len()) as u8;
        if known.is_none() {
            // No more devices than rails.
            let _ = devices.try_push(lane.device);
        }
    }
    devices
}

/// Returns what the card states about these lanes.
pub(super) fn ports<Q, const DEPTH: usize>(
    lanes: &[Lane<Q, DEPTH>],
    rails: u8,
    slots: usize,
    reroutes: bool,
) -> Ports {
    let cancel_version = if reroutes { CANCEL_VERSION } else { 0 };
    let mut ports =
        Ports { rails, slots: slots as u16, reroutes, cancel_version, ..Ports::default() };
    // Backwards, so that the first queue pair of each rail is the one whose values stay.
    for lane in lanes.iter().rev() {
        ports.devices[usize::from(lane.rail)] = lane.device_at;
        ports.max_message[usize::from(lane.rail)] = lane.max_message;
    }
    ports
}

/// Sets what the peer's card states about the other ends of lanes.
pub(super) fn connect<Q, const DEPTH: usize>(lanes: &mut [Lane<Q, DEPTH>], peer: &Ports) {
    for lane in lanes {
        // A card may state any number, and `max_message` is a multiple of `SIZE_UNIT`.
        let theirs = peer.max_message[usize::from(lane.rail)];
        lane.peer_at = peer.devices[usize::from(lane.rail)];
        lane.max_message = lane.max_message.min(theirs - theirs % SIZE_UNIT);
    }
}
