//! The states of a rail, from its failure to its return, and the reports that the two ends exchange
//! about them. A pure state machine, without queue pairs and requests, so that models can explore
//! it.
//!
//! ```text
//!              error, stall, owner's or peer's report
//!  InService ────────────────────────────────────────────► Draining
//!      ▲                                                      │ drained
//!      │ peer: Ready                                          ▼
//!   Joining ◄──────── Down ◄──────────────────────────── Fenced
//!    │   replaced                      peer: Fenced
//!    └─► Draining
//! ```
//!
//! Both ends go through the same states, whichever end noticed the failure first. A report carries
//! a state and not an event, so a newer report replaces an older one: one bit for each rail is the
//! whole queue.

use super::control::{RailReport, ReportedState};
use super::id::RailId;

/// Where a rail stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RailState {
    /// It carries requests, unless its owner has
    /// [taken it out of service](crate::virtual_qp::VirtualQp::set_rail_in_service).
    InService,
    /// It failed. Its queue pair is in the error state, and its completions are being taken, so its
    /// owner goes on polling. If
    /// [`VirtualCq::needs_poll`](crate::virtual_cq::VirtualCq::needs_poll) returns true, the owner
    /// must not wait for a completion, because none may come.
    Draining,
    /// All its completions were taken. Lost requests that the peer does not count may be posted
    /// again. The others wait for the peer's count.
    Fenced,
    /// Both ends know what arrived, and the old queue pair executes nothing more: a new one may
    /// take its place.
    Down,
    /// A new queue pair is there. It takes receives, and carries requests once the peer's is ready.
    Joining,
}

impl RailState {
    /// Returns whether completions of the rail's queue pair are awaited. If it is Fenced or Down,
    /// all were taken, or will never be.
    pub const fn awaits_completions(self) -> bool {
        !matches!(self, Self::Fenced | Self::Down)
    }
}

/// A message that no correct peer sends. The virtual queue pair is in the error state, because it
/// can no longer know which requests are complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// There is no such rail.
    #[error("the peer reported the state of {0}, which does not exist here")]
    NoRail(RailId),
    /// The peer cannot have a queue pair of this generation yet.
    #[error(
        "the peer reported generation {reported} of {rail}, which is {state:?} in generation {generation} here"
    )]
    Generation {
        /// The rail.
        rail: RailId,
        /// Its state here.
        state: RailState,
        /// Its generation here.
        generation: u16,
        /// The generation that the peer reported.
        reported: u16,
    },
    /// The peer counted more requests than were posted.
    #[error(
        "the peer reported that {arrived} requests arrived on {rail}, but only {posted} were posted"
    )]
    Arrived {
        /// The rail.
        rail: RailId,
        /// The count that the peer reported, modulo 2^32.
        arrived: u32,
        /// What was posted, modulo 2^32.
        posted: u32,
    },
    /// A final number that changed.
    #[error("the peer reported that {again} requests arrived on {rail}, but {before} before")]
    Changed {
        /// The rail.
        rail: RailId,
        /// The first count that it reported.
        before: u32,
        /// The count that it reported later.
        again: u32,
    },
    /// The connection does not re-route: nothing changed.
    #[error("the peer sent a control message, but failed rails are not re-routed here")]
    NotRerouting,
    /// The peer wants a receive back, or answers for one, that cannot be under way.
    #[error("the peer sent that receive {number} is taken back, which cannot be under way")]
    NoReceive {
        /// Number of the receive.
        number: u64,
    },
    /// It is for an end that is not here, of endpoints whose messages go one way: nothing changed.
    #[error(
        "the peer sent a control message for an end that does not exist here: messages go one way only"
    )]
    OneWay,
}

/// The effects of a report, in the order in which the end applies them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Effects {
    /// The rail is Draining now.
    pub(crate) stopped: bool,
    /// The rail is Down now, and this many requests of the generation that ended had arrived.
    pub(crate) fenced: Option<u32>,
    /// The peer's next queue pair failed before there was one here, so that it counts as failed
    /// here, too.
    pub(crate) adopted: bool,
    /// The rail is in service again.
    pub(crate) returned: bool,
    /// Nothing changed: the reported state is known already, or of an earlier generation.
    pub(crate) ignored: bool,
}

impl Effects {
    const IGNORED: Self =
        Self { stopped: false, fenced: None, adopted: false, returned: false, ignored: true };
}

