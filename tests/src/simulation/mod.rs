//! A simulated world: virtual queue pairs of random shapes between two hosts, on completion queues
//! that they share, over the deterministic software NIC, with random traffic, faults and peers, and
//! an oracle that knows what was posted. Rails are granted different things, devices carry
//! different messages, receives may come from shared queues, polls may have a budget of 1, and
//! queue pairs move.
//!
//! The oracle checks: every accepted request is reported exactly once, in order; memory is what the
//! oracle says for every success, and nothing else changed; a notify, when the NIC carries it out
//! and when its receiver is notified, finds all earlier data in place; so does a SEND or atomic
//! behind writes, when the NIC carries it out; after a report no byte of its buffers changes; the
//! engine's invariants hold after every step, and it never allocates; in the end, with faults
//! lifted, everything completes or is reported failed, nothing that could have gone on is given up,
//! and all credits are back, those of receives too.
//!
//! `shape` is what a world is made of; `host`, `connection` and `virtual_qp` build it; `places` is
//! its memory; `traffic`, `trouble`, `peer` and `owner` are the events; `sender` and `receiver` are
//! the oracle; `ending` is how it ends, `credits` its final counts; `search` looks for seeds that
//! fail.

mod bystander;
mod connection;
mod credits;
mod ending;
mod host;
mod owner;
mod peer;
mod places;
mod receiver;
pub mod search;
mod sender;
mod shape;
mod summary;
mod traffic;
mod trouble;
mod virtual_qp;

pub use shape::{ConnectionShape, FaultLevel, Grant, Shape};
pub use summary::Summary;
pub use virtual_qp::Size;

use crate::choices::{Bytes, Choices, Seeded};
use bystander::Bystander;
use connection::Connection;
use credits::BURST;
use host::{Brought, Host};
use owner::IMPOSTOR;
use peer::STRAY;
use polyrail::memory::RegionKeys;
use polyrail::nic::{Fabric, Step, TurnOutcome};
use polyrail_core::internals::Tag;
use polyrail_core::verbs::{Completion, DeviceId, DeviceKeys, Imm, Opcode};
use polyrail_core::virtual_cq::{Event, VirtualWc};
use polyrail_core::virtual_qp::RailId;
use receiver::{RECEIVE, SHARED};
use shape::MAX_DEVICES;
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

/// The world of a seed, before its first step.
pub fn shape_of(seed: u64) -> Shape {
    Seeded::new(seed).shape()
}

/// Runs the world of a seed for this many steps, and lets it end.
///
/// # Panics
///
/// If a promise is broken.
pub fn run_seed(seed: u64, steps: u64) -> Summary {
    let mut choices = Seeded::new(seed);
    let shape = choices.shape();
    World::new(shape, seed).run(&mut choices, steps)
}

/// Runs the world that these bytes choose, until they are used up.
///
/// # Panics
///
/// If a promise is broken.
pub fn run_bytes(bytes: &[u8]) -> Summary {
    let mut choices = Bytes::new(bytes);
    let seed = u64::from(choices.below(65_536));
    let shape = Shape::choose(&mut choices);
    World::new(shape, seed).run(&mut choices, u64::MAX)
}

impl Seeded {
    fn shape(&mut self) -> Shape {
        Shape::choose(self)
    }
}

/// A receive of a shared queue, as the report that it would be if it were the engine's.
fn shared_receive(completion: &Completion, qp_num: u32) -> VirtualWc {
    let Completion { wr_id, status, opcode, .. } = *completion;
    let byte_len = if status.is_success() { completion.byte_len } else { 0 };
    let imm = completion.imm().map(Imm::number);
    VirtualWc { wr_id, status, opcode, qp_num, byte_len, imm }
}

struct World {
    shape: Shape,
    fabric: Fabric,
    hosts: [Host; 2],
    connections: Vec<Connection>,
    /// Each host's keys for requests to the other, device by device.
    keys: [Vec<DeviceKeys>; 2],
    bystander: Option<Bystander>,
    /// Devices that are, or will be, gone.
    gone: [[bool; MAX_DEVICES]; 2],
    /// Something happened to a device that may make requests fail.
    damaged: bool,
    /// Queue pairs of connections that were replaced.
    retired: BTreeSet<(DeviceId, u32)>,
    next_number: u32,
    /// Whether the request that takes all credits was reported, and a success.
    burst_arrived: Option<bool>,
    summary: Summary,
    history: DefaultHasher,
}

