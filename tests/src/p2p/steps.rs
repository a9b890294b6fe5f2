//! NICs and polls go on, and the oracle watches.

use super::World;
use super::connection::Connection;
use super::fabric::{Executed, Fabric, Name, Step, device_at};
use super::memory::{Block, Kind, Target};
use super::nic::SimSrq;
use polyrail_core::p2p::Told;
use polyrail_core::verbs::{Opcode, WcStatus};
use polyrail_core::virtual_cq::CompletionTarget;

impl<const DEPTH: usize, const SLOTS: usize> World<DEPTH, SLOTS> {
    /// A host polls, and finds so many completions more in each queue at most.
    pub(super) fn poll(&mut self, host: usize, budget: usize, most: usize) {
        for device in 0..self.shape.devices[host] {
            self.nics.borrow_mut().reveal(device_at(host, device), most);
        }
        // What waits for a budget is of queue pairs that are not attached, or not any more: it is not counted.
        let has_others = |connection: &Connection<DEPTH, SLOTS>| {
            connection.is_lossy || connection.pending.iter().flatten().any(Option::is_some)
        };
        let has_others = !self.retired.is_empty() || self.connections.iter().any(has_others);
        let budget = if has_others { usize::MAX } else { budget };
        let Self { connections, hosts, .. } = self;
        let mut targets: Vec<&mut dyn CompletionTarget> =
            connections.iter_mut().map(|connection| connection.target(host)).collect();
        let foreign = hosts[host].poll(&mut targets, budget);
        for (device, pool) in self.hosts[host].pools.iter_mut().enumerate() {
            // If the driver refuses, the next poll asks again.
            let _ = pool.settle(&mut SimSrq::new(&self.nics, device_at(host, device)));
        }
        assert!(foreign == 0 || has_others, "completions that nobody knows");
        self.bury();
    }

    /// Queue pairs that were retired are destroyed when all their completions were taken.
    fn bury(&mut self) {
        let nics = &self.nics;
        let is_idle = |at: usize| {
            let nics = nics.borrow();
            nics.waiting(nics.cq_of(at)) == 0
        };
        self.retired.retain(|qp| !is_idle(qp.at));
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
        let Executed { request, remote, local, is_straggler, first } = *executed;
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
                    connection.words_written(nics, (block, offset), first);
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
    /// Words of either end were written.
    fn words_written(&mut self, nics: &mut Fabric, (block, offset): (usize, u32), addr: u64) {
        if block != self.ring {
            return;
        }
        nics.order_hidden(self.line.form);
        let slot = offset as usize / (8 * 64);
        let receive = self.in_slot(slot).expect("entries of a receive");
        let is_newest = offset.is_multiple_of(8 * 64)
            && addr == nics.memory.block(receive.places[0].block).addr;
        assert!(is_newest || !receive.is_offered, "an old copy of entries over newer ones");
        receive.is_offered |= is_newest;
    }

    /// An immediate was carried out: it is one that is waited for.
    fn signalled(&mut self, name: &Name, device: usize, imm: polyrail_core::verbs::Imm) {
        let immediate = self.line.layout().decode(imm);
        let slot = usize::from(immediate.slot);
        let rail = if let Told::Moved(rail) = immediate.told { rail } else { name.rail };
        let (id, is_lossy) = (self.id, self.is_lossy);
        let receive = self.in_slot(slot).filter(|receive| receive.handle.is_some());
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
