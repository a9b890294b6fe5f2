//! The rails of one end, as far as they fail and return: of a virtual queue pair, and of the sender
//! or the receiver of a message connection.
//!
//! A rail that fails and returns takes these steps here. What they mean for requests is up to the
//! end.
//!
//! 1. [`rail_failed`](Rails::rail_failed), [`fail_rail`](Rails::fail_rail), or a message of the
//!    peer: the queue pair is moved to the error state. Too few rails in service fail the end.
//! 2. [`settle`](Rails::settle): nothing of the queue pair can complete any more, so the peer is
//!    sent how many requests arrived.
//! 3. [`handle`](Rails::handle): with the peer's report, the rail is Down.
//! 4. [`replace`](Rails::replace): a new queue pair takes the place, and its completions are
//!    routed.
//! 5. [`handle`](Rails::handle): the peer is ready too, so the rail is in service.

use super::control::{ControlMessage, RailReport, ReportedState};
use super::error::RailError;
use super::event::{FailedBecause, RailEvent, RailEventKind};
use super::health::PhysicalRail;
use super::id::{RailId, RailSet};
use super::lifecycle::{ControlError, RailState};
use crate::hardware::{CompletionQueue, QpLimits, QueuePair};
use crate::verbs::DeviceId;
use crate::virtual_cq::{AttachError, VirtualCq};

/// A queue pair that cannot take a rail's place; nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplaceError {
    /// There is no such rail.
    #[error("cannot replace {0}: it does not exist")]
    NoRail(RailId),
    /// Both ends must know first what arrived.
    #[error("{rail} is {state:?}, but can be replaced only when it is Down")]
    State {
        /// The rail.
        rail: RailId,
        /// Its state.
        state: RailState,
    },
    /// The virtual queue pair or connection is in the error state.
    #[error("the virtual queue pair is in the error state")]
    InErrorState,
    /// The queue pair was made, and connected, for another generation.
    #[error(
        "the new queue pair has generation {given}, but the next generation of {rail} is {expected}"
    )]
    Generation {
        /// The rail.
        rail: RailId,
        /// The next generation.
        expected: u16,
        /// The generation given.
        given: u16,
    },
    /// Requests carry no keys for its device: no rail was on it when the virtual queue pair was
    /// built.
    #[error("no rail was built on device {}, so requests carry no keys for it", device.0)]
    Device {
        /// Its device.
        device: DeviceId,
    },
    /// A queue or a message is smaller than that of the queue pair that failed.
    #[error(
        "{what} of the new queue pair is {given}, but that of the failed queue pair is {needed}"
    )]
    Limit {
        /// The limit, as verbs names it.
        what: &'static str,
        /// What the queue pair was granted.
        given: u32,
        /// What it needs.
        needed: u32,
    },
    /// Its completions could not be routed.
    #[error(transparent)]
    Attach(#[from] AttachError),
}

/// A queue pair that was refused, given back.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Rejected<Q> {
    /// Why.
    pub error: ReplaceError,
    /// The queue pair.
    pub queue_pair: Q,
}

/// Why the rails of an end fail all of it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RailsFailure {
    /// A rail failed, and no other rail takes over.
    Rail(RailError),
    TooFewRails {
        in_service: u8,
        min_rails: u8,
    },
    /// The peer's end failed.
    Peer,
    /// The peer sent a message that no correct peer sends.
    Control(ControlError),
}

/// Whether the rails of an end take over for each other, and its part of the exchange with the
/// peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reroute {
    /// Other rails take over from a rail that fails.
    pub(crate) is_on: bool,
    /// With fewer rails in service, the end fails.
    min_rails: u8,
    /// The peer is to be sent that this end failed.
    pub(crate) sends_error: bool,
    /// Messages of the peer that changed nothing.
    ignored: u64,
}

impl Reroute {
    pub(crate) const fn new(is_on: bool, min_rails: u8) -> Self {
        Self { is_on, min_rails, sends_error: false, ignored: 0 }
    }

    /// Messages of the peer that changed nothing.
    pub(crate) const fn ignored(&self) -> u64 {
        self.ignored
    }

    /// A message of the peer changed nothing.
    pub(crate) const fn ignore(&mut self) {
        self.ignored += 1;
    }
}