/// How far a fence on purpose is.
///
/// The end that is asked stops its queue pair first. In the other order, its own requests would
/// stay unanswered, and could fail the rail before it knows why. Atomics, of which no count says
/// whether they were executed, would not survive the fence: new ones wait until it is over, and
/// those in flight are awaited before this end asks, or stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    None,
    /// This end wants it, and waits for its atomics.
    Wanted,
    /// This end asks the peer.
    Asked,
    /// The peer asks for it, and this end waits for its atomics.
    Owed,
    /// The rail is out for it, until a replacement is in service, or fails.
    Out,
    /// It failed after this end had asked, perhaps because the peer's queue pair had stopped.
    PerhapsOut,
}

/// The state of one rail, and what both ends have reported about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lifecycle {
    state: RailState,
    generation: u16,
    /// Receives of this generation that completed successfully; final from Fenced on.
    arrived: u32,
    /// The same of the generation before.
    previous_arrived: u32,
    /// The peer's final count of this generation, from its Fenced.
    peer_arrived: Option<u32>,
    /// The peer's next queue pair is ready.
    peer_is_ready: bool,
    /// The first queue pair failed.
    has_failed: bool,
    /// Its state is to be reported to the peer.
    dirty: bool,
    purpose: Purpose,
}

impl Lifecycle {
    pub(crate) const NEW: Self = Self {
        state: RailState::InService,
        generation: 0,
        arrived: 0,
        previous_arrived: 0,
        peer_arrived: None,
        peer_is_ready: false,
        has_failed: false,
        dirty: false,
        purpose: Purpose::None,
    };

    #[inline]
    pub(crate) const fn state(&self) -> RailState {
        self.state
    }

    pub(crate) const fn generation(&self) -> u16 {
        self.generation
    }

    pub(crate) const fn next_generation(&self) -> u16 {
        self.generation.wrapping_add(1)
    }

    /// Whether requests may be posted.
    #[inline]
    pub(crate) const fn is_in_service(&self) -> bool {
        matches!(self.state, RailState::InService)
    }

    /// Whether receives may be posted, and arrive.
    #[inline]
    pub(crate) const fn takes_receives(&self) -> bool {
        matches!(self.state, RailState::InService | RailState::Joining)
    }

    /// Whether nothing of its queue pair can complete any more.
    pub(crate) const fn is_drained(&self) -> bool {
        matches!(self.state, RailState::Fenced | RailState::Down)
    }

    /// Whether what arrived of what was in flight is not known yet.
    pub(crate) const fn awaits_fence(&self) -> bool {
        matches!(self.state, RailState::Draining | RailState::Fenced)
    }

    /// The rail failed here, or its owner reported that, or it is fenced on purpose. Returns
    /// whether that is new.
    pub(crate) fn fail(&mut self, on_purpose: bool) -> bool {
        let has_asked = self.purpose == Purpose::Asked;
        let is_new = self.stop(on_purpose);
        if has_asked && !on_purpose {
            self.purpose = Purpose::PerhapsOut;
        }
        // A failure that the peer reported is not reported back: `stop` alone sets no report.
        self.dirty |= is_new;
        is_new
    }

    /// Whether the rail is out on purpose: it counts as in service, because nothing is wrong with
    /// it.
    pub(crate) const fn is_out_on_purpose(&self) -> bool {
        matches!(self.purpose, Purpose::Out | Purpose::PerhapsOut)
    }

    /// A fence on purpose that is awaited counts as a failure from now on. Returns whether that is
    /// new.
    pub(crate) fn end_purpose(&mut self) -> bool {
        let ends = self.awaits_fence() && self.is_out_on_purpose();
        if ends {
            self.purpose = Purpose::None;
        }
        ends
    }

    /// Whether new atomics wait for a fence on purpose.
    pub(crate) const fn holds_atomics(&self) -> bool {
        matches!(self.purpose, Purpose::Wanted | Purpose::Asked | Purpose::Owed)
    }

    /// Whether a fence on purpose waits for atomics of this end.
    pub(crate) const fn awaits_atomics(&self) -> bool {
        matches!(self.purpose, Purpose::Wanted | Purpose::Owed)
    }

    /// Whether this end asks for a fence on purpose.
    pub(crate) const fn asks_for_fence(&self) -> bool {
        matches!(self.purpose, Purpose::Asked)
    }

    /// Whether the peer asks for a fence on purpose.
    pub(crate) const fn owes_fence(&self) -> bool {
        matches!(self.purpose, Purpose::Owed)
    }

