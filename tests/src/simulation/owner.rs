//! The actions of the owner of the queue pairs: gives up on them, replaces them, detaches them for
//! a while.

use super::World;
use super::connection::{Connection, End, Queues};
use super::host::INDICES;
use super::shape::ConnectionShape;
use super::virtual_qp::AnyQp;
use crate::choices::Choices;
use polyrail_core::verbs::{Opcode, SendWr};
use polyrail_core::virtual_cq::AttachError;
use polyrail_core::virtual_qp::{Config, QpState, RailId};

/// Set in the `wr_id` of requests of a queue pair that takes another one's place.
pub(super) const IMPOSTOR: u64 = 1 << 60;

impl World {
    /// The owner gives up on a queue pair.
    pub(super) fn move_to_error(&mut self, choices: &mut dyn Choices) {
        let (at, end) = self.any_end(choices);
        let rails = self.connections[at].ends[end].physical.len() as u32;
        let rail = self.connections[at].ends[end].physical[choices.below(rails) as usize].rail;
        self.connections[at].damaged = true;
        self.fail_rail(at, end, rail);
    }

    fn fail_rail(&mut self, at: usize, end: usize, rail: RailId) {
        let qp = self.hosts[end].qp(self.connections[at].ends[end].index);
        let qp = qp.physical(rail).expect("a rail of its own");
        // A queue pair of a device that is gone cannot be moved, and need not be.
        _ = qp.to_error();
    }

    /// Moves every queue pair of a connection to the error state.
    pub(super) fn fail_connection(&mut self, at: usize) {
        self.connections[at].damaged = true;
        for end in [0, 1] {
            for rail in self.connections[at].ends[end].physical.clone() {
                self.fail_rail(at, end, rail.rail);
            }
        }
    }

    pub(super) fn detach_or_attach(&mut self, choices: &mut dyn Choices) {
        let (at, end) = self.any_end(choices);
        if self.connections[at].ends[end].attached {
            let End { index, attached, .. } = &mut self.connections[at].ends[end];
            assert!(self.hosts[end].cq.detach(*index), "it was attached");
            *attached = false;
        } else {
            self.attach(at, end);
        }
    }

    /// Drains what found no budget so far, so that nothing to be checked or fed still waits.
    fn collect_backlog(&mut self, end: usize) {
        let device = self.hosts[end].devices[0].id();
        let brought = self.hosts[end].feed(device, &[]);
        self.arrived(end, brought);
    }

    /// Attaches an end again, at another index, and feeds it the completions that came meanwhile.
    pub(super) fn attach(&mut self, at: usize, end: usize) {
        self.collect_backlog(end);
        let index = self.hosts[end].free_index();
        let this = &mut self.connections[at].ends[end];
        let host = &mut self.hosts[end];
        let qp = host.qps.0[this.index as usize].take().expect("it is detached only");
        host.cq.attach(index, &*qp).expect("there was room for it before");
        host.qps.0[index as usize] = Some(qp);
        (this.index, this.attached) = (index, true);
        self.feed_backlog(end, usize::from(index));
        self.summary.reattached += 1;
    }

    /// A queue pair leaves its index for a while: another one takes it, perhaps one with its
    /// number, or none. What completes meanwhile is foreign, and fed to it afterwards.
    pub(super) fn displace(&mut self, choices: &mut dyn Choices) {
        let (at, end) = self.any_end(choices);
        if !self.connections[at].ends[end].attached {
            return;
        }
        self.collect_backlog(end);
        let index = usize::from(self.connections[at].ends[end].index);
        let other = (index + 1 + choices.below(INDICES as u32 - 1) as usize) % INDICES;
        // Nothing can be created on a device that is gone.
        let any_gone = self.gone.iter().flatten().any(|gone| *gone);
        let places = if !any_gone && choices.coin() {
            let impostor = self.impostor(at, end);
            self.with_impostor(end, index, impostor, choices)
        } else {
            self.hosts[end].qps.0.swap(index, other);
            self.poll_displaced(end, &[index, other], choices);
            self.hosts[end].qps.0.swap(index, other);
            vec![index, other]
        };
        for place in places {
            self.feed_backlog(end, place);
        }
        self.summary.displaced += 1;
    }

