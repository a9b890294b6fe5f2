//! Control messages: any bytes are read or refused, and any message at any time leaves an end
//! sound.

use crate::choices::{Bytes, Choices, pick};
use crate::rig::{self, Rig, Setup};
use crate::scripted::LIMITS;
use polyrail_core::hardware::Refusal;
use polyrail_core::verbs::{Imm, RecvWr, WcStatus};
use polyrail_core::virtual_qp::{
    ControlMessage, QpState, RailId, RailReport, RailState, ReportedState, Scheme,
};
use std::collections::BTreeMap;

/// Reads `bytes` as messages, and plays the peer of one end with what they choose.
///
/// # Panics
///
/// If bytes are read that were never written, or the end breaks a promise: each request is reported
/// once, whatever the peer sends.
pub fn control(bytes: &[u8]) {
    for chunk in bytes.chunks_exact(ControlMessage::BYTES) {
        read(chunk.try_into().expect("as long as a message"));
    }
    let mut choices = Bytes::new(bytes);
    let mut end = End::new(&mut choices);
    while !choices.is_empty() {
        end.step(&mut choices);
    }
    end.finish();
}

fn read(bytes: &[u8; ControlMessage::BYTES]) {
    if let Ok(message) = ControlMessage::decode(bytes) {
        assert_eq!(message.encode(), *bytes, "a message has one form");
    }
    // Nearly one: what follows the magic decides.
    let mut near = *bytes;
    near[..3].copy_from_slice(&ControlMessage::Error.encode()[..3]);
    if let Ok(message) = ControlMessage::decode(&near) {
        assert_eq!(message.encode(), near);
    }
}

/// Names of receives; sends have smaller ones.
const RECEIVES: u64 = 1 << 32;

struct End {
    rig: Rig<4, 8, 8>,
    scheme: Scheme,
    next: u64,
    /// How often each accepted request was reported.
    reports: BTreeMap<u64, u32>,
    next_qp_num: u32,
}

impl End {
    fn new(choices: &mut dyn Choices) -> Self {
        let rails = 2 + choices.below(2) as usize;
        let setup = if choices.coin() { Setup::spray(rails) } else { Setup::dqplb(rails) };
        let min_rails = choices.below(2) as u8;
        let depth = 1 + choices.below(8);
        let setup = setup.fragment(128).depth(depth).reroute();
        let setup = setup.config(|config| config.min_rails = min_rails);
        let setup = if choices.coin() { setup.unordered() } else { setup };
        let standby = if choices.one_in(3) { choices.below(4) as u8 } else { 0 };
        let stands_by = |rail: &u8| standby >> (rail - 1) & 1 == 1;
        let standby = (1..rails as u8).filter(stands_by).map(RailId::Data).collect();
        let setup = setup.config(|config| config.standby = standby);
        let scheme = setup.config.scheme;
        let mut rig = setup.build();
        if scheme.receives_on_rails() {
            rig.qp.prepare_receives().expect("room for receives");
        }
        Self { rig, scheme, next: 0, reports: BTreeMap::new(), next_qp_num: 100 }
    }

    fn rail(&self, choices: &mut dyn Choices) -> RailId {
        let rails = self.rig.rails.len() as u32;
        match choices.below(rails + 1) {
            rail if rail < rails => RailId::Data(rail as u8),
            _ if self.rig.notify.is_some() => RailId::Notify,
            _ => RailId::Data(rails as u8),
        }
    }

    fn step(&mut self, choices: &mut dyn Choices) {
        match choices.below(8) {
            0 | 1 => self.hear(choices),
            2 => self.post(choices),
            3 => self.receive(choices),
            4 => self.complete(choices),
            5 => self.replace(choices),
            6 => self.own(choices),
            _ => {}
        }
        self.poll();
        self.rig.control_messages();
        self.rig.rail_events();
    }

    /// A message that could be meant for a rail of this end, or any at all.
    fn hear(&mut self, choices: &mut dyn Choices) {
        let rail = self.rail(choices);
        let own = self.rig.qp.rail_generation(rail).unwrap_or_default();
        let ahead = pick(choices, &[0, 0, 0, 1, 1, u16::MAX, 2]);
        let state =
            pick(choices, &[ReportedState::Failed, ReportedState::Fenced, ReportedState::Ready]);
        let number = |choices: &mut dyn Choices| match choices.below(8) {
            7 => u32::MAX - choices.below(4),
            _ => choices.below(6),
        };
        let arrived = number(choices);
        let previous_arrived = number(choices);
        let generation = own.wrapping_add(ahead);
        // Not drawn, so that older histories stay as they are.
        let on_purpose = state != ReportedState::Ready && previous_arrived % 2 == 1;
        let news = RailReport { rail, generation, state, arrived, previous_arrived, on_purpose };
        let message =
            if choices.one_in(64) { ControlMessage::Error } else { ControlMessage::Rail(news) };
        let before = self.rig.qp.state();
        let heard = self.rig.qp.control(message);
        if heard.is_err() {
            assert!(before != QpState::Error && self.rig.qp.state() == QpState::Error, "{heard:?}");
        }
    }

