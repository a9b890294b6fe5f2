//! What is remembered about a rail while it is repaired.

use super::attempts::Attempts;
use super::message::{RailName, ReplacementAddress};
use super::new_queue_pair::{NewQueuePair, Next, Step};
use super::options::Healing;
use crate::backend::Connect;
use std::time::{Duration, Instant};

/// What a rail has carried so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Carried {
    /// Requests posted to it.
    pub(crate) posted: u64,
    /// Requests and receives that it has completed, those that failed aside.
    pub(crate) completed: u64,
    /// Requests posted to it of which it is known that they arrived.
    pub(crate) acknowledged: u64,
}

/// What is known about a rail that is in service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    /// It has never failed, or something was acknowledged on it since its return.
    Given,
    /// Nothing was acknowledged on it since its return.
    Missing,
    /// Nothing was acknowledged on it since its return, and after the return before that, it lost
    /// everything that was posted to it: it may drop what is sent.
    Doubtful,
}

/// A return to service.
#[derive(Clone, Copy, Debug)]
struct Return {
    at: Instant,
    /// Since when it had been out of service.
    since: Instant,
    /// What it had carried until then.
    before: Carried,
}

impl Return {
    /// Whether something was posted since, and nothing acknowledged.
    const fn is_barren(&self, carried: Carried) -> bool {
        carried.posted > self.before.posted && self.is_unproven(carried)
    }

    /// Whether nothing was acknowledged since. Receives that complete prove the other direction
    /// only: a firewall may drop what is sent, and not what arrives.
    const fn is_unproven(&self, carried: Carried) -> bool {
        carried.acknowledged == self.before.acknowledged
    }
}

/// Offers that are turned down at most during one absence: within 2.5 s, as intervals grow, which
/// is long after the end that offers may try other devices.
const MOST_TURNED_DOWN: u32 = 8;

/// Time within which data has to reach the peer over a new queue pair. A connection over TCP takes
/// three round trips, and a first packet that is lost is sent again after 1 s, 3 s and 7 s
/// (RFC 6298). If the time passes, the next queue pair has twice as much, up to [`LONGEST_REACH`]:
/// a rail that requests wait for tries another device soon, and a slow path has its time later.
const FIRST_REACH: Duration = Duration::from_secs(2);
const LONGEST_REACH: Duration = Duration::from_secs(8);

/// The repair of one rail.
#[derive(Debug)]
pub(crate) struct RailRepair<R: RailName, Q> {
    /// Since when it is out of service.
    since: Option<Instant>,
    /// What it had carried when it was last seen out of service.
    before: Carried,
    /// Its last return to service.
    returned: Option<Return>,
    /// Devices where it came back and carried nothing of what was posted, since it last carried
    /// something: they accept connections and nothing else.
    barren: Vec<usize>,
    /// Offers that were refused because they were for one of these devices, since it went out of
    /// service.
    turned_down: u32,
    pub(super) attempts: Attempts,
    /// Places where no queue pair could be connected since the rail went out of service: the next
    /// offer is for another place, if there is one.
    pub(super) refusals: usize,
    /// Time within which data has to reach the peer over the next queue pair.
    reach_within: Duration,
    /// A new queue pair that may be on another device was attempted.
    tried_to_move: bool,
    /// The next attempt was made due while an attempt was under way, which may have begun before a
    /// port came up: its failure does not count.
    is_retried: bool,
    /// The peer's latest offer, until it is answered.
    pub(super) asked: Option<ReplacementAddress<R>>,
    /// The new queue pair.
    pub(super) next: Option<Next<R, Q>>,
    /// The generation of the last queue pair that was put in place, until the rail is seen in
    /// service.
    placed: Option<u16>,
}

impl<R: RailName, Q> Default for RailRepair<R, Q> {
    fn default() -> Self {
        Self {
            since: None,
            before: Carried::default(),
            returned: None,
            barren: Vec::new(),
            turned_down: 0,
            attempts: Attempts::default(),
            refusals: 0,
            reach_within: FIRST_REACH,
            tried_to_move: false,
            is_retried: false,
            asked: None,
            next: None,
            placed: None,
        }
    }
}

