//! Two ends of connections on test devices.

use crate::device::{Block, Fabric, TestCq, TestQp, TestSrq};
use polyrail_core::hardware::{CqId, QpLimits, QueuePair as _};
use polyrail_core::p2p::{
    Account, BuildError, CallError, CardError, Pool, Received, Receiver, ReceiverCard,
    ReceiverConfig, RecvBuffer, RecvHandle, Region, SendHandle, Sender, SenderConfig,
};
use polyrail_core::verbs::{DeviceId, DeviceKeys, LocalBuffer, SendRequest};
use polyrail_core::virtual_cq::{AttachError, CompletionTarget, Event, VirtualCq};
use polyrail_core::virtual_qp::RailState;
use std::ops::{Deref, Range};
use std::rc::Rc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

pub(crate) const QPS: usize = 16;
pub(crate) const DEPTH: usize = 32;
pub(crate) const SLOTS: usize = 8;

/// Words, aligned to 64 bytes.
pub(crate) struct Aligned {
    words: Rc<[AtomicU64]>,
    range: Range<usize>,
}

impl Aligned {
    fn new(count: usize) -> Self {
        let words: Rc<[AtomicU64]> = (0..count + 7).map(|_| AtomicU64::new(0)).collect();
        let skip = words.as_ptr().addr().wrapping_neg() % 64 / 8;
        Self { words, range: skip..skip + count }
    }

    fn block(&self) -> Block {
        Block::Words(Rc::clone(&self.words))
    }
}

impl Deref for Aligned {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        &self.words[self.range.clone()]
    }
}

// SAFETY: the words are where they are, whoever has the handle.
unsafe impl stable_deref_trait::StableDeref for Aligned {}

pub(crate) type TestSender = Sender<TestQp, Aligned, QPS, DEPTH, SLOTS>;
pub(crate) type TestReceiver = Receiver<TestQp, TestSrq, Aligned, QPS, DEPTH, SLOTS>;
pub(crate) type Cq = VirtualCq<TestCq, 8, 64>;

/// What a test may choose.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) rails: u8,
    /// Queue pairs of each rail.
    pub(crate) each: usize,
    /// Rails are on so many devices, in turn.
    pub(crate) devices: u8,
    pub(crate) max_msg_size: u32,
    pub(crate) max_send_wr: u32,
    pub(crate) max_inline_data: u32,
    /// Receives that each account may have posted.
    pub(crate) limit: u32,
    pub(crate) sender: SenderConfig,
    /// Connections on the same pools.
    pub(crate) connections: usize,
    pub(crate) flushes: bool,
    pub(crate) reroutes: bool,
}

