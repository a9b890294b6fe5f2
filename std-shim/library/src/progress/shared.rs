//! What the thread, its owner and all handles share.

use super::alarm::Alarm;
use super::lock::lock;
use super::port::ThreadPort;
use crate::endpoint::{EndpointError, NamedRailEvent};
use polyrail_core::spsc::Doorbell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread::Thread;

/// Read often and written seldom, so that it stays in every processor's cache.
#[derive(Debug)]
pub(super) struct Shared {
    /// Whether the thread sleeps.
    bell: Doorbell,
    /// The thread; set by itself, before it ever sleeps.
    thread: OnceLock<Thread>,
    /// What it sleeps on, if it waits for completions too.
    alarm: Option<Alarm>,
    /// The thread takes no more requests.
    closing: AtomicBool,
    /// Handles that the thread does not know yet; `None` when it takes no more.
    newcomers: Mutex<Option<Vec<ThreadPort>>>,
    /// Whether there are any.
    has_newcomers: AtomicBool,
    /// Why each virtual queue pair failed, if it did, by number; `None` where there is none.
    errors: Box<[Option<OnceLock<EndpointError>>]>,
    /// What happened to rails, by the number of their virtual queue pair, and was not read yet.
    rail_events: Mutex<VecDeque<(usize, NamedRailEvent)>>,
}

/// Most events that are kept for an owner who does not read them.
const MOST_RAIL_EVENTS: usize = 256;

impl Shared {
    /// For virtual queue pairs with the numbers that are marked.
    pub(super) fn new(is_there: impl IntoIterator<Item = bool>, alarm: Option<Alarm>) -> Self {
        Self {
            bell: Doorbell::new(),
            thread: OnceLock::new(),
            alarm,
            closing: AtomicBool::new(false),
            newcomers: Mutex::new(Some(Vec::new())),
            has_newcomers: AtomicBool::new(false),
            errors: is_there.into_iter().map(|is_there| is_there.then(OnceLock::new)).collect(),
            rail_events: Mutex::default(),
        }
    }

    /// Whether the thread has a virtual queue pair with this number.
    pub(super) fn has(&self, qp: usize) -> bool {
        self.errors.get(qp).is_some_and(Option::is_some)
    }

    /// To be called after anything that the thread has to see.
    pub(super) fn wake(&self) {
        if !self.bell.ring() {
            return;
        }
        match &self.alarm {
            Some(alarm) => alarm.ring(),
            None => _ = self.thread.get().map(Thread::unpark),
        }
    }

    /// What the thread sleeps on, if it waits for completions too.
    pub(super) fn alarm(&self) -> Option<&Alarm> {
        self.alarm.as_ref()
    }

    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.wake();
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Hands a handle's other side to the thread. If that is gone, the handle learns it by its
    /// rings.
    pub(super) fn introduce(&self, side: ThreadPort) {
        if let Some(newcomers) = lock(&self.newcomers).as_mut() {
            newcomers.push(side);
            self.has_newcomers.store(true, Ordering::Release);
        }
        self.wake();
    }

    /// The oldest event of a rail that was not read yet.
    pub(super) fn take_rail_event(&self) -> Option<(usize, NamedRailEvent)> {
        lock(&self.rail_events).pop_front()
    }

    /// Why a virtual queue pair failed, if it did.
    pub(super) fn error(&self, qp: usize) -> Option<&EndpointError> {
        self.errors.get(qp)?.as_ref()?.get()
    }
}

/// The thread's methods.
impl Shared {
    /// Records which thread it is.
    pub(super) fn enter(&self) {
        // Called once.
        _ = self.thread.set(std::thread::current());
    }

    /// The handles that were made since the last call.
    pub(super) fn take_newcomers(&self) -> Vec<ThreadPort> {
        if !self.has_newcomers() {
            return Vec::new();
        }
        self.has_newcomers.store(false, Ordering::Relaxed);
        lock(&self.newcomers).as_mut().map(std::mem::take).unwrap_or_default()
    }

    pub(super) fn has_newcomers(&self) -> bool {
        self.has_newcomers.load(Ordering::Acquire)
    }

    /// Keeps what happened to a rail; the newest stay.
    pub(super) fn add_rail_event(&self, qp: usize, event: NamedRailEvent) {
        let mut events = lock(&self.rail_events);
        if events.len() == MOST_RAIL_EVENTS {
            events.pop_front();
        }
        events.push_back((qp, event));
    }

    /// Keeps why a virtual queue pair failed; the first reason stays.
    pub(super) fn fail(&self, qp: usize, error: EndpointError) {
        if let Some(Some(known)) = self.errors.get(qp) {
            _ = known.set(error);
        }
    }

    /// Sleeps, unless a last check shows something to do.
    pub(super) fn sleep(&self, something_to_do: impl FnOnce() -> bool, sleep: impl FnOnce()) {
        self.bell.arm();
        if !something_to_do() {
            sleep();
        }
        self.bell.disarm();
    }

    /// The thread ends: no handle is adopted any more.
    pub(super) fn leave(&self) {
        self.closing.store(true, Ordering::Release);
        let newcomers = lock(&self.newcomers).take();
        drop(newcomers);
    }
}
