//! What goes wrong, and what the owner of the queue pairs does about it.

use super::World;
use super::connection::{Connection, End};
use super::receiver::STRAY_IMM;
use super::shape::{ConnectionShape, Weather};
use crate::allocations::without_allocating;
use crate::choices::{Choices, pick};
use polyrail::nic::{Fault, When, WorkQueue};
use polyrail_core::hardware::{QueuePair as _, Refusal, SendBatch as _};
use polyrail_core::sequence::{SequenceImm, SequenceNumber};
use polyrail_core::tag::{Tag, TagKind};
use polyrail_core::verbs::{
    Completion, Imm, Opcode, SendFlags, SendRequest, Sge, WcOpcode, WcStatus,
};
use polyrail_core::virtual_cq::Event;
use polyrail_core::virtual_qp::{QpState, RailId, Scheme};
use std::time::Duration;

/// Set in the `wr_id` of requests posted behind the engine's back. The low bits make it no tag.
pub(super) const STRAY: u64 = 1 << 62;

impl World {
    /// Something happens that nobody asked for.
    pub(super) fn trouble(&mut self, choices: &mut dyn Choices) {
        match (self.shape.weather, choices.below(8)) {
            (_, 0) => self.change_service(choices),
            (_, 1) => self.detach_or_attach(choices),
            (_, 2) => self.bystander_posts(),
            (Weather::Fair, _) => {}
            (Weather::Rough, _) | (Weather::Storm, 3..=4) => self.hinder(choices),
            (Weather::Storm, 5) => self.stray(choices),
            (Weather::Storm, 6) => self.feed_rubbish(choices),
            (Weather::Storm, _) if choices.one_in(6) => self.move_to_error(choices),
            (Weather::Storm, _) => self.break_something(choices),
        }
    }

    fn any_device(&self, choices: &mut dyn Choices) -> (usize, usize) {
        (choices.below(2) as usize, choices.below(self.shape.devices as u32) as usize)
    }

    fn inject(&mut self, (host, at): (usize, usize), when: When, fault: Fault) {
        self.summary.faults += 1;
        self.hosts[host].devices[at].inject(when, fault);
    }

    fn some_time(&self, choices: &mut dyn Choices) -> When {
        match choices.below(3) {
            0 => When::Now,
            1 => When::AfterBytes(u64::from(choices.below(8192))),
            _ => When::AtStep(self.fabric.steps() + u64::from(choices.below(40))),
        }
    }

    /// What costs time and nothing else.
    fn hinder(&mut self, choices: &mut dyn Choices) {
        let queue = pick(choices, &[WorkQueue::Send, WorkQueue::Send, WorkQueue::Recv]);
        let fault = match choices.below(4) {
            0 => Fault::QueueFull { queue, commits: choices.below(3) },
            1 => Fault::ForceRnr { requests: choices.below(3) },
            2 => Fault::DelayCompletions(Duration::from_micros(pick(choices, &[0, 5, 40]))),
            _ => Fault::AcceptOnly {
                queue,
                nth_batch: choices.below(3),
                requests: choices.below(4),
                refusal: Refusal::QueueFull,
            },
        };
        let (device, when) = (self.any_device(choices), self.some_time(choices));
        self.inject(device, when, fault);
    }

    /// What requests may fail of.
    fn break_something(&mut self, choices: &mut dyn Choices) {
        let (host, at) = self.any_device(choices);
        let queue = pick(choices, &[WorkQueue::Send, WorkQueue::Send, WorkQueue::Recv]);
        let fault = match choices.below(13) {
            0..=1 => Fault::LinkDown,
            2..=4 => Fault::LinkUp,
            5 => Fault::Silent(true),
            6 => Fault::Silent(false),
            7 => Fault::LoseAcks(true),
            8..=9 => Fault::LoseAcks(false),
            10 if choices.one_in(4) => Fault::DeviceGone,
            _ => Fault::AcceptOnly {
                queue,
                nth_batch: choices.below(3),
                requests: choices.below(4),
                refusal: Refusal::Driver(5),
            },
        };
        if fault == Fault::DeviceGone {
            self.gone[host][at] = true;
        }
        self.damage(host, at);
        let when = self.some_time(choices);
        self.inject((host, at), when, fault);
    }

    /// Whatever uses this device may fail from now on.
    fn damage(&mut self, host: usize, at: usize) {
        for connection in &mut self.connections {
            let uses = connection.ends[host].physical.iter().any(|physical| physical.at == at);
            connection.damaged |= uses;
        }
        self.damaged = true;
    }

    /// The owner gives up on a queue pair.
    fn move_to_error(&mut self, choices: &mut dyn Choices) {
        let (at, end) = self.any_end(choices);
        let rails = self.connections[at].ends[end].physical.len() as u32;
        let rail = self.connections[at].ends[end].physical[choices.below(rails) as usize].rail;
        self.connections[at].damaged = true;
        self.fail_rail(at, end, rail);
    }

