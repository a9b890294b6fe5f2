//! A connection: a virtual queue pair at each host, and the oracles of both.

use super::host::{Host, SharedReceiveQueue};
use super::places::{AREA, Ground};
use super::receiver::{Names, Receiver};
use super::sender::Sender;
use super::shape::ConnectionShape;
use super::virtual_qp::QueuePair;
use polyrail::backend::ConnectOptions;
use polyrail::nic::connect_pair;
use polyrail_core::hardware::QueuePair as _;
use polyrail_core::verbs::{Completion, DeviceId};
use polyrail_core::virtual_cq::VirtualWc;
use polyrail_core::virtual_qp::{BuildError, Config, RailId, Scheme};

/// A physical queue pair of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Physical {
    pub(super) rail: RailId,
    /// Place of its device among its host's.
    pub(super) at: usize,
    pub(super) device: DeviceId,
    pub(super) qp_num: u32,
}

/// One end.
#[derive(Debug)]
pub(super) struct End {
    /// Where it is attached.
    pub(super) index: u16,
    pub(super) attached: bool,
    pub(super) virtual_qp_num: u32,
    pub(super) physical: Vec<Physical>,
    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
    /// It is not at its index for now.
    pub(super) displaced: bool,
    /// Where rail 0's receives come from, if it does not have its own.
    pub(super) shared: Option<SharedReceiveQueue>,
    /// Completions that came while it was detached, or displaced.
    pub(super) backlog: Vec<(DeviceId, Completion)>,
    /// Protocol errors that were provoked.
    pub(super) provoked: u64,
}

impl End {
    /// Whether a completion is of the next receive that it posted to a shared queue under a name of
    /// its own.
    pub(super) fn is_shared_receive(&self, completion: &Completion) -> bool {
        let of_rail_0 = completion.qp_num == self.physical[0].qp_num;
        let receives = !completion.status.is_success() || completion.opcode.is_recv();
        let next = self.receiver.next_data();
        self.shared.is_some() && of_rail_0 && receives && next == Some(completion.wr_id)
    }
}

#[derive(Debug)]
pub(super) struct Connection {
    /// Its place among the connections, hence in memory.
    pub(super) at: usize,
    pub(super) shape: ConnectionShape,
    pub(super) ends: [End; 2],
    /// Something happened to it that may make requests fail, or stand still forever.
    pub(super) damaged: bool,
    /// A request past the engine waits on one of its rails for a receive that never comes.
    pub(super) jammed: bool,
}

impl Connection {
    /// Makes and connects both ends. No earlier connection had `number`; devices may be `damaged`
    /// already.
    pub(super) fn new(
        at: usize,
        number: u32,
        shape: ConnectionShape,
        hosts: &mut [Host; 2],
        damaged: bool,
    ) -> Self {
        check_message_limits(&hosts[0], &shape);
        let [near, far] = Queues::connected(hosts, &shape);
        let numbers = [2 * number + 1, 2 * number + 2];
        let near = near.finish(&mut hosts[0], &shape, numbers[0]);
        let far = far.finish(&mut hosts[1], &shape, numbers[1]);
        let damaged = damaged || shape.rnr_retry < 7;
        let connection = Self { at, shape, ends: [near, far], damaged, jammed: false };
        connection.exchange_windows(hosts);
        connection
    }

    fn exchange_windows(&self, hosts: &mut [Host; 2]) {
        for end in [0, 1] {
            let window = hosts[1 - end].qp(self.ends[1 - end].index).window();
            let rails = self
                .shape
                .data_rails()
                .filter(|rail| *rail != RailId::Data(0) || !self.shape.shared_receives[1 - end]);
            let deepest = rails.map(|rail| self.shape.receives(rail)).max();
            let announced = (self.shape.is_multi()).then_some(window.receives_per_rail);
            assert_eq!(
                announced.or(deepest),
                deepest,
                "the card carries the deepest receive queue"
            );
            let own = hosts[end].qp(self.ends[end].index);
            if self.shape.is_multi() && self.shape.config.scheme == Scheme::Dqplb {
                own.set_peer_window(window).expect("a window like ours");
            }
            if self.shape.notifies(end) {
                let prepared = own.prepare_receives();
                assert!(prepared.is_ok() || self.damaged, "room for receives: {prepared:?}");
            }
        }
    }

    /// Records that something was received at an end.
    pub(super) fn received(&mut self, end: usize, hosts: &[Host; 2], wc: &VirtualWc) {
        let own = self.landing(end, hosts);
        let peers = self.ground(1 - end, hosts);
        let brings_imm = self.brings_imm();
        let [near, far] = &mut self.ends;
        let (this, peer) = if end == 0 { (near, far) } else { (far, near) };
        this.receiver.reported(wc, &own, &mut peer.sender, &peers, brings_imm);
    }

