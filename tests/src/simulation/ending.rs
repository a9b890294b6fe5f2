//! How a simulated world ends: faults are lifted, and everything is accounted for.

use super::World;
use crate::allocations::without_allocating;
use polyrail::nic;
use polyrail_core::virtual_qp::{QpState, Scheme};

/// Rounds without any event after which nothing more is expected. Some polls in a row may find
/// nothing: each serves some of the virtual queue pairs only.
const IDLE_ROUNDS: u64 = 4;
/// More than any world needs.
const MAX_ROUNDS: u32 = 20_000;

impl World {
    /// Lifts the faults, lets everything end, and checks that nothing is left.
    pub(super) fn finish(&mut self) {
        self.lift_everything();
        self.settle();
        for at in 0..self.connections.len() {
            if self.failed_or_stalled(at) {
                self.give_up(at);
            }
        }
        self.settle();
        for at in 0..self.connections.len() {
            if self.is_healthy(at) {
                self.check_everything_arrived(at);
                self.check_notify_credits(at);
                self.check_frozen(at);
                self.check_credits(at);
            }
        }
        self.tear_down();
    }

    /// Moves a connection that cannot go on to the error state. With the faults lifted, there are
    /// few reasons why it could not.
    fn give_up(&mut self, at: usize) {
        let connection = &self.connections[at];
        assert!(
            connection.damaged,
            "connection {at} failed or stands still, and nothing was wrong"
        );
        let bereft = connection.has_lost_a_device(&self.hosts);
        let jammed = connection.jammed;
        let failed = self.has_failed(at);
        assert!(bereft || jammed || failed, "connection {at} stands still, and nothing holds it");
        self.summary.bereft += u64::from(bereft);
        self.summary.failed += u64::from(failed && !bereft);
        self.summary.jammed += u64::from(jammed && !failed && !bereft);
        self.fail_connection(at);
    }

    /// Whether an end, or one of its queue pairs, is in the error state.
    fn has_failed(&mut self, at: usize) -> bool {
        [0, 1].into_iter().any(|end| {
            let this = &self.connections[at].ends[end];
            let qp = self.hosts[end].qp(this.index);
            let errored = this.physical.iter().any(|physical| {
                let qp = qp.physical(physical.rail).expect("a rail of its own");
                qp.state() == nic::QpState::Err
            });
            errored || qp.state() == QpState::Error
        })
    }

    fn lift_everything(&mut self) {
        for at in 0..self.connections.len() {
            for end in [0, 1] {
                if !self.connections[at].ends[end].attached {
                    self.attach(at, end);
                }
                for rail in 0..self.connections[at].shape.rails {
                    let qp = self.hosts[end].qp(self.connections[at].ends[end].index);
                    assert!(qp.set_rail_in_service(rail as u8, true), "any rail may come back");
                    assert!(qp.reserve_rail(rail as u8, false), "there is this rail");
                }
            }
        }
    }

    /// Runs until nothing happens any more.
    pub(super) fn settle(&mut self) {
        self.settle_with(&[0, 1], Self::provide_receives);
    }

    /// Runs until nothing happens any more. Only these hosts poll; `act` runs in each round and
    /// returns whether it did anything.
    pub(super) fn settle_with(&mut self, polling: &[usize], act: impl Fn(&mut Self) -> bool) {
        let mut idle = 0;
        let mut rounds = 0;
        // Each fault makes a receiver not ready in two rounds.
        while idle < IDLE_ROUNDS + 2 * self.summary.faults {
            // A planned fault may still be applied.
            self.lift_faults();
            let mut busy = act(self);
            busy |= self.advance(5000) > 0;
            let before = self.completions_taken();
            for host in polling {
                let brought = self.hosts[*host].poll_for(self.budget());
                busy |= !brought.events.is_empty();
                self.arrived(*host, brought);
            }
            // Receives that the engine posts by itself end without an event.
            busy |= self.completions_taken() != before;
            self.invariants();
            idle = if busy { 0 } else { idle + 1 };
            rounds += 1;
            assert!(rounds < MAX_ROUNDS, "it never settles");
        }
    }

    /// Completions that the engine took off the queues of all connections.
    fn completions_taken(&mut self) -> u64 {
        let Self { connections, hosts, .. } = self;
        let ends = connections.iter().flat_map(|connection| connection.ends.iter().enumerate());
        ends.map(|(end, this)| {
            let qp = hosts[end].qp(this.index);
            let mut of = |rail| qp.counters(rail).map_or(0, |counters| counters.completions);
            this.physical.iter().map(|physical| of(physical.rail)).sum::<u64>()
        })
        .sum()
    }

    /// Posts receives for all that is on its way. Returns whether any were posted.
    fn provide_receives(&mut self) -> bool {
        let mut any = false;
        for (at, end) in self.all_ends() {
            while self.wants_notification(at, end) && self.post_notification(at, end) {
                any = true;
            }
            while self.wants_data(at, end) && self.post_data_recv(at, end) {
                any = true;
            }
        }
        any
    }

    fn wants_notification(&mut self, at: usize, end: usize) -> bool {
        let connection = &self.connections[at];
        let receiver = &connection.ends[end].receiver;
        let coming = connection.ends[1 - end].sender.notifying.len() + receiver.strays as usize;
        connection.shape.is_multi()
            && connection.shape.notifies(end)
            && receiver.posted_notifications() < coming
            && self.hosts[end].qp(receiver_index(connection, end)).state() != QpState::Error
    }

    fn wants_data(&mut self, at: usize, end: usize) -> bool {
        let connection = &self.connections[at];
        let receiver = &connection.ends[end].receiver;
        let coming = connection.ends[1 - end].sender.sending.len() + receiver.strays as usize;
        connection.shape.data_receives[end]
            && receiver.posted_data() < coming
            && self.hosts[end].qp(receiver_index(connection, end)).state() != QpState::Error
    }

