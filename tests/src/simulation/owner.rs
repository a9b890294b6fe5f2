//! What the owner of the queue pairs does: gives up on them, replaces them, detaches them for a while.

use super::World;
use super::connection::{Connection, End};
use super::shape::ConnectionShape;
use crate::choices::Choices;
use polyrail_core::virtual_qp::{QpState, RailId};

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

    /// Attaches an end again, at another index, and feeds it what came meanwhile.
    pub(super) fn attach(&mut self, at: usize, end: usize) {
        let index = self.hosts[end].free_index();
        let this = &mut self.connections[at].ends[end];
        let host = &mut self.hosts[end];
        let qp = host.qps.0[this.index as usize].take().expect("it is detached only");
        host.cq.attach(index, &*qp).expect("there was room for it before");
        host.qps.0[index as usize] = Some(qp);
        (this.index, this.attached) = (index, true);
        for (device, completion) in std::mem::take(&mut this.backlog) {
            let brought = self.hosts[end].feed(device, completion);
            self.arrived(end, brought);
        }
        self.summary.reattached += 1;
    }

    /// The owner's care: what failed is moved to the error state, and replaced when all is
    /// reported.
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

    /// Whether nothing of a failed connection is under way any more.
    pub(super) fn is_over(&mut self, at: usize) -> bool {
        for end in [0, 1] {
            let this = &self.connections[at].ends[end];
            let qp = self.hosts[end].qp(this.index);
            let mut busy = qp.outstanding_sends() + qp.outstanding_recvs() > 0 || !this.attached;
            for physical in &this.physical {
                let qp = qp.physical(physical.rail).expect("a rail of its own");
                busy |= qp.outstanding_sends() > 0;
            }
            if busy {
                return false;
            }
        }
        [0, 1].into_iter().for_each(|end| self.settle_quiet(at, end));
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
        let shape = ConnectionShape::choose(choices, self.shape.devices, self.shape.weather);
        self.next_number += 1;
        let (number, damaged) = (self.next_number, self.damaged);
        let connection = Connection::new(at, number, shape, &mut self.hosts, damaged);
        self.connections[at] = connection;
        self.summary.replaced += 1;
    }
}
