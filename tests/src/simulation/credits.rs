//! The counts at the end of a world: every credit is back where it belongs.

use super::World;
use super::places::{AREA, pattern, read};
use super::sender::Request;
use polyrail_core::verbs::{Opcode, SendFlags, SendWr};
use polyrail_core::virtual_qp::{QpState, RailId};

/// The name of the request that takes all credits.
pub(super) const BURST: u64 = (1 << 62) - 1;

/// Receives that a physical queue has to hold when it is flushed.
pub(super) struct PostedReceives {
    at: usize,
    end: usize,
    rail: RailId,
    receives: u32,
    /// What had completed on it before.
    completions: u64,
}

impl World {
    /// All send credits of the home rails are back: one request takes every slot. It writes over all
    /// that was sent before, so nothing may be under way: a fault that was planned can have struck
    /// since the connection was found healthy.
    pub(super) fn check_credits(&mut self, at: usize) {
        for end in [0, 1] {
            if self.connections[at].shape.is_multi() && self.is_healthy(at) {
                self.burst(at, end);
            }
        }
    }

    fn burst(&mut self, at: usize, end: usize) {
        let shape = self.connections[at].shape;
        let credits: u32 = shape.home_rails().map(|rail| shape.credits(rail)).sum();
        let length = credits * shape.config.max_msg_size;
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
        // A driver may still be about to refuse something: polls offer it again.
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
        for rail in shape.home_rails() {
            let physical = qp.physical(rail).expect("a rail");
            let taken = physical.outstanding_sends();
            let all = shape.credits(rail);
            assert_eq!(taken, all, "credits of {rail} of connection {at}");
        }
    }

    /// So are those of the notify queue pair: notifies that wait for receives take every slot.
    pub(super) fn check_notify_credits(&mut self, at: usize) {
        for end in [0, 1] {
            if self.connections[at].shape.has_notify() && self.is_healthy(at) {
                self.burst_of_notifies(at, end);
            }
        }
    }

    fn burst_of_notifies(&mut self, at: usize, end: usize) {
        // Receives that the peer has posted are used up first.
        self.settle_with(&[end], |world| world.post_notifying(at, end));
        let connection = &self.connections[at];
        let shape = connection.shape;
        let qp = self.hosts[end].qp(connection.ends[end].index);
        if qp.state() == QpState::Error {
            return assert!(connection.damaged, "nothing fails by itself");
        }
        let waiting = qp.unreported_sends() as u32;
        let all = shape.credits(RailId::Notify);
        assert!(waiting >= all.min(shape.size.wrs()), "notifies for all credits");
        let notify = qp.physical(RailId::Notify).expect("a notify queue pair");
        let taken = notify.outstanding_sends();
        assert_eq!(taken, all.min(waiting), "credits of the notify queue pair of connection {at}");
        self.settle();
        if self.is_healthy(at) {
            self.check_everything_arrived(at);
        }
    }

    /// Posts signals, as many as are accepted. Returns whether any were. (A notify with data holds
    /// those behind it up until it is acknowledged.)
    fn post_notifying(&mut self, at: usize, end: usize) -> bool {
        let mut any = false;
        loop {
            let ground = self.connections[at].ground(end, &self.hosts);
            let sender = &mut self.connections[at].ends[end].sender;
            let Some(place) = sender.clear_place(&ground) else { return any };
            let id = sender.next_id();
            let opcode = Opcode::RdmaWriteWithImm;
            let flags = SendFlags::SIGNALED;
            let request = Request {
                id,
                opcode,
                flags,
                when_done: false,
                length: 0,
                turned: 0,
                place,
                local: place,
                salt: id,
                flaw: None,
            };
            if !self.post_request(at, end, request) {
                return any;
            }
            any = true;
        }
    }

    /// Fills the receive queues that the engine fills by itself, and returns what each queue of a
    /// healthy connection then has to hold.
    pub(super) fn count_receives(&mut self) -> Vec<PostedReceives> {
        for (at, end) in self.all_ends() {
            let connection = &self.connections[at];
            if connection.shape.counts_arrivals(end) {
                let qp = self.hosts[end].qp(connection.ends[end].index);
                let prepared = qp.prepare_receives();
                assert!(prepared.is_ok() || connection.damaged, "{prepared:?}");
            }
        }
        self.settle();
        let mut posted = Vec::new();
        for (at, end) in self.all_ends() {
            if self.is_healthy(at) {
                self.note_receives(at, end, &mut posted);
            }
        }
        posted
    }

    fn note_receives(&mut self, at: usize, end: usize, posted: &mut Vec<PostedReceives>) {
        let Self { connections, hosts, .. } = self;
        let connection = &connections[at];
        let shape = &connection.shape;
        let this = &connection.ends[end];
        let qp = hosts[end].qp(this.index);
        for physical in &this.physical {
            let rail = physical.rail;
            let receives = match rail {
                RailId::Notify => shape.receives(rail).min(qp.unreported_recvs() as u32),
                RailId::Data(_) if shape.counts_arrivals(end) => shape.receives(rail),
                // A shared receive queue is not flushed.
                RailId::Data(0) if this.shared.is_some() => 0,
                RailId::Data(0) => this.receiver.posted_data() as u32,
                RailId::Data(_) => 0,
            };
            let completions = qp.counters(rail).expect("a rail of its own").completions;
            posted.push(PostedReceives { at, end, rail, receives, completions });
        }
    }

    /// After everything was flushed: a queue held as many receives as the engine believed.
    pub(super) fn check_receives(&mut self, posted: &[PostedReceives]) {
        for PostedReceives { at, end, rail, receives, completions } in posted {
            if self.connections[*at].has_lost_a_device(&self.hosts) {
                continue;
            }
            let this = &self.connections[*at].ends[*end];
            let qp = self.hosts[*end].qp(this.index);
            let now = qp.counters(*rail).expect("a rail of its own").completions;
            let flushed = now - completions;
            assert_eq!(flushed, u64::from(*receives), "receives of {rail:?} of connection {at}");
            assert!(qp.protocol_errors() <= this.provoked, "every protocol error was expected");
            self.summary.receive_queues += 1;
        }
    }
}