    /// A virtual queue pair like this one, with its number and requests of its own in flight, and
    /// its peer.
    fn impostor(&mut self, at: usize, end: usize) -> (Box<dyn AnyQp>, Queues) {
        let connection = &self.connections[at];
        let shape = connection.shape;
        let ends = Queues::connected(&self.hosts, &shape);
        let [near, far] = ends;
        let (own, peers) = if end == 0 { (near, far) } else { (far, near) };
        let virtual_qp_num = connection.ends[end].virtual_qp_num;
        let config = Config { virtual_qp_num, ..shape.config };
        let mut qp = shape.size.build(config, own.rails, own.notify).expect("as the other one");
        let ground = connection.ground(end, &self.hosts);
        let local = ground.near.local(ground.near_at, 8).expect("within the buffer");
        for id in 0..4 {
            let wr = SendWr::write(IMPOSTOR | id, local, ground.far.addr(), &self.keys[end]);
            let opcodes = [Opcode::Send, Opcode::RdmaWrite, Opcode::FetchAdd];
            for opcode in opcodes {
                // It may be full; the software NIC carries out nothing in the meantime.
                let _ = qp.post_send(&SendWr { opcode, ..wr });
            }
        }
        (qp, peers)
    }

    fn with_impostor(
        &mut self,
        end: usize,
        index: usize,
        (qp, _peers): (Box<dyn AnyQp>, Queues),
        choices: &mut dyn Choices,
    ) -> Vec<usize> {
        let free = self.hosts[end].free_index();
        let refused = self.hosts[end].cq.attach(free, &*qp);
        let is_refused = matches!(refused, Err(AttachError::Number { .. }));
        assert!(is_refused, "a number is attached once: {refused:?}");
        let own = self.hosts[end].qps.0[index].replace(qp);
        self.poll_displaced(end, &[index], choices);
        self.hosts[end].qps.0[index] = own;
        vec![index]
    }

    fn poll_displaced(&mut self, end: usize, places: &[usize], choices: &mut dyn Choices) {
        self.set_displaced(end, places, true);
        for _ in 0..1 + choices.below(3) {
            let brought = self.hosts[end].poll(choices);
            self.arrived(end, brought);
        }
        self.collect_backlog(end);
        self.set_displaced(end, places, false);
    }

    fn set_displaced(&mut self, end: usize, places: &[usize], displaced: bool) {
        for connection in &mut self.connections {
            let this = &mut connection.ends[end];
            if places.contains(&usize::from(this.index)) {
                this.displaced = displaced;
            }
        }
    }

    /// Feeds a queue pair that is back in its place the completions that came meanwhile.
    fn feed_backlog(&mut self, end: usize, place: usize) {
        let at = |connection: &Connection| {
            let this = &connection.ends[end];
            usize::from(this.index) == place && this.attached
        };
        let Some(at) = self.connections.iter().position(at) else { return };
        for (device, completion) in std::mem::take(&mut self.connections[at].ends[end].backlog) {
            let brought = self.hosts[end].feed(device, &[completion]);
            self.arrived(end, brought);
        }
    }

    /// Moves what failed to the error state, and replaces it when all is reported.
    pub(super) fn tend(&mut self, choices: &mut dyn Choices) {
        let at = choices.below(self.connections.len() as u32) as usize;
        let failed = |end: usize| {
            let qp = self.hosts[end].qps.0[self.connections[at].ends[end].index as usize].as_ref();
            qp.is_some_and(|qp| qp.state() == QpState::Error)
        };
        if !failed(0) && !failed(1) {
            return;
        }
        assert!(self.connections[at].damaged, "nothing fails by itself");
        self.fail_connection(at);
        let any_gone = self.gone.iter().flatten().any(|gone| *gone);
        if !any_gone && self.is_over(at) {
            self.replace(at, choices);
        }
    }

    /// Whether a failed connection has nothing under way any more.
    pub(super) fn is_over(&mut self, at: usize) -> bool {
        for end in [0, 1] {
            let this = &self.connections[at].ends[end];
            let qp = self.hosts[end].qp(this.index);
            let mut busy = qp.unreported_sends() + qp.unreported_recvs() > 0 || !this.attached;
            for physical in &this.physical {
                let qp = qp.physical(physical.rail).expect("a rail of its own");
                busy |= qp.outstanding_sends() > 0;
            }
            if busy {
                return false;
            }
        }
        for end in [0, 1] {
            self.collect_backlog(end);
            self.settle_unsignaled(at, end);
        }
        self.connections[at].is_drained()
    }

    /// A new connection in the place of one that failed.
    fn replace(&mut self, at: usize, choices: &mut dyn Choices) {
        self.check_frozen(at);
        let old = &self.connections[at];
        for (end, host) in old.ends.iter().zip(&mut self.hosts) {
            host.cq.detach(end.index);
            host.qps.0[end.index as usize] = None;
            self.retired.extend(end.physical.iter().map(|qp| (qp.device, qp.qp_num)));
        }
        let shape = ConnectionShape::choose(choices, &self.shape);
        self.next_number += 1;
        let number = self.next_number;
        let damaged = self.damaged;
        let connection = Connection::new(at, number, shape, &mut self.hosts, damaged);
        self.connections[at] = connection;
        self.summary.replaced += 1;
    }
}