impl World {
    fn new(shape: Shape, seed: u64) -> Self {
        let fabric = Fabric::deterministic(seed);
        let mut hosts = ["near", "far"].map(|name| Host::new(&fabric, name, &shape));
        let keys = [0, 1].map(|end| {
            let pairs = hosts[end].memory.keys().iter().zip(hosts[1 - end].memory.keys());
            let toward = |(own, far): (&RegionKeys, &RegionKeys)| own.toward(far.rkey);
            pairs.map(toward).collect::<Vec<_>>()
        });
        let connections: Vec<_> = (0..shape.connections.len())
            .map(|at| Connection::new(at, at as u32, shape.connections[at], &mut hosts, false))
            .collect();
        let bystander = shape.bystander.then(|| Bystander::new(&hosts));
        Self {
            next_number: connections.len() as u32,
            shape,
            fabric,
            hosts,
            connections,
            keys,
            bystander,
            gone: Default::default(),
            damaged: false,
            retired: BTreeSet::new(),
            burst_arrived: None,
            summary: Summary::default(),
            history: DefaultHasher::new(),
        }
    }

    fn run(mut self, choices: &mut dyn Choices, steps: u64) -> Summary {
        while self.summary.steps < steps && !choices.is_empty() {
            self.step(choices);
            self.invariants();
            self.summary.steps += 1;
        }
        self.finish();
        self.summary.nic_steps = self.fabric.steps();
        self.summary.history = self.history.finish();
        self.summary
    }

    fn step(&mut self, choices: &mut dyn Choices) {
        match choices.below(20) {
            0..=3 => {
                let leans = self.shape.leans && choices.coin();
                let (at, end) = if leans { (0, 0) } else { self.any_end(choices) };
                if !leans && choices.one_in(4) {
                    self.post_sends(at, end, choices);
                } else {
                    self.post_send(at, end, leans, choices);
                }
            }
            4..=6 => {
                let leans = self.shape.leans && choices.coin();
                let (at, end) = if leans { (0, 1) } else { self.any_end(choices) };
                self.post_recv(at, end, choices);
            }
            7..=11 => {
                let host = choices.below(2) as usize;
                let brought = self.hosts[host].poll(choices);
                self.arrived(host, brought);
            }
            12..=17 => {
                self.advance(u64::from(choices.below(self.shape.pace)));
            }
            18 => self.trouble(choices),
            _ if choices.one_in(8) => {
                let (at, end) = self.any_end(choices);
                self.post_nonsense(at, end, choices);
            }
            _ => self.tend(choices),
        }
    }

    fn any_end(&self, choices: &mut dyn Choices) -> (usize, usize) {
        (choices.below(self.connections.len() as u32) as usize, choices.below(2) as usize)
    }

    /// Lets the NIC take at most this many steps and watches them. Returns how many had an effect:
    /// a request that waits for a receive is tried again at every change.
    fn advance(&mut self, steps: u64) -> u64 {
        let mut led_anywhere = 0;
        for _ in 0..steps {
            let Some(step) = self.fabric.step() else { break };
            self.observe(&step);
            let in_vain = matches!(step, Step::Executed { outcome: TurnOutcome::NotReady, .. });
            led_anywhere += u64::from(!in_vain);
        }
        led_anywhere
    }

    /// Checks what a NIC did: a request that has to keep its place is carried out in its place.
    fn observe(&mut self, step: &Step) {
        let Step::Executed { device, qp_num, wr_id, opcode, outcome } = *step else { return };
        let is_deferred = outcome == TurnOutcome::Deferred;
        let Some((at, end, rail)) = self.multi_rail(device, qp_num) else { return };
        let Self { connections, hosts, .. } = self;
        let connection = &mut connections[at];
        let ground = connection.ground(end, hosts);
        let sender = &mut connection.ends[end].sender;
        if rail == RailId::Data(0) && matches!(outcome, TurnOutcome::Failed(_)) {
            sender.rail_0_failed();
        }
        if wr_id & STRAY != 0 && wr_id & 3 == 0 || !(outcome == TurnOutcome::Done || is_deferred) {
            return;
        }
        match (rail, opcode) {
            (RailId::Notify, _) => sender.notify_ran(&ground),
            (RailId::Data(0), Opcode::Send | Opcode::SendWithImm)
            | (RailId::Data(0), Opcode::FetchAdd | Opcode::CompareSwap) => {
                sender.bypassing_ran(wr_id, is_deferred, &ground);
            }
            _ => {}
        }
    }

    /// The owner of a physical queue pair, if it is one of several rails.
    fn multi_rail(&self, device: u32, qp_num: u32) -> Option<(usize, usize, RailId)> {
        let end = device as usize / self.shape.devices;
        let place = device as usize % self.shape.devices;
        self.connections.iter().filter(|connection| connection.shape.is_multi()).find_map(
            |connection| {
                let physical = &connection.ends[end].physical;
                let found = physical.iter().find(|qp| (qp.at, qp.qp_num) == (place, qp_num))?;
                Some((connection.at, end, found.rail))
            },
        )
    }

