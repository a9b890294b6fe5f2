//! Drivers refuse, queue pairs fail, owners give up, connections are replaced.

use super::World;
use super::connection::Connection;
use super::fabric::{SimSrq, device_at, device_id};
use crate::nic::EINVAL;
use polyrail_core::hardware::{CommitError, Refusal};
use polyrail_core::p2p::{Account, Pool};
use polyrail_core::verbs::WcStatus;

fn mood(accepted: u32, is_full: bool) -> CommitError {
    let refusal = if is_full { Refusal::QueueFull } else { Refusal::Driver(EINVAL) };
    CommitError { accepted, refusal }
}

/// Takes one of what is left. Returns whether there was one.
pub(super) fn spend(left: &mut u32) -> bool {
    let had = *left > 0;
    *left -= u32::from(had);
    had
}

impl<const DEPTH: usize, const SLOTS: usize> World<DEPTH, SLOTS> {
    /// The connection of a queue pair, if it was not replaced.
    fn connection_of(&mut self, at: usize) -> Option<&mut Connection<DEPTH, SLOTS>> {
        let id = self.nics.borrow().qps[at].name.connection;
        self.connections.iter_mut().find(|connection| connection.id == id)
    }

    pub(super) fn refuse_sends(&mut self, at: usize, taken: u32, is_full: bool) {
        if !spend(&mut self.left.refusals) {
            return;
        }
        self.nics.borrow_mut().qps[at].mood = Some(mood(taken, is_full));
        let connection = self.connection_of(at).filter(|_| !is_full);
        if let Some(connection) = connection {
            connection.note_failure(true);
        }
    }

    /// A shared receive queue does not take the next batches whole.
    pub(super) fn refuse_receives(
        &mut self,
        srq: usize,
        (taken, is_full): (u32, bool),
        count: u32,
    ) {
        if spend(&mut self.left.refusals) {
            self.nics.borrow_mut().srqs[srq].mood = Some((mood(taken, is_full), count));
        }
    }

    pub(super) fn fail(&mut self, at: usize, status: WcStatus) {
        let (is_unanswered, works) = {
            let nics = self.nics.borrow();
            (nics.is_unanswered(at), !nics.qps[at].in_error && !nics.qps[at].is_gone)
        };
        let is_due = is_unanswered && status == WcStatus::RETRY_EXC_ERR;
        if !works || !(is_due || spend(&mut self.left.failures)) {
            return;
        }
        self.nics.borrow_mut().fail(at, status);
        self.summary.failures += 1;
        let is_hard = matches!(status, WcStatus::FATAL_ERR | WcStatus::GENERAL_ERR);
        if let Some(connection) = self.connection_of(at) {
            connection.note_failure(is_hard);
        }
    }

    pub(super) fn take_receive(&mut self, at: usize) {
        let mut nics = self.nics.borrow_mut();
        if nics.can_take(at) {
            nics.take_receive(at);
        }
    }

    pub(super) fn keep_working(&mut self, at: usize) {
        if spend(&mut self.left.refusals) {
            self.nics.borrow_mut().qps[at].keeps_working = 3;
        }
    }

    pub(super) fn surrender(&mut self, at: usize, host: usize) {
        if spend(&mut self.left.surrenders) {
            self.connections[at].may_fail = true;
            self.connections[at].fail(host, false);
        }
    }

    /// An end receives the report that its peer has failed.
    pub(super) fn tell(&mut self, at: usize, host: usize) {
        let connection = &mut self.connections[at];
        if connection.has_failed_at(1 - host) && !connection.has_failed_at(host) {
            connection.may_fail = true;
            connection.fail(host, true);
        }
    }

    /// A connection that has failed is replaced; its owner need not wait until it has ended.
    pub(super) fn replace(&mut self, at: usize) {
        let is_dead = self.nics.borrow().is_dead.contains(&true);
        let may = self.shape.replaces && !is_dead && self.summary.replaced < 6;
        let connection = &self.connections[at];
        let has_failed = (0..2).all(|host| connection.has_failed_at(host));
        if may && has_failed && self.has_room(at) {
            self.summary.replaced += 1;
            self.close(at, true);
        }
    }

    /// Whether there are receives for another connection like this one, though what this one leaves
    /// is unsettled.
    fn has_room(&self, at: usize) -> bool {
        let connection = &self.connections[at];
        let pools = &self.hosts[1 - connection.line.from].pools;
        let has_room = |account: &Account<SimSrq>| {
            let pool = pools.iter().find(|pool| pool.device() == account.device());
            let left = pool.map_or(0, Pool::left);
            connection.stale == 0 && i64::from(left) >= account.posted()
        };
        connection.receiver.accounts().all(has_room)
    }

    /// A completion queue fails the next polls.
    pub(super) fn fail_polls(&mut self, host: usize, device: usize, count: u32) {
        if spend(&mut self.left.polls) {
            self.nics.borrow_mut().cqs[device_at(host, device)].fails = count;
        }
    }

    /// Ends a connection, and makes another one in its place.
    pub(super) fn close(&mut self, at: usize, replaces: bool) {
        let Self { nics, hosts, shape, connections, .. } = self;
        for host in &mut *hosts {
            assert!(host.cq.detach(at as u16));
        }
        let old = connections.swap_remove(at);
        let to = 1 - old.line.from;
        for queue_pair in old.queue_pairs() {
            nics.borrow_mut().fail(queue_pair, WcStatus::WR_FLUSH_ERR);
        }
        self.retired.extend(old.sender.into_queue_pairs());
        let (queue_pairs, accounts) = old.receiver.into_parts();
        self.retired.extend(queue_pairs);
        self.retired.extend(old.pending.into_iter().flatten().flatten().map(|(qp, _)| qp));
        for account in accounts {
            let is_stale = |device: usize| {
                old.stale >> device & 1 == 1 && account.device() == device_id(to, device)
            };
            let is_stale = (0..8).any(is_stale);
            let pools = hosts[to].pools.iter_mut();
            let mut pools = pools.filter(|pool| pool.device() == account.device());
            let closed = pools.next().expect("a pool of the device").close(account);
            assert_eq!(closed.is_err(), is_stale, "pools take back their own accounts");
        }
        if replaces {
            self.next_id += 1;
            let new = Connection::new(self.next_id, at, nics, hosts, shape);
            connections.push(new);
            let last = connections.len() - 1;
            connections.swap(at, last);
        }
    }
}

impl<const DEPTH: usize, const SLOTS: usize> Connection<DEPTH, SLOTS> {
    /// A queue pair fails.
    pub(super) fn note_failure(&mut self, is_hard: bool) {
        self.failures += 1;
        self.hard_failures += u32::from(is_hard);
        let is_much = self.hard_failures > 2 * self.line.rails as u32;
        self.may_fail |= !self.line.reroutes || self.line.min_rails > 0 || is_much;
    }
}
