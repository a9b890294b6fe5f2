//! Two hosts with connections of the p2p protocol between them, on shared pools, with every step of
//! applications, NICs, drivers and peers chosen by the test.
//!
//! The NICs know what a reliable connection guarantees, and nothing else: requests of a queue pair
//! are executed in order; what left a queue pair before it failed may be executed at any later
//! time, unless the peer's queue pair is in the error state, and with receives from a shared queue
//! one more even then, until its driver gives its word. A queue pair that dies may take shared
//! receives with it. Words of clear-to-send entries become visible one by one, in any order that
//! the entries' form allows. Drivers refuse, in part and for good. Peers may send anything at all.
//!
//! The oracle is two plain queues for each connection, of receives and of sends. Buffers have
//! addresses that no other one ever has, and what they hold follows from their addresses: all that
//! is kept is which bytes of which source were written where, so that messages have any length.
//! After every step: what was reported is neither written nor read any more; every byte lands in
//! its place; each receive has the size of its send, once, in posting order; the count of each pool
//! is what is there and what is untaken; an immediate always finds the receive that was promised; a
//! call that is refused changed nothing, and for the reason it gives; nothing goes over an idle
//! standby rail, whose driver has refused nothing, while a home rail is in service; nothing fails of
//! itself, and what fails, fails alone; events of a queue pair are reported in the order in which
//! they happened. When an owner has polled until nothing comes any more, nothing is left that could
//! be posted, and no end reports that it needs a poll. In the end, with all faults over, no request
//! waits.
//!
//! `shape` is what a world is made of; `fabric` are the NICs, with their `memory`; `host`,
//! `connection` and `bystander` are what runs on them; `action` is what can happen, `steps`,
//! `traffic`, `cancel`, `trouble`, `owner` and `peer` let it happen; `any_peer` lets bytes choose what a peer
//! sends; `ending` is how a world ends; `search` and `small` are how [`search`](crate::search) sees
//! it.

mod action;
mod any_peer;
mod bystander;
mod cancel;
mod connection;
mod ending;
mod fabric;
mod host;
mod memory;
mod owner;
mod peer;
mod search;
mod shape;
mod small;
mod steps;
mod traffic;
mod trouble;

pub use crate::link::Old;
pub use action::Action;
pub use any_peer::any_peer;
pub use shape::{Line, Shape, Size, Troubles};

use bystander::Bystander;
use connection::Connection;
use fabric::{Fabric, Nics, SimQp, device_at, device_id};
use host::Host;
use polyrail_core::p2p::Account;
use polyrail_core::verbs::DeviceId;
use shape::MOST;
use std::cell::RefCell;
use std::fmt;
use std::ops::AddAssign;
use std::rc::Rc;

/// What happened in a world.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Steps.
    pub steps: u64,
    /// Receives accepted.
    pub receives: u64,
    /// Sends accepted.
    pub sends: u64,
    /// Sends and receives that were refused.
    pub refused: u64,
    /// Sends and receives whose callers have the result.
    pub reports: u64,
    /// Flushes done, of messages with bytes.
    pub flushes: u64,
    /// Queue pairs that failed.
    pub failures: u64,
    /// Things that no correct peer sends.
    pub forgeries: u64,
    /// Connections replaced.
    pub replaced: u64,
    /// Devices that were gone.
    pub losses: u64,
    /// Queue pairs replaced.
    pub renewed: u64,
    /// Messages between owners.
    pub controls: u64,
    /// Shares and entries of queue pairs that failed that went out again.
    pub again: u64,
    /// Requests that were posted to standby rails.
    pub stood_in: u64,
    /// Messages and receives that their callers wanted back.
    pub cancels: u64,
    /// Those of them that were taken back.
    pub taken_back: u64,
}

impl AddAssign for Summary {
    fn add_assign(&mut self, other: Self) {
        self.steps += other.steps;
        self.receives += other.receives;
        self.sends += other.sends;
        self.refused += other.refused;
        self.reports += other.reports;
        self.flushes += other.flushes;
        self.failures += other.failures;
        self.forgeries += other.forgeries;
        self.replaced += other.replaced;
        self.losses += other.losses;
        self.renewed += other.renewed;
        self.controls += other.controls;
        self.again += other.again;
        self.stood_in += other.stood_in;
        self.cancels += other.cancels;
        self.taken_back += other.taken_back;
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { steps, receives, sends, refused, reports, flushes, .. } = self;
        let Self { failures, forgeries, replaced, losses, renewed, controls, again, .. } = self;
        let Self { stood_in, cancels, taken_back, .. } = self;
        write!(
            f,
            "{steps} steps; {receives} receives and {sends} sends accepted, {refused} refused, \
             {reports} reported, {flushes} flushed; {failures} queue pairs failed, {renewed} replaced, \
             {losses} devices gone, {again} shares and entries again, {controls} control messages, {stood_in} \
             requests over standby rails; {cancels} wanted back, {taken_back} results that say so; \
             {forgeries} forgeries, {replaced} connections replaced"
        )
    }
}