    fn post(&mut self, choices: &mut dyn Choices) {
        let wr_id = self.next;
        let length = 1 + choices.below(1024);
        let wr = match choices.below(4) {
            0 => rig::write(wr_id, length),
            1 => rig::write_imm(wr_id, length, wr_id as u32),
            2 => rig::read(wr_id, length),
            _ if self.scheme == Scheme::Dqplb => rig::write_imm(wr_id, length, 0),
            _ => rig::send(wr_id, length),
        };
        if self.rig.qp.post_send(&wr).is_ok() {
            self.reports.insert(wr_id, 0);
            self.next += 1;
        }
    }

    fn receive(&mut self, choices: &mut dyn Choices) {
        let wr_id = RECEIVES + self.next;
        let wr = if self.scheme == Scheme::Dqplb || choices.coin() {
            RecvWr::notification(wr_id)
        } else {
            RecvWr::data(wr_id, rig::local(64), &rig::KEYS)
        };
        if self.rig.qp.post_recv(&wr).is_ok() {
            self.reports.insert(wr_id, 0);
            self.next += 1;
        }
    }

    /// The NIC does something on one rail.
    fn complete(&mut self, choices: &mut dyn Choices) {
        let handles = self.rig.rails.iter().chain(&self.rig.notify);
        let handles: Vec<_> = handles.cloned().collect();
        let at = choices.below(handles.len() as u32) as usize;
        let handle = &handles[at];
        let what = choices.below(6);
        match what {
            0 | 1 if !handle.sends().is_empty() => handle.complete(1),
            2 if !handle.sends().is_empty() => {
                let statuses = [
                    WcStatus::RETRY_EXC_ERR,
                    WcStatus::GENERAL_ERR,
                    WcStatus::LOC_QP_OP_ERR,
                    WcStatus::REM_OP_ERR,
                    WcStatus::REM_ACCESS_ERR,
                ];
                handle.fail(pick(choices, &statuses));
            }
            3 if !handle.recvs().is_empty() && at == self.rig.rails.len() => {
                handle.deliver_imm(Imm::from_number(7));
            }
            4 => handle.flush(),
            5 => handle.refuse_next(choices.below(2), Refusal::Driver(5)),
            _ => handle.complete_all(),
        }
    }

    fn replace(&mut self, choices: &mut dyn Choices) {
        let rail = self.rail(choices);
        let generation = self.rig.qp.rail_generation(rail).unwrap_or_default();
        let generation = generation.wrapping_add(pick(choices, &[1, 1, 1, 0, 2]) as u16);
        self.next_qp_num += 1;
        let (queue_pair, handle) = self.rig.nic.qp(self.next_qp_num, &self.rig.cqs[0], LIMITS);
        let Rig { qp, cq, rails, notify, .. } = &mut self.rig;
        let down = qp.rail_state(rail) == Some(RailState::Down);
        let replaced = qp.replace_rail(cq, 0, rail, generation, queue_pair);
        assert!(replaced.is_err() || down, "only a rail that is down is replaced");
        if replaced.is_ok() {
            match rail {
                RailId::Data(at) => rails[usize::from(at)] = handle,
                RailId::Notify => *notify = Some(handle),
            }
        }
    }

    /// What an owner does.
    fn own(&mut self, choices: &mut dyn Choices) {
        let rail = self.rail(choices);
        match choices.below(8) {
            0 => {
                self.rig.qp.fail_rail(rail);
            }
            1 => {
                // SAFETY: the scripted NIC touches no memory.
                unsafe { self.rig.qp.lose_rail(rail) };
            }
            2 => self.rig.qp.control_lost(),
            3 => {
                self.rig.qp.check_stalled();
            }
            4 if choices.one_in(16) => self.rig.qp.fail(),
            5 => {
                self.rig.qp.reserve_rail(choices.below(3) as u8, choices.coin());
            }
            6 => {
                self.rig.qp.set_standby(choices.below(3) as u8, choices.coin());
            }
            _ => {
                self.rig.qp.set_rail_in_service(choices.below(3) as u8, choices.coin());
            }
        }
    }

    fn poll(&mut self) {
        for wc in self.rig.poll() {
            let reports = self.reports.get_mut(&wc.wr_id).expect("an accepted request");
            *reports += 1;
            assert_eq!(*reports, 1, "{} is reported once", wc.wr_id);
        }
    }

    /// Given up, everything is reported.
    fn finish(mut self) {
        self.rig.qp.fail();
        for _ in 0..4 {
            self.poll();
            self.rig
                .rails
                .iter()
                .chain(&self.rig.notify)
                .for_each(crate::scripted::QpHandle::flush);
        }
        self.poll();
        assert_eq!(self.rig.qp.unreported_sends(), 0);
        let mut left = self.reports.iter().filter(|(_, reports)| **reports == 0);
        // As on one connection, an unsignaled request would not be reported; there are none here.
        assert_eq!(left.next(), None, "everything is reported");
    }
}
