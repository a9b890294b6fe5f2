//! The queue pairs of one end, as far as they fail and return; and the end's own failure.

use super::control::Control;
use super::error::Failure;
use super::lane::Lane;
use crate::hardware::{CompletionQueue, QueuePair};
use crate::rail::{
    ControlError, ControlMessage, FailedBecause, Heard, RailEvent, RailEventKind, RailId, RailState,
};
use crate::verbs::DeviceId;
use crate::virtual_cq::VirtualCq;
use crate::virtual_qp::{Rejected, ReplaceError};
use arrayvec::ArrayVec;
use core::ops::{Deref, DerefMut};

/// The queue pairs of one end.
#[derive(Debug)]
pub(super) struct Lanes<Q, const QPS: usize, const DEPTH: usize> {
    pub(super) all: ArrayVec<Lane<Q, DEPTH>, QPS>,
    /// Other queue pairs take over from one that fails.
    reroutes: bool,
    /// With fewer rails in service the end has failed.
    min_rails: u8,
    rails: u8,
    /// Why the connection failed.
    pub(super) failure: Option<Failure>,
    /// Something is to be done beyond what completions bring.
    pub(super) needs_care: bool,
    /// The peer is to be told that this end failed.
    tells_error: bool,
    /// Messages of the peer's that told nothing new.
    ignored: u64,
    /// For each number of a queue pair modulo theirs, where one of that number was found last: rails complete in
    /// turns, so the place of the last completion tells nothing.
    hints: [u8; HINTS],
}

