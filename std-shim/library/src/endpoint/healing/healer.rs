//! What an endpoint that heals by itself remembers between two polls.

use super::link::HealingLink;
use super::message::HealingMessage;
use crate::backend::EventCursor;
use crate::endpoint::joining::Joining;
use crate::endpoint::place::{RAIL_IDS, rail_index};
use crate::endpoint::replacement::{Replacement, ReplacementAddress};
use crate::heal::{Attempts, DeviceEvents, Healing, Limits, SilenceWatch};
use polyrail_core::virtual_qp::{ControlMessage, RailId};
use std::time::Instant;

/// What an endpoint that heals by itself remembers.
#[derive(Debug)]
pub(in crate::endpoint) struct Healer<Q> {
    pub(super) options: Healing,
    pub(super) link: HealingLink,
    /// Of the two ends, the one that offers new queue pairs; the other one answers.
    pub(super) offers: bool,
    pub(super) cares: [Care<Q>; RAIL_IDS],
    pub(super) silence: SilenceWatch<RAIL_IDS>,
    /// Requests that each rail had completed when it was last looked at for silence; `None` before the first look.
    pub(super) completed: [Option<u64>; RAIL_IDS],
    pub(super) device_events: DeviceEvents,
    /// When rails that are not at home go there: some time after a port is up again.
    pub(super) home_at: Option<Instant>,
    /// Rails were out of service when it last looked.
    pub(super) is_busy: bool,
    pub(super) limits: Limits<RAIL_IDS>,
}

/// What a rail has carried so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Carried {
    /// Requests posted to it.
    pub(super) posted: u64,
    /// Requests that it has completed, those that failed aside.
    pub(super) completed: u64,
}

/// A return to service.
#[derive(Clone, Copy, Debug)]
pub(super) struct Return {
    at: Instant,
    /// Since when it had been out of service.
    since: Instant,
    /// What it had carried until then.
    before: Carried,
}

impl Return {
    /// Whether something was posted since, and nothing completed.
    const fn is_barren(&self, carried: Carried) -> bool {
        carried.posted > self.before.posted && self.is_unproven(carried)
    }

    /// Whether nothing was completed since.
    pub(super) const fn is_unproven(&self, carried: Carried) -> bool {
        carried.completed == self.before.completed
    }
}

/// Offers that are turned down at most during one absence: within 2.5 s, as intervals grow, which is long after the
/// end that offers may try other devices.
const MOST_TURNED_DOWN: u32 = 8;

/// What is under way for one rail.
#[derive(Debug)]
pub(super) struct Care<Q> {
    /// Since when it is out of service.
    pub(super) since: Option<Instant>,
    /// What it had carried when it was last seen out of service.
    before: Carried,
    /// Its last return to service.
    pub(super) returned: Option<Return>,
    /// Devices where it came back and carried nothing of what was posted, since it last carried something: they take
    /// connections, and no more.
    pub(super) barren: Vec<usize>,
    /// Offers that were turned down because they were for one of those, since it went out of service.
    pub(super) turned_down: u32,
    pub(super) attempts: Attempts,
    /// Places where the peer had no queue pair since the rail went out of service: the next offer is for another
    /// one, if there may be one.
    pub(super) refusals: usize,
    /// One was tried for that may be on another device.
    pub(super) tried_to_move: bool,
    /// A queue pair that was offered to the peer.
    pub(super) offered: Option<Replacement<Q>>,
    /// The peer's latest offer, until it is answered.
    pub(super) asked: Option<ReplacementAddress>,
    /// A queue pair that is being connected, and the number of the peer's that is answered then.
    pub(super) joining: Option<(Joining<Q>, Option<u32>)>,
}

impl<Q> Default for Care<Q> {
    fn default() -> Self {
        Self {
            since: None,
            before: Carried::default(),
            returned: None,
            barren: Vec::new(),
            turned_down: 0,
            attempts: Attempts::default(),
            refusals: 0,
            tried_to_move: false,
            offered: None,
            asked: None,
            joining: None,
        }
    }
}

