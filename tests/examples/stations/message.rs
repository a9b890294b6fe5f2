//! One message, from `irecv` and `isend` until both ends are done with it.
//!
//! Two rails, and a message that is long enough for both of them.

use crate::backend::{DEPTH, Loopback};
use crate::watched::{irecv, isend, poll, test_recv, test_send};
use polyrail_core::hardware::CqId;
use polyrail_core::p2p::{
    Pool, Receiver, ReceiverConfig, RecvBuffer, Region, Sender, SenderConfig,
};
use polyrail_core::verbs::{DeviceId, DeviceKeys, LocalBuffer};
use polyrail_core::virtual_cq::VirtualCq;
use std::sync::atomic::AtomicU64;

const BYTES: u32 = 256 << 10;
const WORDS: usize = BYTES as usize / 8;

/// The device of each end, for both rails.
const NEAR: DeviceId = DeviceId(0);
const FAR: DeviceId = DeviceId(1);

#[repr(align(64))]
struct Words([AtomicU64; WORDS]);

/// Memory of a device, its keys there, and the whole of it as a buffer.
fn memory(
    loopback: &Loopback<'static>,
    device: DeviceId,
) -> (&'static [AtomicU64], [DeviceKeys; 1], LocalBuffer) {
    let words = &Box::leak(Box::new(Words([const { AtomicU64::new(0) }; WORDS]))).0;
    let key = loopback.register(words);
    // SAFETY: the words stay to the end, and the device alone uses them meanwhile.
    let buffer = unsafe { LocalBuffer::new(words.as_ptr().addr() as u64, BYTES) };
    (words, [DeviceKeys { device, lkey: key, rkey: key }], buffer)
}

fn region(loopback: &Loopback<'static>, device: DeviceId) -> Region<&'static [AtomicU64]> {
    let (words, keys, _) = memory(loopback, device);
    // SAFETY: as above.
    unsafe { Region::new(words, keys) }.expect("keys of one device")
}

pub(crate) fn run() {
    let loopback = Loopback::default();
    let (near_rails, far_rails): (Vec<_>, Vec<_>) =
        (0..2).map(|_| <(_, _)>::from(loopback.connect([NEAR, FAR]))).unzip();
    let mut near_cq = VirtualCq::<_, 1, 4>::new([loopback.cq(NEAR)]).expect("room for one");
    let mut far_cq = VirtualCq::<_, 1, 4>::new([loopback.cq(FAR)]).expect("room for one");

    let config = SenderConfig { rails: 2, ..SenderConfig::default() };
    let ring = region(&loopback, NEAR);
    let mut sender = Sender::<_, _, 2, 64, 8>::new(config, near_rails, ring).expect("it fits");

    let capacity = DEPTH as u32;
    far_cq.set_aside(CqId(u64::from(FAR.0)), capacity).expect("a deep completion queue");
    let account = Pool::new(FAR, capacity).open(loopback.srq(FAR), capacity).expect("it fits");
    let config = ReceiverConfig { rails: 2, ..ReceiverConfig::default() };
    let records = region(&loopback, FAR);
    let mut receiver =
        Receiver::<_, _, _, 2, 64, 8>::new(config, far_rails, [], [account], records)
            .expect("it fits");

    sender.connect(&receiver.card()).expect("both ends fit");
    receiver.connect(&sender.card()).expect("both ends fit");
    near_cq.attach(0, &sender).expect("a deep completion queue");
    far_cq.attach(0, &receiver).expect("a deep completion queue");
    // The first poll looks at what was attached, too.
    assert_eq!(near_cq.poll(&mut sender, 1, |_| {}).events, 0);
    assert_eq!(far_cq.poll(&mut receiver, 1, |_| {}).events, 0);

    let (_, target_keys, target) = memory(&loopback, FAR);
    let (_, source_keys, source) = memory(&loopback, NEAR);
    let recv = irecv(&mut receiver, RecvBuffer { local: target, tag: 7, keys: &target_keys });
    let send = isend(&mut sender, source, 7, &source_keys);
    while !test_send(&mut sender, send) {
        assert_eq!(poll(&mut near_cq, &mut sender), None, "messages have no reports");
    }
    let size = loop {
        assert_eq!(poll(&mut far_cq, &mut receiver), None, "messages have no reports");
        if let Some(size) = test_recv(&mut receiver, recv) {
            break size;
        }
    };
    assert_eq!(size, BYTES);
}
