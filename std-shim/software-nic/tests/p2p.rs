//! The engine's p2p protocol over these devices: two ends over two rails, one of which loses its
//! link.

use polyrail_core::hardware::{CompletionQueue as _, QueuePair as _};
use polyrail_core::p2p::{
    Pool, Receiver, ReceiverConfig, RecvBuffer, Region, Sender, SenderConfig,
};
use polyrail_core::verbs::{AccessFlags, DeviceKeys, LocalBuffer};
use polyrail_core::virtual_cq::VirtualCq;
use polyrail_core::virtual_qp::RailState;
use polyrail_software_nic::{
    CompletionQueue, ConnectOptions, DeviceConfig, Fabric, Fault, MemoryRegion, Pages,
    ProtectionDomain, QpCap, QpInit, QueuePair, SharedReceiveQueue, When, connect_pair,
};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

type Near = Sender<QueuePair, &'static [AtomicU64], 2, 64, 8>;
type Far = Receiver<QueuePair, SharedReceiveQueue, &'static [AtomicU64], 2, 64, 8>;

const BYTES: u32 = 1 << 18;

/// The devices of one end.
struct Side {
    domains: [ProtectionDomain; 2],
    cqs: Vec<CompletionQueue>,
    regions: Vec<MemoryRegion>,
}

impl Side {
    fn new(fabric: &Fabric, name: &str) -> Self {
        let device = |rail| fabric.create_device(DeviceConfig::named(format!("{name}{rail}")));
        let domains = [0, 1].map(|rail| device(rail).alloc_pd().unwrap());
        let cqs = domains.iter().map(|domain| domain.device().create_cq(512).unwrap()).collect();
        Self { domains, cqs, regions: Vec::new() }
    }

    /// Words that both devices reach, with their keys.
    fn words(&mut self, count: usize) -> Region<&'static [AtomicU64]> {
        let words: Vec<_> = (0..count + 7).map(|_| AtomicU64::new(0)).collect();
        let words = words.leak();
        let words = &words[words.as_ptr().addr().wrapping_neg() % 64 / 8..][..count];
        let start = words.as_ptr().cast_mut().cast();
        let keys = self.domains.each_ref().map(|domain| {
            // SAFETY: the words stay, and are atomics.
            let region = unsafe { domain.register(start, count * 8, access()) }.unwrap();
            let keys = device_keys(domain, &region);
            self.regions.push(region);
            keys
        });
        // SAFETY: they are registered for as long as this side is there.
        unsafe { Region::new(words, keys) }.unwrap()
    }

    fn pages(&mut self) -> (Arc<Pages>, [DeviceKeys; 2]) {
        let pages = Arc::new(Pages::new(BYTES as usize).unwrap());
        let keys = self.domains.each_ref().map(|domain| {
            let region = domain.register_pages(&pages, access()).unwrap();
            let keys = device_keys(domain, &region);
            self.regions.push(region);
            keys
        });
        (pages, keys)
    }
}

fn access() -> AccessFlags {
    AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ
}

fn device_keys(domain: &ProtectionDomain, region: &MemoryRegion) -> DeviceKeys {
    DeviceKeys { device: domain.device().id(), lkey: region.lkey(), rkey: region.rkey() }
}

struct Ends {
    sender: Near,
    receiver: Far,
    near_cq: VirtualCq<CompletionQueue, 2, 8>,
    far_cq: VirtualCq<CompletionQueue, 2, 8>,
}

