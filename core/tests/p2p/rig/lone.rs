//! A sender without a peer, for choices and cards that it does not take.

use super::memory::Aligned;
use super::{Setup, TestSender};
use crate::device::Fabric;
use polyrail_core::p2p::{BuildError, CardError, ReceiverCard, Region, SenderConfig};
use polyrail_core::verbs::{DeviceId, DeviceKeys};

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
    let queue_pairs = (0..u32::from(setup.rails)).map(|device| {
        let cq = fabric.cq(device, 1024);
        fabric.qp(&cq, None, setup.limits())
    });
    let ring = Aligned::new(TestSender::REGION_WORDS);
    let keys = (0..u32::from(setup.rails)).map(DeviceId);
    let keys = keys.map(|device| DeviceKeys { device, lkey: 1, rkey: 1 });
    // SAFETY: nothing is posted.
    let ring = unsafe { Region::new(ring, keys) }.expect("few devices");
    let config = SenderConfig { reroutes: setup.reroutes, ..setup.sender };
    TestSender::new(config, queue_pairs, ring)
}