impl<R: RailName, Q> RailRepair<R, Q> {
    /// Takes the queue pair that was offered under this number.
    pub(super) fn take_offered(&mut self, generation: u16, qp_num: u32) -> Option<NewQueuePair<Q>>
    where
        Q: Connect,
    {
        let is_offered = |next: &mut Next<R, Q>| {
            next.generation == generation
                && matches!(&next.step, Step::Offered(own) if own.queue_pair.qp_num() == qp_num)
        };
        match self.next.take_if(is_offered)?.step {
            Step::Offered(own) => Some(own),
            Step::Making(_) | Step::Joining(_) => None,
        }
    }

    /// Returns what is known about a rail that is in service.
    pub(super) fn proof(&self, carried: Carried) -> Proof {
        match self.returned {
            Some(returned) if returned.is_unproven(carried) => match self.barren.is_empty() {
                true => Proof::Missing,
                false => Proof::Doubtful,
            },
            _ => Proof::Given,
        }
    }

    /// Whether the device carried nothing when the rail was there last.
    pub(super) fn is_barren(&self, device: usize) -> bool {
        self.barren.contains(&device)
    }

    /// Notes that an attempt begins.
    pub(super) fn begin_attempt(&mut self, now: Instant, healing: &Healing) {
        self.is_retried = false;
        self.tried_to_move = self.may_move(now, healing);
    }

    /// Notes that the rail is in service.
    pub(super) fn note_in_service(&mut self, now: Instant) {
        self.placed = None;
        if let Some(since) = self.since.take() {
            self.returned = Some(Return { at: now, since, before: self.before });
        }
    }