impl Ends {
    fn new(near: &mut Side, far: &mut Side) -> Self {
        let options = ConnectOptions { retry_cnt: 1, timeout: 8, ..ConnectOptions::default() };
        let (mut left, mut right, mut accounts) = (Vec::new(), Vec::new(), Vec::new());
        for rail in 0..2 {
            let srq = far.domains[rail].create_srq(64, 0).unwrap();
            let init = QpInit::new(&near.cqs[rail], QpCap::default());
            let here = near.domains[rail].create_qp(&init).unwrap();
            let init = QpInit { srq: Some(&srq), ..QpInit::new(&far.cqs[rail], QpCap::default()) };
            let there = far.domains[rail].create_qp(&init).unwrap();
            connect_pair(&here, &there, &options).unwrap();
            assert_eq!(there.limits().max_recv_wr, 0);
            left.push(here);
            right.push(there);
            accounts.push(Pool::new(far.cqs[rail].device(), 64).open(srq, 64).unwrap());
        }
        let config = SenderConfig { rails: 2, reroutes: true, ..SenderConfig::default() };
        let mut sender = Near::new(config, left, near.words(Near::REGION_WORDS)).unwrap();
        let config = ReceiverConfig { rails: 2, reroutes: true, ..ReceiverConfig::default() };
        let records = far.words(Far::REGION_WORDS);
        let mut receiver = Far::new(config, right, [], accounts, records).unwrap();
        sender.connect(&receiver.card()).unwrap();
        receiver.connect(&sender.card()).unwrap();
        let mut near_cq = VirtualCq::new(near.cqs.drain(..)).unwrap();
        let mut far_cq = VirtualCq::new(far.cqs.drain(..)).unwrap();
        near_cq.attach(0, &sender).unwrap();
        for cq in [0, 1].map(|rail: usize| far_cq.cqs()[rail].id()) {
            far_cq.set_aside(cq, 64).unwrap();
        }
        far_cq.attach(0, &receiver).unwrap();
        Self { sender, receiver, near_cq, far_cq }
    }

    fn poll(&mut self) {
        let near = self.near_cq.poll(&mut self.sender, 64, |event| panic!("{event:?}"));
        let far = self.far_cq.poll(&mut self.receiver, 64, |event| panic!("{event:?}"));
        assert_eq!((near.error, far.error), (None, None));
        while let Some(control) = self.sender.next_control() {
            self.receiver.control(control).unwrap();
        }
        while let Some(control) = self.receiver.next_control() {
            self.sender.control(control).unwrap();
        }
    }
}

#[test]
fn messages_survive_the_loss_of_a_link() {
    let fabric = Fabric::threaded();
    let (mut near, mut far) = (Side::new(&fabric, "near"), Side::new(&fabric, "far"));
    let mut ends = Ends::new(&mut near, &mut far);
    let (source, source_keys) = near.pages();
    let (target, target_keys) = far.pages();
    let at = |pages: &Pages, offset: u32, length| -> LocalBuffer {
        pages.local(offset as usize, length).unwrap()
    };
    let mut bytes = vec![0; BYTES as usize];
    for round in 0..40_u32 {
        let length = [1, 1000, BYTES / 2, BYTES / 2 - 77][round as usize % 4];
        let numbers = (round..).map(|number| (number * 7) as u8);
        bytes.iter_mut().zip(numbers).for_each(|(byte, number)| *byte = number);
        source.span(0, BYTES as usize).write(&bytes);
        let half = BYTES / 2;
        let offered = [0, half].map(|offset| {
            let local = at(&target, offset, half);
            RecvBuffer { local, tag: offset, keys: &target_keys }
        });
        let count = 1 + round as usize / 4 % 2;
        let recv = ends.receiver.irecv(&offered[..count]).unwrap();
        if round == 20 {
            near.domains[1].device().inject(When::Now, Fault::LinkDown);
        }
        let mut sends = Vec::new();
        while sends.len() < count {
            let tag = sends.len() as u32 * half;
            match ends.sender.isend(at(&source, tag, length), tag, &source_keys) {
                Ok(send) => sends.push(send),
                Err(error) => assert!(error.is_not_now(), "{error}"),
            }
            ends.poll();
        }
        let received = loop {
            ends.poll();
            if let Some(received) = ends.receiver.test(recv).unwrap() {
                break received;
            }
            std::thread::sleep(Duration::from_micros(10));
        };
        assert_eq!(received.sizes(), [length, length][..count].to_vec());
        for send in sends {
            while !ends.sender.test(send).unwrap() {
                ends.poll();
            }
        }
        let mut found = vec![0; length as usize];
        for offset in [0, half as usize].into_iter().take(count) {
            target.span(offset, length as usize).read(&mut found);
            assert_eq!(found, bytes[offset..offset + length as usize], "round {round}");
        }
    }
    assert_eq!(ends.sender.queue_pair_state(1), Some((RailState::Down, 0)));
    assert_eq!(ends.receiver.queue_pair_state(1), Some((RailState::Down, 0)));
    assert_eq!((ends.sender.failure(), ends.receiver.failure()), (None, None));
    ends.sender.invariants();
    ends.receiver.invariants();
}
