//! Owners of connections whose rails fail: they carry messages, notice that links and devices are
//! gone, and put new queue pairs in the places of those that failed.

use super::World;
use super::connection::{Connection, Receive, receivers_devices};
use super::fabric::{Name, Nics, SimQp, SimSrq, device_at, device_id, srq};
use super::shape::Line;
use super::trouble::spend;
use crate::link::Old;
use polyrail_core::hardware::QueuePair;
use polyrail_core::p2p::{Account, ConnectionEnd, Control, Pool};
use polyrail_core::virtual_qp::{
    ControlMessage, RailEventKind, RailId, RailState, Rejected, ReplaceError,
};

impl<const DEPTH: usize, const SLOTS: usize> World<DEPTH, SLOTS> {
    /// An owner sends the messages that there are.
    pub(super) fn carry(&mut self, at: usize, host: usize) {
        let connection = &mut self.connections[at];
        if connection.link.is_unnoticed(host) {
            return;
        }
        while let Some(control) = connection.next_control(host) {
            connection.check_promises(host, &control);
            connection.link.send(host, control.encode());
            self.summary.controls += 1;
            if self.is_loud {
                eprintln!("  host {host}: {control:?}");
            }
        }
        self.summary.again += connection.take_events();
    }

    /// The next message arrives at an end.
    pub(super) fn hear(&mut self, at: usize, host: usize, late: bool) {
        let connection = &mut self.connections[at];
        if !late && connection.link.is_unnoticed(host) {
            return;
        }
        let Some(bytes) = connection.link.receive(1 - host, late) else { return };
        let control = Control::decode(&bytes).expect("what was encoded");
        connection.hear(host, control);
    }

    pub(super) fn break_link(&mut self, at: usize, old: Old) {
        if spend(&mut self.left.breaks) {
            self.connections[at].link.fail(old);
        }
    }

    /// An owner notices that the link is a new one.
    pub(super) fn notice(&mut self, at: usize, host: usize) {
        let connection = &mut self.connections[at];
        if connection.link.is_unnoticed(host) {
            connection.link.notice(host);
            connection.control_lost(host);
        }
    }

    /// An owner reports that a queue pair failed: because it did, or for another reason.
    pub(super) fn distrust(&mut self, at: usize, host: usize, place: usize) {
        let connection = &mut self.connections[at];
        if place >= connection.near.len() {
            return self.distrust_flush(at, host);
        }
        if !connection.line.reroutes {
            return;
        }
        if connection.is_dead(&self.nics, host, place) || spend(&mut self.left.failures) {
            connection.note_failure(false);
            connection.fail_queue_pair(host, place);
        }
    }

    /// An owner reports that a queue pair failed which the oldest flush waits for: it does not wait
    /// any more.
    fn distrust_flush(&mut self, at: usize, host: usize) {
        let connection = &mut self.connections[at];
        let Some(flush) = connection.flushes.first() else { return };
        let mut nics = self.nics.borrow_mut();
        let read = flush.blocks.iter().map(|block| nics.memory.target(*block).flushed);
        let left = flush.carriers & !read.fold(0, |all, one| all | one);
        let is_awaited = |at: &usize| left >> nics.qps[*at].name.device & 1 == 1;
        let awaited = connection.flush_qps.iter().position(is_awaited);
        drop(nics);
        let Some(awaited) = awaited.filter(|_| !connection.is_sender(host)) else { return };
        if !spend(&mut self.left.failures) {
            return;
        }
        connection.failures += 1;
        let handle = flush.handle;
        connection.fail_queue_pair(host, connection.near.len() + awaited);
        let waits = connection.receiver.test_flush(&handle) == Ok(false);
        let is_known = connection.is_known();
        assert!(!waits || !is_known, "a flush waits for a queue pair that was stopped");
    }

