//! Faults of a peer or NIC: requests past the engine, and completions out of nowhere.

use super::World;
use super::connection::Connection;
use super::receiver::STRAY_IMM;
use crate::choices::{Choices, pick};
use polyrail_core::hardware::{QueuePair as _, SendBatch as _};
use polyrail_core::internals::{SequenceImm, SequenceNumber};
use polyrail_core::internals::{Tag, TagKind};
use polyrail_core::verbs::{
    Completion, Imm, Opcode, SendFlags, SendRequest, Sge, WcOpcode, WcStatus,
};
use polyrail_core::virtual_cq::Event;
use polyrail_core::virtual_qp::RailId;

/// Set in the `wr_id` of requests posted behind the engine's back, which have no tag's mark.
pub(super) const STRAY: u64 = 1 << 62;

impl World {
    /// A peer that does not keep to the protocol: a zero-length WRITE_WITH_IMM past the engine.
    pub(super) fn stray(&mut self, choices: &mut dyn Choices) {
        let (at, end) = self.any_end(choices);
        let connection = &mut self.connections[at];
        let rails = connection.ends[end].physical.len() as u32;
        let rail = connection.ends[end].physical[choices.below(rails) as usize].rail;
        let imm = choose_stray_imm(connection, 1 - end, choices);
        let qp = self.hosts[end].qp(connection.ends[end].index);
        // SAFETY: the queue pair stays where it is, and the request has no tag.
        let qp = unsafe { qp.physical_mut(rail) }.expect("a rail of its own");
        let mut batch = qp.start_send();
        batch.add(&stray_request(imm));
        if batch.commit().is_ok() {
            self.summary.strays += 1;
            note_stray(connection, end, rail);
        }
    }

    /// Completions that no NIC can have produced: each changes nothing, and is an error if it could
    /// be one of the engine's, or foreign.
    pub(super) fn feed_rubbish(&mut self, choices: &mut dyn Choices) {
        let (at, end) = self.any_end(choices);
        let multi = self.connections[at].shape.is_multi();
        let this = &self.connections[at].ends[end];
        let index = this.index;
        let physical = this.physical[choices.below(this.physical.len() as u32) as usize];
        let completion = choose_rubbish(physical.qp_num, choices);
        // A single rail passes everything through.
        let of_another = completion.qp_num != physical.qp_num || !this.attached;
        let foreign = of_another || (multi && !may_be_ours(&completion));
        if !multi && !foreign {
            return;
        }
        let before = self.hosts[end].qp(index).protocol_errors();
        let mut brought = self.hosts[end].feed(physical.device, &[completion]);
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
}

/// Whether the completion carries a tag of the queue that it came from.
fn may_be_ours(completion: &Completion) -> bool {
    let receives = Tag::from_wr_id(completion.wr_id).kind() != Some(TagKind::Send);
    !completion.status.is_success() || completion.opcode.is_recv() == receives
}

/// A completion with a tag that was never given, of this queue pair or of one that does not exist.
fn choose_rubbish(qp_num: u32, choices: &mut dyn Choices) -> Completion {
    let kind = pick(choices, &[TagKind::Send, TagKind::NotifyRecv, TagKind::DataRecv]);
    let rail = choices.below(9) as u8;
    // No rail has a second generation.
    let tag = Tag::new(kind, rail, 1).plus(u64::from(choices.below(40)));
    let tag = if choices.coin() { tag.last() } else { tag };
    let number = if choices.coin() { qp_num } else { 1 << 30 };
    if choices.coin() {
        let opcode = pick(choices, &[WcOpcode::RDMA_WRITE, WcOpcode::RECV]);
        Completion::success(number, tag.wr_id(), opcode)
    } else {
        Completion::failure(number, tag.wr_id(), WcStatus::RETRY_EXC_ERR, 0)
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

fn choose_stray_imm(connection: &Connection, to: usize, choices: &mut dyn Choices) -> Imm {
    let number = choices.below(0x1_0000);
    if !connection.shape.counts_arrivals(to) {
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

/// Records what a stray on this rail does to both ends.
fn note_stray(connection: &mut Connection, from: usize, rail: RailId) {
    let counts = connection.shape.counts_arrivals(1 - from);
    let with_buffers = connection.shape.data_receives[1 - from];
    let to = &mut connection.ends[1 - from];
    if counts {
        to.receiver.misled = true;
        to.provoked += 1;
        connection.damaged = true;
    } else if rail == RailId::Notify || (rail == RailId::Data(0) && with_buffers) {
        to.receiver.strays += 1;
    } else {
        // It never finds a receive: the rail stands still.
        connection.damaged = true;
        connection.jammed = true;
    }
}