    fn fail_rail(&mut self, at: usize, end: usize, rail: RailId) {
        let qp = self.hosts[end].qp(self.connections[at].ends[end].index);
        let qp = qp.physical_mut(rail).expect("a rail of its own");
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

    pub(super) fn change_service(&mut self, choices: &mut dyn Choices) {
        let (at, end) = self.any_end(choices);
        let (rail, in_service) = (choices.below(8) as u8, choices.coin());
        let qp = self.hosts[end].qp(self.connections[at].ends[end].index);
        without_allocating("set_rail_in_service", || qp.set_rail_in_service(rail, in_service));
    }

    fn detach_or_attach(&mut self, choices: &mut dyn Choices) {
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

    /// A peer that does not keep to the protocol: a zero-length WRITE_WITH_IMM past the engine.
    fn stray(&mut self, choices: &mut dyn Choices) {
        let (at, end) = self.any_end(choices);
        let connection = &mut self.connections[at];
        let rails = connection.ends[end].physical.len() as u32;
        let rail = connection.ends[end].physical[choices.below(rails) as usize].rail;
        let imm = choose_stray_imm(connection, 1 - end, choices);
        let qp = self.hosts[end].qp(connection.ends[end].index);
        let qp = qp.physical_mut(rail).expect("a rail of its own");
        let mut batch = qp.start_send();
        batch.add(&stray_request(imm));
        if batch.commit().is_ok() {
            self.summary.strays += 1;
            note_stray(connection, end, rail);
        }
    }

    /// Completions that no NIC can have produced: each is an error that changes nothing.
    fn feed_rubbish(&mut self, choices: &mut dyn Choices) {
        let (at, end) = self.any_end(choices);
        let multi = self.connections[at].shape.is_multi();
        let this = &self.connections[at].ends[end];
        let index = this.index;
        let physical = this.physical[choices.below(this.physical.len() as u32) as usize];
        let kind = pick(choices, &[TagKind::Send, TagKind::NotifyRecv, TagKind::DataRecv]);
        let rail = choices.below(9) as u8;
        // No rail has a second generation.
        let tag = Tag::new(kind, rail, 1).plus(u64::from(choices.below(40)));
        let tag = if choices.coin() { tag.last() } else { tag };
        let number = if choices.coin() { physical.qp_num } else { 1 << 30 };
        let completion = if choices.coin() {
            Completion::success(number, tag.wr_id(), WcOpcode::RDMA_WRITE)
        } else {
            Completion::failure(number, tag.wr_id(), WcStatus::RETRY_EXC_ERR, 0)
        };
        let foreign = number != physical.qp_num || !this.attached;
        if !multi && !foreign {
            return;
        }
        let before = self.hosts[end].qp(index).protocol_errors();
        let mut brought = self.hosts[end].feed(physical.device, completion);
        let expected = Event::Foreign { device: physical.device, completion };
        if foreign {
            let first = brought.events.iter().position(|event| *event == expected);
            brought.events.remove(first.expect("a foreign completion is handed over"));
        } else {
            let errors = self.hosts[end].qp(index).protocol_errors();
            assert_eq!(errors, before + 1, "a completion out of turn is an error");
            self.connections[at].ends[end].provoked += 1;
        }
        self.arrived(end, brought);
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
                let qp = qp.physical_mut(physical.rail).expect("a rail of its own");
                busy |= qp.outstanding_sends() > 0;
            }
            if busy {
                return false;
            }
        }
        self.settle_quiet(at);
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

    /// Ends what can be ended: links, silence, lost acknowledgements, delays.
    pub(super) fn lift_faults(&mut self) {
        for device in self.hosts.iter().flat_map(|host| &host.devices) {
            for fault in [
                Fault::LinkUp,
                Fault::Silent(false),
                Fault::LoseAcks(false),
                Fault::DelayCompletions(Duration::ZERO),
            ] {
                device.inject(When::Now, fault);
            }
        }
    }
}

fn stray_request(imm: Imm) -> SendRequest {
    SendRequest {
        wr_id: STRAY,
        opcode: Opcode::RdmaWriteWithImm,
        flags: SendFlags::SIGNALED,
        imm,
        sge: Sge::EMPTY,
        remote_addr: 0,
        rkey: 0,
        compare_add: 0,
        swap: 0,
    }
}

/// Whether an end counts DQPLB's sequence numbers.
fn counts_numbers(connection: &Connection, end: usize) -> bool {
    let shape = &connection.shape;
    shape.is_multi() && shape.config.scheme == Scheme::Dqplb && shape.notifies(end)
}

fn choose_stray_imm(connection: &Connection, to: usize, choices: &mut dyn Choices) -> Imm {
    let number = choices.below(0x1_0000);
    if !counts_numbers(connection, to) {
        return Imm::from_number(STRAY_IMM | number);
    }
    let last = choices.coin();
    let at = |number| SequenceNumber::new(number).unwrap_or_default();
    match choices.below(3) {
        0 => Imm::from_wire((1 << 25 | number).to_le_bytes()),
        1 => SequenceImm { number: at(number << 8), last }.encode(),
        _ => SequenceImm { number: at(number % 64), last }.encode(),
    }
}

/// What a stray on this rail does to both ends.
fn note_stray(connection: &mut Connection, from: usize, rail: RailId) {
    let counts = counts_numbers(connection, 1 - from);
    let multi = connection.shape.is_multi();
    let with_buffers = connection.shape.data_receives[1 - from];
    connection.ends[from].provoked += u64::from(multi);
    let to = &mut connection.ends[1 - from];
    if counts {
        to.receiver.misled = true;
        to.provoked += 1;
        connection.damaged = true;
    } else if rail == RailId::Notify || (rail == RailId::Data(0) && with_buffers) {
        to.receiver.strays += 1;
    } else {
        // No receive will ever be there for it: the rail stands still.
        connection.damaged = true;
    }
}