    /// Owners make queue pairs for a place that is down at both ends, or will be, and connect them.
    pub(super) fn renew(&mut self, at: usize, place: usize, rails: [usize; 2]) {
        let connection = &self.connections[at];
        let line = &connection.line;
        if !line.reroutes || connection.has_failed() {
            return;
        }
        let states = [0, 1].map(|host| connection.state(host, place));
        let is_pending = connection.pending[place].iter().any(Option::is_some);
        let devices = [0, 1].map(|host| line.devices[host][rails[host] % line.rails]);
        let is_dead = (0..2).any(|host| self.nics.borrow().is_dead[device_at(host, devices[host])]);
        let is_due = |(state, generation): (RailState, u16)| {
            let is_soon = matches!(state, RailState::Draining | RailState::Fenced);
            generation == states[0].1
                && (state == RailState::Down || self.shape.is_early && is_soon)
        };
        if is_pending || is_dead || !states.into_iter().all(is_due) {
            return;
        }
        let (id, is_honest) = (connection.id, connection.is_known());
        let word_after = self.shape.word_after;
        let make = |host: usize| {
            let device = devices[host];
            make(&self.nics, line, (id, host, device, place), word_after)
        };
        let pair = [make(0), make(1)];
        self.nics.borrow_mut().connect(pair[0].at, pair[1].at);
        for qp in &pair {
            self.nics.borrow_mut().qps[qp.at].is_honest = is_honest;
        }
        let generation = states[0].1.wrapping_add(1);
        self.connections[at].pending[place] = pair.map(|qp| Some((qp, generation)));
    }

    /// An owner puts the new queue pair in its place.
    pub(super) fn install(&mut self, at: usize, host: usize, place: usize) {
        let Self { connections, hosts, nics, .. } = self;
        let connection = &mut connections[at];
        let pending = connection.pending.get_mut(place);
        let Some((qp, generation)) = pending.and_then(|pair| pair[host].take()) else { return };
        let peer = nics.borrow().qps[qp.at].peer.expect("it is connected");
        let peer_device = nics.borrow().qps[peer].name.device;
        let peer_device = connection.line.device_place(1 - host, peer_device);
        let cq = (&mut hosts[host].cq, at as u16);
        let new = qp.at;
        let is_sender = host == connection.line.from;
        let old = if is_sender {
            connection.sender.replace_queue_pair(cq, place, generation, qp, peer_device)
        } else {
            connection.receiver.replace_queue_pair(cq, place, generation, qp, peer_device)
        };
        match old {
            Ok(old) => {
                drop(old);
                let all = if is_sender { &mut connection.near } else { &mut connection.far };
                all[place] = new;
                self.summary.renewed += 1;
            }
            Err(Rejected { error: ReplaceError::State { .. }, queue_pair })
                if connection.is_early(host, place, generation) =>
            {
                connection.pending[place][host] = Some((queue_pair, generation));
            }
            Err(rejected) => {
                // The peer's has failed already, or all has.
                let is_late = matches!(
                    rejected.error,
                    ReplaceError::State { .. }
                        | ReplaceError::Generation { .. }
                        | ReplaceError::InErrorState
                );
                assert!(is_late, "{}", rejected.error);
                self.retired.push(rejected.queue_pair);
            }
        }
    }

    /// New queue pairs of a place cannot be connected: the end that has one receives that.
    pub(super) fn abandon(&mut self, at: usize, place: usize) {
        let is_pending = |pair: &[Option<(SimQp, u16)>; 2]| pair.iter().any(Option::is_some);
        if !self.connections[at].pending.get(place).is_some_and(is_pending) {
            return;
        }
        if spend(&mut self.left.failed_connects) {
            self.give_up_pending(at, place);
        }
    }

    fn give_up_pending(&mut self, at: usize, place: usize) {
        let connection = &mut self.connections[at];
        let pair = std::mem::take(&mut connection.pending[place]);
        let installed = [0, 1].map(|host: usize| pair[host].is_none());
        self.retired.extend(pair.into_iter().flatten().map(|(qp, _)| qp));
        let connection = &mut self.connections[at];
        for host in (0..2).filter(|host| installed[*host]) {
            connection.note_failure(false);
            connection.fail_queue_pair(host, place);
        }
    }

    /// An owner destroys a queue pair, whose completions are taken later, and reports it as gone.
    pub(super) fn destroy(&mut self, at: usize, host: usize, place: usize) {
        let connection = &mut self.connections[at];
        if place >= connection.near.len() || !spend(&mut self.left.failures) {
            return;
        }
        let is_sender = connection.is_sender(host);
        let at = if is_sender { connection.near[place] } else { connection.far[place] };
        let srq = self.nics.borrow().cq_of(at);
        self.nics.borrow_mut().remove(at);
        // Receives that it took are counted when their completions are.
        self.nics.borrow_mut().srqs[srq].is_robbed = true;
        connection.is_lossy = true;
        connection.note_failure(true);
        connection.lose_place(host, place);
    }

