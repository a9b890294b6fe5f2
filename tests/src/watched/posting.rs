//! What rails post: every byte once, in its order, with the keys of its rail, and counted.

use super::Watched;
use super::fragment::{STRIDE, is_marker, place, units};
use super::request::Request;
use crate::rig::{REMOTE, keys_on};
use crate::scripted::Note;
use polyrail_core::internals::SequenceImm;
use polyrail_core::verbs::{Opcode, SendFlags, SendRequest, WcStatus};
use polyrail_core::virtual_qp::{RailCounters, RailId};

impl<const RAILS: usize, const DEPTH: usize, const WRS: usize> Watched<RAILS, DEPTH, WRS> {
    /// Checks everything that was posted since the last call.
    pub(super) fn check_posts(&mut self) {
        if self.rig.nic.refusals() > 0 || self.has_failed() {
            self.turns.upset();
        }
        assert_eq!(self.rig.nic.invalid(), 0, "no rail gets more than it takes");
        for note in self.rig.nic.take_log() {
            self.turns.note(&note);
            if let Note::Doorbell { qp_num, requests, .. } = note {
                self.rung(qp_num, &requests);
            }
        }
        if let Some(oldest) = self.unacknowledged.first() {
            assert!(Some(self.next_number - oldest) <= self.span, "the span is kept");
        }
        self.check_counters();
    }

    fn rung(&mut self, qp_num: u32, requests: &[SendRequest]) {
        let at = self.handles.iter().position(|qp| qp.qp_num() == qp_num).expect("one of ours");
        let is_errored = self.handles[at].is_errored();
        for request in requests {
            self.posted(at, request);
            if is_errored {
                self.ended(qp_num, &[*request], WcStatus::WR_FLUSH_ERR);
            }
        }
    }

    /// The engine counted what the NIC saw. Bytes of a batch whose rest a driver will take later
    /// may be counted already.
    fn check_counters(&self) {
        for (at, handle) in self.handles.iter().enumerate() {
            let id =
                if at < self.in_service.len() { RailId::Data(at as u8) } else { RailId::Notify };
            let counted = self.rig.qp.counters(id).expect("a rail of its own");
            let bytes = if handle.owes() && !self.has_failed() {
                counted.bytes
            } else {
                handle.counters().bytes
            };
            assert_eq!(counted, RailCounters { bytes, ..handle.counters() }, "counters of {id}");
        }
    }

    /// Requests before this one that DQPLB gives no numbers, and that its numbers stay behind.
    pub(super) fn unnumbered_before(&self, id: usize) -> impl Iterator<Item = (usize, &Request)> {
        self.requests[..id].iter().enumerate().filter(|(_, earlier)| match earlier.opcode {
            Opcode::RdmaWrite | Opcode::RdmaRead => true,
            Opcode::RdmaWriteWithImm => false,
            _ => self.ordered,
        })
    }

    /// Requests before a solicited one of DQPLB that have numbers and are not solicited.
    pub(super) fn unsolicited_before(&self, id: usize) -> impl Iterator<Item = (usize, &Request)> {
        let solicited = self.requests[id].flags.contains(SendFlags::SOLICITED);
        self.requests[..id].iter().enumerate().filter(move |(_, earlier)| {
            let unsolicited = !earlier.flags.contains(SendFlags::SOLICITED);
            solicited && unsolicited && earlier.opcode == Opcode::RdmaWriteWithImm
        })
    }

