//! The states of a rail, from its failure to its return, and what the two ends tell each other of
//! them. Pure: it knows no queue pair and no request.
//!
//! ```text
//!              error, stall, owner, or the peer says so
//!  InService ────────────────────────────────────────────► Draining
//!      ▲                                                      │ drained
//!      │ peer: Ready                                          ▼
//!   Joining ◄──────── Down ◄──────────────────────────── Fenced
//!    │   replaced                      peer: Fenced
//!    └─► Draining
//! ```
//!
//! Both ends go through the same states, whoever noticed first. What one end tells is a state, so one
//! bit for each rail is all the queue there is.

use super::control::{RailNews, ToldState};
use super::id::RailId;

/// Where a rail stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RailState {
    /// It carries requests (if its owner [wants that](crate::virtual_qp::VirtualQp::set_rail_in_service)).
    InService,
    /// It failed: its queue pair is in the error state, and its completions are being taken, so its owner goes on
    /// polling. Where no completion may come ([`VirtualCq::needs_poll`](crate::virtual_cq::VirtualCq::needs_poll)), it
    /// does not wait for one.
    Draining,
    /// All its completions were taken. What it lost of requests that the peer does not count may be
    /// posted again; for the rest, the peer's number is awaited.
    Fenced,
    /// Both ends know what arrived, and nothing of the old queue pair can happen any more: a new one may
    /// take its place.
    Down,
    /// A new queue pair is there and takes what comes; it carries requests once the peer's is ready.
    Joining,
}

impl RailState {
    /// Whether completions of the rail's queue pair are waited for: of one that is Fenced or Down, all were
    /// taken, or will never be.
    pub const fn awaits_completions(self) -> bool {
        !matches!(self, Self::Fenced | Self::Down)
    }
}

/// A message that no correct peer sends. The virtual queue pair is in the error state: which requests
/// are complete can no longer be known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// There is no such rail.
    #[error("the peer tells of {0}, which is not there")]
    NoRail(RailId),
    /// A queue pair that cannot be there yet.
    #[error(
        "the peer tells of generation {told} of {rail}, which is {state:?} in generation {generation}"
    )]
    Generation {
        /// The rail.
        rail: RailId,
        /// Its state here.
        state: RailState,
        /// Its generation here.
        generation: u16,
        /// What the peer said.
        told: u16,
    },
    /// More than was posted.
    #[error("the peer says that {arrived} requests arrived on {rail}, where {posted} were posted")]
    Arrived {
        /// The rail.
        rail: RailId,
        /// What the peer said, modulo 2^32.
        arrived: u32,
        /// What was posted, modulo 2^32.
        posted: u32,
    },
    /// A final number that changed.
    #[error("the peer says that {again} requests arrived on {rail}, after it said {before}")]
    Changed {
        /// The rail.
        rail: RailId,
        /// What it said at first.
        before: u32,
        /// What it said then.
        again: u32,
    },
    /// The connection does not re-route: nothing changed.
    #[error("a control message for a virtual queue pair whose rails fail for good")]
    NotRerouting,
    /// It is for an end that is not here, of endpoints whose messages go one way: nothing changed.
    #[error("a control message for an end that is not here: messages go one way")]
    OneWay,
}

/// What a message changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Heard {
    /// The rail is Draining now.
    pub(crate) stopped: bool,
    /// The rail is Down now, and so many requests of the generation that ended had arrived.
    pub(crate) fenced: Option<u32>,
    /// The peer's next queue pair failed before there was one here: it counts as failed here too.
    pub(crate) adopted: bool,
    /// The rail is in service again.
    pub(crate) returned: bool,
    /// Nothing, and a state that is past or known already was told.
    pub(crate) ignored: bool,
}

impl Heard {
    const IGNORED: Self =
        Self { stopped: false, fenced: None, adopted: false, returned: false, ignored: true };
}

