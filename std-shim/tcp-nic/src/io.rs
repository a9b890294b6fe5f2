//! The threads that move data while programs do not poll, connect queue pairs, and watch the time.
//!
//! Each thread waits on one epoll instance, with the listeners of its devices, connections that
//! prove themselves, and the epoll instances of completion queues. While a completion queue is
//! polled, its poller moves the data, and the thread looks only now and then whether that is still
//! so: two threads that spin would take each other's processor.

use crate::ending;
use crate::meeting::{Dial, DialError, Guest, Stepped, prepare};
use crate::shared::{CqShared, DeviceShared, QpShared};
use crate::watch::Watch;
use polyrail_nic_parts::error::vendor;
use polyrail_nic_parts::state::QpState;
use polyrail_nic_parts::sync::{lock, nanos};
use polyrail_process::Process;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread;
use std::time::Instant;

/// Names of what a thread waits for; never used twice, so an event that comes late names nothing.
static NEXT_TOKEN: AtomicU64 = AtomicU64::new(FIRST_TOKEN);
const WAKE: u64 = 0;
const NETLINK: u64 = 1;
const FIRST_TOKEN: u64 = 2;

/// A completion queue that was polled this long ago, in nanoseconds, is not polled any more.
const POLLED: u64 = 50_000;

/// The longest time after which a thread looks whether a queue is still polled.
const POLLED_MOST: u64 = 1_000_000;

/// Connections that are accepted before data moves again.
const GUESTS_AT_ONCE: usize = 16;

/// Unproven connections of a device.
const MOST_GUESTS: usize = 64;

/// Nanoseconds in which a connection proves itself.
const GUEST_LIMIT: u64 = 5_000_000_000;

/// Pauses between two attempts to connect, in nanoseconds.
const FIRST_PAUSE: u64 = 10_000_000;
const LONGEST_PAUSE: u64 = 1_000_000_000;

/// How long a listener rests when the system has no file descriptor.
const LACK_PAUSE: u64 = 100_000_000;

/// Events of one wait.
const EVENTS: usize = 64;

/// A connection that proves itself is waited for once at a time: nothing is reported any more when
/// it has been given to its queue pair, which other threads serve.
const READABLE_ONCE: EventFlags =
    EventFlags::IN.union(EventFlags::RDHUP).union(EventFlags::ONESHOT);

/// Nanoseconds since the first call in this process; never 0.
pub(crate) fn now() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    nanos(START.get_or_init(Instant::now).elapsed()) + 1
}

/// Returns a new name.
pub(crate) fn token() -> u64 {
    NEXT_TOKEN.fetch_add(1, Ordering::Relaxed)
}

/// The threads of the process.
struct Pool {
    process: Option<Process>,
    threads: Vec<Weak<IoThread>>,
    next: usize,
}

static POOL: Mutex<Pool> = Mutex::new(Pool { process: None, threads: Vec::new(), next: 0 });

/// A request to a thread.
#[derive(Debug)]
enum Command {
    Device(Weak<DeviceShared>),
    Cq(Weak<CqShared>),
    Dial(Weak<QpShared>),
    Watch(Weak<QpShared>),
    Finish(Weak<QpShared>),
    Resume,
}

/// A handle of a thread. The thread ends when the handle is dropped, with the last of its devices.
#[derive(Debug)]
pub(crate) struct IoThread(Arc<Inbox>);

#[derive(Debug)]
struct Inbox {
    epoll: OwnedFd,
    wake: OwnedFd,
    commands: Mutex<Vec<Command>>,
    ends: AtomicBool,
}

impl Inbox {
    fn send(&self, command: Command) {
        lock(&self.commands).push(command);
        self.wake();
    }