    /// A device is gone, with the completions that were not taken.
    pub(super) fn remove_device(&mut self, host: usize, device: usize) {
        if self.nics.borrow().is_dead[device_at(host, device)] || !spend(&mut self.left.losses) {
            return;
        }
        self.summary.losses += 1;
        for at in 0..self.connections.len() {
            self.hurt(at, host, device);
        }
        self.nics.borrow_mut().remove_device(host, device);
    }

    /// A device of a connection will be gone.
    fn hurt(&mut self, at: usize, host: usize, device: usize) {
        let is_on_it = |qp: usize| {
            let Name { host: other, device: place, .. } = self.nics.borrow().qps[qp].name;
            (other, place) == (host, device)
        };
        let lost = self.connections[at].queue_pairs().filter(|qp| is_on_it(*qp)).count();
        let is_pending =
            |pair: &[Option<(SimQp, u16)>; 2]| pair.iter().flatten().any(|(qp, _)| is_on_it(qp.at));
        let pending = self.connections[at].pending.iter().enumerate();
        let pending: Vec<_> =
            pending.filter(|(_, pair)| is_pending(pair)).map(|(place, _)| place).collect();
        pending.into_iter().for_each(|place| self.give_up_pending(at, place));
        let connection = &mut self.connections[at];
        connection.is_lossy = true;
        for _ in 0..lost {
            connection.note_failure(true);
        }
    }

    /// Owners report that a device is gone; then it is there again, with a new shared receive
    /// queue.
    pub(super) fn mourn(&mut self, host: usize, device: usize) {
        if !self.nics.borrow().is_dead[device_at(host, device)] {
            return;
        }
        for connection in &mut self.connections {
            connection.lose(&self.nics, host, device);
        }
        self.nics.borrow_mut().is_dead[device_at(host, device)] = false;
        let mut pool = Pool::new(device_id(host, device), self.shape.receives());
        for connection in &mut self.connections {
            let has_one = receivers_devices(&connection.line).contains(&device);
            if connection.line.from == host || !has_one {
                continue;
            }
            let srq = srq(&self.nics, device_at(host, device));
            let account = pool.open(srq, connection.line.limit).expect("room in the pool");
            if let Err(account) = connection.receiver.replace_account(account) {
                assert!(connection.may_fail, "an account is in use, of a device that is gone");
                assert!(pool.close(account).is_ok(), "its own");
                connection.stale |= 1 << device;
            } else {
                connection.stale &= !(1 << device);
            }
        }
        self.hosts[host].pools[device] = pool;
    }
}

/// A new queue pair for a place.
fn make(
    nics: &Nics,
    line: &Line,
    (connection, host, device, place): (u32, usize, usize, usize),
    word_after: u32,
) -> SimQp {
    let is_receivers = host != line.from;
    let rail = (place % line.rails) as u8;
    let name = Name { connection, host, device, place, rail, is_receivers, is_for_flushes: false };
    let at = nics.borrow_mut().make(name, line.limits(host, place), word_after);
    SimQp::new(nics, at)
}

impl Line {
    /// The place of a device in the list of that end's.
    fn device_place(&self, host: usize, device: usize) -> u8 {
        let mut known = Vec::new();
        for other in &self.devices[host][..self.rails] {
            if !known.contains(other) {
                known.push(*other);
            }
        }
        known.iter().position(|other| *other == device).expect("one of them") as u8
    }
}

impl<const DEPTH: usize, const SLOTS: usize> Connection<DEPTH, SLOTS> {
    const fn is_sender(&self, host: usize) -> bool {
        host == self.line.from
    }

    /// Where a queue pair stands, at the end of this host.
    pub(super) fn state(&self, host: usize, place: usize) -> (RailState, u16) {
        let state = if self.is_sender(host) {
            self.sender.queue_pair_state(place)
        } else {
            self.receiver.queue_pair_state(place)
        };
        state.expect("a place")
    }

    /// Whether a place will be down, and a queue pair of this generation follows then.
    fn is_early(&self, host: usize, place: usize, generation: u16) -> bool {
        let (state, before) = self.state(host, place);
        let is_soon = matches!(state, RailState::Draining | RailState::Fenced);
        is_soon && before.wrapping_add(1) == generation
    }

    /// Whether both ends can use a queue pair.
    pub(super) fn is_in_service(&self, place: usize) -> bool {
        (0..2).all(|host| self.state(host, place).0 == RailState::InService)
    }

    /// Whether a queue pair has failed, and its end may not know.
    pub(super) fn is_dead(&self, nics: &Nics, host: usize, place: usize) -> bool {
        let at = if self.is_sender(host) { self.near[place] } else { self.far[place] };
        let state = self.state(host, place).0;
        let is_used = matches!(state, RailState::InService | RailState::Joining);
        is_used && nics.borrow().qps[at].in_error
    }