    /// A fence on purpose is wanted, or not any more, which comes too late once the peer was asked.
    pub(crate) fn want_fence(&mut self, is_wanted: bool) {
        self.purpose = match (self.purpose, is_wanted) {
            (Purpose::None, true) if self.is_in_service() => Purpose::Wanted,
            (Purpose::Wanted, false) => Purpose::None,
            (other, _) => other,
        };
    }

    /// Nothing here would be lost with the fence that is wanted, so the peer is asked. Its report
    /// that its own queue pair stopped is the answer.
    pub(crate) fn ask_for_fence(&mut self) {
        if self.purpose == Purpose::Wanted {
            self.purpose = Purpose::Asked;
            self.dirty = true;
        }
    }

    fn stop(&mut self, on_purpose: bool) -> bool {
        // A rail that is Draining has failed already. Fenced and Down have no queue pair that could
        // fail.
        let is_new = self.takes_receives();
        if is_new {
            self.state = RailState::Draining;
            self.has_failed = true;
            // A replacement that fails, and a rail that fails while it waits to be fenced, is out
            // for that.
            self.purpose = if on_purpose { Purpose::Out } else { Purpose::None };
        }
        is_new
    }

    /// All completions of the queue pair were taken, and `arrived` receives had completed with
    /// success. Returns the peer's count, if the peer is Fenced already: then the rail is Down.
    pub(crate) fn drained(&mut self, arrived: u32) -> Option<u32> {
        debug_assert!(self.state == RailState::Draining);
        self.state = RailState::Fenced;
        self.arrived = arrived;
        // Also if the rail is Down here at once: the peer needs this count to be Down as well.
        self.dirty = true;
        self.peer_arrived.inspect(|_| self.state = RailState::Down)
    }

    /// A new queue pair is in its place. Returns whether it is in service at once.
    pub(crate) fn replaced(&mut self) -> bool {
        debug_assert!(self.state == RailState::Down);
        // Read first, because `next` clears what belongs to the old generation. The peer may have
        // replaced its queue pair earlier, and repeats its Ready only on a new link.
        let peer_is_ready = self.peer_is_ready;
        let purpose = self.purpose;
        self.next(RailState::Joining);
        if peer_is_ready {
            self.state = RailState::InService;
        } else {
            self.purpose = purpose;
        }
        peer_is_ready
    }

    fn next(&mut self, state: RailState) {
        *self = Self {
            state,
            generation: self.next_generation(),
            // The report of this count may have been replaced before it was sent, or lost with a
            // link.
            previous_arrived: self.arrived,
            has_failed: true,
            // An adopted generation is reported as well: without the answer, the peer could not go
            // on to the generation after it.
            dirty: true,
            ..Self::NEW
        };
    }

    /// Whether the peer is to be sent a report, because the state has changed since the last one.
    pub(crate) const fn has_report(&self) -> bool {
        self.dirty
    }

    /// The state that a report gives to the peer.
    pub(crate) const fn reported_state(&self) -> ReportedState {
        match self.state {
            // The queue pair answers still, so that the peer's atomics can complete.
            RailState::InService if matches!(self.purpose, Purpose::Asked) => ReportedState::Failed,
            // In service here does not mean in service there: the peer may have missed the Ready.
            RailState::InService | RailState::Joining => ReportedState::Ready,
            RailState::Draining => ReportedState::Failed,
            // Down is what this end knows of the peer. The peer needs the count only.
            RailState::Fenced | RailState::Down => ReportedState::Fenced,
        }
    }

    /// Takes the report for the peer.
    pub(crate) fn take_report(&mut self, rail: RailId) -> RailReport {
        self.dirty = false;
        let state = self.reported_state();
        let Self { generation, arrived, previous_arrived, .. } = *self;
        let on_purpose =
            matches!(self.purpose, Purpose::Asked | Purpose::Out) && state != ReportedState::Ready;
        RailReport { rail, generation, state, arrived, previous_arrived, on_purpose }
    }

    /// Reports may have been lost with a link: the state is reported again, if the rail ever
    /// failed. That includes a rail that is back in service, because the peer does not acknowledge
    /// Fenced and Ready.
    pub(crate) fn repeat(&mut self) {
        self.dirty |= self.has_failed;
        self.dirty |= self.purpose == Purpose::Asked;
    }

