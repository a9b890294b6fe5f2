//! How a world ends: faults are over, and no request waits forever.

use super::World;
use super::shape::Troubles;
use super::{Connection, Summary};
use polyrail_core::verbs::WcStatus;
use polyrail_core::virtual_qp::RailState;

/// Rounds without a step after which nothing is to come.
const IDLE: u32 = 4;

impl<const DEPTH: usize, const SLOTS: usize> World<DEPTH, SLOTS> {
    /// Lets everything happen that must, and checks that nothing is left.
    pub(super) fn finish(&mut self) -> Summary {
        self.lift_troubles();
        self.settle();
        for at in 0..self.connections.len() {
            self.end_failed(at);
        }
        self.settle();
        for at in 0..self.connections.len() {
            if self.connections[at].has_failed() {
                self.connections[at].check_ended();
            } else {
                self.send_what_is_awaited(at);
                self.send_more(at);
                self.connections[at].check_done();
            }
        }
        self.close_all();
        self.summary
    }

    fn lift_troubles(&mut self) {
        if self.is_loud {
            eprintln!("trouble is over");
        }
        self.left = Troubles::default();
        let nics = &mut *self.nics.borrow_mut();
        for qp in &mut nics.qps {
            qp.mood = None;
            qp.keeps_working = 0;
            qp.word_after = 0;
        }
        nics.srqs.iter_mut().for_each(|srq| srq.mood = None);
        nics.cqs.iter_mut().for_each(|cq| cq.fails = 0);
    }

    /// Lets NICs and owners do all they can.
    fn settle(&mut self) {
        let mut idle = 0;
        while idle < IDLE {
            idle = if self.round() { 0 } else { idle + 1 };
        }
    }

    /// Lets every queue pair, host and application go on. Returns whether anything happened.
    fn round(&mut self) -> bool {
        let before = (self.progress(), self.nics.borrow().posted);
        let mut led_anywhere = false;
        let queue_pairs = self.nics.borrow().qps.len();
        for at in 0..queue_pairs {
            let nics = self.nics.borrow();
            let can = nics.can_execute(at) || nics.can_acknowledge(at);
            let is_unanswered = nics.is_unanswered(at);
            drop(nics);
            if is_unanswered && !self.nics.borrow().can_execute(at) {
                self.fail(at, WcStatus::RETRY_EXC_ERR);
                led_anywhere = true;
            } else if can {
                self.execute(at, u32::MAX);
                self.acknowledge(at, u32::MAX);
            }
        }
        self.show(0, u32::MAX);
        for host in 0..2 {
            for device in 0..self.shape.devices[host] {
                self.mourn(host, device);
            }
            self.poll(host, usize::MAX, usize::MAX);
        }
        for at in 0..self.connections.len() {
            self.tend(at);
        }
        self.check();
        self.test_all();
        led_anywhere || before != (self.progress(), self.nics.borrow().posted)
    }

    /// Counts what moves on.
    fn progress(&self) -> (u64, u64) {
        let Summary { reports, controls, renewed, .. } = self.summary;
        (self.nics.borrow().moved, reports + controls + renewed)
    }

    /// Owners do what they can for queue pairs that failed.
    fn tend(&mut self, at: usize) {
        if !self.connections[at].line.reroutes {
            return;
        }
        let places = self.connections[at].near.len();
        self.hurry(at);
        for host in 0..2 {
            self.notice(at, host);
            for place in 0..places {
                if self.connections[at].is_dead(&self.nics, host, place) {
                    self.connections[at].fail_queue_pair(host, place);
                }
                self.install(at, host, place);
            }
            self.carry(at, host);
        }
        for host in 0..2 {
            for late in [true, false] {
                while self.connections[at].link.carries(1 - host, late) {
                    self.hear(at, host, late);
                }
            }
        }
        let in_service = |place: &usize| self.connections[at].is_in_service(*place);
        if self.shape.renews || !(0..places).any(|place| in_service(&place)) {
            (0..places).for_each(|place| self.renew(at, place, [place, place]));
        }
    }