    fn wake(&self) {
        // It fails only if it was woken 2^64 - 2 times.
        _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

impl Drop for IoThread {
    fn drop(&mut self) {
        self.0.ends.store(true, Ordering::Release);
        self.0.wake();
    }
}

impl IoThread {
    /// Returns the thread of a new device: a new one as long as there are fewer than half the
    /// processors.
    pub(crate) fn for_device() -> io::Result<Arc<Self>> {
        let mut pool = lock(&POOL);
        if pool.process.is_none_or(|process| !process.is_current()) {
            pool.process = Some(Process::current());
            pool.threads.clear();
        }
        pool.threads.retain(|thread| thread.strong_count() > 0);
        let most = thread::available_parallelism().map_or(1, |count| count.get().div_ceil(2));
        if pool.threads.len() < most {
            let thread = Arc::new(Self::start()?);
            pool.threads.push(Arc::downgrade(&thread));
            return Ok(thread);
        }
        let turn = pool.next % pool.threads.len();
        pool.next = turn + 1;
        match pool.threads[turn].upgrade() {
            Some(thread) => Ok(thread),
            None => Ok(Arc::new(Self::start()?)),
        }
    }

    fn start() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &wake, EventData::new_u64(WAKE), EventFlags::IN)?;
        let (commands, ends) = (Mutex::new(Vec::new()), AtomicBool::new(false));
        let inbox = Arc::new(Inbox { epoll, wake, commands, ends });
        let netlink = crate::netlink::open().ok();
        if let Some(netlink) = &netlink {
            epoll::add(&inbox.epoll, netlink, EventData::new_u64(NETLINK), EventFlags::IN)?;
        }
        let mut work = Work::new(Arc::clone(&inbox), netlink);
        let builder = thread::Builder::new().name("polyrail-tcp".to_owned());
        builder.spawn(move || work.run())?;
        Ok(Self(inbox))
    }

    /// Serves the listener of a device.
    pub(crate) fn add_device(&self, device: &Arc<DeviceShared>) -> io::Result<()> {
        self.0.send(Command::Device(Arc::downgrade(device)));
        Ok(())
    }

    /// Serves a completion queue while it is not polled.
    pub(crate) fn add_cq(&self, cq: &Arc<CqShared>) -> Result<(), Errno> {
        self.0.send(Command::Cq(Arc::downgrade(cq)));
        let data = EventData::new_u64(cq.io_token);
        epoll::add(&self.0.epoll, &cq.epoll, data, EventFlags::IN)
    }

    /// Stops to serve a completion queue or a listener that is about to be closed. Closing is not
    /// enough: a fork has the descriptor, too, and what it refers to would be reported for ever.
    pub(crate) fn remove(&self, fd: impl AsFd) {
        _ = epoll::delete(&self.0.epoll, fd);
    }

    /// Serves a completion queue again that was polled.
    pub(crate) fn watch_cq(&self, cq: &CqShared) {
        if !cq.io_watches.swap(true, Ordering::AcqRel) {
            self.0.set_watched(cq, true);
        }
    }

    /// Connects a queue pair to its peer.
    pub(crate) fn dial(&self, qp: &QpShared) {
        self.0.send(Command::Dial(qp.me.clone()));
    }

    /// Looks at the time of a queue pair's requests now, which may be earlier than planned.
    pub(crate) fn look_at(&self, qp: &QpShared) {
        self.0.send(Command::Watch(qp.me.clone()));
    }

    /// Lets a failure of a queue pair take effect.
    pub(crate) fn finish(&self, qp: &QpShared) {
        self.0.send(Command::Finish(qp.me.clone()));
    }

    /// Moves data again after a link was opened.
    pub(crate) fn resume(&self, _device: &DeviceShared) {
        self.0.send(Command::Resume);
    }
}

impl Inbox {
    fn set_watched(&self, cq: &CqShared, watched: bool) {
        let flags = if watched { EventFlags::IN } else { EventFlags::empty() };
        // It fails only if the queue is not served by this thread any more.
        _ = epoll::modify(&self.epoll, &cq.epoll, EventData::new_u64(cq.io_token), flags);
    }

    /// Leaves a completion queue to its poller. The flag is changed last: an owner that finds it
    /// cleared watches the queue again, which must not be undone.
    fn stop_watching(&self, cq: &CqShared) {
        self.set_watched(cq, false);
        cq.io_watches.store(false, Ordering::Release);
    }

