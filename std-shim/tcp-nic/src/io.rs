//! The threads that move data while programs do not poll, connect queue pairs, and watch the time.
//!
//! Each thread waits on one epoll instance, with the listeners of its devices, connections that
//! prove themselves, and the epoll instances of completion queues. While a completion queue is
//! polled, its poller moves the data, and the thread looks only now and then whether that is still
//! so: two threads that spin would take each other's processor.

use crate::call::{Call, PROOF_LIMIT, READABLE_ONCE, renew_call, step_call};
use crate::clock::now;
use crate::commands::{NETLINK, WAKE, token};
use crate::ending;
use crate::handshake::{Guest, Stepped, prepare};
use crate::netlink;
use crate::schedule::Schedule;
use crate::shared::{Command, CqShared, DeviceShared, Inbox};
use crate::watch::Watch;
use polyrail_nic_parts::sync::lock;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// A completion queue that was polled this long ago, in nanoseconds, is not polled any more.
const POLLED: u64 = 50_000;

/// The longest time after which a thread looks whether a queue is still polled.
const POLLED_MOST: u64 = 1_000_000;

/// Connections that are accepted before data moves again.
const GUESTS_AT_ONCE: usize = 16;

/// Unproven connections of a device.
const MOST_GUESTS: usize = 64;

/// How long a connection keeps its place although others need it, in nanoseconds. A peer that is
/// far away takes a round trip from its hello to its proof.
const GRACE: u64 = 200_000_000;

/// How long a listener rests when the system has no file descriptor, and after which time the
/// interfaces are listed again if they could not be.
const LACK_PAUSE: u64 = 100_000_000;

/// Events of one wait.
const EVENTS: usize = 64;

/// A listener.
#[derive(Debug)]
struct Door {
    device: Weak<DeviceShared>,
    /// It rests until then.
    rests_until: Option<u64>,
}

/// A connection that proves itself.
#[derive(Debug)]
struct Visit {
    guest: Guest,
    device: Weak<DeviceShared>,
    since: u64,
}

/// A completion queue that is polled.
#[derive(Debug)]
struct Polled {
    cq: Weak<CqShared>,
    interval: u64,
}

/// What a thread does.
pub(crate) struct Work {
    inbox: Arc<Inbox>,
    netlink: Option<OwnedFd>,
    doors: BTreeMap<u64, Door>,
    cqs: BTreeMap<u64, Weak<CqShared>>,
    /// When their time is over.
    visits: Schedule<Visit>,
    calls: Schedule<Call>,
    polled: Schedule<Polled>,
    watches: Schedule<Watch>,
    /// When to look at the interfaces, because they could not be listed.
    looks_at: Option<u64>,
    /// Completion queues that are not watched because their link is closed.
    closed: Vec<Weak<CqShared>>,
    /// Nanoseconds that it looks for more before it sleeps, and until when it does.
    spin: u64,
    spins_until: u64,
}

impl Work {
    pub(crate) fn new(inbox: Arc<Inbox>, netlink: Option<OwnedFd>) -> Self {
        Self {
            inbox,
            netlink,
            doors: BTreeMap::new(),
            cqs: BTreeMap::new(),
            visits: Schedule::new(),
            calls: Schedule::new(),
            polled: Schedule::new(),
            watches: Schedule::new(),
            looks_at: None,
            closed: Vec::new(),
            spin: 0,
            spins_until: 0,
        }
    }

    pub(crate) fn run(&mut self) {
        let mut events =
            [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; EVENTS];
        while !self.inbox.ends.load(Ordering::Acquire) {
            let next = self.do_what_is_due(now());
            let left = self.sleeps_until(next).map(|at| at.saturating_sub(now()));
            let ready = self.inbox.wait(&mut events, left);
            let tokens = events[..ready].iter().map(|event| { event.data }.u64());
            // Before the commands: another command that is sent from here on wakes again.
            if tokens.clone().any(|token| token == WAKE) {
                self.inbox.take_wake();
            }
            // Before the events, which may name what a command adds.
            self.take_commands();
            self.note_events(ready);
            tokens.for_each(|token| self.take_event(token));
        }
    }

    /// Looks for more for a while after events.
    fn note_events(&mut self, ready: usize) {
        if ready > 0 && self.spin > 0 {
            self.spins_until = now().saturating_add(self.spin);
        }
    }

    /// Returns until when it sleeps, if `next` is when something is due; 0: not at all.
    fn sleeps_until(&self, next: Option<u64>) -> Option<u64> {
        if self.spins_until > 0 && now() < self.spins_until { Some(0) } else { next }
    }

    /// Forgets the listeners of devices that were closed.
    fn look_at_devices(&mut self) {
        self.doors.retain(|_, door| door.device.strong_count() > 0);
        let devices = self.doors.values().filter_map(|door| door.device.upgrade());
        self.spin = devices.map(|device| device.spin).max().unwrap_or_default();
        self.spins_until = if self.spin > 0 { self.spins_until } else { 0 };
    }

