//! What is checked when a NIC executes a request, and when an engine reports that something is
//! done.

use super::direction::{
    DataReceive, Direction, PLACES, READABLE, RECEIVE, RECEIVES, Request, SOURCE, STRIDE,
};
use super::fabric::Executed;
use super::shape::{Job, Kind};
use polyrail_core::internals::SequenceImm;
use polyrail_core::verbs::{Opcode, SendFlags, SendRequest, WcOpcode, WcStatus};
use polyrail_core::virtual_cq::VirtualWc;
use polyrail_core::virtual_qp::Scheme;

/// The number of what this address belongs to, and the offset in it.
fn find(base: u64, addr: u64) -> (usize, usize) {
    assert!(addr >= base && addr < base + (1 << 28), "address {addr:#x} is nobody's");
    (((addr - base) / STRIDE) as usize, ((addr - base) % STRIDE) as usize)
}

impl Direction {
    /// The peer's NIC executed a request. `may_be_late` is set if the sender's engine has named the
    /// rail as one through which requests that failed may still be executed.
    pub(super) fn executed(&mut self, executed: &Executed, may_be_late: bool) {
        let request = &executed.request;
        let is_empty = request.sge.length() == 0;
        match request.opcode {
            Opcode::RdmaWriteWithImm if is_empty && self.scheme == Scheme::Spray => {
                self.notify_ran(request);
            }
            // A mark at the end of a batch that was taken in part.
            Opcode::RdmaWrite if is_empty => {}
            Opcode::RdmaWrite | Opcode::RdmaWriteWithImm => self.write_ran(request, may_be_late),
            Opcode::RdmaRead => self.read_ran(request),
            Opcode::Send => self.send_ran(executed),
            Opcode::FetchAdd => self.atomic_ran(request),
            other => panic!("{other:?} was never posted"),
        }
    }

    fn notify_ran(&mut self, request: &SendRequest) {
        let number = request.imm.number() as usize;
        let kind = self.requests[number].job.kind;
        assert_eq!((self.scheme, kind), (Scheme::Spray, Kind::WriteImm), "notify of {number}");
        assert!(self.requests[number].has_run(), "notify of {number} before its data");
        self.check_wakes(number, request);
        let missing = self.missing_before(number, self.is_ordered());
        assert_eq!(missing, None, "notify of {number} before what was posted before it");
        if self.requests[number].job.length == 0 {
            self.check_fence(number);
        }
        self.requests[number].notified = true;
    }

    fn write_ran(&mut self, request: &SendRequest, may_be_late: bool) {
        let (number, offset) = find(SOURCE, request.sge.addr());
        let this = &self.requests[number];
        assert!(matches!(this.job.kind, Kind::Write | Kind::WriteImm), "a WRITE of {number}");
        let target = PLACES + this.place as u64 * STRIDE + offset as u64;
        assert_eq!(request.remote_addr, target, "{offset} bytes into request {number}");
        let fragment = self.check_fragment(number, request, offset);
        let (kind, status) = (this.job.kind, this.report);
        assert!(!this.told, "late write: request {number} ({kind:?}) was notified");
        match status {
            None => {}
            Some(WcStatus::SUCCESS) => panic!("late write: {number} ({kind:?}) was reported"),
            Some(_) => {
                assert!(
                    may_be_late,
                    "late write: {number} failed, on a rail that is said to be fenced"
                );
            }
        }
        if let Some(imm) = SequenceImm::decode(request.imm).filter(|_| self.is_numbered(request)) {
            self.number_ran(imm.number.get());
            self.check_wakes(number, request);
        }
        self.check_no_fence_passed(number);
        self.check_fence(number);
        let place = self.requests[number].place;
        self.is_unchecked = true;
        for at in offset..offset + request.sge.length() as usize {
            self.memory[place][at] = Self::byte(number, at);
        }
        self.requests[number].ran |= 1 << fragment;
    }

    /// The completion that notifies the receiver of a request wakes it if that was asked for. With
    /// DQPLB it then finds the earlier ones in place that wake no thread.
    fn check_wakes(&self, number: usize, request: &SendRequest) {
        let Job { solicited, .. } = self.requests[number].job;
        let wakes = request.flags.contains(SendFlags::SOLICITED);
        assert_eq!(wakes, solicited, "what tells of {number} wakes its receiver");
        if solicited && self.scheme == Scheme::Dqplb {
            let is_quiet = |at: &usize| {
                let Job { kind, solicited, .. } = self.requests[*at].job;
                kind == Kind::WriteImm && !solicited && !self.is_complete(*at)
            };
            let missing = (0..number).find(is_quiet);
            assert_eq!(missing, None, "{number} wakes its receiver before all is there");
        }
    }