/// The state of one rail, and what was told and heard of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lifecycle {
    state: RailState,
    generation: u16,
    /// Receives of this generation that completed successfully; final from Fenced on.
    arrived: u32,
    /// The same of the generation before.
    previous_arrived: u32,
    /// What the peer said to be Fenced with, of this generation.
    peer_arrived: Option<u32>,
    /// The peer's next queue pair is ready.
    peer_is_ready: bool,
    /// It is not the first queue pair any more, or that failed.
    has_failed: bool,
    /// Its state is to be told.
    dirty: bool,
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

    /// It failed here, or its owner says so. Returns whether that is new.
    pub(crate) fn fail(&mut self) -> bool {
        let is_new = self.stop();
        self.dirty |= is_new;
        is_new
    }

    fn stop(&mut self) -> bool {
        let is_new = self.takes_receives();
        if is_new {
            self.state = RailState::Draining;
            self.has_failed = true;
        }
        is_new
    }

    /// Every completion of its queue pair was taken, and so many receives had completed successfully.
    /// Returns what the peer said, if it is Fenced already: then the rail is Down.
    pub(crate) fn drained(&mut self, arrived: u32) -> Option<u32> {
        debug_assert!(self.state == RailState::Draining);
        self.state = RailState::Fenced;
        self.arrived = arrived;
        self.dirty = true;
        self.peer_arrived.inspect(|_| self.state = RailState::Down)
    }

    /// A new queue pair is in its place. Returns whether it is in service at once.
    pub(crate) fn replaced(&mut self) -> bool {
        debug_assert!(self.state == RailState::Down);
        let peer_is_ready = self.peer_is_ready;
        self.next(RailState::Joining);
        if peer_is_ready {
            self.state = RailState::InService;
        }
        peer_is_ready
    }

    fn next(&mut self, state: RailState) {
        *self = Self {
            state,
            generation: self.next_generation(),
            previous_arrived: self.arrived,
            has_failed: true,
            dirty: true,
            ..Self::NEW
        };
    }

    /// What is to be told, once.
    pub(crate) fn take_news(&mut self, rail: RailId) -> Option<RailNews> {
        if !core::mem::take(&mut self.dirty) {
            return None;
        }
        let state = match self.state {
            RailState::InService | RailState::Joining => ToldState::Ready,
            RailState::Draining => ToldState::Failed,
            RailState::Fenced | RailState::Down => ToldState::Fenced,
        };
        let Self { generation, arrived, previous_arrived, .. } = *self;
        Some(RailNews { rail, generation, state, arrived, previous_arrived })
    }

    /// What was told may not have been heard: if it ever failed, its state is told again. Nothing answers
    /// Fenced or Ready, so a rail that is back in service is no exception.
    pub(crate) fn tell_again(&mut self) {
        self.dirty |= self.has_failed;
    }

    /// The peer tells of this rail. `posted` is how many requests that it counts were posted to the queue
    /// pair that is there, modulo 2^32.
    pub(crate) fn hear(&mut self, news: &RailNews, posted: u32) -> Result<Heard, ControlError> {
        // Modulo 2^16: what is ahead of us by half the cycle is behind us.
        match news.generation.wrapping_sub(self.generation) as i16 {
            ..0 => Ok(Heard::IGNORED),
            0 => self.hear_of_this(news, posted),
            1 => self.hear_of_next(news, posted),
            2.. => Err(self.unexpected(news)),
        }
    }

    const fn unexpected(&self, news: &RailNews) -> ControlError {
        let Self { state, generation, .. } = *self;
        ControlError::Generation { rail: news.rail, state, generation, told: news.generation }
    }

    fn hear_of_this(&mut self, news: &RailNews, posted: u32) -> Result<Heard, ControlError> {
        match news.state {
            ToldState::Failed => {
                let stopped = self.stop();
                Ok(Heard { stopped, ignored: !stopped, ..Heard::default() })
            }
            ToldState::Fenced => self.hear_fenced(news.rail, news.arrived, posted),
            // One that comes late, of a queue pair that failed meanwhile, must not be remembered.
            ToldState::Ready if self.state == RailState::Joining => {
                self.state = RailState::InService;
                Ok(Heard { returned: true, ..Heard::default() })
            }
            ToldState::Ready => Ok(Heard::IGNORED),
        }
    }

    fn hear_fenced(
        &mut self,
        rail: RailId,
        arrived: u32,
        posted: u32,
    ) -> Result<Heard, ControlError> {
        if let Some(before) = self.peer_arrived {
            let changed = ControlError::Changed { rail, before, again: arrived };
            return if before == arrived { Ok(Heard::IGNORED) } else { Err(changed) };
        }
        // Modulo 2^32, of which far less than half can be in flight.
        if (posted.wrapping_sub(arrived) as i32) < 0 {
            return Err(ControlError::Arrived { rail, arrived, posted });
        }
        let stopped = self.stop();
        self.peer_arrived = Some(arrived);
        let mut fenced = None;
        if self.state == RailState::Fenced {
            self.state = RailState::Down;
            fenced = Some(arrived);
        }
        Ok(Heard { stopped, fenced, ..Heard::default() })
    }

    /// The peer is one queue pair ahead, so it knows what arrived here. It says itself what it was Fenced
    /// with before, should that have been lost.
    fn hear_of_next(&mut self, news: &RailNews, posted: u32) -> Result<Heard, ControlError> {
        let mut heard = match self.state {
            RailState::InService | RailState::Joining | RailState::Draining => {
                return Err(self.unexpected(news));
            }
            RailState::Fenced => self.hear_fenced(news.rail, news.previous_arrived, posted)?,
            RailState::Down => Heard::default(),
        };
        match news.state {
            ToldState::Ready => self.peer_is_ready = true,
            // Answered at once, without a queue pair: the peer can go on to the one after it.
            ToldState::Failed | ToldState::Fenced => {
                let is_fenced = news.state == ToldState::Fenced;
                if is_fenced && news.arrived != 0 {
                    let arrived = news.arrived;
                    return Err(ControlError::Arrived { rail: news.rail, arrived, posted: 0 });
                }
                self.next(if is_fenced { RailState::Down } else { RailState::Fenced });
                self.peer_arrived = is_fenced.then_some(0);
                heard.adopted = true;
            }
        }
        Ok(heard)
    }
}

#[cfg(test)]
mod tests;
