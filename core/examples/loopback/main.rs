//! Two virtual queue pairs of two rails each, a WRITE_WITH_IMM from one to the other, and its
//! notification.
//!
//! ```text
//! cargo run -p polyrail-core --example loopback
//! ```
//!
//! `backend` is what a backend has to bring; its `devices` stand for the NICs.

mod backend;

use backend::{DEPTH, Loopback, LoopbackCq, LoopbackQp};
use polyrail_core::verbs::{DeviceId, DeviceKeys, LocalBuffer, RecvWr, SendWr};
use polyrail_core::virtual_cq::{VirtualCq, VirtualWc};
use polyrail_core::virtual_qp::{Config, RailId, VirtualQp};
use std::cell::Cell;
use std::error::Error;

/// Each rail has a device of its own at either end.
const RAILS: usize = 2;
const LEFT: [DeviceId; RAILS] = [DeviceId(0), DeviceId(1)];
const RIGHT: [DeviceId; RAILS] = [DeviceId(2), DeviceId(3)];

const BYTES: usize = 1 << 20;

/// One end: a virtual queue pair and the completion queue that reports for it.
///
/// The sizes are const parameters: rails, requests in flight on each of them, requests that are not
/// reported.
struct Side<'l, 'm> {
    qp: VirtualQp<LoopbackQp<'l, 'm>, RAILS, DEPTH, 16>,
    cq: VirtualCq<LoopbackCq<'l, 'm>, RAILS, 8>,
}

impl<'l, 'm> Side<'l, 'm> {
    fn new(
        loopback: &'l Loopback<'m>,
        devices: [DeviceId; RAILS],
        rails: Vec<LoopbackQp<'l, 'm>>,
        notify: LoopbackQp<'l, 'm>,
    ) -> Result<Self, Box<dyn Error>> {
        // With the scheme SPRAY, which is the default, notifications have a queue pair of their
        // own.
        let qp = VirtualQp::new(Config::default(), rails, Some(notify))?;
        let mut cq = VirtualCq::new(devices.map(|device| loopback.cq(device)))?;
        // From here on the virtual queue pair is the one with index 0.
        cq.attach(0, &qp)?;
        Ok(Self { qp, cq })
    }

    /// Polls once. A poll also does what completions make possible: it posts more fragments, and
    /// the notification when all data has arrived.
    fn poll(&mut self) -> Result<Option<VirtualWc>, Box<dyn Error>> {
        let mut reported = None;
        let polled = self.cq.poll(&mut self.qp, 1, |event| reported = event.completion());
        match polled.error {
            Some(error) => Err(error.into()),
            None => Ok(reported),
        }
    }
}

/// Both ends, with the i-th rail of one connected to the i-th rail of the other.
fn connect<'l, 'm>(loopback: &'l Loopback<'m>) -> Result<[Side<'l, 'm>; 2], Box<dyn Error>> {
    let wire = |left, right| loopback.connect([left, right]).ok_or("no more queue pairs");
    let mut left_rails = Vec::new();
    let mut right_rails = Vec::new();
    for (left, right) in LEFT.into_iter().zip(RIGHT) {
        let [left, right] = wire(left, right)?;
        left_rails.push(left);
        right_rails.push(right);
    }
    let [left, right] = wire(LEFT[0], RIGHT[0])?;
    Ok([
        Side::new(loopback, LEFT, left_rails, left)?,
        Side::new(loopback, RIGHT, right_rails, right)?,
    ])
}

fn main() -> Result<(), Box<dyn Error>> {
    let source: Vec<_> = (0..BYTES).map(|at| Cell::new(at as u8)).collect();
    let target = vec![Cell::new(0); BYTES];
    let loopback = Loopback::default();
    let lkey = loopback.register(&source).ok_or("no more regions")?;
    let rkey = loopback.register(&target).ok_or("no more regions")?;
    let [mut left, mut right] = connect(&loopback)?;

    // A receive without a buffer takes the notification of one WRITE_WITH_IMM.
    right.qp.post_recv(&RecvWr::notification(7))?;

    // SAFETY: `source` lives to the end, and nobody writes it.
    let local = unsafe { LocalBuffer::new(source.as_ptr().addr() as u64, BYTES as u32) };
    let keys = LEFT.map(|device| DeviceKeys { device, lkey, rkey });
    let remote_addr = target.as_ptr().addr() as u64;
    left.qp.post_send(&SendWr::write_with_imm(42, local, remote_addr, 4711, &keys))?;

    let sent = loop {
        if let Some(completion) = left.poll()? {
            break completion;
        }
    };
    let received = loop {
        if let Some(completion) = right.poll()? {
            break completion;
        }
    };
    println!("left:  {sent:?}");
    println!("right: {received:?}");
    for rail in [RailId::Data(0), RailId::Data(1), RailId::Notify] {
        println!("{rail:?}: {:?}", left.qp.counters(rail));
    }
    assert!(sent.status.is_success() && received.status.is_success());
    assert_eq!((sent.wr_id, received.wr_id, received.imm), (42, 7, Some(4711)));
    assert_eq!(source, target, "what arrived is what was sent");
    Ok(())
}