    fn posted(&mut self, at: usize, request: &SendRequest) {
        if is_marker(request) {
            return assert!(self.has_failed(), "a marker stands for what was given up");
        }
        if self.is_notify(request) {
            self.notify_posted(request);
            if request.sge.length() == 0 {
                return;
            }
        }
        let (id, offset) = place(request);
        let spray = self.span.is_none();
        let keys = keys_on(self.devices[at] as u32);
        let mut end = request.sge.addr();
        for sge in self.handles[at].buffers(request) {
            // A SEND names no memory of the peer's.
            let rkey = if request.opcode == Opcode::Send { keys.rkey } else { request.rkey };
            assert_eq!((sge.lkey(), rkey), (keys.lkey, keys.rkey), "keys of {id}");
            assert_eq!(sge.addr(), end, "bytes of {id} are missing, or twice there");
            end += u64::from(sge.length());
        }
        let before = &self.requests[..id];
        let this = &self.requests[id];
        if this.flags.contains(SendFlags::FENCE) {
            assert!(before.iter().all(|earlier| earlier.is_done(spray)), "fence of {id}");
        }
        let alike = before.iter().filter(|other| other.is_fragmented() == this.is_fragmented());
        assert!(alike.clone().all(Request::is_started), "{id} is started out of order");
        if self.ordered && !this.is_fragmented() {
            let earlier = before.iter().filter(|earlier| earlier.is_fragmented());
            assert!(earlier.clone().all(|earlier| earlier.is_done(spray)), "{id}");
        }
        let numbered = !spray && this.opcode == Opcode::RdmaWriteWithImm;
        if numbered || !this.is_fragmented() {
            let wakes = request.flags.contains(SendFlags::SOLICITED);
            assert_eq!(wakes, this.flags.contains(SendFlags::SOLICITED), "{id} wakes its receiver");
        }
        if numbered {
            let in_place = |(_, earlier): (usize, &Request)| earlier.ended == earlier.length;
            let all_in_place = self.unnumbered_before(id).all(in_place);
            assert!(all_in_place, "{id} would notify before everything is in place");
            let all_woken = self.unsolicited_before(id).all(in_place);
            assert!(
                all_woken,
                "the receiver sleeps on if {id} arrives before the last of another one"
            );
            let imm = SequenceImm::decode(request.imm).expect("a number");
            assert!(self.unacknowledged.insert(imm.number.get()), "no number twice");
            self.incomplete.insert(imm.number.get());
            let last = offset + units(request) == this.length;
            assert_eq!(imm.last, last);
            self.next_number = self.next_number.max(imm.number.get() + 1);
        }
        assert!(!this.reported, "nothing is posted of a reported request");
        let this = &mut self.requests[id];
        this.posted += units(request);
        assert!(this.posted <= this.length, "no byte twice");
    }

    fn notify_posted(&mut self, request: &SendRequest) {
        let id = ((request.remote_addr - REMOTE) / STRIDE) as usize;
        assert_eq!(request.imm.number(), id as u32, "the user's immediate");
        let wakes = request.flags.contains(SendFlags::SOLICITED);
        let asked = self.requests[id].flags.contains(SendFlags::SOLICITED);
        assert_eq!(wakes, asked, "{id} wakes its receiver");
        let earlier = &self.requests[..id];
        // Its own data may be in the notify. Then other notifies with data may be ahead of it.
        let with_data = request.sge.length() > 0;
        let before = if with_data { earlier } else { &self.requests[..=id] };
        let mut fragmented = before.iter().filter(|request| request.is_fragmented());
        let is_there = |request: &Request| request.data_done() || with_data && request.with_notify;
        assert!(fragmented.all(is_there), "notify of {id} is premature");
        let this = &self.requests[id];
        let is_whole = this.posted == 0 && u64::from(request.sge.length()) == this.length;
        assert!(!with_data || is_whole, "{id} goes with its notify in part");
        if self.requests[id].bytes == 0 && self.requests[id].flags.contains(SendFlags::FENCE) {
            assert!(earlier.iter().all(|earlier| earlier.is_done(true)), "fence of {id}");
        }
        let bypassing = earlier.iter().filter(|request| self.ordered && !request.is_fragmented());
        let ended = |request: &Request| request.ended == request.length;
        assert!(bypassing.clone().all(ended), "notify of {id} overtakes a pass-through request");
        let wanting = earlier.iter().filter(|r| r.opcode == Opcode::RdmaWriteWithImm);
        assert!(wanting.clone().all(|earlier| earlier.notified), "notifies go in order");
        self.requests[id].with_notify = with_data;
        assert!(!std::mem::replace(&mut self.requests[id].notified, true), "notified once");
    }

    /// Whether it is one of SPRAY's notifies. DQPLB's signals are fragments.
    pub(super) fn is_notify(&self, request: &SendRequest) -> bool {
        self.span.is_none() && request.opcode == Opcode::RdmaWriteWithImm
    }
}