    fn take_commands(&mut self) {
        let commands = std::mem::take(&mut *lock(&self.inbox.commands));
        for command in commands {
            match command {
                Command::Device(device, token) => {
                    self.doors.insert(token, Door { device, rests_until: None });
                    self.look_at_devices();
                }
                Command::Closed => self.look_at_devices(),
                Command::Interfaces => self.looks_at = Some(now() + LACK_PAUSE),
                Command::Cq(cq) => {
                    if let Some(shared) = cq.upgrade() {
                        self.cqs.insert(shared.io_token, cq);
                    }
                    self.cqs.retain(|_, cq| cq.strong_count() > 0);
                }
                Command::Dial(qp) => {
                    let call = Call::new(qp);
                    self.calls.insert(call.name, call.at, call);
                }
                Command::Watch(qp) => {
                    if let Some(shared) = qp.upgrade()
                        && !self.watches.set_time(shared.io_token, 0)
                    {
                        self.watches.insert(shared.io_token, 0, Watch::new(qp));
                    }
                }
                Command::Finish(qp) => {
                    if let Some(qp) = qp.upgrade() {
                        ending::run(&qp);
                    }
                }
                Command::Resume => {
                    for cq in std::mem::take(&mut self.closed) {
                        if let Some(cq) = cq.upgrade() {
                            self.inbox.take_over(&cq);
                        }
                    }
                    // What could not be sent meanwhile has no event.
                    for cq in self.cqs.values().filter_map(Weak::upgrade) {
                        cq.service_all();
                    }
                }
            }
        }
    }

    fn take_event(&mut self, token: u64) {
        match token {
            WAKE => {}
            NETLINK => {
                if let Some(netlink) = &self.netlink {
                    netlink::drain(netlink);
                }
                self.look_at_interfaces();
            }
            _ if self.cqs.contains_key(&token) => self.serve_cq(token),
            _ if self.doors.contains_key(&token) => self.open_door(token),
            _ if self.visits.contains(token) => self.receive_guest(token),
            _ => self.go_on_with_call(token),
        }
    }

    fn serve_cq(&mut self, token: u64) {
        let Some(cq) = self.cqs.get(&token).and_then(Weak::upgrade) else {
            self.cqs.remove(&token);
            return;
        };
        if !cq.device.carries() {
            self.inbox.stop_watching(&cq);
            let cq = Arc::downgrade(&cq);
            if !self.closed.iter().any(|closed| closed.ptr_eq(&cq)) {
                self.closed.push(cq);
            }
            return;
        }
        let polled_at = cq.polled_at.load(Ordering::Acquire);
        let now = now();
        if polled_at != 0 && now.saturating_sub(polled_at) < POLLED {
            self.inbox.stop_watching(&cq);
            let polled = Polled { cq: Arc::downgrade(&cq), interval: POLLED };
            // An owner that waits and polls in turn comes here before its entry is looked at.
            self.polled.insert(token, now + POLLED, polled);
            return;
        }
        cq.send_held();
        cq.drive(false);
    }

