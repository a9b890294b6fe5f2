//! NICs and polls go on, and the oracle watches.

use super::World;
use super::connection::{Connection, Receive};
use super::fabric::{Executed, Fabric, Name, Nics, SimQp, SimSrq, Step, device_at, srq};
use super::memory::{Block, Kind, Target};
use polyrail_core::p2p::{Account, ENTRY_BYTES, MAX_BUFFERS, Told};
use polyrail_core::verbs::{Opcode, WcStatus};
use polyrail_core::virtual_cq::CompletionTarget;
use polyrail_core::virtual_qp::RailState;

/// Polls after which an owner that may sleep has taken everything.
const REST: usize = 8;

impl<const DEPTH: usize, const SLOTS: usize> World<DEPTH, SLOTS> {
    /// A host polls, and finds at most this many more completions in each queue.
    pub(super) fn poll(&mut self, host: usize, budget: usize, most: usize) {
        self.nics.borrow_mut().has_refused = false;
        let is_whole = self.poll_once(host, budget, most);
        if self.shape.rests && is_whole && (budget, most) == (usize::MAX, usize::MAX) {
            self.rest(host);
        }
    }

    /// Polls only. Returns whether all queues could be polled.
    fn poll_once(&mut self, host: usize, budget: usize, most: usize) -> bool {
        for device in 0..self.shape.devices[host] {
            self.nics.borrow_mut().reveal(device_at(host, device), most);
        }
        // What waits for a budget is of queue pairs that are not attached, or not any more: it is
        // not counted.
        let has_others = |connection: &Connection<DEPTH, SLOTS>| {
            connection.is_lossy || connection.pending.iter().flatten().any(Option::is_some)
        };
        let has_others = !self.retired.is_empty() || self.connections.iter().any(has_others);
        let budget = if has_others { usize::MAX } else { budget };
        let Self { connections, bystanders, hosts, .. } = self;
        let mut targets: Vec<&mut dyn CompletionTarget> =
            connections.iter_mut().map(|connection| connection.target(host)).collect();
        if let Some(bystander) = &mut bystanders[host] {
            targets.push(&mut bystander.qp);
        }
        let mut reports = Vec::new();
        let (foreign, is_whole) = hosts[host].poll(&mut targets, budget, &mut reports);
        self.take_reports(host, &reports);
        for (device, pool) in self.hosts[host].pools.iter_mut().enumerate() {
            // If the driver refuses, the next poll asks again.
            let _ = pool.settle(&mut srq(&self.nics, device_at(host, device)));
        }
        assert!(foreign == 0 || has_others, "completions that nobody knows");
        for connection in &self.connections {
            let lacks = connection.lacks_receives(host) && !connection.needs_poll(host);
            assert!(!lacks, "connection {} lacks receives, and does not say so", connection.id);
        }
        self.bury(host);
        is_whole
    }

    /// An owner polls until nothing comes any more, before it sleeps: then nothing is left to do.
    fn rest(&mut self, host: usize) {
        for _ in 0..REST {
            let (moved, posted) = (self.nics.borrow().moved, self.posted_by(host));
            let busy: Vec<_> =
                self.connections.iter().map(|connection| connection.is_busy(host)).collect();
            if !self.poll_once(host, usize::MAX, usize::MAX) || self.nics.borrow().has_refused {
                return;
            }
            if self.nics.borrow().moved != moved {
                continue;
            }
            for (before, after) in posted.into_iter().zip(self.posted_by(host)) {
                let (at, count) = before;
                let is_fine = busy[at] || after == (at, count);
                assert!(is_fine, "connection {at} had something to post, and nothing came");
            }
            for connection in &mut self.connections {
                connection.check_idle(&self.nics, host);
            }
            assert_eq!(self.nics.borrow().moved, moved, "a pump takes no completion");
            return;
        }
    }

    /// How much the ends at a host have posted: the place of each, and its requests.
    fn posted_by(&self, host: usize) -> Vec<(usize, u64)> {
        let nics = self.nics.borrow();
        let posted = |connection: &Connection<DEPTH, SLOTS>| {
            let own = connection.queue_pairs().filter(|at| nics.qps[*at].name.host == host);
            own.map(|at| nics.qps[at].posted).sum()
        };
        self.connections.iter().map(posted).enumerate().collect()
    }