    /// Waits until something is ready, or until this many nanoseconds have passed. Returns the
    /// number of events.
    fn wait(&self, events: &mut [Event], left: Option<u64>) -> usize {
        let timespec = |nanos: u64| Timespec {
            tv_sec: (nanos / 1_000_000_000) as i64,
            tv_nsec: (nanos % 1_000_000_000) as i64,
        };
        let mut ready = epoll::wait(&self.epoll, &mut *events, left.map(timespec).as_ref());
        // Linux before 5.11 and many filters of system calls have no epoll_pwait2, without which
        // only whole milliseconds can be waited for.
        if matches!(ready, Err(Errno::NOSYS | Errno::PERM)) {
            let left = left.map(|left| timespec(left.div_ceil(1_000_000) * 1_000_000));
            ready = epoll::wait(&self.epoll, events, left.as_ref());
        }
        // Otherwise it fails only if a signal comes.
        ready.unwrap_or_default()
    }
}

impl QpShared {
    /// Watches the time of the requests, from the first one on.
    pub(crate) fn watch(&self) {
        if !self.is_watched.load(Ordering::Acquire) && !self.is_watched.swap(true, Ordering::AcqRel)
        {
            self.device.io.look_at(self);
        }
    }
}

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

/// A queue pair that connects to its peer.
#[derive(Debug)]
struct Call {
    qp: Weak<QpShared>,
    attempt: Option<(u64, Dial)>,
    /// When the attempt ends, or the next one begins.
    at: u64,
    pause: u64,
}

/// A completion queue that is polled.
#[derive(Debug)]
struct Polled {
    cq: Weak<CqShared>,
    at: u64,
    interval: u64,
}

/// What a thread does.
struct Work {
    inbox: Arc<Inbox>,
    netlink: Option<OwnedFd>,
    doors: BTreeMap<u64, Door>,
    cqs: BTreeMap<u64, Weak<CqShared>>,
    visits: BTreeMap<u64, Visit>,
    calls: Vec<Call>,
    polled: Vec<Polled>,
    watches: Vec<Watch>,
    /// Completion queues that are not watched because their link is closed.
    closed: Vec<Weak<CqShared>>,
}

impl Work {
    fn new(inbox: Arc<Inbox>, netlink: Option<OwnedFd>) -> Self {
        Self {
            inbox,
            netlink,
            doors: BTreeMap::new(),
            cqs: BTreeMap::new(),
            visits: BTreeMap::new(),
            calls: Vec::new(),
            polled: Vec::new(),
            watches: Vec::new(),
            closed: Vec::new(),
        }
    }

    fn run(&mut self) {
        let mut events =
            [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; EVENTS];
        while !self.inbox.ends.load(Ordering::Acquire) {
            let next = self.do_what_is_due();
            let left = next.map(|at| at.saturating_sub(now()));
            let ready = self.inbox.wait(&mut events, left);
            // Before the events, which may name what a command adds.
            self.take_commands();
            for event in &events[..ready] {
                let data = event.data;
                self.take_event(data.u64());
            }
        }
    }

