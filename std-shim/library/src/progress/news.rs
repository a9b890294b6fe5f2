//! What handles and the thread's owner learn of virtual queue pairs.

use super::lock::lock;
use super::port::ThreadPort;
use super::shared::Shared;
use crate::endpoint::{EndpointError, NamedRailEvent};
use crate::sync::Mutex;
use std::collections::VecDeque;
use std::sync::OnceLock;

/// What the thread of virtual queue pairs shares.
pub(super) type QpShared = Shared<ThreadPort, News>;

/// What became of virtual queue pairs.
#[derive(Debug)]
pub(super) struct News {
    /// Why each virtual queue pair failed, if it did, by number; `None` where there is none.
    errors: Box<[Option<OnceLock<EndpointError>>]>,
    /// What happened to rails, by the number of their virtual queue pair, and was not read yet.
    rail_events: Mutex<VecDeque<(usize, NamedRailEvent)>>,
}

/// Most events that are kept for an owner who does not read them.
const MOST_RAIL_EVENTS: usize = 256;

impl News {
    /// For virtual queue pairs with the numbers that are marked.
    pub(super) fn new(is_there: impl IntoIterator<Item = bool>) -> Self {
        let errors = is_there.into_iter().map(|is_there| is_there.then(OnceLock::new)).collect();
        Self { errors, rail_events: Mutex::default() }
    }

    /// Whether the thread has a virtual queue pair with this number.
    pub(super) fn has(&self, qp: usize) -> bool {
        self.errors.get(qp).is_some_and(Option::is_some)
    }

    /// The oldest event of a rail that was not read yet.
    pub(super) fn take_rail_event(&self) -> Option<(usize, NamedRailEvent)> {
        lock(&self.rail_events).pop_front()
    }

    /// Keeps what happened to a rail; the newest stay.
    pub(super) fn add_rail_event(&self, qp: usize, event: NamedRailEvent) {
        let mut events = lock(&self.rail_events);
        if events.len() == MOST_RAIL_EVENTS {
            events.pop_front();
        }
        events.push_back((qp, event));
    }

    /// Why a virtual queue pair failed, if it did.
    pub(super) fn error(&self, qp: usize) -> Option<&EndpointError> {
        self.errors.get(qp)?.as_ref()?.get()
    }

    /// Keeps why a virtual queue pair failed; the first reason stays.
    pub(super) fn fail(&self, qp: usize, error: EndpointError) {
        if let Some(Some(known)) = self.errors.get(qp) {
            _ = known.set(error);
        }
    }
}