    /// Checks the result of a host's poll against the oracle.
    fn arrived(&mut self, host: usize, brought: Brought) {
        let any_gone = || (0..self.shape.devices).any(|at| self.hosts[host].is_gone(at));
        assert!(brought.error.is_none() || any_gone(), "{:?}", brought.error);
        for event in &brought.events {
            match event {
                Event::Completion(wc) => self.reported(host, wc),
                Event::Foreign { device, completion } => {
                    self.foreign(host, *device, completion);
                }
            }
        }
        self.hosts[host].reuse(brought.events);
    }

    fn reported(&mut self, end: usize, wc: &VirtualWc) {
        self.summary.reports += 1;
        self.summary.failures += u64::from(!wc.status.is_success());
        (wc.wr_id, wc.status, wc.opcode, wc.qp_num, wc.byte_len, wc.imm).hash(&mut self.history);
        let Self { connections, hosts, .. } = self;
        let own = |connection: &&mut Connection| connection.ends[end].virtual_qp_num == wc.qp_num;
        let connection = connections.iter_mut().find(own).expect("a virtual queue pair of ours");
        if wc.wr_id != BURST && wc.wr_id & IMPOSTOR != 0 {
            // What it could not post, because a driver refuses, needs no completion to be reported.
            return assert!(!wc.status.is_success(), "{wc:?} of one that is not attached");
        }
        let passed = connection.ends[end].displaced && !connection.shape.is_multi();
        assert!(!passed, "{wc:?} passed through another queue pair");
        let fair = wc.status.is_success() || connection.damaged;
        assert!(fair, "{wc:?} and nothing was wrong");
        if wc.wr_id == BURST {
            self.burst_arrived = Some(wc.status.is_success());
            return;
        }
        if wc.wr_id & (RECEIVE | SHARED) == 0 {
            let multi = connection.shape.is_multi();
            if wc.wr_id & STRAY != 0 {
                return assert!(!multi, "a stray of several rails has no tag");
            }
            let ground = connection.ground(end, hosts);
            return connection.ends[end].sender.reported(wc, &ground, multi);
        }
        connection.received(end, hosts, wc);
    }

    /// A completion that belongs to no attached virtual queue pair.
    fn foreign(&mut self, end: usize, device: DeviceId, completion: &Completion) {
        let whose = (device, completion.qp_num);
        for connection in &mut self.connections {
            let this = &mut connection.ends[end];
            if this.physical.iter().any(|qp| (qp.device, qp.qp_num) == whose) {
                if this.is_shared_receive(completion) {
                    self.summary.shared += 1;
                    let wc = shared_receive(completion, this.virtual_qp_num);
                    assert!(wc.status.is_success() || connection.damaged, "{wc:?}, and no reason");
                    return connection.received(end, &self.hosts, &wc);
                }
                let is_stray = completion.wr_id & STRAY != 0 && completion.wr_id & Tag::MARK == 0;
                if is_stray && connection.shape.is_multi() {
                    return;
                }
                let attached = this.attached && !this.displaced;
                assert!(!attached, "an attached queue pair is not foreign");
                this.backlog.push((device, *completion));
                return;
            }
        }
        let bystander = self.bystander.as_mut();
        let known = self.retired.contains(&whose)
            || bystander.is_some_and(|bystander| bystander.takes(device, completion));
        assert!(known, "a completion from nowhere: {completion:?}");
    }

    /// The invariants between any two calls.
    fn invariants(&self) {
        self.hosts.iter().for_each(Host::invariants);
    }

    fn settle_unsignaled(&mut self, at: usize, end: usize) {
        let Self { connections, hosts, .. } = self;
        let ground = connections[at].ground(end, hosts);
        connections[at].ends[end].sender.settle_unsignaled(&ground);
    }

    /// Checks that reported buffers are untouched.
    fn check_frozen(&mut self, at: usize) {
        let Self { connections, hosts, .. } = self;
        for end in [0, 1] {
            let ground = connections[at].ground(end, hosts);
            connections[at].ends[end].sender.places.check(&ground);
            let landing = connections[at].landing(end, hosts);
            connections[at].ends[end].receiver.places.check(&landing);
        }
    }

    fn budget(&self) -> usize {
        self.shape.budget.unwrap_or(usize::MAX)
    }

    fn bystander_posts(&mut self) {
        if let Some(bystander) = &mut self.bystander {
            bystander.post();
        }
    }
}
