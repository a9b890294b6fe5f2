//! The state of an end that repairs its rails, between two repair steps.

use super::device_events::DeviceEvents;
use super::limits::Limits;
use super::link::HealingLink;
use super::message::{HealingMessage, RailName};
use super::options::Healing;
use super::rail_repair::RailRepair;
use super::silence::{HeldUp, SilenceWatch};
use crate::backend::EventCursor;
use std::time::Instant;

/// The state of an end that repairs its rails.
#[derive(Debug)]
pub(crate) struct Healer<R: RailName, Q, const RAILS: usize> {
    pub(super) options: Healing,
    pub(super) link: HealingLink<R>,
    pub(super) repairs: [RailRepair<R, Q>; RAILS],
    pub(super) silence: SilenceWatch<RAILS>,
    pub(super) held_up: HeldUp,
    /// Requests that each rail had completed when it was last checked for silence; `None` before
    /// the first check.
    pub(super) completed: [Option<u64>; RAILS],
    pub(super) device_events: DeviceEvents,
    /// When rails on devices of other rails return to their own: some time after a port is up
    /// again.
    pub(super) home_at: Option<Instant>,
    /// Rails were out of service at the last step, or something happened since.
    pub(super) is_busy: bool,
    pub(super) limits: Limits<RAILS>,
}

impl<R: RailName, Q, const RAILS: usize> Healer<R, Q, RAILS> {
    /// `cursors` are those of the devices, by index.
    pub(crate) fn new(options: Healing, cursors: Vec<EventCursor>) -> Self {
        Self {
            options,
            link: HealingLink::new(),
            repairs: std::array::from_fn(|_| RailRepair::default()),
            silence: SilenceWatch::new(),
            held_up: HeldUp::default(),
            completed: [None; RAILS],
            device_events: DeviceEvents::new(cursors),
            home_at: None,
            is_busy: false,
            limits: Limits::new(),
        }
    }

    pub(crate) const fn link(&self) -> &HealingLink<R> {
        &self.link
    }

    /// Uses this link instead: the peer is in the same process.
    pub(crate) fn set_link(&mut self, link: HealingLink<R>) {
        self.link = link;
    }
}

/// The peer does not wait for messages of an end that was dropped. In a fork of the process, the
/// link sends nothing: the parent still has the end.
impl<R: RailName, Q, const RAILS: usize> Drop for Healer<R, Q, RAILS> {
    fn drop(&mut self) {
        if let Some(failed) = R::FAILED {
            self.link.send(HealingMessage::Control(failed));
        }
    }
}

/// Polls from one repair step to the next: reading the clock costs several times what is tolerable
/// for each poll. A set adds its number of members, because each of them is checked.
pub(crate) const HEAL_EVERY: usize = 8;

/// Counts polls from one repair step to the next.
#[derive(Debug, Default)]
pub(crate) struct Polls {
    left: usize,
}

impl Polls {
    /// Returns whether this poll is the last of `every` since the last repair step.
    #[inline]
    pub(crate) const fn is_turn(&mut self, every: usize) -> bool {
        if self.left == 0 {
            self.left = every;
        }
        self.left -= 1;
        self.left == 0
    }
}