/// Returns the rails of queue pairs; the notify queue pair is not one.
fn rails_of<'r, P, R: PhysicalRail + 'r>(places: impl Iterator<Item = (P, &'r R)>) -> RailSet {
    let ids = places.map(|(_, rail)| rail.identity().rail);
    // A set, because a rail of a connection has several queue pairs and counts once.
    ids.filter(|id| *id != RailId::Notify).collect()
}

/// An end: a set of rails that fail and return.
///
/// `Place` finds a rail: it is the [`RailId`] in a virtual queue pair. In a connection a rail has
/// several queue pairs, so it is a place in their list. A place always has its queue pair; only the
/// peer and the owner name places that do not exist.
pub(crate) trait Rails {
    type Rail: PhysicalRail;
    type Place: Copy;

    fn reroute(&self) -> &Reroute;

    fn reroute_mut(&mut self) -> &mut Reroute;

    fn rail_at(&self, place: Self::Place) -> Option<&Self::Rail>;

    fn rail_at_mut(&mut self, place: Self::Place) -> Option<&mut Self::Rail>;

    /// All rails, in the order in which their messages and events come out.
    fn places(&self) -> impl Iterator<Item = (Self::Place, &Self::Rail)>;

    fn places_mut(&mut self) -> impl Iterator<Item = (Self::Place, &mut Self::Rail)>;

    /// The number that the rail at a place has, or would have.
    fn id_of(&self, place: Self::Place) -> RailId;

    /// Whether the whole end is in the error state.
    fn has_failed(&self) -> bool;

    /// Puts the whole end into the error state.
    fn give_up_for(&mut self, why: RailsFailure);

    /// Requests posted to a rail that take a receive of the peer, modulo 2^32: the peer cannot have
    /// counted more.
    fn posted(rail: &Self::Rail) -> u32;

    /// Whether a rail has requests in flight of which no count of the peer says whether they were
    /// executed.
    fn has_atomics(_rail: &Self::Rail) -> bool {
        false
    }

    /// The rail is Draining now: nothing more is posted to it, and what is in flight on it is lost
    /// unless it completes with success.
    fn stop_using(&mut self, place: Self::Place, why: &FailedBecause);

    /// If nothing of a rail that is Draining can complete any more, returns how many of the peer's
    /// requests arrived on it.
    fn drain_rail(&mut self, place: Self::Place) -> Option<u32>;

    /// The rail is Fenced now, or Down. Returns whether the end goes on.
    fn note_fenced(&mut self, place: Self::Place) -> bool;

    /// The queue pair that the place had in this generation is Down: `arrived` of the requests that
    /// the peer counts had arrived. The rail itself may be at the next generation already.
    fn fenced(&mut self, place: Self::Place, generation: u16, arrived: u32);

    /// The rail is in service again.
    fn returned(&mut self, place: Self::Place);

    /// The next poll recovers, whether there are completions or not.
    fn request_recovery(&mut self);

    /// Does what the new states of rails allow.
    fn go_on(&mut self);

    /// The place, in the list of this end, of the device of a new queue pair; `None` if requests
    /// carry no keys for it.
    fn device_at(&self, place: Self::Place, device: DeviceId) -> Option<usize>;

    /// The limits that a new queue pair needs in this place: name, granted and needed.
    fn limits(
        &self,
        place: Self::Place,
        granted: &QpLimits,
    ) -> impl IntoIterator<Item = (&'static str, u32, u32)>;

    /// Returns the next message for the peer, with the place of the rail that it is about.
    fn next_message(&mut self) -> Option<(Option<Self::Place>, ControlMessage)> {
        // First, and before the check below: the end has failed, so it reports nothing else, but
        // without this message the peer would wait for reports that never come.
        if core::mem::take(&mut self.reroute_mut().sends_error) {
            return Some((None, ControlMessage::Error));
        }
        if self.has_failed() {
            return None;
        }
        let reporting = self.places_mut().filter(|(_, rail)| rail.health().lifecycle.has_report());
        // A rail that is ready comes before rails that failed: in the other order, the peer could
        // have too few rails in service in between, and fail.
        let (place, rail) = reporting.min_by_key(|(_, rail)| {
            rail.health().lifecycle.reported_state() != ReportedState::Ready
        })?;
        let id = rail.identity().rail;
        // There is no second report of this state, so the owner must carry what it takes or call
        // `control_lost`.
        let report = rail.health_mut().lifecycle.take_report(id);
        Some((Some(place), ControlMessage::Rail(report)))
    }

    /// Handles a message of the peer. `find` returns the place of the rail that it is about.
    fn handle(
        &mut self,
        message: ControlMessage,
        find: impl FnOnce(RailId) -> Self::Place,
    ) -> Result<(), ControlError> {
        self.handle_with(|this| match message {
            ControlMessage::Error => {
                this.give_up_for(RailsFailure::Peer);
                Ok(())
            }
            ControlMessage::Rail(report) => this.handle_report(find(report.rail), &report),
        })
    }

    /// Handles a message of the peer with this function.
    fn handle_with(
        &mut self,
        handle: impl FnOnce(&mut Self) -> Result<(), ControlError>,
    ) -> Result<(), ControlError> {
        if !self.reroute().is_on {
            return Err(ControlError::NotRerouting);
        }
        if self.has_failed() {
            // Not an error: the peer may have sent the message before it received this end's Error.
            self.reroute_mut().ignore();
            return Ok(());
        }
        let handled = handle(self);
        if let Err(error) = handled {
            // After such a message the counts of the two ends cannot be trusted, and a report of
            // success needs them.
            self.give_up_for(RailsFailure::Control(error));
        }
        self.go_on();
        handled
    }

    fn handle_report(
        &mut self,
        place: Self::Place,
        report: &RailReport,
    ) -> Result<(), ControlError> {
        // A message about a queue pair of a connection names the place and the rail, and a wrong
        // peer may send two that do not belong together.
        let rail = self.rail_at_mut(place).filter(|rail| rail.identity().rail == report.rail);
        let rail = rail.ok_or(ControlError::NoRail(report.rail))?;
        let posted = Self::posted(rail);
        let has_atomics = Self::has_atomics(rail);
        let has_asked = rail.health().lifecycle.asks_for_fence();
        let was_out_on_purpose = rail.health().lifecycle.is_out_on_purpose();
        let lifecycle = &mut rail.health_mut().lifecycle;
        // A message of the next generation ends this one first.
        let generation = lifecycle.generation();
        let effects = lifecycle.handle(report, posted, has_atomics)?;
        self.reroute_mut().ignored += u64::from(effects.ignored);
        // In this order, since one report may do several of these: what was in flight is lost, the
        // peer's count resolves it, and only then does the next generation clear the counters.
        if effects.stopped {
            let why = match report.on_purpose {
                true if has_asked => FailedBecause::OnPurpose,
                true => FailedBecause::PeerOnPurpose,
                false => FailedBecause::Peer,
            };
            self.rail_stopped(place, why);
        }
        if let Some(arrived) = effects.fenced {
            self.fenced(place, generation, arrived);
        }
        if effects.adopted {
            self.generation_adopted(place, was_out_on_purpose);
        }
        if effects.returned {
            self.rail_returned(place);
        }
        self.request_recovery();
        Ok(())
    }

    /// The link broke: everything that the peer may not have received is sent again.
    fn repeat_messages(&mut self) {
        let has_failed = self.has_failed();
        let reroute = self.reroute_mut();
        // A peer without re-routing refuses every message.
        reroute.sends_error = reroute.is_on && has_failed;
        self.places_mut().for_each(|(_, rail)| rail.health_mut().lifecycle.repeat());
    }

    /// Takes the oldest event of the first rail that has any.
    fn take_event(&mut self) -> Option<(Self::Place, RailEvent)> {
        self.places_mut().find_map(|(place, rail)| Some((place, rail.health_mut().events.take()?)))
    }

    /// A rail failed. If other rails can do better they take over, else the whole end fails.
    #[cold]
    fn rail_failed(&mut self, place: Self::Place, why: FailedBecause) {
        let takes_over = match &why {
            FailedBecause::Error(error) => error.is_of_rail(),
            FailedBecause::Owner | FailedBecause::Lost | FailedBecause::Peer => true,
            FailedBecause::OnPurpose | FailedBecause::PeerOnPurpose => true,
        };
        if takes_over && self.reroute().is_on && !self.has_failed() {
            self.stop_rail(place, why);
            return;
        }
        let error = match why {
            FailedBecause::Error(error) => Some(error),
            // No completion reports why, and the failure of the end names a rail and a status.
            _ => self.rail_at(place).map(PhysicalRail::flush_error),
        };
        error.into_iter().for_each(|error| self.give_up_for(RailsFailure::Rail(error)));
    }

    /// Stops using a rail. Returns whether that is new: not without re-routing, nor if it failed
    /// already.
    #[cold]
    fn stop_rail(&mut self, place: Self::Place, why: FailedBecause) -> bool {
        if !self.reroute().is_on || self.has_failed() {
            return false;
        }
        let rail = self.rail_at_mut(place);
        let on_purpose = why.is_on_purpose();
        let stopped = rail.is_some_and(|rail| rail.health_mut().lifecycle.fail(on_purpose));
        if stopped {
            self.rail_stopped(place, why);
        }
        stopped
    }

    /// The owner reported that a rail failed, or that it waits no longer for a fence on purpose.
    /// Returns whether that is new.
    fn fail_rail(&mut self, place: Self::Place) -> bool {
        let stopped = self.stop_rail(place, FailedBecause::Owner);
        let ended = !stopped && self.end_purpose(place);
        if stopped || ended {
            self.go_on();
        }
        stopped || ended
    }

    /// The owner waits no longer for a fence on purpose: its rail counts as failed. Returns whether
    /// that is new.
    fn end_purpose(&mut self, place: Self::Place) -> bool {
        if self.has_failed() {
            return false;
        }
        let rail = self.rail_at_mut(place);
        let ended = rail.is_some_and(|rail| rail.health_mut().lifecycle.end_purpose());
        if ended {
            self.check_min_rails();
        }
        ended
    }

    /// A rail is Draining now.
    #[cold]
    fn rail_stopped(&mut self, place: Self::Place, why: FailedBecause) {
        let is_on_purpose = why.is_on_purpose();
        // From here on, a failed completion on this rail means a lost request. The error state,
        // next, produces one for everything in flight.
        self.stop_using(place, &why);
        if let Some(rail) = self.rail_at_mut(place) {
            rail.note_failure(why);
        }
        self.request_recovery();
        // Behind `stop_using`, on which an end that gives up relies for the rails that failed: what
        // their drivers have not taken is withheld by then. A fence on purpose takes nothing from
        // the count, which may be too low already because rails are out for maintenance.
        if !is_on_purpose {
            self.check_min_rails();
        }
    }

    /// With too few rails in service, the whole end fails.
    fn check_min_rails(&mut self) {
        let counts = |(_, rail): &(Self::Place, &Self::Rail)| rail.counts_as_in_service();
        let in_service = rails_of(self.places().filter(counts)).count() as u8;
        let min_rails = self.reroute().min_rails;
        if in_service < min_rails {
            self.give_up_for(RailsFailure::TooFewRails { in_service, min_rails });
        }
    }

    /// Returns the rails of which a queue pair is in service; the notify queue pair is not one.
    fn rails_in_service(&self) -> RailSet {
        rails_of(self.places().filter(|(_, rail)| rail.is_in_service()))
    }

    /// Fences a rail on purpose, for this end or for the peer, as soon as no atomics of this end are
    /// on it.
    fn fence_on_purpose(&mut self, place: Self::Place, is_wanted: bool) {
        let Some(rail) = self.rail_at_mut(place) else { return };
        rail.health_mut().lifecycle.want_fence(is_wanted);
        if !rail.health().lifecycle.awaits_atomics() || Self::has_atomics(rail) {
            return;
        }
        if rail.health().lifecycle.owes_fence() {
            self.stop_rail(place, FailedBecause::PeerOnPurpose);
        } else {
            rail.health_mut().lifecycle.ask_for_fence();
        }
    }

    /// If nothing of a rail that failed can complete any more, the peer is to be sent what arrived.
    fn settle(&mut self, place: Self::Place) {
        let state = self.rail_at(place).map(|rail| rail.health().lifecycle.state());
        if state != Some(RailState::Draining) || self.has_failed() {
            return;
        }
        // Until then `arrived` could still grow: `rails-that-fail.md`, "The idea: one number for
        // each queue pair", requires both conditions of the fence.
        let Some(arrived) = self.drain_rail(place) else { return };
        let Some(rail) = self.rail_at_mut(place) else { return };
        let lifecycle = &mut rail.health_mut().lifecycle;
        let generation = lifecycle.generation();
        let fenced = lifecycle.drained(arrived);
        // The peer's report may have come first. Then the rail is Down already, and nothing else
        // will call `fenced`.
        if self.note_fenced(place)
            && let Some(arrived) = fenced
        {
            self.fenced(place, generation, arrived);
        }
    }

    /// The peer's next queue pair failed before there was one here: it counts as failed here, too.
    /// The generation before is settled by then.
    #[cold]
    fn generation_adopted(&mut self, place: Self::Place, was_out_on_purpose: bool) {
        let Some(rail) = self.rail_at_mut(place) else { return };
        let generation = rail.health().lifecycle.generation();
        // The old queue pair is still in the place, but what is counted from here on is of the
        // generation that never had one.
        rail.begin_generation(generation);
        let (why, refused) = (FailedBecause::Peer, None);
        rail.note_event(generation, RailEventKind::Failed { why, refused });
        if rail.health().lifecycle.state() == RailState::Down {
            // The peer's count of the adopted generation is 0: `Lifecycle::handle_next` refuses
            // others.
            self.fenced(place, generation, 0);
        }
        if was_out_on_purpose {
            // It counts no more.
            self.check_min_rails();
        }
    }

    /// A rail is in service again.
    fn rail_returned(&mut self, place: Self::Place) {
        if let Some(rail) = self.rail_at_mut(place) {
            let generation = rail.health().lifecycle.generation();
            rail.note_event(generation, RailEventKind::Returned);
        }
        self.returned(place);
    }

    /// Puts a new queue pair in the place of a rail that is Down, and routes its completions.
    /// Returns the old queue pair.
    fn replace<C: CompletionQueue, const CQS: usize, const ROUTES: usize>(
        &mut self,
        (cq, index): (&mut VirtualCq<C, CQS, ROUTES>, u16),
        place: Self::Place,
        generation: u16,
        queue_pair: QueuePairOf<Self>,
    ) -> Result<QueuePairOf<Self>, Rejected<QueuePairOf<Self>>> {
        let fits = self
            .check_replacement(place, generation, &queue_pair)
            // The route is the last step that can fail, and the first that changes anything, so a
            // queue pair that is refused leaves no trace.
            .and_then(|(old, at)| Ok((cq.replace_route(index, old, &queue_pair)?, at)));
        let device_at = match fits {
            Ok(((), device_at)) => device_at,
            Err(error) => return Err(Rejected { error, queue_pair }),
        };
        let Some(rail) = self.rail_at_mut(place) else { return Ok(queue_pair) };
        let is_back = rail.health_mut().lifecycle.replaced();
        let old = rail.replace(queue_pair, device_at);
        rail.health_mut().note_new_queue_pair();
        rail.begin_generation(generation);
        if is_back {
            self.rail_returned(place);
        }
        self.request_recovery();
        Ok(old)
    }

    /// Returns device and number of the old queue pair, and the place of the new one's device.
    fn check_replacement(
        &self,
        place: Self::Place,
        given: u16,
        queue_pair: &QueuePairOf<Self>,
    ) -> Result<((DeviceId, u32), usize), ReplaceError> {
        let rail = self.rail_at(place).ok_or_else(|| ReplaceError::NoRail(self.id_of(place)))?;
        if self.has_failed() {
            return Err(ReplaceError::InErrorState);
        }
        let old = rail.identity();
        let lifecycle = &rail.health().lifecycle;
        let state = lifecycle.state();
        // Before Down, the old queue pair of the peer may still execute what this end sent on it.
        if state != RailState::Down {
            return Err(ReplaceError::State { rail: old.rail, state });
        }
        let expected = lifecycle.next_generation();
        // The owner may have connected the queue pair before the rail failed once more. Its peer's
        // queue pair is then of another generation.
        if given != expected {
            return Err(ReplaceError::Generation { rail: old.rail, expected, given });
        }
        let device = queue_pair.device();
        let at = self.device_at(place, device).ok_or(ReplaceError::Device { device })?;
        for (what, given, needed) in self.limits(place, &queue_pair.limits()) {
            // Credits, receives and fragment sizes in use were chosen from the limits of the old
            // one, and requests that are accepted must still fit.
            if given < needed {
                return Err(ReplaceError::Limit { what, given, needed });
            }
        }
        Ok(((old.device, old.qp_num), at))
    }
}

/// The queue pairs of an end.
type QueuePairOf<R> = <<R as Rails>::Rail as PhysicalRail>::Qp;
