//! How a simulated world ends: faults are lifted, and everything is accounted for.

use super::World;
use super::places::{AREA, pattern, read};
use crate::allocations::without_allocating;
use polyrail::nic;
use polyrail_core::verbs::SendWr;
use polyrail_core::virtual_qp::{QpState, RailId};

/// Rounds without any event after which nothing more is expected. Some polls in a row may find
/// nothing: each looks at some of the virtual queue pairs only.
const QUIET_ROUNDS: u64 = 4;
/// No world needs so many.
const MAX_ROUNDS: u32 = 20_000;
/// The name of the request that takes all credits.
pub(super) const BURST: u64 = (1 << 62) - 1;

impl World {
    /// Lifts the faults, lets everything end, and looks whether anything is left.
    pub(super) fn finish(&mut self) {
        self.lift_everything();
        self.settle();
        for at in 0..self.connections.len() {
            if self.failed_or_stalled(at) {
                let damaged = self.connections[at].damaged;
                assert!(damaged, "connection {at} failed or stands still, and nothing was wrong");
                self.fail_connection(at);
            }
        }
        self.settle();
        for at in 0..self.connections.len() {
            if self.is_healthy(at) {
                self.check_everything_arrived(at);
                self.check_frozen(at);
                self.check_credits(at);
            }
        }
        self.tear_down();
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
                }
            }
        }
    }

    /// Until nothing happens any more.
    fn settle(&mut self) {
        let (mut quiet, mut rounds) = (0, 0);
        // A receiver that is told to be not ready is so twice for each fault, once in each round.
        while quiet < QUIET_ROUNDS + 2 * self.summary.faults {
            // What was planned may strike still.
            self.lift_faults();
            let mut busy = self.provide_receives();
            busy |= self.advance(5000) > 0;
            for host in [0, 1] {
                let brought = self.hosts[host].poll_for(usize::MAX);
                busy |= !brought.events.is_empty();
                self.arrived(host, brought);
            }
            self.invariants();
            quiet = if busy { 0 } else { quiet + 1 };
            rounds += 1;
            assert!(rounds < MAX_ROUNDS, "it never ends");
        }
    }

    /// Posts receives for all that is on its way. Says whether any were posted.
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
                if multi { qp.outstanding_sends() > 0 } else { this.sender.has_signaled() };
            let failed = qp.state() == QpState::Error;
            let stuck = this.physical.iter().any(|physical| {
                let qp = qp.physical_mut(physical.rail).expect("a rail of its own");
                // Of strays the engine knows nothing; a single rail keeps unsignaled requests.
                qp.state() == nic::QpState::Err || (multi && qp.outstanding_sends() > 0)
            });
            failed || stalled || waiting || stuck
        })
    }

    fn is_healthy(&mut self, at: usize) -> bool {
        let misled = self.connections[at].ends.iter().any(|end| end.receiver.misled);
        let states = [0, 1].map(|end| {
            let qp = self.hosts[end].qp(self.connections[at].ends[end].index);
            qp.state()
        });
        !misled
            && !self.connections[at].touches(&self.gone)
            && states == [QpState::Ready; 2]
            && !self.failed_or_stalled(at)
    }

    /// Nothing of a connection that did not fail is missing.
    fn check_everything_arrived(&mut self, at: usize) {
        self.settle_quiet(at);
        for end in [0, 1] {
            let this = &self.connections[at].ends[end];
            assert_eq!(this.sender.outstanding(), 0, "every request is reported");
            assert!(this.sender.notifying.is_empty(), "every notification arrived");
            assert!(this.sender.sending.is_empty(), "every SEND arrived");
            let qp = self.hosts[end].qp(this.index);
            assert_eq!(qp.outstanding_sends(), 0, "the ring is empty");
            assert!(qp.protocol_errors() <= this.provoked, "nobody broke the protocol");
            assert_eq!(qp.duplicates(), 0, "nothing arrives twice");
        }
    }

    /// All credits are back: one request takes every send slot of every rail.
    fn check_credits(&mut self, at: usize) {
        for end in [0, 1] {
            if self.connections[at].shape.is_multi() {
                self.burst(at, end);
            }
        }
    }

    fn burst(&mut self, at: usize, end: usize) {
        let shape = self.connections[at].shape;
        let length = shape.credits() * shape.rails as u32 * shape.config.max_msg_size;
        assert!(length as usize <= AREA, "it fits all places of a direction together");
        let ground = self.connections[at].ground(end, &self.hosts);
        let bytes = pattern(BURST ^ at as u64, length as usize);
        ground.near.write_at(ground.near_at, &bytes).expect("within the buffer");
        let local = ground.near.local(ground.near_at, length).expect("within the buffer");
        let remote = ground.far.addr() + ground.far_at as u64;
        let wr = SendWr::write(BURST, local, remote, &self.keys[end]);
        let qp = self.hosts[end].qp(self.connections[at].ends[end].index);
        if let Err(error) = qp.post_send(&wr) {
            return assert!(self.connections[at].damaged, "{error} of an idle queue pair");
        }
        // A driver may be about to refuse something still: polls offer it again.
        for _ in 0..64 {
            let brought = self.hosts[end].poll_for(0);
            self.arrived(end, brought);
        }
        self.check_all_taken(at, end);
        self.burst_arrived = None;
        self.settle();
        match self.burst_arrived {
            Some(true) => {
                let ground = self.connections[at].ground(end, &self.hosts);
                let arrived = read(ground.far, ground.far_at, length as usize);
                assert!(arrived == bytes, "the bytes of the burst are in place");
            }
            _ => assert!(self.connections[at].damaged, "the burst succeeds"),
        }
    }

    fn check_all_taken(&mut self, at: usize, end: usize) {
        let shape = self.connections[at].shape;
        let qp = self.hosts[end].qp(self.connections[at].ends[end].index);
        if qp.state() == QpState::Error {
            return assert!(self.connections[at].damaged, "nothing fails by itself");
        }
        for rail in 0..shape.rails as u8 {
            let physical = qp.physical_mut(RailId::Data(rail)).expect("a rail");
            let (taken, all) = (physical.outstanding_sends(), shape.credits());
            assert_eq!(taken, all, "credits of rail {rail} of connection {at}");
        }
    }

    /// Every queue pair goes to the error state; everything is reported, and that is all.
    fn tear_down(&mut self) {
        for at in 0..self.connections.len() {
            self.fail_connection(at);
        }
        self.settle();
        for at in 0..self.connections.len() {
            if self.connections[at].touches(&self.gone) {
                continue;
            }
            self.settle_quiet(at);
            for end in [0, 1] {
                let this = &self.connections[at].ends[end];
                assert_eq!(this.sender.outstanding(), 0, "every request is reported");
                let receives = (this.receiver.posted_notifications(), this.receiver.posted_data());
                assert_eq!(receives, (0, 0), "every receive is reported");
                let qp = self.hosts[end].qp(this.index);
                let left = (qp.outstanding_sends(), qp.outstanding_recvs());
                assert_eq!(left, (0, 0), "the rings are empty");
            }
        }
        if let Some(bystander) = &self.bystander {
            bystander.check(self.gone[0][0]);
        }
    }
}

fn receiver_index(connection: &super::connection::Connection, end: usize) -> u16 {
    connection.ends[end].index
}
