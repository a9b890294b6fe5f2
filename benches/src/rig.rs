//! The hardware of a row: queue pairs of the null device, set up alike for every contender.

use crate::counted::{Account, Counted};
use crate::null::{Inbox, NullCq, NullQp, RING_SLOTS, Wire};
use crate::workload::{CQ, DEPTH, DEVICE, OUTSTANDING, RAILS};
use std::rc::Rc;

/// Queue pairs that complete on one queue.
#[derive(Debug)]
pub struct Rig<Q = NullQp, C = NullCq> {
    /// Data queue pairs.
    pub rails: Vec<Q>,
    /// SPRAY's notify queue pair.
    pub notify: Option<Q>,
    /// Where all of them complete.
    pub cq: C,
    /// Where messages for the data queue pairs arrive, if they take receives.
    pub inboxes: Vec<Rc<Inbox>>,
    /// What makes them arrive.
    pub wire: Wire,
}

impl Rig {
    fn new(rails: u32, max_send_wr: u32, max_recv_wr: u32, notify: bool) -> Self {
        let entries = (rails + u32::from(notify)) * (max_send_wr + max_recv_wr);
        let cq = NullCq::new(CQ, DEVICE, entries.next_power_of_two());
        let make = |qp_num| cq.queue_pair(qp_num, max_send_wr, max_recv_wr);
        let rails: Vec<_> = (1..=rails).map(make).collect();
        let notify = notify.then(|| make(rails.len() as u32 + 1));
        let inboxes = rails.iter().filter_map(NullQp::inbox).collect();
        let wire = cq.wire();
        Self { rails, notify, cq, inboxes, wire }
    }

    /// One queue pair.
    pub fn single() -> Self {
        Self::new(1, RING_SLOTS as u32, 0, false)
    }

    /// `RAILS` queue pairs that send and receive.
    pub fn striped() -> Self {
        Self::new(RAILS as u32, DEPTH as u32, DEPTH as u32, false)
    }

    /// The same, and a notify queue pair.
    pub fn striped_with_notify() -> Self {
        Self::new(RAILS as u32, DEPTH as u32, DEPTH as u32, true)
    }

    /// `count` queue pairs, each of which takes a whole burst.
    pub fn many(count: usize) -> Self {
        Self::new(count as u32, OUTSTANDING as u32, 0, false)
    }

    /// The same, with its work counted.
    pub fn counted(self, account: &Account) -> Rig<Counted<NullQp>, Counted<NullCq>> {
        Rig {
            rails: self.rails.into_iter().map(|qp| account.of(qp)).collect(),
            notify: self.notify.map(|qp| account.of(qp)),
            cq: account.of(self.cq),
            inboxes: self.inboxes,
            wire: self.wire,
        }
    }
}
