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
use polyrail_core::virtual_qp::{CancelError, Scheme};

/// Whether a request is a number of DQPLB without its data.
pub(super) fn is_gap(request: &SendRequest) -> bool {
    let is_numbered = request.opcode == Opcode::RdmaWriteWithImm;
    is_numbered && request.sge.length() == 0 && request.sge.addr() < SOURCE
}

/// Whether a request is in the rest of a batch whose front, as far as a driver took it, ends with
/// the first request of `rest`, and is of the same caller's request as that. Of a batch of several
/// such requests, only the one that the driver took in part is posted to its end.
fn follows(request: &SendRequest, rest: &[SendRequest]) -> bool {
    let Some((last, rest)) = rest.split_first() else { return false };
    let of = |request: &SendRequest| request.sge.addr() / STRIDE;
    of(last) == of(request) && rest.iter().any(|left| left.sge.addr() == request.sge.addr())
}

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
            Opcode::RdmaWriteWithImm if self.scheme == Scheme::Spray => {
                if !is_empty {
                    self.write_ran(request, may_be_late);
                }
                self.notify_ran(request);
            }
            Opcode::RdmaWriteWithImm if is_gap(request) => self.gap_ran(request),
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
        let is_wanted_back = self.requests[number].is_wanted_back;
        assert!(!is_wanted_back, "notify of {number}, which was taken back");
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
            Some(WcStatus::CANCELLED) => panic!("late write: {number} ({kind:?}) was taken back"),
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
                kind == Kind::WriteImm && !solicited && !self.is_counted(*at)
            };
            let missing = (0..number).find(is_quiet);
            assert_eq!(missing, None, "{number} wakes its receiver before all is there");
        }
    }

    fn is_numbered(&self, request: &SendRequest) -> bool {
        self.scheme == Scheme::Dqplb && request.opcode == Opcode::RdmaWriteWithImm
    }

    /// Whether all numbers of a request that will ever be were executed.
    pub(super) fn is_counted(&self, number: usize) -> bool {
        let request = &self.requests[number];
        if !request.is_wanted_back {
            return self.is_complete(number);
        }
        request.numbers.iter().all(|number| self.has_number_run(*number))
    }

    fn has_number_run(&self, number: u32) -> bool {
        number < self.oldest_number || self.numbers.contains(&number)
    }

    /// A number was executed without its data: its request was taken back, and the receiver is not
    /// notified of it.
    fn gap_ran(&mut self, request: &SendRequest) {
        let imm = SequenceImm::decode(request.imm).expect("a number");
        assert!(!imm.last, "a number without data notifies the receiver");
        let number = imm.number.get();
        let owner = self.requests.iter().position(|request| request.numbers.contains(&number));
        // A driver may not have taken the number with its data.
        if let Some(owner) = owner {
            let it = &mut self.requests[owner];
            assert!(it.is_wanted_back, "a gap of {owner}: {it:?}");
            let wakes = request.flags.contains(SendFlags::SOLICITED);
            assert_eq!(wakes, it.job.solicited, "a gap of {owner} wakes its receiver");
            // It may have been executed with its data, if the receiver's completions were lost.
            it.lost_its_end |= it.last_number == Some(number);
        }
        self.number_ran(number);
    }

    /// An application takes a request back.
    pub(super) fn take_back(&mut self, number: usize) {
        let this = &mut self.requests[number];
        assert!(this.job.is_fragmented() && this.report.is_none(), "{this:?} is taken back");
        assert!(!this.is_wanted_back && !this.notified, "{this:?} is taken back");
        this.is_wanted_back = true;
    }

    /// An engine does not take a request back. `is_notify_owed`: its notify is in the rest of a
    /// batch of which a driver took the front.
    pub(super) fn check_kept(&self, number: usize, error: CancelError, is_notify_owed: bool) {
        let this = &self.requests[number];
        let is_fair = match error {
            // Its report may wait for the budget of a poll.
            CancelError::Unknown { wr_id } => {
                let is_over = this.report.is_some() || this.has_run() || !this.job.signaled;
                wr_id == number as u64 && is_over
            }
            CancelError::Opcode(_) => !this.job.is_fragmented(),
            CancelError::AlreadyCancelled => this.is_wanted_back,
            CancelError::TooLate => match (self.scheme, this.job.kind) {
                // Its data may be in its notify, and not be executed yet.
                (Scheme::Spray, Kind::WriteImm) => this.notify_is_posted || is_notify_owed,
                // The others may be missing still.
                (Scheme::Dqplb, Kind::WriteImm) => this.has_ended(),
                _ => this.has_run(),
            },
            CancelError::InErrorState => true,
            CancelError::NotRerouting
            | CancelError::Peer { .. }
            | CancelError::NotUnique { .. } => false,
        };
        assert!(is_fair, "{this:?} is not taken back: {error}");
    }

    /// The request that a notify of SPRAY is of.
    pub(super) fn notify_of(&self, request: &SendRequest) -> Option<usize> {
        let is_notify = self.scheme == Scheme::Spray && request.opcode == Opcode::RdmaWriteWithImm;
        is_notify.then(|| request.imm.number() as usize)
    }

    /// Something was posted to the notify queue pair.
    pub(super) fn notify_posted(&mut self, request: &SendRequest) {
        if let Some(number) = self.notify_of(request) {
            self.requests[number].notify_is_posted = true;
        }
    }

    /// Data, or a number, was posted. `rest`: the last request that the driver had taken of a batch
    /// that it took in part, and those that were left.
    pub(super) fn data_posted(&mut self, request: &SendRequest, rest: &[SendRequest]) {
        let is_data = matches!(
            request.opcode,
            Opcode::RdmaWrite | Opcode::RdmaWriteWithImm | Opcode::RdmaRead
        );
        if !is_data || request.sge.addr() < SOURCE {
            return;
        }
        let (number, _) = find(SOURCE, request.sge.addr());
        let imm = SequenceImm::decode(request.imm).filter(|_| self.is_numbered(request));
        let this = &mut self.requests[number];
        this.numbers.extend(imm.map(|imm| imm.number.get()));
        this.last_number =
            imm.filter(|imm| imm.last).map(|imm| imm.number.get()).or(this.last_number);
        let is_delivered = imm.is_some() && this.has_ended();
        let is_over = this.is_wanted_back && !is_delivered && !follows(request, rest);
        assert!(!is_over, "{number} is posted though it was taken back: {request:?}");
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
            let is_missing =
                |at: &usize| !self.is_complete(*at) && !self.requests[*at].is_wanted_back;
            let missing = (0..number).find(is_missing);
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
        if wc.status == WcStatus::CANCELLED {
            self.check_taken_back(number, wc.byte_len);
        } else {
            let status = wc.status;
            assert!(status.is_success() || in_error, "request {number} failed with {status:?}");
            let is_signaled = this.job.signaled || this.is_wanted_back;
            assert!(is_signaled || !status.is_success(), "{number} is not signaled");
            if !this.job.when_done && !this.is_wanted_back {
                self.check_turn(number);
            }
        }
        if wc.status.is_success() {
            assert!(self.is_complete(number), "{number} is reported, and is not there: {this:?}");
            if !in_error {
                self.check_counted_before(number);
            }
        }
        self.requests[number].report = Some(wc.status);
        self.is_unchecked = true;
    }

    /// A request was taken back, and no more than its first bytes were written.
    fn check_taken_back(&self, number: usize, bytes: u32) {
        let this = &self.requests[number];
        assert!(this.is_wanted_back && !this.notified && !this.told, "nobody takes {this:?} back");
        assert!(bytes <= this.job.length, "{bytes} bytes of {number}");
        let is_behind = |(at, _): &(usize, &u32)| {
            let end = this.cuts.get(at + 1).copied().unwrap_or(this.job.length);
            (this.ran | this.landed) >> at & 1 == 1 && end > bytes
        };
        let is_notify = this.job.length == 0 && self.scheme == Scheme::Spray;
        let behind = this.cuts.iter().enumerate().find(is_behind).filter(|_| !is_notify);
        assert_eq!(behind, None, "{bytes} bytes of {number} may be written: {this:?}");
    }

    /// With DQPLB, the receiver is notified of a request once all earlier numbers were executed, of
    /// requests that were taken back as well.
    fn check_counted_before(&self, number: usize) {
        let this = &self.requests[number];
        let newest = this.numbers.last().filter(|_| !this.job.when_done);
        if let Some(newest) = newest {
            let oldest = self.oldest_number;
            assert!(oldest > *newest, "{number} is reported, and number {oldest} is on its way");
        }
    }

    /// A request that waits for its turn is reported: neither is one before it left that has to be
    /// reported, nor was one behind it reported, of those that it has to be in order with.
    fn check_turn(&self, number: usize) {
        // Pass-through requests of different kinds share rail 0.
        let is_fragmented = self.requests[number].job.is_fragmented();
        let in_turn = |other: &Request| {
            let has_turn = !other.job.when_done && !other.is_wanted_back;
            other.job.is_fragmented() == is_fragmented && has_turn
        };
        let (before, behind) = self.requests.split_at(number);
        let waits =
            |other: &&Request| in_turn(other) && other.job.signaled && other.report.is_none();
        let earlier = before.iter().find(waits);
        assert!(earlier.is_none(), "request {number} is reported before {earlier:?}");
        let was = |other: &&Request| {
            let is_in_turn = other.report.is_some_and(|status| status != WcStatus::CANCELLED);
            in_turn(other) && is_in_turn
        };
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
        // No bytes, whether the notification came with its data or not.
        assert_eq!((wc.opcode, wc.byte_len), (WcOpcode::RECV_RDMA_WITH_IMM, 0));
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
            let is_there = request.job.is_fragmented() && !request.is_wanted_back;
            if is_there || at == number {
                request.told = true;
            }
        }
    }
}
