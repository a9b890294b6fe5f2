//! The state of a peer beside its connection, whether that is for requests or for messages.

use crate::code::Code;
use crate::error::{Refusal, refuse};
use crate::events::{EventQueue, PeerEvent};
use crate::link::{self, Meets, PeerLink};
use crate::types::{EventKind, State};

/// The state of a peer beside its connection.
#[derive(Default)]
pub(crate) struct PeerState {
    pub(crate) link: Option<PeerLink>,
    /// Over a link or by cards.
    pub(crate) is_connected: bool,
    /// Why the connection failed, if it did.
    pub(crate) end: Option<String>,
    /// The first failure of a rail, even if the connection survived it.
    pub(crate) rail_failure: Option<String>,
}

impl PeerState {
    /// Of a new peer in this place.
    pub(crate) fn welcome(all: &mut Vec<Self>, place: usize) {
        if all.len() <= place {
            all.resize_with(place + 1, Self::default);
        }
        all[place] = Self::default();
    }

    /// Refuses a second connection.
    pub(crate) fn check_not_connected(&self) -> Result<(), Refusal> {
        match self.is_connected || self.link.is_some() {
            true => refuse(Code::State, "the peer is already connected or connecting"),
            false => Ok(()),
        }
    }

    /// Refuses what callers carry for peers without a link only.
    pub(crate) fn check_no_link(&self) -> Result<(), Refusal> {
        match self.link {
            Some(_) => refuse(Code::State, "the peer has a link, which carries this itself"),
            None => Ok(()),
        }
    }

    /// Drives the link, if there is one, as far as it goes now.
    pub(crate) fn drive(&mut self, number: u64, peer: &mut dyn Meets, events: &mut EventQueue) {
        link::drive(&mut self.link, (number, peer), events);
        self.is_connected |= self.link.as_ref().is_some_and(PeerLink::has_met);
    }

    /// Records that the connection failed, and reports it once.
    pub(crate) fn fail(
        &mut self,
        number: u64,
        why: impl FnOnce() -> String,
        events: &mut EventQueue,
    ) {
        if self.end.is_none() {
            let words = why();
            self.end = Some(words.clone());
            events.push(number, PeerEvent::failed(EventKind::Failed, Code::Failed, words));
        }
    }

    /// Keeps the text of the first failure of a rail.
    pub(crate) fn note_rail_event(&mut self, event: &PeerEvent) {
        if event.kind == EventKind::RailFailed && self.rail_failure.is_none() {
            self.rail_failure = Some(String::from_utf8_lossy(&event.bytes).into_owned());
        }
    }

    /// Where a peer stands whose connection failed or not, on all of its rails or not.
    pub(crate) fn state(&self, has_failed: bool, is_degraded: bool) -> State {
        match &self.link {
            _ if has_failed => State::Failed,
            Some(link) if !link.has_met() => State::Meeting,
            _ if !self.is_connected => State::New,
            _ if is_degraded => State::Degraded,
            _ => State::Ready,
        }
    }

    /// Ends the link, if there is one, so that the other side is notified.
    pub(crate) fn end_link(&mut self) {
        if let Some(link) = self.link.take() {
            link.end();
        }
    }
}