    pub(super) fn next_control(&mut self, host: usize) -> Option<Control> {
        if self.is_sender(host) { self.sender.next_control() } else { self.receiver.next_control() }
    }

    pub(super) fn hear(&mut self, host: usize, control: Control) {
        let heard = if self.is_sender(host) {
            self.sender.control(control)
        } else {
            self.receiver.control(control)
        };
        let is_honest = self.is_known();
        assert!(heard.is_ok() || !is_honest, "{control:?} of a correct peer: {heard:?}");
    }

    /// When a fence is reported, its shares may be moved at once: the receives for them are there.
    fn check_promises(&mut self, host: usize, control: &Control) {
        let Control::Rail { message: ControlMessage::Rail(news), .. } = control else { return };
        if self.is_sender(host) || !self.is_known() {
            return;
        }
        if let RailId::Data(rail) = news.rail {
            self.told_failed |= 1 << rail;
        }
        assert!(!self.lacks_receives(host), "a fence is told, and receives lack");
    }

    /// Whether receives are missing that may be taken, at the end of this host.
    pub(super) fn lacks_receives(&self, host: usize) -> bool {
        if self.is_sender(host) || !self.is_known() || self.has_failed_at(host) {
            return false;
        }
        let waits = |receive: &&Receive| receive.handle.is_some() && !receive.has_arrived();
        let waiting = self.receives.iter().rev().take(SLOTS).filter(waits).count();
        let lacks = |account: &Account<SimSrq>| {
            let takes = |place: &usize| {
                let state = self.state(host, *place).0;
                let on_it = self.receiver.queue_pairs().nth(*place).map(QueuePair::device);
                on_it == Some(account.device())
                    && !matches!(state, RailState::Down | RailState::Fenced)
            };
            let own = (0..self.far.len()).filter(takes).map(|place| place % self.line.rails);
            let own = own.fold(0u8, |own, rail| own | 1 << rail);
            let moved = if own == 0 { 0 } else { self.told_failed };
            let each = (own | moved).count_ones() as usize;
            account.posted() < (waiting * each) as i64
        };
        self.receiver.accounts().any(lacks)
    }

    pub(super) fn control_lost(&mut self, host: usize) {
        if self.is_sender(host) { self.sender.control_lost() } else { self.receiver.control_lost() }
    }

    pub(super) fn fail_queue_pair(&mut self, host: usize, place: usize) -> bool {
        if self.is_sender(host) {
            self.sender.fail_queue_pair(place)
        } else {
            self.receiver.fail_queue_pair(place)
        }
    }

    /// The owner reports that everything on this device is gone.
    fn lose(&mut self, nics: &Nics, host: usize, device: usize) {
        let is_on_it = |at: usize| {
            let name = nics.borrow().qps[at].name;
            (name.host, name.device) == (host, device)
        };
        let is_sender = self.is_sender(host);
        let all =
            if is_sender { self.near.clone() } else { [&self.far[..], &self.flush_qps].concat() };
        for (place, _) in all.into_iter().enumerate().filter(|(_, at)| is_on_it(*at)) {
            self.lose_place(host, place);
        }
    }

    fn lose_place(&mut self, host: usize, place: usize) {
        // SAFETY: it was destroyed.
        let is_there = unsafe {
            if self.is_sender(host) {
                self.sender.lose_queue_pair(place)
            } else {
                self.receiver.lose_queue_pair(place)
            }
        };
        assert!(is_there, "a queue pair at place {place}");
    }

    /// Reads the ends' events, which are in order for each queue pair. Returns how much went
    /// out again.
    fn take_events(&mut self) -> u64 {
        let mut all = 0;
        for end in 0..2 {
            let is_sender = end == 0;
            while let Some((place, event)) = if is_sender {
                self.sender.take_rail_event()
            } else {
                self.receiver.take_rail_event()
            } {
                let (step, again) = match event.kind {
                    RailEventKind::Returned => (0, 0),
                    RailEventKind::Failed { .. } => (1, 0),
                    RailEventKind::Fenced { again, .. } => (2, again),
                };
                let now = (event.generation, step);
                let before = self.newest_events[end][place].replace(now);
                assert!(before < Some(now), "{event:?} comes after {before:?}");
                all += u64::from(again);
            }
        }
        all
    }
}
