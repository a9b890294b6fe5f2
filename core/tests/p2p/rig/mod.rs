//! Two ends of connections on test devices: what a test may choose, and how they are made of it.
//!
//! `memory` is what they send, receive and write entries into; `running` lets things happen until
//! nothing does, `calls` are those of a connection's owner, `replacing` is of queue pairs and
//! devices that were lost; `lone` is a sender without a peer.

mod calls;
mod lone;
mod memory;
mod replacing;
mod running;

pub(crate) use calls::irecv;
pub(crate) use lone::{build_error, connect_error};
pub(crate) use memory::Memory;

use crate::device::{Block, Fabric, TestCq, TestQp, TestSrq};
use memory::Aligned;
use polyrail_core::hardware::{CqId, QpLimits};
use polyrail_core::p2p::{Account, Pool, Receiver, ReceiverConfig, Region, Sender, SenderConfig};
use polyrail_core::verbs::{DeviceId, DeviceKeys};
use polyrail_core::virtual_cq::{AttachError, Event, VirtualCq};
use std::rc::Rc;
use std::sync::atomic::AtomicU8;

pub(crate) const QPS: usize = 16;
pub(crate) const DEPTH: usize = 32;
pub(crate) const SLOTS: usize = 8;

pub(crate) type TestSender = Sender<TestQp, Aligned, QPS, DEPTH, SLOTS>;
pub(crate) type TestReceiver = Receiver<TestQp, TestSrq, Aligned, QPS, DEPTH, SLOTS>;
pub(crate) type Cq = VirtualCq<TestCq, 8, 64>;

/// What a test may choose.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) rails: u8,
    /// Queue pairs of each rail.
    pub(crate) each: usize,
    /// Rails are on this many devices, in turn.
    pub(crate) devices: u8,
    pub(crate) max_msg_size: u32,
    /// What the sender's ports take, if that is less.
    pub(crate) near_max_msg_size: u32,
    pub(crate) max_send_wr: u32,
    pub(crate) max_inline_data: u32,
    /// Receives that each account may have posted.
    pub(crate) limit: u32,
    pub(crate) sender: SenderConfig,
    /// Connections on the same pools.
    pub(crate) connections: usize,
    pub(crate) flushes: bool,
    pub(crate) reroutes: bool,
    /// What the ends' cards have in place of theirs.
    pub(crate) cancel_version: Option<u32>,
}

impl Setup {
    /// Of queue pairs that send.
    fn limits(&self) -> QpLimits {
        QpLimits {
            max_send_wr: self.max_send_wr,
            max_recv_wr: 0,
            max_inline_data: self.max_inline_data,
            max_msg_size: self.max_msg_size,
            max_send_sge: 1,
            max_recv_sge: 0,
        }
    }

    pub(crate) fn rails(rails: u8) -> Self {
        Self {
            rails,
            each: 1,
            devices: rails,
            max_msg_size: 1 << 20,
            near_max_msg_size: u32::MAX,
            max_send_wr: DEPTH as u32,
            max_inline_data: 64,
            limit: 1024,
            reroutes: false,
            cancel_version: None,
            sender: SenderConfig { rails, split_threshold: 0, ..SenderConfig::default() },
            connections: 1,
            flushes: false,
        }
    }

    /// Other rails take over from one that fails.
    pub(crate) fn rerouting(rails: u8) -> Self {
        Self { reroutes: true, ..Self::rails(rails) }
    }

    pub(crate) fn rig(&self) -> Rig {
        Rig::new(self)
    }

    /// Of ends that have this version of cancel on their cards.
    pub(crate) fn rig_with_version(&self, version: u32) -> Rig {
        Self { cancel_version: Some(version), ..self.clone() }.rig()
    }
}

/// One connection.
pub(crate) struct Connection {
    pub(crate) sender: TestSender,
    pub(crate) receiver: TestReceiver,
    /// Places of the queue pairs, at the sender and at the receiver.
    pub(crate) near: Vec<usize>,
    pub(crate) far: Vec<usize>,
    pub(crate) flushes: Vec<usize>,
}

/// Connections from one process to another.
pub(crate) struct Rig {
    pub(crate) fabric: Fabric,
    pub(crate) setup: Setup,
    pub(crate) connections: Vec<Connection>,
    pub(crate) near_cq: Cq,
    pub(crate) far_cq: Cq,
    pub(crate) pools: Vec<Pool>,
    pub(crate) srqs: Vec<TestSrq>,
    /// What NICs count is what is there.
    pub(crate) counts_pools: bool,
    /// Foreign completions: at the sender's, at the receiver's.
    pub(crate) foreign: [Vec<Event>; 2],
}

/// Devices of the receiver's are numbered from here.
const FAR: u32 = 100;

