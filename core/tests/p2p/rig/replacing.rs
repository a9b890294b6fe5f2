//! Queue pairs and devices that were lost, and new ones in their places.

use super::{Connection, Rig};
use crate::device::TestQp;
use polyrail_core::hardware::QueuePair as _;
use polyrail_core::p2p::{ConnectionEnd, Pool};
use polyrail_core::verbs::DeviceId;
use polyrail_core::virtual_qp::RailState;

impl Rig {
    /// Puts a new pair of queue pairs in a place that is Down at both ends, on this device of each.
    pub(crate) fn replace(&mut self, place: usize, device: usize) {
        let pair = self.new_pair(device);
        self.put(place, device, pair);
    }

    /// Two queue pairs that are connected, on this device of each end.
    pub(crate) fn new_pair(&self, device: usize) -> (TestQp, TestQp) {
        let limits = self.setup.limits();
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
        assert!(old.is_ok(), "{}", old.expect_err("an error").error);
        let cq = (&mut self.far_cq, 0);
        let old = connection.receiver.replace_queue_pair(cq, place, generation + 1, far, device);
        assert!(old.is_ok(), "{}", old.expect_err("an error").error);
    }

    /// The receiver's device at this place of its list.
    pub(crate) fn device(&self, at: usize) -> DeviceId {
        self.connections[0].receiver.devices()[at]
    }

    /// A device of the receiver's dies with all completions that were not taken, and is there
    /// again, with a new shared receive queue.
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
}