    fn is_numbered(&self, request: &SendRequest) -> bool {
        self.scheme == Scheme::Dqplb && request.opcode == Opcode::RdmaWriteWithImm
    }

    /// A number was posted: its sender does not run ahead of the oldest that was not executed.
    pub(super) fn number_posted(&self, request: &SendRequest) {
        let imm = SequenceImm::decode(request.imm).filter(|_| self.is_numbered(request));
        if let Some(imm) = imm {
            let (number, missing) = (imm.number.get(), self.oldest_number);
            let end = missing.saturating_add(self.span);
            assert!(number < end, "number {number} while {missing} is on its way");
        }
    }

    /// A number was executed.
    fn number_ran(&mut self, number: u32) {
        self.numbers.insert(number);
        while self.numbers.remove(&self.oldest_number) {
            self.oldest_number += 1;
        }
    }

    /// Which fragment a request is.
    fn check_fragment(&self, number: usize, request: &SendRequest, offset: usize) -> u32 {
        let fragment = self.requests[number].fragment_at(offset as u32);
        let (fragment, length) =
            fragment.unwrap_or_else(|| panic!("no fragment of {number} begins at {offset}"));
        assert_eq!(request.sge.length(), length, "of fragment {fragment} of {number}");
        fragment
    }

    /// No request behind this one waited for it, and was executed.
    fn check_no_fence_passed(&self, number: usize) {
        let behind = self.requests.iter().enumerate().skip(number + 1);
        for (later, request) in behind {
            let is_signal = request.job.length == 0 && self.scheme == Scheme::Spray;
            let ran = if is_signal { request.notified } else { request.ran != 0 };
            let passed = request.job.fence && ran;
            assert!(!passed, "late write: {number} after {later}, which is behind a FENCE");
        }
    }

    /// A request with FENCE finds everything before it complete.
    fn check_fence(&self, number: usize) {
        if self.requests[number].job.fence {
            let missing = (0..number).find(|at| !self.is_complete(*at));
            assert_eq!(missing, None, "request {number} has FENCE and was executed before");
        }
    }

    fn read_ran(&mut self, request: &SendRequest) {
        let (number, offset) = find(SOURCE, request.sge.addr());
        assert_eq!(self.requests[number].job.kind, Kind::Read, "a READ of {number}");
        let target = READABLE + number as u64 * STRIDE + offset as u64;
        assert_eq!(request.remote_addr, target, "{offset} bytes into READ {number}");
        let fragment = self.check_fragment(number, request, offset);
        // What a READ finds does not matter once no caller waits for it.
        if self.requests[number].report.is_none() {
            self.check_fence(number);
            self.requests[number].ran |= 1 << fragment;
        }
    }

    fn send_ran(&mut self, executed: &Executed) {
        let (number, offset) = find(SOURCE, executed.request.sge.addr());
        let this = &self.requests[number];
        assert_eq!((this.job.kind, offset), (Kind::Send, 0), "a SEND of {number}");
        assert_eq!(executed.request.sge.length(), this.job.length, "of SEND {number}");
        self.check_wakes(number, &executed.request);
        self.check_fence(number);
        if self.is_ordered() {
            let missing = self.missing_before(number, true);
            assert_eq!(missing, None, "SEND {number} overtakes what was posted before it");
        }
        self.requests[number].ran = 1;
        let receive = executed.receive.expect("a SEND takes a receive");
        let (at, _) = find(RECEIVES, receive.sge.addr());
        let DataReceive { holds, is_reported } = &mut self.data_receives[at];
        assert!(!*is_reported, "SEND {number} lands in receive {at}, which was reported");
        *holds = Some(number);
    }

    fn atomic_ran(&mut self, request: &SendRequest) {
        let (number, _) = find(SOURCE, request.sge.addr());
        assert_eq!(self.requests[number].job.kind, Kind::FetchAdd, "an atomic of {number}");
        assert_eq!(self.requests[number].ran, 0, "atomic {number} was executed twice");
        self.check_fence(number);
        self.requests[number].ran = 1;
    }