impl<Q> Care<Q> {
    /// It is in service.
    pub(super) fn is_in_service(&mut self, now: Instant) {
        if let Some(since) = self.since.take() {
            self.returned = Some(Return { at: now, since, before: self.before });
        }
    }

    /// It is out of service, and its queue pair was on this device. Soon after its return that counts as an attempt
    /// that failed. If it carried nothing since, it was never back.
    pub(super) fn is_out(
        &mut self,
        now: Instant,
        healing: &Healing,
        device: Option<usize>,
        carried: Carried,
    ) {
        self.before = carried;
        if self.since.is_some() {
            return;
        }
        let returned = self.returned.take();
        let is_barren = returned.is_some_and(|returned| returned.is_barren(carried));
        let is_soon = |returned: &Return| {
            now.saturating_duration_since(returned.at) < healing.longest_interval
        };
        if is_barren || returned.as_ref().is_some_and(is_soon) {
            self.attempts.failed(now, healing);
        } else {
            self.attempts = Attempts::default();
        }
        if is_barren {
            self.since = returned.map(|returned| returned.since);
            self.barren.extend(device.filter(|device| !self.barren.contains(device)));
        } else {
            self.since = Some(now);
            if !returned.is_some_and(|returned| returned.is_unproven(carried)) {
                self.barren.clear();
            }
        }
        self.refusals = 0;
        self.turned_down = 0;
        self.tried_to_move = false;
    }

    /// Whether an offer for this device is turned down, so that the peer may offer another one.
    pub(super) fn turns_down(&mut self, device: usize) -> bool {
        let turns_down = self.barren.contains(&device) && self.turned_down < MOST_TURNED_DOWN;
        self.turned_down += u32::from(turns_down);
        turns_down
    }

    /// Whether a new queue pair is to be tried for: when an interval has passed, and as soon as it may be on another
    /// device, if it can be there.
    pub(super) fn is_due(&self, now: Instant, healing: &Healing, can_move: bool) -> bool {
        let moves = can_move && !self.tried_to_move && self.may_move(now, healing);
        moves || self.attempts.is_due(now)
    }

    /// Whether the rail has waited for its own device for long enough.
    pub(super) fn may_move(&self, now: Instant, healing: &Healing) -> bool {
        let out_for = self.since.map(|since| now.saturating_duration_since(since));
        out_for.is_some_and(|out_for| out_for >= healing.fallback_after)
    }

    /// The peer had no queue pair for the offered one.
    pub(super) fn refused(&mut self, now: Instant, healing: &Healing) {
        self.attempts.failed(now, healing);
        // Until it may move, only its own device was asked for.
        self.refusals = if self.may_move(now, healing) { self.refusals + 1 } else { 1 };
    }

    /// There is reason to hope: the next attempt is due now, also if the rail is about to fail.
    pub(super) fn hurry(&mut self) {
        self.returned = None;
        self.barren.clear();
        self.attempts.hurry();
    }
}

impl<Q> Healer<Q> {
    /// `cursors` are those of the endpoint's devices, by place.
    pub(in crate::endpoint) fn new(options: Healing, cursors: Vec<EventCursor>) -> Self {
        Self {
            options,
            link: HealingLink::new(),
            offers: false,
            cares: std::array::from_fn(|_| Care::default()),
            silence: SilenceWatch::new(),
            completed: [None; RAIL_IDS],
            device_events: DeviceEvents::new(cursors),
            home_at: None,
            is_busy: false,
            limits: Limits::new(),
        }
    }

    /// The endpoints are connected; one of them offers.
    pub(in crate::endpoint) fn takes_part(&mut self, offers: bool) {
        self.offers = offers;
    }

    pub(in crate::endpoint) fn link(&self) -> &HealingLink {
        &self.link
    }

    /// The peer's endpoint is in this process, and this is the way to it.
    pub(in crate::endpoint) fn set_link(&mut self, link: HealingLink) {
        self.link = link;
    }

    pub(super) fn care(&mut self, rail: RailId) -> Option<&mut Care<Q>> {
        self.cares.get_mut(rail_index(rail)?)
    }