    /// Places of what this end sends.
    pub(super) fn ground<'h>(&self, end: usize, hosts: &'h [Host; 2]) -> Ground<'h> {
        let base = 3 * AREA * self.at;
        let near = &hosts[end].memory;
        let far = &hosts[1 - end].memory;
        Ground { near, far, near_at: base, far_at: base + AREA }
    }

    /// Places that this end receives into.
    pub(super) fn landing<'h>(&self, end: usize, hosts: &'h [Host; 2]) -> Ground<'h> {
        let base = 3 * AREA * self.at + 2 * AREA;
        let memory = &hosts[end].memory;
        Ground { near: memory, far: memory, near_at: base, far_at: base }
    }

    /// Whether a notification brings the immediate of its request.
    pub(super) fn brings_imm(&self) -> bool {
        self.shape.config.scheme == Scheme::Spray
    }

    /// Whether everything that was posted is accounted for, at both ends.
    pub(super) fn is_drained(&self) -> bool {
        self.ends.iter().all(|end| {
            // What a shared queue holds stays there.
            let data = if end.shared.is_some() { 0 } else { end.receiver.posted_data() };
            let receives = end.receiver.posted_notifications() + data;
            end.sender.unaccounted() + receives == 0
        })
    }

    /// Whether one of its rails is on a device that is gone.
    pub(super) fn has_lost_a_device(&self, hosts: &[Host; 2]) -> bool {
        let ends = self.ends.iter().zip(hosts);
        ends.into_iter().any(|(end, host)| end.physical.iter().any(|qp| host.is_gone(qp.at)))
    }
}

/// What was asked for is refused if a rail cannot carry it, whichever rail that is.
fn check_message_limits(host: &Host, shape: &ConnectionShape) {
    let wanted = shape.wanted_msg_size;
    if wanted == shape.config.max_msg_size {
        return;
    }
    let Queues { rails, notify, .. } = Queues::new(host, shape, 0);
    let config = Config { max_msg_size: wanted, ..shape.config };
    let refused = shape.size.build(config, rails, notify).map(|_| ());
    let is_refused =
        matches!(refused, Err(BuildError::RailMsgSize { bytes, .. }) if bytes == wanted);
    assert!(is_refused, "{refused:?} for fragments of {wanted}");
}

/// The physical queue pairs of one end: rails, then notify.
pub(super) struct Queues {
    pub(super) rails: Vec<QueuePair>,
    pub(super) notify: Option<QueuePair>,
    shared: Option<SharedReceiveQueue>,
    first_device: usize,
    devices: usize,
}

impl Queues {
    fn new(host: &Host, shape: &ConnectionShape, end: usize) -> Self {
        let devices = host.devices.len();
        let create = |rail: RailId, shared: Option<&SharedReceiveQueue>| {
            let of = if let RailId::Data(rail) = rail { rail as usize } else { 0 };
            let at = (shape.first_device + of) % devices;
            host.create_qp(at, shape.grant(rail), shared)
        };
        let shared = shape.shared_receives[end].then(|| host.create_srq(shape.first_device));
        let of = |rail| if rail == RailId::Data(0) { shared.as_ref() } else { None };
        let rails = shape.data_rails().map(|rail| create(rail, of(rail))).collect();
        let notify = shape.has_notify().then(|| create(RailId::Notify, None));
        Self { rails, notify, shared, first_device: shape.first_device, devices }
    }

    /// Those of both ends, connected.
    pub(super) fn connected(hosts: &[Host; 2], shape: &ConnectionShape) -> [Self; 2] {
        let ends = [0, 1].map(|end| Self::new(&hosts[end], shape, end));
        let options = ConnectOptions { rnr_retry: shape.rnr_retry, ..ConnectOptions::default() };
        for (a, b) in ends[0].iter().zip(ends[1].iter()) {
            connect_pair(a.inner(), b.inner(), &options).expect("fresh queue pairs");
        }
        ends
    }

    fn iter(&self) -> impl Iterator<Item = &QueuePair> {
        self.rails.iter().chain(&self.notify)
    }

    fn physical(&self) -> Vec<Physical> {
        let place = |rail: usize| (self.first_device + rail) % self.devices;
        let rails = self.rails.iter().enumerate();
        let rails = rails.map(|(at, qp)| (RailId::Data(at as u8), place(at), qp));
        let notify = self.notify.iter().map(|qp| (RailId::Notify, place(0), qp));
        let of = |(rail, at, qp): (RailId, usize, &QueuePair)| {
            let device = qp.device();
            let qp_num = qp.qp_num();
            Physical { rail, at, device, qp_num }
        };
        rails.chain(notify).map(of).collect()
    }

    fn finish(self, host: &mut Host, shape: &ConnectionShape, virtual_qp_num: u32) -> End {
        let physical = self.physical();
        let config = Config { virtual_qp_num, ..shape.config };
        let qp = shape.size.build(config, self.rails, self.notify).expect("a sound configuration");
        let names = match &self.shared {
            None => Names::Own,
            Some(_) if shape.is_multi() => Names::Any,
            Some(_) => Names::Shared,
        };
        let index = host.free_index();
        host.cq.attach(index, &*qp).expect("deep completion queues");
        host.qps.0[index as usize] = Some(qp);
        End {
            index,
            attached: true,
            virtual_qp_num,
            physical,
            sender: Sender::new(shape.config.pass_through),
            receiver: Receiver::new(names),
            displaced: false,
            shared: self.shared,
            backlog: Vec::new(),
            provoked: 0,
        }
    }
}