/// The whole.
#[derive(Debug)]
struct World<const DEPTH: usize, const SLOTS: usize> {
    shape: Shape,
    nics: Nics,
    hosts: [Host; 2],
    connections: Vec<Connection<DEPTH, SLOTS>>,
    /// A virtual queue pair on each host, or none.
    bystanders: [Option<Bystander>; 2],
    /// Queue pairs of connections that were replaced, until all their completions were taken.
    retired: Vec<SimQp>,
    next_id: u32,
    /// What may still happen.
    left: Troubles,
    summary: Summary,
    /// What happens is printed.
    is_loud: bool,
}

impl<const DEPTH: usize, const SLOTS: usize> Drop for World<DEPTH, SLOTS> {
    fn drop(&mut self) {
        self.nics.borrow_mut().is_abandoned = true;
    }
}

/// A world of the largest ends, in a debug build, has several copies of them on the stack while it
/// is made.
const STACK: usize = 16 << 20;

/// Runs what builds worlds of any size, on a stack that has room for them.
pub fn on_large_stack(run: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().stack_size(STACK).spawn(run);
    if let Err(panic) = thread.expect("a thread").join() {
        std::panic::resume_unwind(panic);
    }
}

impl<const DEPTH: usize, const SLOTS: usize> World<DEPTH, SLOTS> {
    fn new(shape: Shape) -> Self {
        let nics = Rc::new(RefCell::new(Fabric::new(&shape)));
        let mut hosts = [0, 1].map(|host| Host::new(host, &nics, &shape));
        let connect = |at: usize| Connection::new(at as u32, at, &nics, &mut hosts, &shape);
        let connections: Vec<_> = (0..shape.lines.len()).map(connect).collect();
        let bystander = |host: usize| Bystander::new(host, &nics, &mut hosts[host], &shape);
        let bystanders = [0, 1].map(bystander);
        Self {
            left: shape.troubles,
            next_id: connections.len() as u32,
            shape,
            nics,
            hosts,
            connections,
            bystanders,
            retired: Vec::new(),
            summary: Summary::default(),
            is_loud: false,
        }
    }

    /// Checks what must hold between any two steps.
    fn check(&mut self) {
        for connection in &mut self.connections {
            connection.invariants();
            self.summary.stood_in += connection.check_standby(&self.nics);
        }
        for (number, host) in self.hosts.iter().enumerate() {
            host.check_pools(&self.nics, |device| self.posted(number, device));
        }
        self.note_homes();
    }

    /// Takes note of what decides, in the next step, whether standby rails may be used.
    fn note_homes(&mut self) {
        self.nics.borrow_mut().note_posted();
        self.connections.iter_mut().for_each(Connection::note_homes);
    }

    /// What may come for receives that wait finds a receive in the queue, whatever the accounts
    /// state.
    fn check_promised(&self, host: usize) {
        let nics = self.nics.borrow();
        for device in 0..self.shape.devices[host] {
            let at = device_at(host, device);
            if nics.is_dead[at] || nics.srqs[at].is_robbed {
                continue;
            }
            let here = self.connections.iter().filter(|connection| connection.line.from != host);
            let promised: u32 = here.map(|connection| connection.awaits(device)).sum();
            let there = nics.srqs[at].receives;
            assert!(there >= promised, "{there} receives are there, and {promised} may come");
        }
    }

    /// Receives posted by the accounts of a device.
    fn posted(&self, host: usize, device: DeviceId) -> i64 {
        let at = |connection: &&Connection<DEPTH, SLOTS>| connection.line.from != host;
        let connections = self.connections.iter().filter(at);
        let has_account = |connection: &&Connection<DEPTH, SLOTS>| {
            let is_stale =
                |place| connection.stale >> place & 1 == 1 && device_id(host, place) == device;
            !(0..MOST).any(is_stale)
        };
        let connections = connections.filter(has_account);
        let accounts = connections.flat_map(|connection| connection.receiver.accounts());
        accounts.filter(|account| account.device() == device).map(Account::posted).sum()
    }
}