    fn take_commands(&mut self) {
        let commands = std::mem::take(&mut *lock(&self.inbox.commands));
        for command in commands {
            match command {
                Command::Device(device) => self.add_device(&device),
                Command::Cq(cq) => {
                    if let Some(shared) = cq.upgrade() {
                        self.cqs.insert(shared.io_token, cq);
                    }
                    self.cqs.retain(|_, cq| cq.strong_count() > 0);
                }
                Command::Dial(qp) => {
                    self.calls.push(Call { qp, attempt: None, at: 0, pause: FIRST_PAUSE });
                }
                Command::Watch(qp) => {
                    let found = self.watches.iter_mut().find(|watch| watch.is_of(&qp));
                    match found {
                        Some(watch) => watch.hurry(),
                        None => self.watches.push(Watch::new(qp)),
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
                            self.inbox.set_watched(&cq, true);
                            cq.io_watches.store(true, Ordering::Release);
                            // What could not be sent meanwhile has no event.
                            cq.service_all();
                        }
                    }
                    for cq in self.cqs.values().filter_map(Weak::upgrade) {
                        cq.service_all();
                    }
                }
            }
        }
    }

    fn add_device(&mut self, device: &Weak<DeviceShared>) {
        let Some(shared) = device.upgrade() else { return };
        let token = token();
        let data = EventData::new_u64(token);
        // Without memory for it in the kernel, the door stays shut.
        if epoll::add(&self.inbox.epoll, &shared.listener, data, EventFlags::IN).is_ok() {
            self.doors.insert(token, Door { device: device.clone(), rests_until: None });
        }
        self.doors.retain(|_, door| door.device.strong_count() > 0);
    }

    fn take_event(&mut self, token: u64) {
        match token {
            WAKE => {
                let mut told = [0; 8];
                _ = rustix::io::read(&self.inbox.wake, &mut told);
            }
            NETLINK => {
                if let Some(netlink) = &self.netlink {
                    crate::netlink::drain(netlink);
                }
                let devices = self.doors.values().filter_map(|door| door.device.upgrade());
                devices.for_each(|device| device.look_at_interface());
            }
            _ if self.cqs.contains_key(&token) => self.serve_cq(token),
            _ if self.doors.contains_key(&token) => self.open_door(token),
            _ if self.visits.contains_key(&token) => self.receive_guest(token),
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
            let cq = Arc::downgrade(&cq);
            self.polled.push(Polled { cq, at: now + POLLED, interval: POLLED });
            return;
        }
        cq.drive();
    }

    fn open_door(&mut self, token: u64) {
        let Some(door) = self.doors.get_mut(&token) else { return };
        let Some(device) = door.device.upgrade() else {
            self.doors.remove(&token);
            return;
        };
        for _ in 0..GUESTS_AT_ONCE {
            let stream = match device.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if is_lack(&error) => {
                    door.rests_until = Some(now() + LACK_PAUSE);
                    let data = EventData::new_u64(token);
                    let none = EventFlags::empty();
                    _ = epoll::modify(&self.inbox.epoll, &device.listener, data, none);
                    return;
                }
                // The guest has gone.
                Err(_) => continue,
            };
            Self::admit(&mut self.visits, &self.inbox, &device, stream.into());
        }
    }

    /// Lets a guest prove itself. If there are too many, the one that has taken longest goes.
    fn admit(
        visits: &mut BTreeMap<u64, Visit>,
        inbox: &Inbox,
        device: &Arc<DeviceShared>,
        stream: socket2::Socket,
    ) {
        if prepare(&stream).is_err() {
            return;
        }
        let same = |visit: &Visit| std::ptr::eq(visit.device.as_ptr(), Arc::as_ptr(device));
        if visits.values().filter(|visit| same(visit)).count() >= MOST_GUESTS {
            // Names are given in the order of arrival.
            let oldest = visits.iter().find(|(_, visit)| same(visit)).map(|(token, _)| *token);
            oldest.and_then(|token| visits.remove(&token));
        }
        let name = token();
        if epoll::add(&inbox.epoll, &stream, EventData::new_u64(name), READABLE_ONCE).is_ok() {
            let (guest, device) = (Guest::new(stream), Arc::downgrade(device));
            visits.insert(name, Visit { guest, device, since: now() });
        }
    }

    fn receive_guest(&mut self, token: u64) {
        let Some(visit) = self.visits.get_mut(&token) else { return };
        let Some(device) = visit.device.upgrade() else {
            self.visits.remove(&token);
            return;
        };
        let is_over = visit.guest.step(&device) == Stepped::Over;
        let waits = visit.guest.as_fd().filter(|_| !is_over).is_some_and(|fd| {
            let data = EventData::new_u64(token);
            epoll::modify(&self.inbox.epoll, fd, data, READABLE_ONCE).is_ok()
        });
        if !waits {
            self.visits.remove(&token);
        }
    }

    fn go_on_with_call(&mut self, token: u64) {
        let is_it = |call: &Call| call.attempt.as_ref().is_some_and(|(name, _)| *name == token);
        if let Some(index) = self.calls.iter().position(is_it)
            && step_call(&self.inbox, &mut self.calls[index])
        {
            self.calls.swap_remove(index);
        }
    }

    /// Does what is due, and returns when the next thing is.
    fn do_what_is_due(&mut self) -> Option<u64> {
        let now = now();
        let mut next = Next(None);
        for (token, door) in &mut self.doors {
            if door.rests_until.is_some_and(|until| until <= now) {
                door.rests_until = None;
                if let Some(device) = door.device.upgrade() {
                    let data = EventData::new_u64(*token);
                    let flags = EventFlags::IN;
                    _ = epoll::modify(&self.inbox.epoll, &device.listener, data, flags);
                }
            }
            next.at(door.rests_until);
        }
        self.visits.retain(|_, visit| visit.since + GUEST_LIMIT > now);
        next.at(self.visits.values().map(|visit| visit.since + GUEST_LIMIT).min());
        let inbox = &self.inbox;
        self.calls.retain_mut(|call| {
            let is_over = call.at <= now && renew_call(inbox, call, now);
            if !is_over {
                next.at(Some(call.at));
            }
            !is_over
        });
        self.polled.retain_mut(|polled| {
            let Some(cq) = polled.cq.upgrade() else { return false };
            if cq.io_watches.load(Ordering::Acquire) {
                return false;
            }
            if polled.at <= now {
                let polled_at = cq.polled_at.load(Ordering::Acquire);
                if polled_at == 0 || now.saturating_sub(polled_at) >= POLLED {
                    cq.io_watches.store(true, Ordering::Release);
                    inbox.set_watched(&cq, true);
                    return false;
                }
                polled.interval = (2 * polled.interval).min(POLLED_MOST);
                polled.at = now + polled.interval;
            }
            next.at(Some(polled.at));
            true
        });
        self.watches.retain_mut(|watch| {
            let at = watch.look(now);
            next.at(at);
            at.is_some()
        });
        next.0
    }
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