    /// Notes that the rail is out of service, and that its queue pair was on this device. Soon
    /// after its return that counts as an attempt that failed. If it carried nothing since, it was
    /// never back. If it is out `on_purpose`, nothing is wrong with it, and neither counts.
    pub(super) fn note_out(
        &mut self,
        now: Instant,
        healing: &Healing,
        device: Option<usize>,
        carried: Carried,
        on_purpose: bool,
    ) {
        self.before = carried;
        if self.since.is_some() {
            return;
        }
        let returned = self.returned.take();
        let is_barren = returned.is_some_and(|returned| returned.is_barren(carried)) && !on_purpose;
        let is_soon = |returned: &Return| {
            now.saturating_duration_since(returned.at) < healing.longest_interval
        };
        if is_barren || (returned.as_ref().is_some_and(is_soon) && !on_purpose) {
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
        self.reach_within = FIRST_REACH;
        self.turned_down = 0;
        self.tried_to_move = false;
    }

    /// Notes that what the rail carried until now says nothing about its device: it is failed
    /// because it is silent, but its oldest request may wait until the peer posts a receive.
    pub(super) fn excuse(&mut self, carried: Carried) {
        if let Some(returned) = &mut self.returned {
            returned.before.posted = carried.posted;
        }
    }

    /// Notes that a queue pair of this generation was put in the rail's place.
    pub(super) const fn note_placed(&mut self, generation: u16) {
        self.placed = Some(generation);
    }

    /// Notes that the rail is Down in this generation. If its queue pair was put in place and
    /// failed before a step saw the rail in service, that was an attempt that failed: without a
    /// pause, the two ends would replace queue pairs as fast as they can.
    pub(super) fn note_down(&mut self, now: Instant, healing: &Healing, generation: u16) {
        if self.placed.take_if(|placed| *placed == generation).is_some() {
            self.attempts.failed(now, healing);
        }
    }

    /// Whether an offer for this device is turned down, so that the peer may offer another one.
    pub(super) fn turns_down(&mut self, device: usize) -> bool {
        let turns_down = self.barren.contains(&device) && self.turned_down < MOST_TURNED_DOWN;
        self.turned_down += u32::from(turns_down);
        turns_down
    }

    /// Whether a new queue pair is to be tried for: when an interval has passed, and as soon as it
    /// may be on another device, if it can be there.
    pub(super) fn is_due(&self, now: Instant, healing: &Healing, can_move: bool) -> bool {
        let moves = can_move && !self.tried_to_move && self.may_move(now, healing);
        moves || self.attempts.is_due(now)
    }

    /// Whether the rail has waited for its own device for long enough.
    pub(super) fn may_move(&self, now: Instant, healing: &Healing) -> bool {
        let out_for = self.since.map(|since| now.saturating_duration_since(since));
        out_for.is_some_and(|out_for| out_for >= healing.fallback_after)
    }

    /// Notes that an attempt failed.
    pub(super) fn attempt_failed(&mut self, now: Instant, healing: &Healing) {
        if !std::mem::take(&mut self.is_retried) {
            self.attempts.failed(now, healing);
        }
    }

    /// The peer had no queue pair for the offered one, or the two could not be connected here.
    pub(super) fn refused(&mut self, now: Instant, healing: &Healing) {
        self.attempt_failed(now, healing);
        // Until it may move, only its own device was asked for.
        self.refusals = if self.may_move(now, healing) { self.refusals + 1 } else { 1 };
    }

    /// Returns the time within which data has to reach the peer over a new queue pair.
    pub(super) const fn reach_within(&self) -> Duration {
        self.reach_within
    }

    /// Notes that data did not reach the peer over a new queue pair within that time.
    pub(super) fn not_reached(&mut self) {
        self.reach_within = (2 * self.reach_within).min(LONGEST_REACH);
    }

    /// Makes the next attempt due now, also if the rail is about to fail.
    pub(super) fn retry_now(&mut self) {
        self.returned = None;
        self.barren.clear();
        self.is_retried = self.next.is_some();
        self.attempts.retry_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{Gid, Mtu, Port};
    use crate::queue_pair::{Place, RailAddress};
    use polyrail_core::virtual_qp::RailId;
    use std::time::Duration;

    #[test]
    fn a_connection_over_a_slow_path_has_more_time_with_each_attempt() {
        let (healing, carried) = (Healing::default(), Carried::default());
        let now = Instant::now();
        let mut repair = RailRepair::<RailId, ()>::default();
        repair.note_out(now, &healing, Some(0), carried, false);
        let mut seconds = || {
            let within = repair.reach_within();
            repair.not_reached();
            // The next step finds the rail out of service as before.
            repair.note_out(now, &healing, Some(0), carried, false);
            within.as_secs()
        };
        assert_eq!([(); 4].map(|()| seconds()), [2, 4, 8, 8]);
        repair.note_in_service(now);
        repair.note_out(now + Duration::from_secs(60), &healing, Some(0), carried, false);
        assert_eq!(repair.reach_within(), FIRST_REACH);
    }

    /// The peer refuses an offer because its port was down, and the refusal comes behind the report
    /// that the port is up.
    #[test]
    fn an_attempt_that_began_before_a_port_came_up_does_not_delay_the_next() {
        let healing = Healing::default();
        let now = Instant::now();
        let address = RailAddress {
            device: 0,
            gid: Gid::default(),
            lid: 0,
            mtu: Mtu::Mtu1024,
            psn: 0,
            rd_atomic: 1,
            meeting: None,
        };
        let port = Port {
            number: 1,
            gid_index: 0,
            gid: Gid::default(),
            lid: 0,
            mtu: Mtu::Mtu1024,
            max_rd_atomic: 1,
        };
        let mut repair = RailRepair::<RailId, ()>::default();
        let mut fail_after = |hint: bool| {
            let place = Place { device: 0, port };
            let offered = NewQueuePair { queue_pair: (), place, address };
            repair.begin_attempt(now, &healing);
            repair.next = Some(Next { generation: 1, step: Step::Offered(offered) });
            if hint {
                repair.retry_now();
            }
            repair.next = None;
            repair.refused(now, &healing);
            repair.attempts.is_due(now)
        };
        assert_eq!([true, false, true, false].map(&mut fail_after), [true, false, true, false]);
    }

    #[test]
    fn a_rail_that_flaps_is_tried_more_and_more_seldom() {
        let healing = Healing::default();
        let mut repair = RailRepair::<RailId, ()>::default();
        let mut now = Instant::now();
        let mut fail_after = |served: Duration| {
            repair.note_in_service(now);
            now += served;
            repair.note_out(now, &healing, Some(0), Carried::default(), false);
            let waits =
                (0..).map(Duration::from_millis).find(|after| repair.attempts.is_due(now + *after));
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
        let mut repair = RailRepair::<RailId, ()>::default();
        let mut carried = Carried { posted: 10, completed: 10, acknowledged: 10 };
        repair.note_out(now, &healing, Some(3), carried, false);
        for device in [3, 4, 3] {
            assert_eq!(repair.since, Some(now));
            repair.note_in_service(now + Duration::from_millis(1));
            carried.posted += 1;
            carried.completed += 1; // a receive
            let later = now + Duration::from_secs(20);
            repair.note_out(later, &healing, Some(device), carried, false);
            assert!(!repair.attempts.is_due(later) && repair.may_move(later, &healing));
        }
        assert_eq!(repair.barren, [3, 4]);
        assert!((0..MOST_TURNED_DOWN).all(|_| repair.turns_down(4)) && !repair.turns_down(4));
        assert!(!repair.turns_down(5));
        // Nothing was asked of it: that says nothing.
        repair.note_in_service(now);
        now += Duration::from_secs(20);
        repair.note_out(now, &healing, Some(5), carried, false);
        assert_eq!((repair.since, &*repair.barren), (Some(now), &[3, 4][..]));
        // It carries something.
        repair.note_in_service(now);
        carried.posted += 2;
        carried.acknowledged += 1;
        repair.note_out(now, &healing, Some(5), carried, false);
        assert!(repair.barren.is_empty() && !repair.turns_down(3));
    }

    /// A rail that is out of service since now, and has to wait long for its next attempt.
    fn unlucky(now: Instant, healing: &Healing) -> RailRepair<RailId, ()> {
        let mut repair = RailRepair::default();
        repair.note_out(now, healing, Some(0), Carried::default(), false);
        (0..8).for_each(|_| repair.attempts.failed(now, healing));
        repair
    }

    #[test]
    fn what_may_move_is_tried_for_at_once_and_then_at_intervals() {
        let healing = Healing::default();
        let now = Instant::now();
        let mut repair = unlucky(now, &healing);
        let then = now + healing.fallback_after;
        assert!(!repair.is_due(then - Duration::from_nanos(1), &healing, true));
        assert!(repair.is_due(then, &healing, true));
        assert!(!repair.is_due(then, &healing, false));
        repair.tried_to_move = true;
        assert!(!repair.is_due(then, &healing, true));
    }

    #[test]
    fn a_queue_pair_that_fails_before_it_is_seen_in_service_is_a_failed_attempt() {
        let healing = Healing::default();
        let now = Instant::now();
        let mut repair = RailRepair::<RailId, ()>::default();
        repair.note_out(now, &healing, Some(0), Carried::default(), false);
        repair.note_placed(1);
        repair.note_out(now, &healing, Some(0), Carried::default(), false);
        repair.note_down(now, &healing, 0);
        assert!(repair.attempts.is_due(now), "another queue pair is down");
        repair.note_down(now, &healing, 1);
        assert!(!repair.attempts.is_due(now));
        let then = now + healing.first_interval;
        repair.note_down(then, &healing, 1);
        assert!(repair.attempts.is_due(then), "one attempt failed once");
        repair.note_placed(2);
        repair.note_in_service(then);
        repair.note_down(then, &healing, 2);
        assert!(repair.attempts.is_due(then), "it was in service");
    }

    /// However often its own device was refused, the next one is the first that it moves to.
    #[test]
    fn of_refusals_before_it_may_move_one_counts() {
        let healing = Healing::default();
        let now = Instant::now();
        let mut repair = unlucky(now, &healing);
        (0..3).for_each(|_| repair.refused(now, &healing));
        assert_eq!(repair.refusals, 1);
        (0..3).for_each(|_| repair.refused(now + healing.fallback_after, &healing));
        assert_eq!(repair.refusals, 4);
    }
}