impl Setup {
    pub(crate) fn rails(rails: u8) -> Self {
        Self {
            rails,
            each: 1,
            devices: rails,
            max_msg_size: 1 << 20,
            max_send_wr: DEPTH as u32,
            max_inline_data: 64,
            limit: 1024,
            reroutes: false,
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
    /// Completions that nobody wanted: at the sender's, at the receiver's.
    pub(crate) foreign: [Vec<Event>; 2],
}

/// Devices of the receiver's are numbered from here.
const FAR: u32 = 100;

/// Memory with the keys of one end's devices.
#[derive(Clone)]
pub(crate) struct Memory {
    pub(crate) block: Block,
    pub(crate) keys: Vec<DeviceKeys>,
}

impl Memory {
    pub(crate) fn local(&self, offset: u32, length: u32) -> LocalBuffer {
        // SAFETY: the fabric keeps the memory, of atomics.
        unsafe { LocalBuffer::new(self.block.addr() + u64::from(offset), length) }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let Block::Bytes(bytes) = &self.block else { panic!("no bytes") };
        bytes.iter().map(|byte| byte.load(Ordering::Relaxed)).collect()
    }

    pub(crate) fn fill(&self, byte: impl Fn(usize) -> u8) {
        let Block::Bytes(bytes) = &self.block else { panic!("no bytes") };
        bytes.iter().enumerate().for_each(|(at, place)| place.store(byte(at), Ordering::Relaxed));
    }
}

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
        let limits = QpLimits {
            max_send_wr: setup.max_send_wr,
            max_recv_wr: 0,
            max_inline_data: setup.max_inline_data,
            max_msg_size: setup.max_msg_size,
            max_send_sge: 1,
            max_recv_sge: 0,
        };
        let fabric = &self.fabric;
        let (mut left, mut right, mut flushes) = (Vec::new(), Vec::new(), Vec::new());
        for place in 0..usize::from(setup.rails) * setup.each {
            let device = place % usize::from(setup.rails) % usize::from(setup.devices);
            let near = fabric.qp(&near_cqs[device], None, limits);
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
        let config = ReceiverConfig { virtual_qp_num: number, rails, reroutes, min_rails };
        let mut receiver =
            TestReceiver::new(config, right, flushes, accounts, records).expect("a good receiver");
        sender.connect(&receiver.card()).expect("the ends fit");
        receiver.connect(&sender.card()).expect("the ends fit");
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

    /// Memory of both that nobody looks at.
    pub(crate) fn phantoms(&self, bytes: u64) -> [Memory; 2] {
        [0, FAR].map(|first| self.memory(Block::Phantom(1 << 40, bytes), first))
    }

    pub(crate) fn poll_near(&mut self) {
        let mut targets: Vec<&mut dyn CompletionTarget> = Vec::new();
        for connection in &mut self.connections {
            targets.push(&mut connection.sender);
        }
        let foreign = &mut self.foreign[0];
        let polled = self.near_cq.poll(&mut targets[..], usize::MAX, |event| foreign.push(event));
        assert_eq!(polled.error, None);
        self.invariants();
    }

    pub(crate) fn poll_far(&mut self) {
        let mut targets: Vec<&mut dyn CompletionTarget> = Vec::new();
        for connection in &mut self.connections {
            targets.push(&mut connection.receiver);
        }
        let foreign = &mut self.foreign[1];
        let polled = self.far_cq.poll(&mut targets[..], usize::MAX, |event| foreign.push(event));
        assert_eq!(polled.error, None);
        self.invariants();
    }

    pub(crate) fn poll(&mut self) {
        self.poll_near();
        self.poll_far();
    }

    /// Carries every control message there is, both ways.
    pub(crate) fn carry(&mut self) {
        for Connection { sender, receiver, .. } in &mut self.connections {
            loop {
                let there = sender.next_control();
                if let Some(control) = there {
                    receiver.control(control).expect("a correct peer");
                }
                let back = receiver.next_control();
                if let Some(control) = back {
                    sender.control(control).expect("a correct peer");
                }
                if there.is_none() && back.is_none() {
                    break;
                }
            }
        }
    }

    /// Puts a new pair of queue pairs in a place that is Down at both ends, on this device of each.
    pub(crate) fn replace(&mut self, place: usize, device: usize) {
        let pair = self.new_pair(device);
        self.put(place, device, pair);
    }

    /// Two queue pairs that are connected, on this device of each end.
    pub(crate) fn new_pair(&self, device: usize) -> (TestQp, TestQp) {
        let limits = QpLimits {
            max_send_wr: self.setup.max_send_wr,
            max_recv_wr: 0,
            max_inline_data: self.setup.max_inline_data,
            max_msg_size: self.setup.max_msg_size,
            max_send_sge: 1,
            max_recv_sge: 0,
        };
        let near = self.fabric.qp(&self.near_cq.cqs()[device].clone(), None, limits);
        let far_cq = self.far_cq.cqs()[device].clone();
        let far = self.fabric.qp(&far_cq, Some(&self.srqs[device]), limits);
        self.fabric.connect(&near, &far);
        (near, far)
    }

    /// Puts them in a place that is Down at both ends.
    pub(crate) fn put(&mut self, place: usize, device: usize, (near, far): (TestQp, TestQp)) {
        let connection = &mut self.connections[0];
        (connection.near[place], connection.far[place]) = (near.at, far.at);
        let (_, generation) = connection.sender.queue_pair_state(place).expect("a place");
        let cq = (&mut self.near_cq, 0);
        let device = device as u8;
        let old = connection.sender.replace_queue_pair(cq, place, generation + 1, near, device);
        assert!(old.is_ok(), "{}", old.err().expect("an error").error);
        let cq = (&mut self.far_cq, 0);
        let old = connection.receiver.replace_queue_pair(cq, place, generation + 1, far, device);
        assert!(old.is_ok(), "{}", old.err().expect("an error").error);
    }

    /// The receiver's device at this place of its list.
    pub(crate) fn device(&self, at: usize) -> DeviceId {
        self.connections[0].receiver.devices()[at]
    }

    /// A device of the receiver's dies with all completions that were not taken, and is there again, with a
    /// new shared receive queue.
    pub(crate) fn lose_device(&mut self, at: usize) {
        let cq = self.far_cq.cqs()[at].at;
        self.fabric.lose_completions(cq);
        let connection = &mut self.connections[0];
        for place in 0..connection.far.len() {
            let is_on_it = connection.receiver.queue_pairs().nth(place).expect("a place").device();
            if is_on_it == connection.receiver.devices()[at] {
                self.fabric.kill(connection.far[place]);
                // SAFETY: it executes nothing more.
                unsafe { assert!(connection.receiver.lose_queue_pair(place)) };
            }
        }
        let (limit, device) = (self.setup.limit, connection.receiver.devices()[at]);
        self.srqs[at] = self.fabric.srq(limit);
        self.pools[at] = Pool::new(device, limit);
        let account = self.pools[at].open(self.srqs[at].clone(), limit).expect("all of it");
        let old = connection.receiver.replace_account(account);
        assert!(old.is_ok(), "nobody uses it");
    }

    /// Whether a place is Down at both ends, in one generation.
    pub(crate) fn is_down(&self, place: usize) -> bool {
        let Connection { sender, receiver, .. } = &self.connections[0];
        let near = sender.queue_pair_state(place).expect("a place");
        near.0 == RailState::Down && receiver.queue_pair_state(place) == Some(near)
    }

    /// Runs, polls and carries messages until nothing happens any more.
    pub(crate) fn recover(&mut self) {
        for _ in 0..8 {
            self.settle();
            self.carry();
        }
    }

    /// Runs and polls until nothing happens any more.
    pub(crate) fn settle(&mut self) {
        let mut idle = 0;
        while idle < 3 {
            idle = if self.fabric.run() { 0 } else { idle + 1 };
            self.poll();
        }
    }

    /// What must hold after every step: above all, the pool's rule.
    pub(crate) fn invariants(&self) {
        for connection in &self.connections {
            connection.sender.invariants();
            connection.receiver.invariants();
        }
        if !self.counts_pools {
            return;
        }
        for (at, (pool, srq)) in self.pools.iter().zip(&self.srqs).enumerate() {
            let accounts = self.connections.iter();
            let accounts = accounts.filter_map(|connection| connection.receiver.accounts().nth(at));
            let counted: i64 = accounts.map(Account::posted).sum::<i64>() + pool.unowned();
            let cq = self.far_cq.cqs()[at].at;
            let there = self.fabric.receives(srq.at) + self.fabric.untaken_receives(cq);
            assert_eq!(counted, i64::from(there), "the count is the NIC's and what is untaken");
        }
    }

    // Of the first connection, which is the only one in most tests.

    pub(crate) fn sender(&mut self) -> &mut TestSender {
        &mut self.connections[0].sender
    }

    pub(crate) fn receiver(&mut self) -> &mut TestReceiver {
        &mut self.connections[0].receiver
    }

    pub(crate) fn near(&self, place: usize) -> usize {
        self.connections[0].near[place]
    }

    pub(crate) fn far(&self, place: usize) -> usize {
        self.connections[0].far[place]
    }

    pub(crate) fn try_irecv(
        &mut self,
        buffers: &[(&Memory, u32, u32, u32)],
    ) -> Result<RecvHandle, CallError> {
        irecv(&mut self.connections[0].receiver, buffers)
    }

    /// Offers all of one memory, with tag 0.
    pub(crate) fn irecv(&mut self, target: &Memory, length: u32) -> RecvHandle {
        self.try_irecv(&[(target, 0, length, 0)]).expect("there is room")
    }

    pub(crate) fn try_isend(
        &mut self,
        source: &Memory,
        length: u32,
        tag: u32,
    ) -> Result<SendHandle, CallError> {
        self.sender().isend(source.local(0, length), tag, &source.keys)
    }

    pub(crate) fn isend(&mut self, source: &Memory, length: u32) -> SendHandle {
        self.try_isend(source, length, 0).expect("there is room")
    }

    pub(crate) fn sent(&mut self, handle: SendHandle) -> bool {
        self.sender().test(handle).expect("it works")
    }

    pub(crate) fn received(&mut self, handle: RecvHandle) -> Option<Received> {
        self.receiver().test(handle).expect("it works")
    }

    /// Sends a message of one buffer and returns what the receiver learned of it.
    pub(crate) fn message(
        &mut self,
        source: &Memory,
        target: &Memory,
        length: u32,
        room: u32,
    ) -> u32 {
        let recv = self.irecv(target, room);
        self.settle();
        let send = self.isend(source, length);
        self.settle();
        assert!(self.sent(send));
        let received = self.received(recv).expect("it arrived");
        assert_eq!(received.number(), send.number());
        received.sizes()[0]
    }

    /// Requests executed since the last call, of the data queue pairs: place and request.
    pub(crate) fn take_data(&mut self) -> Vec<(usize, SendRequest)> {
        let near = &self.connections[0].near;
        let place = |at| near.iter().position(|other| *other == at);
        let log = self.fabric.take_log();
        log.into_iter().filter_map(|(at, request)| Some((place(at)?, request))).collect()
    }
}

/// What is wrong with the choices for a sender.
pub(crate) fn build_error(setup: &Setup) -> Option<BuildError> {
    lone_sender(setup).err()
}

/// What is wrong with a card, to a sender.
pub(crate) fn connect_error(setup: &Setup, card: &ReceiverCard) -> Option<CardError> {
    lone_sender(setup).expect("a good sender").connect(card).err()
}

fn lone_sender(setup: &Setup) -> Result<TestSender, BuildError> {
    let fabric = Fabric::default();
    let limits = QpLimits {
        max_send_wr: setup.max_send_wr,
        max_recv_wr: 0,
        max_inline_data: setup.max_inline_data,
        max_msg_size: setup.max_msg_size,
        max_send_sge: 1,
        max_recv_sge: 0,
    };
    let queue_pairs = (0..u32::from(setup.rails)).map(|device| {
        let cq = fabric.cq(device, 1024);
        fabric.qp(&cq, None, limits)
    });
    let ring = Aligned::new(TestSender::REGION_WORDS);
    let keys = (0..u32::from(setup.rails)).map(DeviceId);
    let keys = keys.map(|device| DeviceKeys { device, lkey: 1, rkey: 1 });
    // SAFETY: nothing is posted.
    let ring = unsafe { Region::new(ring, keys) }.expect("few devices");
    let config = SenderConfig { reroutes: setup.reroutes, ..setup.sender };
    TestSender::new(config, queue_pairs, ring)
}

/// Offers buffers: memory, offset, length and tag of each.
pub(crate) fn irecv(
    receiver: &mut TestReceiver,
    buffers: &[(&Memory, u32, u32, u32)],
) -> Result<RecvHandle, CallError> {
    let buffers: Vec<_> = buffers
        .iter()
        .map(|(memory, offset, length, tag)| RecvBuffer {
            local: memory.local(*offset, *length),
            tag: *tag,
            keys: &memory.keys,
        })
        .collect();
    receiver.irecv(&buffers)
}