/// Ends an attempt whose time is over, and begins the next one. Returns whether the call is over.
fn renew_call(inbox: &Inbox, call: &mut Call, now: u64) -> bool {
    let Some(qp) = call.qp.upgrade() else { return true };
    let is_needed = matches!(qp.state.get(), QpState::Rtr | QpState::Rts);
    if !is_needed || qp.socket.get().is_some() || lock(&qp.queues).requester.is_lost() {
        return true;
    }
    if call.attempt.as_ref().is_some_and(|(_, dial)| dial.has_proved()) {
        // The other side knows its peer only later.
        call.at = now + GUEST_LIMIT;
        return false;
    }
    call.attempt = None;
    call.at = now + call.pause;
    if !qp.device.carries() {
        return false;
    }
    let Ok(dial) = Dial::begin(&qp) else {
        call.pause = (2 * call.pause).min(LONGEST_PAUSE);
        return false;
    };
    let name = token();
    let flags = EventFlags::OUT | EventFlags::ONESHOT;
    let added =
        dial.as_fd().map(|fd| epoll::add(&inbox.epoll, fd, EventData::new_u64(name), flags));
    if added.is_some_and(|added| added.is_ok()) {
        call.attempt = Some((name, dial));
        call.at = now + GUEST_LIMIT;
    }
    false
}

/// Goes on with an attempt. Returns whether the call is over.
fn step_call(inbox: &Inbox, call: &mut Call) -> bool {
    let Some(qp) = call.qp.upgrade() else { return true };
    let Some((name, dial)) = &mut call.attempt else { return false };
    let stepped = dial.step(&qp);
    let stepped = stepped.and_then(|stepped| {
        let Some(fd) = dial.as_fd().filter(|_| stepped == Stepped::Waits) else {
            return Ok(stepped);
        };
        let flags =
            if dial.is_connected() { READABLE_ONCE } else { EventFlags::OUT | EventFlags::ONESHOT };
        let watched = epoll::modify(&inbox.epoll, fd, EventData::new_u64(*name), flags);
        watched.map(|()| stepped).map_err(|_| DialError::Again)
    });
    match stepped {
        Ok(Stepped::Waits) => false,
        Ok(Stepped::Over) => true,
        Err(DialError::Version) => {
            qp.lose(vendor::PEER_VERSION);
            ending::run(&qp);
            true
        }
        Err(DialError::Again) => {
            call.attempt = None;
            call.at = now() + call.pause;
            call.pause = (2 * call.pause).min(LONGEST_PAUSE);
            false
        }
    }
}

/// Whether the system has too few descriptors or too little memory, which passes.
fn is_lack(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}
