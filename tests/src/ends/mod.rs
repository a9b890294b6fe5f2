//! Virtual queue pairs of two hosts whose rails fail, with every step of applications, owners, NICs
//! and the network chosen by the test: what `RailFailure::Reroute` promises.
//!
//! The NICs know what a reliable connection guarantees, and nothing else: requests of a queue pair
//! are executed in order, acknowledgements can be lost, and what left a queue pair before it failed
//! may be executed at any later time, unless the peer's queue pair is in the error state. Control
//! messages are late, links of them break, owners replace rails one before the other, take them out
//! of service, and poll in every way that there is. Two connections may share the completion
//! queues; a device may meet several of the peer's.
//!
//! The oracle knows memory, and checks after every step: what was reported or notified does not
//! change any more; what was taken back is posted no more, and its report says what may have been
//! written; requests, notifications and SENDs are reported once and in order, failed or not; no
//! fragment is a duplicate; nothing is posted to a standby rail while a home rail is in service;
//! events of rails agree with their states. When an owner may sleep, another poll does nothing. In
//! the end, with all trouble over, nothing waits if what it needs is left, whatever rails are out
//! of service, and either both ends of a connection are in the error state or none.
//!
//! `shape` is what a world is made of; `fabric` are the NICs, of `physical` queue pairs, `nic` is
//! the engine's side of them; `action` is what can happen, `steps`, `traffic` and `owner` let it
//! happen; `direction` and `oracle` know what must be true; `ending` is how a world ends; `search`
//! and `small` are how [`search`](crate::search) sees it.

mod action;
mod direction;
mod ending;
mod fabric;
mod oracle;
mod owner;
mod physical;
mod search;
mod shape;
mod small;
mod steps;
mod traffic;

pub use crate::link::Old;
pub use action::{Action, How};
pub use physical::Name;
pub use shape::{FRAGMENT, Job, KeyOrder, Kind, Shape, Troubles};

use crate::link::Link;
use direction::Direction;
use ending::Heard;
use fabric::{EndCq, EndQp, Fabric, Nics};
use owner::{Attempt, Pending};
use physical::key;
use polyrail_core::verbs::{DeviceId, DeviceKeys};
use polyrail_core::virtual_cq::{TargetSet, VirtualCq};
use polyrail_core::virtual_qp::{CANCEL_VERSION, PeerWindow, RailState, VirtualQp};
use shape::{connection, peer, side};
use std::cell::RefCell;
use std::fmt;
use std::ops::AddAssign;
use std::rc::Rc;

/// Small rings, so that they run out.
type EndVirtualQp = VirtualQp<EndQp, 8, 8, 8>;

/// Routes for two connections of all rails.
type HostVirtualCq = VirtualCq<EndCq, 8, 32>;

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
    /// Connections whose virtual queue pairs ended in the error state.
    pub given_up: u64,
    /// Requests that were posted with one call as others.
    pub shared: u64,
    /// Rails that were taken out of service.
    pub out_of_service: u64,
    /// Polls after which an owner might sleep.
    pub sleeps: u64,
    /// Requests that were posted to standby rails.
    pub stood_in: u64,
    /// Requests that were taken back, delivered or not.
    pub cancelled: u64,
    /// Of those, reported as cancelled.
    pub not_delivered: u64,
    /// Rails that were fenced on purpose, at either end.
    pub on_purpose: u64,
    /// Numbers of requests that were taken back, posted without their data.
    pub gaps: u64,
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
        self.shared += other.shared;
        self.out_of_service += other.out_of_service;
        self.sleeps += other.sleeps;
        self.stood_in += other.stood_in;
        self.cancelled += other.cancelled;
        self.not_delivered += other.not_delivered;
        self.on_purpose += other.on_purpose;
        self.gaps += other.gaps;
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { steps, requests, receives, reports, failures, .. } = self;
        let Self { replaced, stragglers, given_up, shared, .. } = self;
        let Self { out_of_service, sleeps, stood_in, .. } = self;
        let Self { cancelled, not_delivered, on_purpose, gaps, .. } = self;
        write!(
            f,
            "{steps} steps; {requests} requests ({shared} with others) and {receives} receives posted, \
             {reports} reported; {failures} rails failed, {replaced} replaced, {out_of_service} taken out of \
             service; {stragglers} stragglers executed; {given_up} connections given up; owners might sleep \
             {sleeps} times; {stood_in} requests went over standby rails; {cancelled} requests taken back, \
             {not_delivered} of them not delivered; {on_purpose} rails fenced on purpose; {gaps} numbers \
             without data"
        )
    }
}

