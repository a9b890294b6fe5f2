//! Whose turn it is: the order in which rails are visited.
//!
//! Devices alternate as far as they can. A batch of fragments goes to the first rail with room from
//! the turn after the last one on; for requests that waited, from the turn of the rail that was
//! freed last on. Where all rails had their turn and the last one got less than its share, the next
//! request goes on from that turn itself; how large a share was is not visible here, so both are
//! right. Perhaps only a SEND waited, which is not visible here: so after polls a new request may
//! go on from either turn. Least finish time, rails that leave service and drivers that refuse
//! upset the order: then nothing is checked.

use crate::rig::{FIRST_QP_NUM, NOTIFY_QP_NUM, Setup};
use crate::scripted::Note;
use polyrail_core::verbs::Opcode;
use polyrail_core::virtual_qp::RailChoice;

/// The turns of one virtual queue pair.
#[derive(Clone, Debug)]
pub(super) struct Turns {
    /// The rail of each turn, and how many requests may be in flight on each rail.
    order: Vec<usize>,
    limits: Vec<u32>,
    /// The turn that comes next, and that of the rail that was freed last.
    next: usize,
    /// The turn that fragments were posted in last.
    last: usize,
    freed: usize,
    /// The turns of rails that were freed since fragments were posted last, and whether a poll is
    /// still going on.
    freed_since: Vec<usize>,
    polling: bool,
    /// Nothing has upset the order yet.
    known: bool,
}

impl Turns {
    pub(super) fn new(setup: &Setup, limits: Vec<u32>) -> Self {
        let devices: Vec<_> = (0..setup.rails).map(|rail| setup.device_of(rail)).collect();
        let before = |rail: usize| devices[..rail].iter().filter(|d| **d == devices[rail]).count();
        let mut order: Vec<usize> = (0..setup.rails).collect();
        order.sort_by_key(|rail| (before(*rail), *rail));
        let known = setup.config.rail_choice == RailChoice::RoundRobin;
        Self {
            order,
            limits,
            next: 0,
            last: 0,
            freed: 0,
            freed_since: Vec::new(),
            polling: false,
            known,
        }
    }

    /// The order can no longer be predicted.
    pub(super) fn upset(&mut self) {
        self.known = false;
    }

    /// An inline request found a rail, but no number: the next turn is not visible.
    pub(super) fn skip(&mut self) {
        self.freed_since.extend(0..self.order.len());
    }

    /// A post begins: its request did not wait.
    pub(super) fn posts(&mut self) {
        self.polling = false;
    }

    /// Records an event of the NIC.
    pub(super) fn note(&mut self, note: &Note) {
        match note {
            Note::Polled { qp_num, freed } => {
                if *freed && *qp_num != NOTIFY_QP_NUM {
                    self.freed = self.turn_of(*qp_num);
                }
                self.polling = true;
                self.freed_since.push(self.freed);
            }
            Note::Doorbell { qp_num, requests, slots } => {
                let first = &requests[0];
                let fragments = match first.opcode {
                    Opcode::RdmaWrite | Opcode::RdmaRead => first.sge.length() > 0,
                    Opcode::RdmaWriteWithImm => *qp_num != NOTIFY_QP_NUM,
                    _ => false,
                };
                if fragments && self.known {
                    self.fragments(self.turn_of(*qp_num), slots);
                }
            }
        }
    }

    fn fragments(&mut self, turn: usize, slots: &[u32]) {
        let freed = std::mem::take(&mut self.freed_since);
        let from = match freed.is_empty() {
            false if self.polling => vec![self.freed],
            _ => [vec![self.next, self.last], freed].concat(),
        };
        let turns = self.order.len();
        let has_room = |turn: &usize| slots[self.order[*turn]] < self.limits[self.order[*turn]];
        let first = |from: usize| (0..turns).map(|step| (from + step) % turns).find(has_room);
        let expected = from.iter().any(|from| first(*from) == Some(turn));
        assert!(expected, "turn {turn}, though from turns {from:?} on, with {slots:?} taken");
        self.next = (turn + 1) % turns;
        self.last = turn;
    }

    fn turn_of(&self, qp_num: u32) -> usize {
        let rail = (qp_num - FIRST_QP_NUM) as usize;
        self.order.iter().position(|other| *other == rail).expect("a rail")
    }
}