    fn open_door(&mut self, token: u64) {
        let Some(door) = self.doors.get(&token) else { return };
        let Some(device) = door.device.upgrade() else {
            self.doors.remove(&token);
            return;
        };
        for _ in 0..GUESTS_AT_ONCE {
            let here = self.visits.iter().filter(|(_, visit)| visit.is_at(&device));
            let (count, oldest) = (here.clone().count(), here.map(|(_, visit)| visit.since).min());
            // A hello follows its connection at once, so a silent one can go at any time.
            if count >= MOST_GUESTS && !evict(&mut self.visits, &device, 0) {
                return self.rest(token, oldest.map(|since| since + GRACE));
            }
            let stream = match device.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // The next try may have its descriptor.
                Err(error) if is_lack(&error) && evict(&mut self.visits, &device, GRACE) => {
                    continue;
                }
                Err(error) if is_lack(&error) => return self.rest(token, Some(now() + LACK_PAUSE)),
                // The guest has gone.
                Err(_) => continue,
            };
            self.admit(&device, stream.into());
        }
    }

    fn rest(&mut self, token: u64, until: Option<u64>) {
        if let Some(door) = self.doors.get_mut(&token) {
            door.rest(&self.inbox, token, until);
        }
    }

    /// Lets a guest prove itself.
    fn admit(&mut self, device: &Arc<DeviceShared>, stream: socket2::Socket) {
        if prepare(&stream).is_err() {
            return;
        }
        // Names are given in the order of arrival.
        let name = token();
        if epoll::add(&self.inbox.epoll, &stream, EventData::new_u64(name), READABLE_ONCE).is_ok() {
            let (guest, device) = (Guest::new(stream), Arc::downgrade(device));
            let since = now();
            self.visits.insert(name, since + PROOF_LIMIT, Visit { guest, device, since });
            // Before others need its place: usually its hello is there.
            self.receive_guest(name);
        }
    }

    fn receive_guest(&mut self, token: u64) {
        let Some(visit) = self.visits.get_mut(token) else { return };
        let Some(device) = visit.device.upgrade() else {
            return self.end_visit(token);
        };
        let is_over = visit.guest.step(&device) == Stepped::Over;
        let waits = visit.guest.as_fd().filter(|_| !is_over).is_some_and(|fd| {
            let data = EventData::new_u64(token);
            epoll::modify(&self.inbox.epoll, fd, data, READABLE_ONCE).is_ok()
        });
        if !waits {
            self.end_visit(token);
        }
    }

    /// Gives the place of a connection, proven or not, to the next one.
    fn end_visit(&mut self, token: u64) {
        let Some(visit) = self.visits.remove(token) else { return };
        for (token, door) in &mut self.doors {
            if door.rests_until.is_some() && door.device.ptr_eq(&visit.device) {
                door.rest(&self.inbox, *token, None);
            }
        }
    }

    fn go_on_with_call(&mut self, token: u64) {
        let Some(call) = self.calls.get_mut(token) else { return };
        if step_call(&self.inbox, call) {
            self.calls.remove(token);
        } else {
            let at = call.at;
            self.calls.set_time(token, at);
        }
    }

    /// Lets devices look at their interfaces; later if the system cannot list them now.
    fn look_at_interfaces(&mut self) {
        let devices = self.doors.values().filter_map(|door| door.device.upgrade());
        let refused = devices.filter(|device| device.look_at_interface().is_err()).count();
        self.looks_at = (refused > 0).then(|| now() + LACK_PAUSE);
    }

    /// Does what is due, and returns when the next thing is.
    fn do_what_is_due(&mut self, now: u64) -> Option<u64> {
        let mut next = Next(None);
        for (token, door) in &mut self.doors {
            if door.rests_until.is_some_and(|until| until <= now) {
                door.rest(&self.inbox, *token, None);
            }
            next.at(door.rests_until);
        }
        if self.looks_at.is_some_and(|at| at <= now) {
            self.look_at_interfaces();
        }
        while self.visits.take_due(now).is_some() {}
        while let Some((name, mut call)) = self.calls.take_due(now) {
            if !renew_call(&self.inbox, &mut call, now) {
                self.calls.insert(name, call.at, call);
            }
        }
        while let Some((name, mut polled)) = self.polled.take_due(now) {
            let Some(cq) = polled.cq.upgrade() else { continue };
            if cq.io_watches.load(Ordering::Acquire) {
                continue;
            }
            let polled_at = cq.polled_at.load(Ordering::Acquire);
            if polled_at == 0 || now.saturating_sub(polled_at) >= POLLED {
                self.inbox.take_over(&cq);
                continue;
            }
            polled.interval = (2 * polled.interval).min(POLLED_MOST);
            self.polled.insert(name, now + polled.interval, polled);
        }
        while let Some((name, mut watch)) = self.watches.take_due(now) {
            if let Some(at) = watch.look(now) {
                self.watches.insert(name, at, watch);
            }
        }
        next.at(self.looks_at);
        next.at(self.visits.next_time());
        next.at(self.calls.next_time());
        next.at(self.polled.next_time());
        next.at(self.watches.next_time());
        next.0
    }
}

impl Door {
    /// Accepts nothing until then; without a time, goes on.
    fn rest(&mut self, inbox: &Inbox, token: u64, until: Option<u64>) {
        self.rests_until = until;
        let Some(device) = self.device.upgrade() else { return };
        let flags = if until.is_some() { EventFlags::empty() } else { EventFlags::IN };
        _ = epoll::modify(&inbox.epoll, &device.listener, EventData::new_u64(token), flags);
    }
}

impl Visit {
    fn is_at(&self, device: &Arc<DeviceShared>) -> bool {
        std::ptr::eq(self.device.as_ptr(), Arc::as_ptr(device))
    }
}

/// Closes the oldest connection that has sent no hello for this long, or else the oldest that is
/// not proven after [`GRACE`]. Returns whether there is one.
fn evict(visits: &mut Schedule<Visit>, device: &Arc<DeviceShared>, silence: u64) -> bool {
    let now = now();
    let oldest = |has_greeted: bool, grace: u64| {
        let mut there = visits.iter().filter(|(_, visit)| visit.is_at(device));
        let oldest = there.find(|(_, visit)| visit.guest.has_greeted() == has_greeted);
        oldest.filter(|(_, visit)| visit.since + grace <= now).map(|(token, _)| token)
    };
    let token = oldest(false, silence).or_else(|| oldest(true, GRACE));
    token.and_then(|token| visits.remove(token)).is_some()
}

/// The earliest of several times.
struct Next(Option<u64>);

impl Next {
    fn at(&mut self, time: Option<u64>) {
        self.0 = match (self.0, time) {
            (Some(first), Some(time)) => Some(first.min(time)),
            (first, time) => first.or(time),
        };
    }
}

/// Whether the system has too few descriptors or too little memory, which passes.
pub(crate) fn is_lack(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}

#[cfg(test)]
mod rt_tests;