/// One end: a virtual queue pair, its owner.
#[derive(Debug)]
struct End {
    qp: Box<EndVirtualQp>,
    keys: Vec<DeviceKeys>,
    /// The devices here and there that meet, in the order of their keys.
    pairs: Vec<[usize; 2]>,
    /// By data rail: it is to be in service.
    wanted: Vec<bool>,
    /// By data rail: it is a standby rail.
    standby: Vec<bool>,
    /// The last event of each rail, with the generation.
    heard: Vec<Option<(u16, Heard)>>,
    next_job: usize,
    /// The physical queue pair in each place.
    installed: Vec<usize>,
    /// The owner has reported that the device is gone.
    lost: Vec<bool>,
    /// The next queue pair in each place.
    pending: Vec<Option<Pending>>,
    may_tell: bool,
    /// Something was taken back, and its rails were not fenced since.
    wants_fence: bool,
    /// By rail: the engine reported that it is out on purpose.
    on_purpose: Vec<bool>,
    /// The same before this step.
    was_on_purpose: Vec<bool>,
    /// It is in the error state, as far as the oracle has seen.
    failed: bool,
}

/// The whole.
#[derive(Debug)]
pub struct World {
    shape: Shape,
    nics: Nics,
    /// The virtual queue pairs of host 0 and host 1 in turn, those of one connection side by side.
    ends: Vec<End>,
    /// The completion queues of the hosts.
    cqs: [HostVirtualCq; 2],
    /// By host: engines may have something to report.
    may_report: [bool; 2],
    /// By the sending end.
    directions: Vec<Direction>,
    /// By connection.
    links: Vec<Link>,
    /// By connection and rail.
    attempts: Vec<Vec<Option<Attempt>>>,
    /// What may still happen.
    left: Troubles,
    /// By end: its owner has given up.
    surrendered: Vec<bool>,
    /// By end: data rails that it could use before the last step.
    usable: Vec<usize>,
    /// By end: generations of the home rails that were in service before the last step.
    homes: Vec<Vec<Option<u16>>>,
    /// Failures of each connection; a request bears a limited number of them.
    hard_failures: Vec<usize>,
    /// Something happened that is no fault of the engines, other than requests taken back.
    is_hurt: bool,
    summary: Summary,
    /// What happens is printed.
    is_loud: bool,
}

/// The virtual queue pairs of a host, by connection.
struct Targets<'e> {
    ends: &'e mut [End],
    host: usize,
}

impl TargetSet for Targets<'_> {
    type Target = EndVirtualQp;

    fn target(&mut self, index: u16) -> Option<&mut EndVirtualQp> {
        self.ends.get_mut(2 * usize::from(index) + self.host).map(|end| &mut *end.qp)
    }
}

impl World {
    /// A world in which nothing has happened.
    pub fn new(shape: Shape) -> Self {
        let Shape { connections, devices, .. } = shape;
        let nics = Fabric::new(devices, connections, shape.flushes_at_once);
        let nics = Rc::new(RefCell::new(nics));
        let queue_pairs = shape.queue_pairs();
        let mut ends: Vec<_> =
            (0..2 * connections).map(|end| End::new(&shape, end, &nics)).collect();
        for end in 0..ends.len() {
            for rail in 0..queue_pairs {
                let [near, far] = [end, peer(end)].map(|end| ends[end].installed[rail]);
                nics.borrow_mut().qps[near].peer = Some(far);
            }
        }
        let cqs = [0, 1].map(|host| {
            let at = |device| nics.borrow().cq_at(host, device);
            let own = (0..devices[host]).map(|device| EndCq::new(&nics, at(device)));
            let mut cq = HostVirtualCq::new(own).expect("few completion queues");
            for (end, this) in ends.iter().enumerate().filter(|(end, _)| side(*end) == host) {
                cq.attach(connection(end) as u16, &*this.qp).expect("deep completion queues");
            }
            cq
        });
        let windows: Vec<_> = ends.iter().map(|end| end.qp.window()).collect();
        let expects = |(end, this): (usize, &mut End)| {
            let span = this.expect_peer(&shape, windows[peer(end)]);
            Direction::new(shape.scheme, shape.order, span)
        };
        let directions = ends.iter_mut().enumerate().map(expects).collect();
        let mut world = Self {
            directions,
            attempts: vec![vec![None; queue_pairs]; connections],
            left: shape.troubles,
            usable: vec![shape.rails; ends.len()],
            homes: vec![Vec::new(); ends.len()],
            hard_failures: vec![0; connections],
            surrendered: vec![false; ends.len()],
            links: (0..connections).map(|_| Link::default()).collect(),
            shape,
            nics,
            ends,
            cqs,
            may_report: [false; 2],
            is_hurt: false,
            summary: Summary::default(),
            is_loud: false,
        };
        if world.shape.is_brief {
            world.post_all();
            world.note_homes();
            world.check_posted();
        }
        world
    }

