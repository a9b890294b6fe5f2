//! A connection: a virtual queue pair at each host, and the oracles of both.

use super::host::Host;
use super::places::{AREA, Ground};
use super::receiver::Receiver;
use super::sender::Sender;
use super::shape::ConnectionShape;
use polyrail::nic::{
    CompletionQueue, ConnectOptions, ProtectionDomain, QpCap, QpInit, QueuePair, connect_pair,
};
use polyrail_core::hardware::QueuePair as _;
use polyrail_core::verbs::{Completion, DeviceId};
use polyrail_core::virtual_qp::{Config, RailId, Scheme};

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
    /// Completions that came while it was detached.
    pub(super) backlog: Vec<(DeviceId, Completion)>,
    /// Protocol errors that somebody provoked.
    pub(super) provoked: u64,
}

#[derive(Debug)]
pub(super) struct Connection {
    /// Its place among the connections, hence in memory.
    pub(super) at: usize,
    pub(super) shape: ConnectionShape,
    pub(super) ends: [End; 2],
    /// Something happened to it that requests may fail of, or stand still for ever.
    pub(super) damaged: bool,
    /// A request past the engine waits on one of its rails for a receive that never comes.
    pub(super) jammed: bool,
}

impl Connection {
    /// Makes and connects both ends. `number` is one that no connection had before; devices may be
    /// `damaged` already.
    pub(super) fn new(
        at: usize,
        number: u32,
        shape: ConnectionShape,
        hosts: &mut [Host; 2],
        damaged: bool,
    ) -> Self {
        let [mut near, mut far] = [0, 1].map(|end| Queues::new(&hosts[end], &shape));
        let options = ConnectOptions { rnr_retry: shape.rnr_retry, ..ConnectOptions::default() };
        for (a, b) in near.iter_mut().zip(far.iter_mut()) {
            connect_pair(a, b, &options).expect("fresh queue pairs");
        }
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

    /// Places of what this end sends.
    pub(super) fn ground<'h>(&self, end: usize, hosts: &'h [Host; 2]) -> Ground<'h> {
        let base = 3 * AREA * self.at;
        let (near, far) = (&hosts[end].memory, &hosts[1 - end].memory);
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
            let receives = end.receiver.posted_notifications() + end.receiver.posted_data();
            end.sender.outstanding() + receives == 0
        })
    }

    /// Whether one of its rails is on a device that is gone.
    pub(super) fn has_lost_a_device(&self, hosts: &[Host; 2]) -> bool {
        let ends = self.ends.iter().zip(hosts);
        ends.into_iter().any(|(end, host)| end.physical.iter().any(|qp| host.is_gone(qp.at)))
    }
}

/// The physical queue pairs of one end: rails, then notify.
struct Queues {
    rails: Vec<QueuePair>,
    notify: Option<QueuePair>,
    first_device: usize,
    devices: usize,
}

impl Queues {
    fn new(host: &Host, shape: &ConnectionShape) -> Self {
        let devices = host.devices.len();
        let create = |rail: usize, queue| {
            let at = (shape.first_device + rail) % devices;
            create_qp(&host.domains[at], &host.cq.cqs()[at], queue)
        };
        let rails = (0..shape.rails).map(|rail| create(rail, shape.queue)).collect();
        let notify = shape.has_notify().then(|| create(0, shape.notify_queue));
        Self { rails, notify, first_device: shape.first_device, devices }
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut QueuePair> {
        self.rails.iter_mut().chain(&mut self.notify)
    }

    fn physical(&self) -> Vec<Physical> {
        let place = |rail: usize| (self.first_device + rail) % self.devices;
        let rails = self.rails.iter().enumerate();
        let rails = rails.map(|(at, qp)| (RailId::Data(at as u8), place(at), qp));
        let notify = self.notify.iter().map(|qp| (RailId::Notify, place(0), qp));
        let of = |(rail, at, qp): (RailId, usize, &QueuePair)| {
            let (device, qp_num) = (qp.device(), qp.qp_num());
            Physical { rail, at, device, qp_num }
        };
        rails.chain(notify).map(of).collect()
    }

    fn finish(self, host: &mut Host, shape: &ConnectionShape, virtual_qp_num: u32) -> End {
        let physical = self.physical();
        let config = Config { virtual_qp_num, ..shape.config };
        let qp = shape.size.build(config, self.rails, self.notify).expect("a sound configuration");
        let index = host.free_index();
        host.cq.attach(index, &*qp).expect("deep completion queues");
        host.qps.0[index as usize] = Some(qp);
        End {
            index,
            attached: true,
            virtual_qp_num,
            physical,
            sender: Sender::new(shape.config.pass_through),
            receiver: Receiver::default(),
            backlog: Vec::new(),
            provoked: 0,
        }
    }
}

/// A queue pair of so many requests each way.
pub(super) fn create_qp(domain: &ProtectionDomain, cq: &CompletionQueue, queue: u32) -> QueuePair {
    let cap = QpCap { max_send_wr: queue, max_recv_wr: queue, ..QpCap::default() };
    domain.create_qp(&QpInit::new(cq, cap)).expect("a working device")
}
