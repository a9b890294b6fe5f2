//! Two virtual queue pairs whose rails fail, with every step of applications, owners, NICs and the
//! network chosen by the test: what `RailFailure::Reroute` promises.
//!
//! The NICs know what a reliable connection guarantees, and no more: requests of a queue pair are executed
//! in order, acknowledgements can be lost, and what left a queue pair before it failed may be executed at
//! any later time, unless the peer's queue pair is in the error state. Control messages are late, links of
//! them break, owners replace rails one before the other.
//!
//! The oracle knows memory, and checks after every step: what was reported or notified does not change any
//! more; requests, notifications and SENDs are reported once and in order; no fragment is a duplicate. In
//! the end, with all trouble over, nothing waits if what it needs is left, and either both ends are in the
//! error state or none.
//!
//! `shape` is what a world is made of; `fabric` are the NICs, of `physical` queue pairs, `nic` is the
//! engine's side of them; `action` is what can happen, `steps`, `traffic`
//! and `owner` let it happen; `direction` and `oracle` know what must be true; `ending` is how a world ends;
//! `search` and `small` are how [`search`](crate::search) sees it.

mod action;
mod direction;
mod ending;
mod fabric;
mod nic;
mod oracle;
mod owner;
mod physical;
mod search;
mod shape;
mod small;
mod steps;
mod traffic;

pub use crate::link::Old;
pub use action::Action;
pub use physical::Name;
pub use shape::{FRAGMENT, Job, Kind, Shape, Troubles};

use crate::link::Link;
use direction::Direction;
use fabric::Fabric;
use nic::{EndCq, EndQp, Nics};
use owner::{Attempt, Pending};
use physical::key;
use polyrail_core::verbs::{DeviceId, DeviceKeys};
use polyrail_core::virtual_cq::VirtualCq;
use polyrail_core::virtual_qp::{PeerWindow, RailState, VirtualQp};
use std::cell::RefCell;
use std::fmt;
use std::ops::AddAssign;
use std::rc::Rc;

/// Small rings, so that they run out.
type EndVirtualQp = VirtualQp<EndQp, 4, 8, 8>;

/// What happened in a world.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Steps.
    pub steps: u64,
    /// Requests accepted.
    pub requests: u64,
    /// Receives accepted.
    pub receives: u64,
    /// Requests and receives reported.
    pub reports: u64,
    /// Queue pairs that failed by themselves, or were given up.
    pub failures: u64,
    /// Queue pairs replaced.
    pub replaced: u64,
    /// Requests that were executed after their queue pair had failed.
    pub stragglers: u64,
    /// Worlds whose virtual queue pairs ended in the error state.
    pub given_up: u64,
}

impl AddAssign for Summary {
    fn add_assign(&mut self, other: Self) {
        self.steps += other.steps;
        self.requests += other.requests;
        self.receives += other.receives;
        self.reports += other.reports;
        self.failures += other.failures;
        self.replaced += other.replaced;
        self.stragglers += other.stragglers;
        self.given_up += other.given_up;
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { steps, requests, receives, reports, failures, .. } = self;
        let Self { replaced, stragglers, given_up, .. } = self;
        write!(
            f,
            "{steps} steps; {requests} requests and {receives} receives posted, {reports} reported; \
             {failures} rails failed, {replaced} replaced; {stragglers} stragglers executed; \
             {given_up} worlds given up"
        )
    }
}

/// One end: a virtual queue pair, its completion queue, its owner.
#[derive(Debug)]
struct End {
    qp: Box<EndVirtualQp>,
    cq: VirtualCq<EndCq, 4, 16>,
    keys: Vec<DeviceKeys>,
    next_job: usize,
    /// The physical queue pair in each place.
    installed: Vec<usize>,
    /// The owner has said that the device is gone.
    lost: Vec<bool>,
    /// The next queue pair in each place.
    pending: Vec<Option<Pending>>,
    may_tell: bool,
    may_report: bool,
    /// The oracle knows that it is in the error state.
    failed: bool,
}

/// The whole.
#[derive(Debug)]
pub struct World {
    shape: Shape,
    nics: Nics,
    ends: [End; 2],
    /// By the sending end.
    directions: [Direction; 2],
    link: Link,
    attempts: Vec<Option<Attempt>>,
    /// What may still happen.
    left: Troubles,
    /// Completions of receives that were used are lost.
    lost_completions: bool,
    /// Whose owner has given up.
    surrendered: [bool; 2],
    /// Data rails that both ends could use before the last step.
    usable: usize,
    /// Failures of which a request can bear only so many.
    hard_failures: usize,
    summary: Summary,
    /// What happens is printed.
    is_loud: bool,
}