    fn all_ends(&self) -> std::ops::Range<usize> {
        0..self.ends.len()
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
        let all = self.all_ends().map(end).collect::<Vec<_>>();
        all.join(" |")
    }

    fn wants_receive(&self, end: usize, data: bool) -> bool {
        let kind = if data { Kind::Send } else { Kind::WriteImm };
        let jobs = &self.shape.jobs[peer(end)];
        let wanted = jobs.iter().filter(|job| job.kind == kind).count();
        let direction = &self.directions[peer(end)];
        let posted =
            if data { direction.data_receives.len() } else { direction.notification_receives };
        posted < wanted
    }

    fn has_something_to_poll(&self, host: usize) -> bool {
        self.may_report[host] || self.nics.borrow().has_completions(host)
    }
}

impl End {
    fn new(shape: &Shape, end: usize, nics: &Nics) -> Self {
        let make = |rail: usize| {
            let name = Name { end, rail, generation: 0 };
            let at =
                nics.borrow_mut().make(name, shape.first_device(end, rail), shape.limits(rail));
            EndQp::new(nics, at)
        };
        let mut rails: Vec<_> = (0..shape.queue_pairs()).map(make).collect();
        let installed = rails.iter().map(|qp| qp.at).collect();
        let notify = (rails.len() > shape.rails).then(|| rails.pop()).flatten();
        let qp = VirtualQp::new(shape.config(end), rails, notify).expect("a sound configuration");
        let mut qp = Box::new(qp);
        qp.prepare_receives().expect("room for receives");
        let pairs = shape.pairs(end);
        let meets_several =
            |(at, [own, _]): (usize, &[usize; 2])| pairs[..at].iter().any(|pair| pair[0] == *own);
        if pairs.iter().enumerate().any(meets_several) {
            let peers: Vec<_> =
                (0..shape.rails).map(|rail| shape.first_device(peer(end), rail) as u8).collect();
            qp.pair_devices(&peers).expect("nothing was sent");
        }
        Self {
            keys: keys(shape.keys, end, &pairs),
            pairs,
            wanted: vec![true; shape.rails],
            standby: (0..shape.rails).map(|rail| shape.is_standby(end, rail)).collect(),
            heard: vec![None; shape.queue_pairs()],
            qp,
            next_job: 0,
            installed,
            lost: vec![false; shape.queue_pairs()],
            pending: (0..shape.queue_pairs()).map(|_| None).collect(),
            may_tell: false,
            wants_fence: false,
            on_purpose: vec![false; shape.queue_pairs()],
            was_on_purpose: vec![false; shape.queue_pairs()],
            failed: false,
        }
    }

    /// Gives the engine what is on the card of its peer. Returns the numbers that may be on
    /// their way.
    fn expect_peer(&mut self, shape: &Shape, peer: PeerWindow) -> u32 {
        let unseen = peer.receives_per_rail * shape.rails as u32;
        let span = shape.span.min(peer.window - unseen);
        let peer = PeerWindow { window: unseen + span, ..peer };
        self.qp.set_peer_window(peer).expect("a window with room");
        self.qp.set_peer_cancel_version(CANCEL_VERSION);
        span
    }

    /// Whether a rail works, also if it is out of service.
    fn is_in_service(&self, shape: &Shape, rail: usize) -> bool {
        self.qp.rail_state(shape.rail_id(rail)) == Some(RailState::InService)
    }
}

/// The keys of the buffers of an end: one set for each pair of devices that meet, those of one
/// device in the order of the rails.
fn keys(order: KeyOrder, end: usize, pairs: &[[usize; 2]]) -> Vec<DeviceKeys> {
    let mut pairs = pairs.to_vec();
    if order == KeyOrder::Backwards {
        // Those of one device stay in their order.
        pairs.sort_by_key(|[own, _]| std::cmp::Reverse(*own));
    }
    let of_pair = |[own, far]: [usize; 2]| DeviceKeys {
        device: DeviceId(own as u32),
        lkey: key(end, own),
        rkey: key(peer(end), far),
    };
    let other = DeviceKeys { device: DeviceId(u32::MAX), lkey: 0, rkey: 0 };
    let others = if order == KeyOrder::BehindOthers { 1 } else { 0 };
    let others = std::iter::repeat_n(other, others);
    others.chain(pairs.into_iter().map(of_pair)).collect()
}