    /// Queue pairs that were retired are destroyed when all their completions were taken.
    fn bury(&mut self, host: usize) {
        let nics = &self.nics;
        let is_idle = |at: usize| {
            let nics = nics.borrow();
            nics.waiting(nics.cq_of(at)) == 0
        };
        self.retired.retain(|qp| !is_idle(qp.at));
        // What closed accounts left can be known only when the queue is empty, and none of their
        // queue pairs is left.
        for (device, pool) in self.hosts[host].pools.iter_mut().enumerate() {
            let at = device_at(host, device);
            let is_here = |qp: &SimQp| nics.borrow().cq_of(qp.at) == at;
            if nics.borrow().waiting(at) == 0 && !self.retired.iter().any(is_here) {
                pool.note_empty();
                let is_sound = |account: &Account<SimSrq>| account.posted() >= 0;
                let here = self.connections.iter().filter(|line| line.line.from != host);
                let mut accounts = here.flat_map(|connection| connection.receiver.accounts());
                let lacks = self.connections.iter().any(|line| line.lacks_receives(host));
                let is_paid = accounts.all(is_sound) && pool.unowned() >= 0 && !lacks;
                nics.borrow_mut().srqs[at].is_robbed &= !is_paid;
            }
        }
    }

    pub(super) fn execute(&mut self, at: usize, count: u32) {
        for _ in 0..count {
            if !self.nics.borrow().can_execute(at) || !self.execute_one(at) {
                return;
            }
        }
    }

    /// Executes the next request of a queue pair. Returns whether it was.
    fn execute_one(&mut self, at: usize) -> bool {
        let step = self.nics.borrow_mut().execute(at);
        match step {
            Step::Done(executed) => {
                self.executed(at, &executed);
                true
            }
            Step::NoReceive => {
                let nics = self.nics.borrow();
                let peer = nics.qps[at].peer.expect("it is connected");
                let is_robbed = nics.srqs[nics.cq_of(peer)].is_robbed;
                let is_robbed = is_robbed || !nics.qps[at].is_honest;
                // A receiver that has failed fills its account no more, and its sender may not know
                // yet.
                let is_its =
                    |line: &&Connection<DEPTH, SLOTS>| line.queue_pairs().any(|own| own == at);
                let line = self.connections.iter().find(is_its);
                let has_failed = line.is_none_or(|line| line.receiver.failure().is_some());
                let is_robbed = is_robbed || has_failed;
                assert!(is_robbed, "a promise is broken: no receive for {:?}", nics.qps[at].name);
                false
            }
            Step::BadAccess => {
                let is_honest = self.nics.borrow().qps[at].is_honest;
                assert!(!is_honest, "a request that may not be executed");
                self.nics.borrow_mut().fail(at, WcStatus::REM_ACCESS_ERR);
                false
            }
        }
    }

    /// Checks what was executed.
    fn executed(&mut self, at: usize, executed: &Executed) {
        let Executed { request, remote, local, is_straggler, ref entries } = *executed;
        let (name, is_honest) = {
            let nics = self.nics.borrow();
            (nics.qps[at].name, nics.qps[at].is_honest)
        };
        let nics = &mut *self.nics.borrow_mut();
        if let Some((local, _)) = local {
            check_source(nics.memory.block(local), is_straggler);
        }
        let mut connections = self.connections.iter_mut();
        let connection = connections.find(|other| other.id == name.connection);
        if let Some((block, offset)) = remote {
            match &nics.memory.block(block).kind {
                Kind::Target(_) if request.opcode == Opcode::RdmaRead => {
                    nics.memory.target(block).flushed |= 1 << name.device;
                }
                Kind::Target(_) if is_honest => {
                    let target = nics.memory.target(block);
                    written(target, local, offset, request.sge.length());
                }
                Kind::Words(_) if is_honest => {
                    let Some(connection) = connection else { return };
                    connection.words_written(nics, (block, offset), entries);
                }
                _ => {}
            }
        }
        if request.opcode == Opcode::RdmaWriteWithImm && is_honest {
            let peer = nics.qps[at].peer.expect("it is connected");
            let device = nics.qps[peer].name.device;
            let mut connections = self.connections.iter_mut();
            let connection = connections.find(|other| other.id == name.connection);
            if let Some(connection) = connection {
                connection.signalled(&name, device, request.imm);
            }
        }
    }

    pub(super) fn acknowledge(&mut self, at: usize, count: u32) {
        for _ in 0..count {
            if !self.nics.borrow().can_acknowledge(at) {
                return;
            }
            self.nics.borrow_mut().acknowledge(at);
        }
    }

    pub(super) fn show(&mut self, which: u32, count: u32) {
        for turn in 0..count {
            let hidden = self.nics.borrow().hidden.len();
            if hidden == 0 {
                return;
            }
            self.nics.borrow_mut().show((which + 7 * turn) as usize % hidden);
        }
    }
}

