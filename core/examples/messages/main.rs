//! Messages from one end to the other, over two rails in turn: a receive offers a buffer, a send
//! fills it.
//!
//! ```text
//! cargo run -p polyrail-core --example messages
//! ```
//!
//! `backend` stands for the NICs.

mod backend;

use backend::{Loopback, LoopbackCq, LoopbackQp, LoopbackSrq};
use polyrail_core::hardware::CqId;
use polyrail_core::p2p::{
    Account, Pool, Receiver, ReceiverConfig, RecvBuffer, Region, Sender, SenderConfig,
};
use polyrail_core::verbs::{DeviceId, DeviceKeys, LocalBuffer};
use polyrail_core::virtual_cq::VirtualCq;
use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};

/// Each rail has a device of its own at either end.
const NEAR: [DeviceId; 2] = [DeviceId(0), DeviceId(1)];
const FAR: [DeviceId; 2] = [DeviceId(2), DeviceId(3)];

/// Room for 2 queue pairs, 64 requests on each, 8 messages under way.
type Left<'l, 'm> = Sender<LoopbackQp<'l, 'm>, &'m [AtomicU64], 2, 64, 8>;
type Right<'l, 'm> = Receiver<LoopbackQp<'l, 'm>, LoopbackSrq<'l, 'm>, &'m [AtomicU64], 2, 64, 8>;

const WORDS: usize = 1 << 16;

/// Words, aligned to 64 bytes.
fn words(count: usize) -> &'static [AtomicU64] {
    let words: Vec<_> = (0..count + 7).map(|_| AtomicU64::new(0)).collect();
    let words = words.leak();
    &words[words.as_ptr().addr().wrapping_neg() % 64 / 8..][..count]
}

/// The same key everywhere.
fn keys(devices: [DeviceId; 2], key: u32) -> [DeviceKeys; 2] {
    devices.map(|device| DeviceKeys { device, lkey: key, rkey: key })
}

fn region<'m>(
    loopback: &Loopback<'m>,
    devices: [DeviceId; 2],
    count: usize,
) -> Result<Region<&'m [AtomicU64]>, Box<dyn Error>> {
    let words = words(count);
    let key = loopback.register(words);
    // SAFETY: the words stay for as long as the process runs, and nobody else has them.
    Ok(unsafe { Region::new(words, keys(devices, key)) }?)
}

/// The accounts of one connection, of the pool of each device.
fn accounts<'l, 'm>(
    loopback: &'l Loopback<'m>,
    cq: &mut VirtualCq<LoopbackCq<'l, 'm>, 2, 8>,
) -> Result<Vec<Account<LoopbackSrq<'l, 'm>>>, Box<dyn Error>> {
    let mut accounts = Vec::new();
    for device in FAR {
        // What the shared receive queue holds, and the completion queue has room for.
        let capacity = backend::DEPTH as u32;
        cq.set_aside(CqId(u64::from(device.0)), capacity)?;
        let mut pool = Pool::new(device, capacity);
        accounts.push(pool.open(loopback.srq(device), capacity)?);
    }
    Ok(accounts)
}

fn main() -> Result<(), Box<dyn Error>> {
    let source = words(WORDS);
    let target = words(WORDS);
    let loopback = Loopback::default();
    let (near_key, far_key) = (loopback.register(source), loopback.register(target));
    let mut near_cq = VirtualCq::<_, 2, 8>::new(NEAR.map(|device| loopback.cq(device)))?;
    let mut far_cq = VirtualCq::<_, 2, 8>::new(FAR.map(|device| loopback.cq(device)))?;

    // Two ends over two rails, which know each other's cards.
    let (mut near_rails, mut far_rails) = (Vec::new(), Vec::new());
    for devices in NEAR.into_iter().zip(FAR) {
        let [near, far] = loopback.connect(devices.into());
        near_rails.push(near);
        far_rails.push(far);
    }
    let config = SenderConfig { rails: 2, ..SenderConfig::default() };
    let ring = region(&loopback, NEAR, Left::REGION_WORDS)?;
    let mut sender = Left::new(config, near_rails, ring)?;
    let config = ReceiverConfig { rails: 2, ..ReceiverConfig::default() };
    let records = region(&loopback, FAR, Right::REGION_WORDS)?;
    let accounts = accounts(&loopback, &mut far_cq)?;
    let mut receiver = Right::new(config, far_rails, [], accounts, records)?;
    sender.connect(&receiver.card())?;
    receiver.connect(&sender.card())?;
    near_cq.attach(0, &sender)?;
    far_cq.attach(0, &receiver)?;

    source.iter().zip(1..).for_each(|(word, number)| word.store(number, Ordering::Relaxed));
    for bytes in [8, 1000, 64 << 10, WORDS as u32 * 8] {
        // SAFETY: both stay, and nobody looks at them before the requests are done.
        let buffer = |words: &[AtomicU64], length| unsafe {
            LocalBuffer::new(words.as_ptr().addr() as u64, length)
        };
        let keys = [keys(NEAR, near_key), keys(FAR, far_key)];
        let offered = RecvBuffer { local: buffer(target, 1 << 19), tag: 7, keys: &keys[1] };
        let recv = receiver.irecv(&[offered])?;
        let send = sender.isend(buffer(source, bytes), 7, &keys[0])?;
        let received = loop {
            let polled = far_cq.poll(&mut receiver, 32, |_| {});
            polled.error.map_or(Ok(()), Err)?;
            if let Some(received) = receiver.test(recv)? {
                break received;
            }
        };
        while !sender.test(send)? {
            let polled = near_cq.poll(&mut sender, 32, |_| {});
            polled.error.map_or(Ok(()), Err)?;
        }
        println!("message {} of {:?} bytes", received.number(), received.sizes());
        assert_eq!(received.sizes(), [bytes]);
    }
    let equal = |(from, to): (&AtomicU64, &AtomicU64)| {
        from.load(Ordering::Relaxed) == to.load(Ordering::Relaxed)
    };
    assert!(source.iter().zip(target).all(equal), "what arrived is what was sent");
    Ok(())
}