    /// Handles the peer's report. `posted` is the number of requests posted to the queue pair in
    /// place that the peer counts, modulo 2^32; `has_atomics` is set if it has atomics in flight.
    pub(crate) fn handle(
        &mut self,
        report: &RailReport,
        posted: u32,
        has_atomics: bool,
    ) -> Result<Effects, ControlError> {
        // Modulo 2^16: a difference of more than half the cycle is a generation of the past.
        match report.generation.wrapping_sub(self.generation) as i16 {
            ..0 => Ok(Effects::IGNORED),
            0 => self.handle_current(report, posted, has_atomics),
            1 => self.handle_next(report, posted),
            // The peer replaces a rail only when it is Down there, which takes the Fenced of this
            // end. So it is at most one generation ahead.
            2.. => Err(self.unexpected(report)),
        }
    }

    const fn unexpected(&self, report: &RailReport) -> ControlError {
        let Self { state, generation, .. } = *self;
        ControlError::Generation {
            rail: report.rail,
            state,
            generation,
            reported: report.generation,
        }
    }

    fn handle_current(
        &mut self,
        report: &RailReport,
        posted: u32,
        has_atomics: bool,
    ) -> Result<Effects, ControlError> {
        match report.state {
            // The peer's queue pair answers until this one has stopped.
            ReportedState::Failed if report.on_purpose && has_atomics && self.is_in_service() => {
                let ignored = self.owes_fence();
                self.purpose = Purpose::Owed;
                Ok(Effects { ignored, ..Effects::default() })
            }
            ReportedState::Failed => {
                let stopped = self.stop(report.on_purpose);
                Ok(Effects { stopped, ignored: !stopped, ..Effects::default() })
            }
            ReportedState::Fenced => self.handle_fenced(report, report.arrived, posted),
            // A late Ready is of a queue pair that failed meanwhile: kept, it would put the next
            // one into service before the peer has one.
            ReportedState::Ready if self.state == RailState::Joining => {
                self.state = RailState::InService;
                self.purpose = Purpose::None;
                Ok(Effects { returned: true, ..Effects::default() })
            }
            ReportedState::Ready => Ok(Effects::IGNORED),
        }
    }

    fn handle_fenced(
        &mut self,
        report: &RailReport,
        arrived: u32,
        posted: u32,
    ) -> Result<Effects, ControlError> {
        let rail = report.rail;
        if let Some(before) = self.peer_arrived {
            let changed = ControlError::Changed { rail, before, again: arrived };
            // The count is final, so only a repetition after a broken link may come.
            return if before == arrived { Ok(Effects::IGNORED) } else { Err(changed) };
        }
        // Modulo 2^32: far less than half of that can be in flight.
        if (posted.wrapping_sub(arrived) as i32) < 0 {
            return Err(ControlError::Arrived { rail, arrived, posted });
        }
        // A Fenced replaces a Failed that was not sent yet, so it may be the first news of the
        // failure.
        let stopped = self.stop(report.on_purpose);
        self.peer_arrived = Some(arrived);
        let mut fenced = None;
        // While this end drains, the count waits in `peer_arrived` for `drained`.
        if self.state == RailState::Fenced {
            self.state = RailState::Down;
            fenced = Some(arrived);
        }
        Ok(Effects { stopped, fenced, ..Effects::default() })
    }

    /// The peer is one generation ahead, so it knows what arrived here. Its Fenced of this
    /// generation may have been lost with a link, so the report carries that count, too.
    fn handle_next(&mut self, report: &RailReport, posted: u32) -> Result<Effects, ControlError> {
        let mut effects = match self.state {
            RailState::InService | RailState::Joining | RailState::Draining => {
                // The peer cannot be Down without the Fenced of this end, which was not sent yet.
                return Err(self.unexpected(report));
            }
            RailState::Fenced => self.handle_fenced(report, report.previous_arrived, posted)?,
            RailState::Down => Effects::default(),
        };
        match report.state {
            ReportedState::Ready => self.peer_is_ready = true,
            // Answered at once, without a queue pair here, so that the peer can go on to the one
            // after it.
            ReportedState::Failed | ReportedState::Fenced => {
                let is_fenced = report.state == ReportedState::Fenced;
                // Nothing was posted to a queue pair that this end never had.
                if is_fenced && report.arrived != 0 {
                    let arrived = report.arrived;
                    return Err(ControlError::Arrived { rail: report.rail, arrived, posted: 0 });
                }
                self.next(if is_fenced { RailState::Down } else { RailState::Fenced });
                // Behind `next`, which clears it.
                self.peer_arrived = is_fenced.then_some(0);
                effects.adopted = true;
            }
        }
        Ok(effects)
    }
}

#[cfg(test)]
mod tests;