/// A buffer that its caller has again is not read any more.
fn check_source(block: &Block, is_straggler: bool) {
    if let Kind::Source(source) = &block.kind {
        // What has left its queue pair was read before.
        assert!(
            is_straggler || !source.is_given_back,
            "{:?} is read after its report",
            source.owner
        );
    }
}

/// Bytes land in a buffer.
fn written(target: &mut Target, local: Option<(usize, u32)>, offset: u32, length: u32) {
    let owner = target.owner;
    assert!(!target.is_given_back, "{owner:?} is written after its report");
    let (source, from) = local.expect("bytes come from somewhere");
    assert_eq!(target.source, Some(source), "{owner:?} gets the bytes of another message");
    assert_eq!(from, offset, "bytes of {owner:?} land in another place");
    target.write(offset, length);
}

impl<const DEPTH: usize, const SLOTS: usize> Connection<DEPTH, SLOTS> {
    /// Whether a queue pair of the end at this host is being drained: its driver is to be asked
    /// again and again.
    fn is_busy(&self, host: usize) -> bool {
        let drains = |place| self.state(host, place).0 == RailState::Draining;
        // A sender looks for entries of receives that the receiver wants back.
        let is_asked = self.receives[self.sent.min(self.receives.len())..].iter();
        let looks = is_asked.rev().take(SLOTS).any(|receive| receive.is_asked);
        looks || self.has_failed_at(host) || (0..self.near.len()).any(drains)
    }

    /// If the end at this host reports that it has nothing to do, that must be true.
    fn check_idle(&mut self, nics: &Nics, host: usize) {
        let id = self.id;
        if self.needs_poll(host) {
            return assert!(self.is_busy(host), "connection {id} has nothing to do, and says so");
        }
        let states = |this: &Self| {
            let places = 0..this.near.len();
            places.map(|place| this.state(host, place)).collect::<Vec<_>>()
        };
        let before = (nics.borrow().posted, states(self));
        self.target(host).pump_all();
        let after = (nics.borrow().posted, states(self));
        assert_eq!(before, after, "connection {id} has something to do, and does not say so");
    }

    /// Words of either end were written.
    fn words_written(&mut self, nics: &mut Fabric, (block, offset): (usize, u32), entries: &[u64]) {
        if block != self.ring {
            return;
        }
        nics.order_hidden(self.line.form);
        let first = offset as usize / ENTRY_BYTES;
        // Receives of one buffer have the first places of the ring, one for each slot.
        let alone = first..(first + entries.len()).min(SLOTS);
        for (slot, addr) in alone.zip(entries) {
            self.offered(nics, slot, &[*addr]);
        }
        if let Some(place) = first.checked_sub(SLOTS) {
            assert!(place.is_multiple_of(MAX_BUFFERS), "entries of a receive begin in its slot");
            self.offered(nics, place / MAX_BUFFERS, entries);
        }
    }

    /// All entries of a slot were written.
    fn offered(&mut self, nics: &Fabric, slot: usize, entries: &[u64]) {
        let receive = self.in_slot(slot).expect("entries of a receive");
        let addrs = receive.places.iter().map(|place| nics.memory.block(place.block).addr);
        let is_newest = addrs.eq(entries.iter().copied());
        assert!(is_newest || !receive.is_offered, "an old copy of entries over newer ones");
        receive.is_offered |= is_newest;
    }

    /// An immediate was carried out: it is one that is waited for.
    fn signalled(&mut self, name: &Name, device: usize, imm: polyrail_core::verbs::Imm) {
        let immediate = self.line.layout().decode(imm);
        let slot = usize::from(immediate.slot);
        let rail = if let Told::Moved(rail) = immediate.told { rail } else { name.rail };
        let (id, is_lossy) = (self.id, self.is_lossy);
        if let Some(index) = self.index_in_slot(slot)
            && index >= self.sent
            && self.is_known()
        {
            self.passed_by(index);
        }
        let waits = |receive: &&mut Receive| {
            receive.handle.is_some() || receive.is_void && (is_lossy || !receive.has_arrived())
        };
        let receive = self.in_slot(slot).filter(waits);
        let receive = receive.expect("an immediate of a slot that nobody waits for");
        let mask = immediate.mask.bits();
        assert!(receive.mask == 0 || receive.mask == mask, "connection {id}: two masks");
        assert!(mask >> rail & 1 == 1, "connection {id}: rail {rail} is not in the mask");
        let is_second = receive.signals >> rail & 1 == 1;
        assert!(!is_second || is_lossy, "connection {id}: rail {rail} a second time");
        receive.mask = mask;
        receive.signals |= 1 << rail;
        receive.carriers |= 1 << device;
    }
}