    pub(super) fn test_all(&mut self) {
        for at in 0..self.connections.len() {
            for which in (0..self.connections[at].outgoing.len()).rev() {
                self.test_send(at, which as u32);
            }
            let receives = &self.connections[at].receives;
            let waiting = receives.iter().filter(|receive| receive.handle.is_some()).count();
            for which in (0..waiting).rev() {
                self.test_receive(at, which as u32);
            }
            for _ in 0..self.connections[at].flushes.len() {
                self.test_flush(at);
            }
        }
    }

    /// If a connection failed at one end, the other end receives that. A deceived end is given
    /// up, and one with a queue pair that failed though nothing was in flight.
    fn end_failed(&mut self, at: usize) {
        let connection = &mut self.connections[at];
        let is_dead = |at: usize| self.nics.borrow().qps[at].in_error;
        let mut all = connection.near.iter().chain(&connection.far);
        let has_dead = !connection.line.reroutes && all.any(|at| is_dead(*at));
        // Ends that re-route report that to each other.
        let is_told = connection.line.reroutes && !connection.is_forged;
        if connection.is_forged || connection.has_failed() && !is_told || has_dead {
            for host in 0..2 {
                connection.fail(host, true);
            }
        }
    }

    /// Sends to every buffer that is offered.
    fn send_what_is_awaited(&mut self, at: usize) {
        while self.connections[at].sent < self.connections[at].receives.len() {
            let connection = &self.connections[at];
            let front = &connection.receives[connection.sent];
            if front.is_asked {
                let before = connection.sent;
                self.settle();
                assert!(self.connections[at].sent > before, "the sender has passed it by");
                continue;
            }
            let open = front.places.iter().find(|place| place.sent.is_none());
            let place = *open.expect("not all were sent");
            let is_taken = self.send(at, place.tag, place.capacity);
            if !is_taken {
                self.settle();
                let is_taken = self.send(at, place.tag, place.capacity);
                assert!(is_taken, "nothing is in the way of a send");
            }
        }
        self.settle();
    }

    /// Everything works as in the beginning.
    fn send_more(&mut self, at: usize) {
        for _ in 0..2 {
            let longest = self.connections[at].line.max_message.iter().flatten().min();
            let length = longest.copied().unwrap_or(1).min(1 << 20);
            assert!(self.offer(at, &[length], &[7]), "nothing is in the way of a receive");
            self.settle();
            assert!(self.send(at, 7, length), "nothing is in the way of a send");
            self.settle();
        }
    }

    /// Ends all connections; what their pools count is there.
    fn close_all(&mut self) {
        for at in (0..self.connections.len()).rev() {
            self.close(at, false);
        }
        for host in 0..2 {
            self.poll(host, usize::MAX, usize::MAX);
        }
        self.check();
        self.check_bystanders();
        assert!(self.retired.is_empty(), "all completions were taken");
    }
}

impl<const DEPTH: usize, const SLOTS: usize> Connection<DEPTH, SLOTS> {
    fn check_nothing_waits(&self) {
        let id = self.id;
        let waiting = self.receives.iter().filter(|receive| receive.handle.is_some()).count();
        assert_eq!((waiting, self.outgoing.len()), (0, 0), "connection {id}: somebody waits");
        let unfinished = (self.sender.unfinished(), self.receiver.unfinished());
        // Entries that were looked at, of a message that was never sent.
        assert!(unfinished.0 <= 1 && unfinished.1 == 0, "connection {id}: {unfinished:?}");
        assert!(self.flushes.is_empty(), "connection {id}: a flush is not done");
    }

    fn check_done(&self) {
        self.check_nothing_waits();
        for place in 0..self.near.len() {
            let states = [0, 1].map(|host| self.state(host, place));
            assert_eq!(states[0], states[1], "connection {}: place {place}", self.id);
            let is_settled = matches!(states[0].0, RailState::InService | RailState::Down);
            assert!(is_settled, "connection {}: {states:?} at place {place}", self.id);
        }
    }

    /// A connection that failed has given everything back.
    fn check_ended(&self) {
        let is_drained = self.sender.is_drained() && self.receiver.is_drained();
        assert!(is_drained, "connection {}: not drained", self.id);
        self.check_nothing_waits();
    }
}