    /// The acknowledgement of a request that brings bytes is there.
    pub(super) fn landed(&mut self, request: &SendRequest) {
        if request.opcode.is_fetching() {
            let (number, offset) = find(SOURCE, request.sge.addr());
            let this = &mut self.requests[number];
            assert_eq!(this.report, None, "bytes of {number} land after its report");
            let fragment = this.fragment_at(offset as u32);
            this.landed |= 1 << fragment.expect("the beginning of a fragment").0;
        }
    }

    /// The sender's engine reports a request.
    pub(super) fn reported(&mut self, wc: &VirtualWc, in_error: bool) {
        let number = wc.wr_id as usize;
        let this = &self.requests[number];
        assert_eq!(this.report, None, "request {number} is reported twice");
        assert!(wc.status.is_success() || in_error, "request {number} failed with {:?}", wc.status);
        assert!(this.job.signaled || !wc.status.is_success(), "{number} is not signaled");
        if !this.job.when_done {
            self.check_turn(number);
        }
        if wc.status.is_success() {
            assert!(self.is_complete(number), "{number} is reported, and is not there: {this:?}");
        }
        self.requests[number].report = Some(wc.status);
        self.is_unchecked = true;
    }

    /// A request that waits for its turn is reported: neither is one before it left that has to be
    /// reported, nor was one behind it reported, of those that it has to be in order with.
    fn check_turn(&self, number: usize) {
        // Pass-through requests of different kinds share rail 0.
        let is_fragmented = self.requests[number].job.is_fragmented();
        let in_turn =
            |other: &Request| other.job.is_fragmented() == is_fragmented && !other.job.when_done;
        let (before, behind) = self.requests.split_at(number);
        let waits =
            |other: &&Request| in_turn(other) && other.job.signaled && other.report.is_none();
        let earlier = before.iter().find(waits);
        assert!(earlier.is_none(), "request {number} is reported before {earlier:?}");
        let was = |other: &&Request| in_turn(other) && other.report.is_some();
        let later = behind.iter().find(was);
        assert!(later.is_none(), "request {number} is reported behind {later:?}");
    }

    /// The receiver's engine reports a receive.
    pub(super) fn received(&mut self, wc: &VirtualWc, in_error: bool) {
        let at = (wc.wr_id & !RECEIVE) as usize;
        assert!(wc.status.is_success() || in_error, "receive {at} failed with {:?}", wc.status);
        if at & 1 == 0 { self.notified(at >> 1, wc) } else { self.delivered(at >> 1, wc) }
    }

    fn notified(&mut self, at: usize, wc: &VirtualWc) {
        let expected = self.notifications + self.failed_notifications;
        assert_eq!(at, expected, "notification receives are reported in order");
        if !wc.status.is_success() {
            self.failed_notifications += 1;
            return;
        }
        assert_eq!(wc.opcode, WcOpcode::RECV_RDMA_WITH_IMM);
        let number = self.nth(Kind::WriteImm, self.notifications).expect("a WRITE_WITH_IMM");
        self.notifications += 1;
        let imm = (self.scheme == Scheme::Spray).then_some(number as u32);
        assert_eq!(wc.imm, imm, "notification out of order or twice");
        let missing = self.missing_before(number + 1, false);
        assert_eq!(missing, None, "notification of {number} before its data is in place");
        if self.is_ordered() {
            let missing = self.missing_before(number, true);
            assert_eq!(missing, None, "notification of {number} before a SEND or atomic");
        }
        self.tell(number);
    }

    fn delivered(&mut self, at: usize, wc: &VirtualWc) {
        let reported = self.data_receives.iter().take_while(|receive| receive.is_reported).count();
        assert_eq!(at, reported, "data receives are reported in order");
        self.data_receives[at].is_reported = true;
        self.is_unchecked = true;
        if !wc.status.is_success() {
            return;
        }
        let number = self.nth(Kind::Send, self.deliveries).expect("a SEND");
        self.deliveries += 1;
        assert_eq!(self.data_receives[at].holds, Some(number), "SEND out of order or twice");
        let length = self.requests[number].job.length;
        assert_eq!((wc.opcode, wc.byte_len), (WcOpcode::RECV, length));
        if self.is_ordered() {
            let missing = self.missing_before(number, true);
            assert_eq!(missing, None, "SEND {number} is there before what was posted before it");
            self.tell(number);
        }
        self.requests[number].told = true;
    }

    /// The receiver was notified that this request and the earlier ones are there.
    fn tell(&mut self, number: usize) {
        self.is_unchecked = true;
        for (at, request) in self.requests[..=number].iter_mut().enumerate() {
            if request.job.is_fragmented() || at == number {
                request.told = true;
            }
        }
    }
}