    pub(super) fn all_ends(&self) -> Vec<(usize, usize)> {
        (0..self.connections.len()).flat_map(|at| [(at, 0), (at, 1)]).collect()
    }

    fn failed_or_stalled(&mut self, at: usize) -> bool {
        let multi = self.connections[at].shape.is_multi();
        [0, 1].into_iter().any(|end| {
            let this = &self.connections[at].ends[end];
            let qp = self.hosts[end].qp(this.index);
            without_allocating("check_stalled", || qp.check_stalled());
            let stalled = !without_allocating("check_stalled", || qp.check_stalled()).is_empty();
            let waiting =
                if multi { qp.unreported_sends() > 0 } else { this.sender.has_signaled() };
            let failed = qp.state() == QpState::Error;
            let stuck = this.physical.iter().any(|physical| {
                let qp = qp.physical(physical.rail).expect("a rail of its own");
                // The engine does not know of strays; a single rail keeps unsignaled requests.
                qp.state() == nic::QpState::Err || (multi && qp.outstanding_sends() > 0)
            });
            failed || stalled || waiting || stuck
        })
    }

    pub(super) fn is_healthy(&mut self, at: usize) -> bool {
        let misled = self.connections[at].ends.iter().any(|end| end.receiver.misled);
        let states = [0, 1].map(|end| {
            let qp = self.hosts[end].qp(self.connections[at].ends[end].index);
            qp.state()
        });
        !misled
            && !self.connections[at].has_lost_a_device(&self.hosts)
            && states == [QpState::Ready; 2]
            && !self.failed_or_stalled(at)
    }

    /// Nothing of a connection that did not fail is missing.
    pub(super) fn check_everything_arrived(&mut self, at: usize) {
        for end in [0, 1] {
            self.settle_unsignaled(at, end);
            let this = &self.connections[at].ends[end];
            assert_eq!(this.sender.unaccounted(), 0, "every request is reported");
            assert!(this.sender.notifying.is_empty(), "every notification arrived");
            assert!(this.sender.sending.is_empty(), "every SEND arrived");
            assert_eq!(this.receiver.strays, 0, "every stray arrived");
            let qp = self.hosts[end].qp(this.index);
            assert_eq!(qp.unreported_sends(), 0, "the ring is empty");
            assert!(qp.protocol_errors() <= this.provoked, "only provoked protocol errors occur");
            assert_eq!(qp.duplicates(), 0, "nothing arrives twice");
        }
    }

    /// Every queue pair goes to the error state; everything is reported, and nothing more.
    fn tear_down(&mut self) {
        let receives = self.count_receives();
        for at in 0..self.connections.len() {
            self.fail_connection(at);
        }
        self.settle();
        self.check_receives(&receives);
        for (at, end) in self.all_ends() {
            self.check_reported(at, end);
        }
        for at in 0..self.connections.len() {
            self.check_frozen(at);
        }
        if let Some(bystander) = &self.bystander {
            bystander.check(self.hosts[0].is_gone(0));
        }
    }

    /// Everything is reported except what a lost device took with it.
    fn check_reported(&mut self, at: usize, end: usize) {
        let bereft = self.connections[at].has_lost_a_device(&self.hosts);
        let (sends, notifications, data) = self.was_kept(at, end);
        if sends {
            self.settle_unsignaled(at, end);
        }
        let this = &self.connections[at].ends[end];
        let left = (this.receiver.posted_notifications(), this.receiver.posted_data());
        let qp = self.hosts[end].qp(this.index);
        if sends {
            assert_eq!(this.sender.unaccounted(), 0, "every request is reported");
            assert_eq!(qp.unreported_sends(), 0, "the ring is empty");
        }
        if notifications {
            assert_eq!(left.0, 0, "every notification receive is reported");
            assert_eq!(qp.unreported_recvs(), 0, "the ring is empty");
        }
        let data = data && this.shared.is_none();
        assert!(!data || left.1 == 0, "every receive with a buffer is reported");
        self.summary.survivors += u64::from(bereft && sends);
    }

    /// Whether an end still has all queue pairs that its sends, its notification receives, and its
    /// receives with buffers depend on.
    fn was_kept(&mut self, at: usize, end: usize) -> (bool, bool, bool) {
        let connection = &self.connections[at];
        let host = &mut self.hosts[end];
        let physical = &connection.ends[end].physical;
        let gone: Vec<_> = physical.iter().map(|qp| host.is_gone(qp.at)).collect();
        let qp = host.qp(connection.ends[end].index);
        // Asked twice, it names every rail with something in flight. The queue pair's own count
        // does not include a batch whose rest its driver never took, if a stray completed behind
        // it.
        qp.check_stalled();
        let in_flight = qp.check_stalled();
        // What was in flight on a device that is gone stays so, and what comes after it waits.
        let sends = physical.iter().zip(&gone).all(|(physical, gone)| {
            let qp = qp.physical(physical.rail).expect("a rail of its own");
            !gone || (qp.outstanding_sends() == 0 && !in_flight.contains(physical.rail))
        });
        // SPRAY's notify queue pair is on rail 0's device; any rail shows DQPLB the failure.
        let notifications = match connection.shape.config.scheme {
            Scheme::Spray => !gone[0],
            Scheme::Dqplb => !gone.iter().all(|gone| *gone),
        };
        (sends, notifications, !gone[0])
    }
}

fn receiver_index(connection: &super::connection::Connection, end: usize) -> u16 {
    connection.ends[end].index
}
