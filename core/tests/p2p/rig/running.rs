//! Both ends poll and exchange their messages until nothing happens any more; what must
//! hold then.

use super::{Connection, Rig};
use polyrail_core::p2p::{Account, ConnectionEnd};
use polyrail_core::virtual_cq::CompletionTarget;

impl Rig {
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
}