    /// The link broke: what was under way is lost, and the peer may have wished that it be tried at once.
    pub(super) fn forget(&mut self) {
        for care in &mut self.cares {
            care.offered = None;
            care.asked = None;
            care.joining = None;
            care.attempts.hurry();
        }
    }
}

/// Its endpoint is no more: the peer need not wait for its word.
impl<Q> Drop for Healer<Q> {
    fn drop(&mut self) {
        self.link.say(HealingMessage::Control(ControlMessage::Error));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_rail_that_flaps_is_tried_more_and_more_seldom() {
        let healing = Healing::default();
        let mut care = Care::<()>::default();
        let mut now = Instant::now();
        let mut fail_after = |served: Duration| {
            care.is_in_service(now);
            now += served;
            care.is_out(now, &healing, Some(0), Carried::default());
            let waits =
                (0..).map(Duration::from_millis).find(|after| care.attempts.is_due(now + *after));
            now += Duration::from_secs(60);
            waits.map(|waits| waits.as_millis())
        };
        let soon = Duration::from_millis(300);
        let waits: Vec<_> = (0..4).map(|_| fail_after(soon)).collect();
        assert_eq!(waits, [Some(0), Some(10), Some(20), Some(40)]);
        assert_eq!(fail_after(healing.longest_interval), Some(0));
        assert_eq!(fail_after(soon), Some(10));
    }

    /// However long its transport takes to tell.
    #[test]
    fn a_rail_that_carries_nothing_after_its_return_was_never_back() {
        let healing = Healing::default();
        let mut now = Instant::now();
        let mut care = Care::<()>::default();
        let mut carried = Carried { posted: 10, completed: 10 };
        care.is_out(now, &healing, Some(3), carried);
        for device in [3, 4, 3] {
            assert_eq!(care.since, Some(now));
            care.is_in_service(now + Duration::from_millis(1));
            carried.posted += 1;
            let later = now + Duration::from_secs(20);
            care.is_out(later, &healing, Some(device), carried);
            assert!(!care.attempts.is_due(later) && care.may_move(later, &healing));
        }
        assert_eq!(care.barren, [3, 4]);
        assert!((0..MOST_TURNED_DOWN).all(|_| care.turns_down(4)) && !care.turns_down(4));
        assert!(!care.turns_down(5));
        // Nothing was asked of it: that says nothing.
        care.is_in_service(now);
        now += Duration::from_secs(20);
        care.is_out(now, &healing, Some(5), carried);
        assert_eq!((care.since, &*care.barren), (Some(now), &[3, 4][..]));
        // It carries something.
        care.is_in_service(now);
        carried = Carried { posted: carried.posted + 2, completed: carried.completed + 1 };
        care.is_out(now, &healing, Some(5), carried);
        assert!(care.barren.is_empty() && !care.turns_down(3));
    }

    /// A rail that is out of service since now, and has to wait long for its next attempt.
    fn unlucky(now: Instant, healing: &Healing) -> Care<()> {
        let mut care = Care::default();
        care.is_out(now, healing, Some(0), Carried::default());
        (0..8).for_each(|_| care.attempts.failed(now, healing));
        care
    }

    #[test]
    fn what_may_move_is_tried_for_at_once_and_then_at_intervals() {
        let healing = Healing::default();
        let now = Instant::now();
        let mut care = unlucky(now, &healing);
        let then = now + healing.fallback_after;
        assert!(!care.is_due(then - Duration::from_nanos(1), &healing, true));
        assert!(care.is_due(then, &healing, true));
        assert!(!care.is_due(then, &healing, false));
        care.tried_to_move = true;
        assert!(!care.is_due(then, &healing, true));
    }

    /// However often its own device was refused, the next one is the first that it moves to.
    #[test]
    fn of_refusals_before_it_may_move_one_counts() {
        let healing = Healing::default();
        let now = Instant::now();
        let mut care = unlucky(now, &healing);
        (0..3).for_each(|_| care.refused(now, &healing));
        assert_eq!(care.refusals, 1);
        (0..3).for_each(|_| care.refused(now + healing.fallback_after, &healing));
        assert_eq!(care.refusals, 4);
    }
}