impl World {
    /// A world in which nothing has happened.
    pub fn new(shape: Shape) -> Self {
        let fabric = Fabric::new(shape.devices, shape.flushes_at_once);
        let nics = Rc::new(RefCell::new(fabric));
        let queue_pairs = shape.queue_pairs();
        let mut ends = [0, 1].map(|end| End::new(&shape, end, &nics));
        for rail in 0..queue_pairs {
            let [near, far] = [0, 1].map(|end: usize| ends[end].installed[rail]);
            nics.borrow_mut().qps[near].peer = Some(far);
            nics.borrow_mut().qps[far].peer = Some(near);
        }
        let windows = [0, 1].map(|end: usize| ends[end].qp.window());
        let spans = [0, 1].map(|end: usize| ends[end].expect_peer(&shape, windows[1 - end]));
        let direction = |end: usize| Direction::new(shape.scheme, shape.order, spans[end]);
        let mut world = Self {
            directions: [direction(0), direction(1)],
            attempts: vec![None; queue_pairs],
            left: shape.troubles,
            usable: shape.rails,
            hard_failures: 0,
            shape,
            nics,
            ends,
            link: Link::default(),
            lost_completions: false,
            surrendered: [false; 2],
            summary: Summary::default(),
            is_loud: false,
        };
        if world.shape.is_brief {
            world.post_all();
        }
        world
    }

    /// The states of all rails, in short form.
    fn states(&self) -> String {
        let end = |end: usize| -> String {
            let rail = |rail: usize| {
                let state = format!("{:?}", self.state(end, rail));
                format!(" {}{}", &state[..2], self.generation(end, rail))
            };
            let rails: String = (0..self.shape.queue_pairs()).map(rail).collect();
            if self.ends[end].failed { format!(" ERROR ({rails})") } else { rails }
        };
        format!("{} |{}", end(0), end(1))
    }

    fn wants_receive(&self, end: usize, data: bool) -> bool {
        let kind = if data { Kind::Send } else { Kind::WriteImm };
        let wanted = self.shape.jobs[1 - end].iter().filter(|job| job.kind == kind).count();
        let direction = &self.directions[1 - end];
        let posted =
            if data { direction.data_receives.len() } else { direction.notification_receives };
        posted < wanted
    }

    fn has_something_to_poll(&self, end: usize) -> bool {
        let nics = self.nics.borrow();
        let own = &nics.cqs[end * self.shape.devices..(end + 1) * self.shape.devices];
        self.ends[end].may_report || own.iter().any(|cq| !cq.entries.is_empty())
    }
}

impl End {
    fn new(shape: &Shape, end: usize, nics: &Nics) -> Self {
        let make = |rail: usize| {
            let name = Name { end, rail, generation: 0 };
            let at = nics.borrow_mut().make(name, shape.first_device(rail), shape.limits(rail));
            EndQp { nics: Rc::clone(nics), at }
        };
        let mut rails: Vec<_> = (0..shape.queue_pairs()).map(make).collect();
        let installed = rails.iter().map(|qp| qp.at).collect();
        let notify = (rails.len() > shape.rails).then(|| rails.pop()).flatten();
        let qp = VirtualQp::new(shape.config(end), rails, notify).expect("a sound configuration");
        let mut qp = Box::new(qp);
        qp.prepare_receives().expect("room for receives");
        let cqs = (0..shape.devices).map(|device| EndCq { nics: Rc::clone(nics), end, device });
        let mut cq = VirtualCq::new(cqs).expect("few completion queues");
        cq.attach(0, &*qp).expect("deep completion queues");
        let keys = |device: u32| DeviceKeys {
            device: DeviceId(device),
            lkey: key(end, device),
            rkey: key(1 - end, device),
        };
        Self {
            qp,
            cq,
            keys: (0..shape.devices as u32).map(keys).collect(),
            next_job: 0,
            installed,
            lost: vec![false; shape.queue_pairs()],
            pending: (0..shape.queue_pairs()).map(|_| None).collect(),
            may_tell: false,
            may_report: false,
            failed: false,
        }
    }

    /// Tells the engine how far it may run ahead of its peer. Returns the numbers that may be on their way.
    fn expect_peer(&mut self, shape: &Shape, peer: PeerWindow) -> u32 {
        let unseen = peer.receives_per_rail * shape.rails as u32;
        let span = shape.span.min(peer.window - unseen);
        let peer = PeerWindow { window: unseen + span, ..peer };
        self.qp.set_peer_window(peer).expect("a window with room");
        span
    }

    /// Whether a rail is there for requests.
    fn is_in_service(&self, shape: &Shape, rail: usize) -> bool {
        self.qp.rail_state(shape.rail_id(rail)) == Some(RailState::InService)
    }
}