impl Rig {
    fn new(setup: &Setup) -> Self {
        let fabric = Fabric::default();
        let devices = u32::from(setup.devices);
        let depth =
            DEPTH as u32 * 2 * u32::from(setup.rails) * setup.each as u32 + setup.limit + 64;
        let capacity = depth * setup.connections as u32;
        let near_cqs: Vec<_> = (0..devices).map(|device| fabric.cq(device, capacity)).collect();
        let far_cqs: Vec<_> =
            (0..devices).map(|device| fabric.cq(FAR + device, capacity)).collect();
        let receives = setup.limit * setup.connections as u32;
        let srqs: Vec<_> = (0..devices).map(|_| fabric.srq(receives)).collect();
        let mut pools: Vec<_> =
            (0..devices).map(|device| Pool::new(DeviceId(FAR + device), receives)).collect();
        let mut rig = Self {
            near_cq: VirtualCq::new(near_cqs.iter().cloned()).expect("few queues"),
            far_cq: VirtualCq::new(far_cqs.iter().cloned()).expect("few queues"),
            connections: Vec::new(),
            fabric,
            setup: setup.clone(),
            pools: Vec::new(),
            srqs: srqs.clone(),
            counts_pools: true,
            foreign: [Vec::new(), Vec::new()],
        };
        for cq in &far_cqs {
            rig.far_cq.set_aside(CqId(cq.at as u64), receives).expect("it is large enough");
            let all = rig.far_cq.set_aside(CqId(cq.at as u64), capacity);
            assert!(matches!(all, Err(AttachError::CqTooSmall { .. })));
        }
        for number in 0..setup.connections {
            let accounts = pools.iter_mut().zip(&srqs);
            let accounts: Vec<Account<TestSrq>> = accounts
                .map(|(pool, srq)| pool.open(srq.clone(), setup.limit).expect("within the pool"))
                .collect();
            let connection = rig.connection(&near_cqs, &far_cqs, accounts, number as u32);
            rig.near_cq.attach(number as u16, &connection.sender).expect("attaches");
            rig.far_cq.attach(number as u16, &connection.receiver).expect("attaches");
            rig.connections.push(connection);
        }
        rig.pools = pools;
        rig
    }

    fn connection(
        &self,
        near_cqs: &[TestCq],
        far_cqs: &[TestCq],
        accounts: Vec<Account<TestSrq>>,
        number: u32,
    ) -> Connection {
        let setup = &self.setup;
        let limits = setup.limits();
        let fabric = &self.fabric;
        let (mut left, mut right, mut flushes) = (Vec::new(), Vec::new(), Vec::new());
        for place in 0..usize::from(setup.rails) * setup.each {
            let device = place % usize::from(setup.rails) % usize::from(setup.devices);
            let near_max = setup.max_msg_size.min(setup.near_max_msg_size);
            let near_limits = QpLimits { max_msg_size: near_max, ..limits };
            let near = fabric.qp(&near_cqs[device], None, near_limits);
            let far = fabric.qp(&far_cqs[device], Some(&self.srqs[device]), limits);
            fabric.connect(&near, &far);
            left.push(near);
            right.push(far);
        }
        for cq in far_cqs.iter().filter(|_| setup.flushes) {
            let flush = fabric.qp(cq, None, limits);
            fabric.connect(&flush, &flush);
            flushes.push(flush);
        }
        let places = |all: &[TestQp]| all.iter().map(|qp| qp.at).collect::<Vec<_>>();
        let (near, far, flush_places) = (places(&left), places(&right), places(&flushes));
        let ring = Aligned::new(TestSender::REGION_WORDS);
        let keys = self.keys(&ring.block(), 0);
        // SAFETY: the fabric keeps the words.
        let ring = unsafe { Region::new(ring, keys) }.expect("few devices");
        let reroutes = setup.reroutes;
        let config = SenderConfig { virtual_qp_num: number, reroutes, ..setup.sender };
        let mut sender = TestSender::new(config, left, ring).expect("a good sender");
        let records = Aligned::new(TestReceiver::REGION_WORDS);
        let keys = self.keys(&records.block(), FAR);
        // SAFETY: the fabric keeps the words.
        let records = unsafe { Region::new(records, keys) }.expect("few devices");
        let (rails, min_rails) = (setup.rails, setup.sender.min_rails);
        let config = ReceiverConfig {
            virtual_qp_num: number,
            rails,
            reroutes,
            min_rails,
            standby: config.standby,
        };
        let mut receiver =
            TestReceiver::new(config, right, flushes, accounts, records).expect("a good receiver");
        let (mut near_card, mut far_card) = (sender.card(), receiver.card());
        if let Some(version) = setup.cancel_version {
            near_card.ports.cancel_version = version;
            far_card.ports.cancel_version = version;
        }
        sender.connect(&far_card).expect("the ends fit");
        receiver.connect(&near_card).expect("the ends fit");
        Connection { sender, receiver, near, far, flushes: flush_places }
    }

    fn keys(&self, block: &Block, first: u32) -> Vec<DeviceKeys> {
        let devices = first..first + u32::from(self.setup.devices);
        let keys = devices.map(|device| {
            let key = self.fabric.register(device, block);
            DeviceKeys { device: DeviceId(device), lkey: key, rkey: key }
        });
        keys.collect()
    }

    fn memory(&self, block: Block, first: u32) -> Memory {
        Memory { keys: self.keys(&block, first), block }
    }

    /// Memory of the sender's, of bytes that count.
    pub(crate) fn source(&self, bytes: usize) -> Memory {
        let source: Rc<[AtomicU8]> = (0..bytes).map(|at| AtomicU8::new(at as u8 ^ 0x5a)).collect();
        self.memory(Block::Bytes(source), 0)
    }

    /// Memory of the receiver's.
    pub(crate) fn target(&self, bytes: usize) -> Memory {
        let target: Rc<[AtomicU8]> = (0..bytes).map(|_| AtomicU8::new(0)).collect();
        self.memory(Block::Bytes(target), FAR)
    }

    /// Memory of both ends without contents.
    pub(crate) fn phantoms(&self, bytes: u64) -> [Memory; 2] {
        [0, FAR].map(|first| self.memory(Block::Phantom(1 << 40, bytes), first))
    }
}