/// What a message of the peer's changed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Changed {
    /// The place of the queue pair.
    pub(super) place: usize,
    /// The generation that was there when the message came: the one that `heard.fenced` is about. The
    /// lifecycle may be at the next one already.
    pub(super) generation: u16,
    pub(super) heard: Heard,
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
    pub(super) const fn new(
        all: ArrayVec<Lane<Q, DEPTH>, QPS>,
        rails: u8,
        reroutes: bool,
        min_rails: u8,
    ) -> Self {
        Self {
            all,
            reroutes,
            min_rails,
            rails,
            failure: None,
            needs_care: false,
            tells_error: false,
            ignored: 0,
            hints: [0; HINTS],
        }
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
        self.reroutes
    }

    /// The end has failed: nothing more is posted. Returns whether that is new.
    pub(super) fn give_up(&mut self, failure: Failure) -> bool {
        let is_new = self.failure.is_none();
        if is_new {
            self.failure = Some(failure);
            self.needs_care = true;
            self.tells_error = self.reroutes;
            for lane in &mut self.all {
                // If its driver refuses, later polls ask again.
                let _ = lane.stop();
            }
        }
        is_new
    }

    /// A queue pair failed. Returns what the end has failed for, if nothing takes over.
    pub(super) fn stop(&mut self, place: usize, why: FailedBecause) -> Result<(), Failure> {
        let takes_over = match why {
            FailedBecause::Error(error) => self.reroutes && error.is_of_rail(),
            FailedBecause::Owner | FailedBecause::Lost | FailedBecause::Peer => self.reroutes,
        };
        if !takes_over {
            return Err(match why {
                FailedBecause::Error(error) => Failure::Rail(error),
                FailedBecause::Peer => Failure::Peer,
                FailedBecause::Owner | FailedBecause::Lost => {
                    Failure::Rail(self.all[place].flush_error())
                }
            });
        }
        if self.all[place].lifecycle.fail() { self.stopped(place, why) } else { Ok(()) }
    }

    /// A queue pair is Draining now. Returns what the end has failed for, if too few are left.
    pub(super) fn stopped(&mut self, place: usize, why: FailedBecause) -> Result<(), Failure> {
        let lane = &mut self.all[place];
        if let FailedBecause::Error(error) = why {
            lane.suspects_requests = error.suspects_requests();
        }
        let refused = lane.stop();
        let generation = lane.lifecycle.generation();
        lane.note_event(generation, RailEventKind::Failed { why, refused });
        self.needs_care = true;
        let in_service = self.rails_in_service();
        let min_rails = self.min_rails;
        if in_service < min_rails {
            return Err(Failure::TooFewRails { in_service, min_rails });
        }
        Ok(())
    }

    /// Rails of which a queue pair is in service.
    fn rails_in_service(&self) -> u8 {
        let has_one = |rail: &u8| {
            self.all.iter().any(|lane| lane.rail == *rail && lane.lifecycle.is_in_service())
        };
        (0..self.rails).filter(has_one).count() as u8
    }

    /// Whether a queue pair has failed, and what that means for requests is not settled.
    pub(super) fn awaits_fence(&self) -> bool {
        self.all.iter().any(|lane| lane.lifecycle.awaits_fence())
    }

    /// What is to be told the peer next.
    pub(super) fn next_control(&mut self) -> Option<Control> {
        if core::mem::take(&mut self.tells_error) {
            return Some(Control { queue_pair: 0, message: ControlMessage::Error });
        }
        if self.failure.is_some() {
            return None;
        }
        let mut news = (0..).zip(&mut self.all).filter_map(|(queue_pair, lane)| {
            let news = lane.lifecycle.take_news(RailId::Data(lane.rail))?;
            Some(Control { queue_pair, message: ControlMessage::Rail(news) })
        });
        news.next()
    }

    /// Everything that may not have been heard is told again.
    pub(super) fn control_lost(&mut self) {
        self.tells_error = self.reroutes && self.failure.is_some();
        self.all.iter_mut().for_each(|lane| lane.lifecycle.tell_again());
    }

    /// Takes what the peer tells, and returns what that changed. Of an end that `posts` immediates, some may
    /// have arrived at the peer's.
    pub(super) fn hear(
        &mut self,
        control: &Control,
        posts: bool,
    ) -> Result<Option<Changed>, Failure> {
        let news = match control.message {
            _ if self.failure.is_some() => {
                self.ignored += 1;
                return Ok(None);
            }
            ControlMessage::Error => return Err(Failure::Peer),
            ControlMessage::Rail(news) => news,
        };
        let place = usize::from(control.queue_pair);
        let is_there = |lane: &&mut Lane<Q, DEPTH>| RailId::Data(lane.rail) == news.rail;
        let no_rail = Failure::Control(ControlError::NoRail(news.rail));
        let lane = self.all.get_mut(place).filter(is_there).ok_or(no_rail)?;
        let posted = if posts { lane.immediates } else { 0 };
        let generation = lane.lifecycle.generation();
        let heard = lane.lifecycle.hear(&news, posted).map_err(Failure::Control)?;
        self.ignored += u64::from(heard.ignored);
        self.needs_care = true;
        if heard.returned {
            self.returned(place);
        }
        Ok(Some(Changed { place, generation, heard }))
    }

    /// The peer's next queue pair failed before there was one here: it counts as failed here too. What became
    /// of the one before is settled by then. Returns its generation, if it is Down at once.
    #[cold]
    pub(super) fn adopt(&mut self, place: usize) -> Option<u16> {
        let lane = &mut self.all[place];
        let generation = lane.lifecycle.generation();
        lane.start_over(generation);
        let kind = RailEventKind::Failed { why: FailedBecause::Peer, refused: None };
        lane.note_event(generation, kind);
        (lane.lifecycle.state() == RailState::Down).then_some(generation)
    }

    /// A queue pair is in service again.
    fn returned(&mut self, place: usize) {
        let lane = &mut self.all[place];
        lane.is_stopped = false;
        let generation = lane.lifecycle.generation();
        lane.note_event(generation, RailEventKind::Returned);
    }

    /// Messages of the peer's that told nothing new.
    pub(super) const fn ignored(&self) -> u64 {
        self.ignored
    }

    /// The oldest event that was not taken yet, with the place of its queue pair.
    pub(super) fn take_rail_event(&mut self) -> Option<(usize, RailEvent)> {
        let mut lanes = self.all.iter_mut().enumerate();
        lanes.find_map(|(place, lane)| Some((place, lane.events.take()?)))
    }

    /// Where a queue pair stands between failure and return, and which one it is.
    pub(super) fn state(&self, place: usize) -> Option<(RailState, u16)> {
        let lane = self.all.get(place)?;
        Some((lane.lifecycle.state(), lane.lifecycle.generation()))
    }

    /// Puts a new queue pair in the place of one that is Down, and routes its completions. Returns the old
    /// one.
    pub(super) fn replace<C: CompletionQueue, const CQS: usize, const ROUTES: usize>(
        &mut self,
        (cq, index): (&mut VirtualCq<C, CQS, ROUTES>, u16),
        place: usize,
        generation: u16,
        queue_pair: Q,
        devices: &[DeviceId],
    ) -> Result<Q, Rejected<Q>> {
        let fits = self
            .check_replacement(place, generation, &queue_pair, devices)
            .and_then(|(old, at)| Ok((cq.replace_route(index, old, &queue_pair)?, at)));
        let device_at = match fits {
            Ok(((), device_at)) => device_at,
            Err(error) => return Err(Rejected { error, queue_pair }),
        };
        let lane = &mut self.all[place];
        let old = lane.replace(queue_pair, device_at as u8);
        self.needs_care = true;
        Ok(old)
    }

    /// The receives of a new queue pair are posted: the peer may be told.
    pub(super) fn replaced(&mut self, place: usize) {
        if self.all[place].lifecycle.replaced() {
            self.returned(place);
        }
    }

    /// Returns device and number of the old queue pair, and the place of the new one's device.
    fn check_replacement(
        &self,
        place: usize,
        given: u16,
        queue_pair: &Q,
        devices: &[DeviceId],
    ) -> Result<((DeviceId, u32), usize), ReplaceError> {
        let rail = RailId::Data((place % usize::from(self.rails)) as u8);
        let lane = self.all.get(place).ok_or(ReplaceError::NoRail(rail))?;
        if self.failure.is_some() {
            return Err(ReplaceError::InErrorState);
        }
        let state = lane.lifecycle.state();
        if state != RailState::Down {
            return Err(ReplaceError::State { rail, state });
        }
        let expected = lane.lifecycle.next_generation();
        if given != expected {
            return Err(ReplaceError::Generation { rail, expected, given });
        }
        let device = queue_pair.device();
        let known = devices.iter().position(|known| *known == device);
        let at = known.ok_or(ReplaceError::Device { device })?;
        let limits = queue_pair.limits();
        for (what, given, needed) in [
            ("max_send_wr", limits.max_send_wr, lane.queue.limit()),
            ("max_msg_size", limits.max_msg_size, lane.max_message),
        ] {
            if given < needed {
                return Err(ReplaceError::Limit { what, given, needed });
            }
        }
        Ok(((lane.device, lane.qp_num), at))
    }
}
