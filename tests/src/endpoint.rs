//! A virtual queue pair on software NICs, with memory to send from and to receive into.

use polyrail::backend::{ConnectOptions, QpCap};
use polyrail::memory::RegisteredBuffer;
use polyrail::nic::{
    CompletionQueue, Device, DeviceConfig, Fabric, ProtectionDomain, QpInit, QueuePair,
    connect_pair,
};
use polyrail_core::verbs::{AccessFlags, DeviceKeys};
use polyrail_core::virtual_cq::VirtualCq;
use polyrail_core::virtual_qp::{Config, Scheme, VirtualQp};

/// Small, so that rings and credits run out often.
pub type SmallQp = VirtualQp<QueuePair, 4, 8, 8>;

/// One end of a connection.
#[derive(Debug)]
pub struct Side {
    /// The virtual queue pair.
    pub qp: Box<SmallQp>,
    /// A completion queue for each device, as one.
    pub cq: VirtualCq<CompletionQueue, 4, 16>,
    /// Memory, registered on every device for all access.
    pub memory: RegisteredBuffer,
    domains: Vec<ProtectionDomain>,
}

impl Side {
    /// Keys for requests between this side's memory and the peer's, device by device.
    pub fn keys_toward(&self, peer: &Self) -> Vec<DeviceKeys> {
        let pairs = self.memory.keys().iter().zip(peer.memory.keys());
        pairs.map(|(own, far)| own.toward(far.rkey)).collect()
    }

    /// A queue pair for rail `rail`, on its device.
    ///
    /// # Panics
    ///
    /// If the software NIC refuses, which it has no reason to.
    pub fn queue_pair(&mut self, rail: usize) -> QueuePair {
        let at = rail % self.domains.len();
        let init = QpInit::new(&self.cq.cqs_mut()[at], CAPACITY);
        self.domains[at].create_qp(&init).expect("a working device")
    }
}

/// Requests that every queue pair holds.
const CAPACITY: QpCap =
    QpCap { max_send_wr: 8, max_recv_wr: 8, max_inline_data: 64, max_send_sge: 4, max_recv_sge: 4 };

struct Parts {
    domains: Vec<ProtectionDomain>,
    cqs: Vec<CompletionQueue>,
    qps: Vec<QueuePair>,
    notify: Option<QueuePair>,
}

impl Parts {
    fn new(fabric: &Fabric, name: &str, rails: usize, devices: usize, scheme: Scheme) -> Self {
        // Allocations of the device would hide those of the engine.
        let full = |name| DeviceConfig { full_queues: true, ..DeviceConfig::named(name) };
        let create = |at| fabric.create_device(full(format!("{name}{at}")));
        let devices: Vec<_> = (0..devices).map(create).collect();
        let domain = |device: &Device| device.alloc_pd().expect("a working device");
        let domains: Vec<_> = devices.iter().map(domain).collect();
        let cq = |device: &Device| device.create_cq(256).expect("a working device");
        let cqs: Vec<_> = devices.iter().map(cq).collect();
        let qp = |rail: usize| {
            let at = rail % devices.len();
            domains[at].create_qp(&QpInit::new(&cqs[at], CAPACITY)).expect("a working device")
        };
        let qps = (0..rails).map(qp).collect();
        let notify = (scheme == Scheme::Spray).then(|| qp(0));
        Self { domains, cqs, qps, notify }
    }

    fn finish(self, config: Config, bytes: usize) -> Side {
        let qp = VirtualQp::new(config, self.qps, self.notify).expect("a sound configuration");
        let mut qp = Box::new(qp);
        qp.prepare_receives().expect("room for receives");
        let mut cq = VirtualCq::new(self.cqs).expect("few completion queues");
        cq.attach(0, &*qp).expect("deep completion queues");
        let access = AccessFlags::LOCAL_WRITE
            | AccessFlags::REMOTE_WRITE
            | AccessFlags::REMOTE_READ
            | AccessFlags::REMOTE_ATOMIC;
        let domains: Vec<_> = self.domains.iter().collect();
        let memory = RegisteredBuffer::new(bytes, access, &domains).expect("memory");
        Side { qp, cq, memory, domains: self.domains }
    }
}

/// Two sides of `rails` rails over `devices` devices each, connected rail by rail, with `bytes` of
/// memory each.
///
/// # Panics
///
/// If the software NIC refuses, which it has no reason to.
pub fn connect(
    fabric: &Fabric,
    rails: usize,
    devices: usize,
    config: Config,
    bytes: usize,
) -> (Side, Side) {
    let mut near = Parts::new(fabric, "near", rails, devices, config.scheme);
    let mut far = Parts::new(fabric, "far", rails, devices, config.scheme);
    let ends = near.qps.iter_mut().chain(&mut near.notify);
    for (a, b) in ends.zip(far.qps.iter_mut().chain(&mut far.notify)) {
        connect_pair(a, b, &ConnectOptions::default()).expect("fresh queue pairs");
    }
    let near = near.finish(Config { virtual_qp_num: 1, ..config }, bytes);
    (near, far.finish(Config { virtual_qp_num: 2, ..config }, bytes))
}
