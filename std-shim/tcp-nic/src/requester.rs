//! The requests of one end: which are posted, sent, acknowledged and complete. No I/O.

use crate::wire::{FIRST, Header, Kind, LAST, Malformed, OPERANDS, SEGMENT, SOLICITED, expand};
use polyrail_core::hardware::QpLimits;
use polyrail_core::verbs::{Opcode, SendFlags, WcStatus};
use polyrail_nic_parts::error::vendor;
use polyrail_nic_parts::memory::{DomainId, MemoryTable};
use polyrail_nic_parts::send_ring::SendRing;
use std::collections::VecDeque;

/// Positions count requests from the first, and are their numbers on the wire:
///
/// ```text
/// settled <= transmitted <= next <= posted        settled <= acked <= transmitted
/// ```
///
/// Requests below `settled` are complete, those below `transmitted` have been given to the socket
/// whole, and frames of those below `next` were made.
#[derive(Debug)]
pub(crate) struct Requester {
    pub(crate) ring: SendRing,
    settled: u64,
    acked: u64,
    transmitted: u64,
    next: u64,
    /// Bytes of the request at `next` for which frames were made.
    offset: u32,
    /// Counts how often requests were taken back because one met no receive. Frames that were made
    /// before do not count as transmitted.
    epoch: u32,
    /// READs and atomics whose response is not complete, oldest first.
    fetches: VecDeque<Fetch>,
    /// Requests below it that fetch have their data.
    fetched: u64,
    waiting: Option<Waiting>,
    stop: Option<Failure>,
    /// `vendor_err` of the reason why no acknowledgement can come any more.
    lost: Option<u32>,
    pub(crate) timers: Timers,
    /// The peer has confirmed something since the watch looked last.
    progressed: bool,
}

#[derive(Clone, Copy, Debug)]
struct Fetch {
    position: u64,
    placed: u32,
}

/// A request met no receive, and waits for one.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    position: u64,
    /// When it fails, in nanoseconds of the device's clock.
    until: Option<u64>,
}

/// A request that fails as soon as all earlier ones are complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) position: u64,
    pub(crate) status: WcStatus,
    pub(crate) vendor: u32,
}

/// The limits of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Timers {
    pub(crate) rnr_retry: u8,
    pub(crate) max_rd_atomic: u8,
    /// Nanoseconds without progress after which a request fails; `None`: never.
    pub(crate) limit: Option<u64>,
}

/// A frame of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestFrame {
    pub(crate) header: Header,
    pub(crate) position: u64,
    pub(crate) epoch: u32,
}

/// What a frame of the peer did to the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acked {
    /// Nothing, or requests can complete now.
    Taken,
    /// It acknowledges more than is known to be transmitted. A thread that transmits counts
    /// requests after the system call, so the caller waits for that thread and tries again.
    Ahead,
}

impl Requester {
    pub(crate) fn new(ring: SendRing, max_rd_atomic: u8) -> Self {
        Self {
            ring,
            settled: 0,
            acked: 0,
            transmitted: 0,
            next: 0,
            offset: 0,
            epoch: 0,
            fetches: VecDeque::with_capacity(max_rd_atomic.into()),
            fetched: 0,
            waiting: None,
            stop: None,
            lost: None,
            timers: Timers::default(),
            progressed: false,
        }
    }

    pub(crate) fn has_outstanding(&self) -> bool {
        self.settled < self.ring.posted()
    }

    /// Returns the number of requests for which not all frames were made.
    pub(crate) fn unsent(&self) -> u64 {
        self.ring.posted() - self.next
    }

    /// Whether the peer still has to acknowledge a request that was given to the socket whole.
    pub(crate) fn awaits_acknowledgement(&self) -> bool {
        self.acked < self.transmitted
    }

    /// Makes the next frame of a request; `None` if requests are all sent, or wait.
    pub(crate) fn next_frame(
        &mut self,
        limits: &QpLimits,
        domain: DomainId,
        memory: &MemoryTable,
    ) -> Option<RequestFrame> {
        let position = self.next;
        // Requests before the one that fails may have been taken back.
        let is_stopped = self.stop.is_some_and(|stop| position >= stop.position);
        let may_send = self.waiting.is_none() && !is_stopped && self.lost.is_none();
        if !may_send || position == self.ring.posted() {
            return None;
        }
        if self.offset == 0 && !self.may_begin(position, limits, domain, memory) {
            return None;
        }
        let request = self.ring.get(position);
        let kind = Kind::of(request.opcode)?;
        let total = request.length;
        let length = if kind.carries_data() { (total - self.offset).min(SEGMENT) } else { 0 };
        let end = self.offset + length;
        let is_last = end == total || !kind.carries_data();
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        let solicited = request.flags.contains(SendFlags::SOLICITED);
        let header = Header {
            flags: flag(self.offset == 0, FIRST) | flag(is_last, LAST) | flag(solicited, SOLICITED),
            length: if kind.is_atomic() { OPERANDS } else { length },
            total,
            offset: self.offset,
            addr: request.remote_addr,
            rkey: request.rkey,
            imm: request.imm.wire(),
            ..Header::new(kind, position)
        };
        if request.opcode.is_fetching() {
            self.fetches.push_back(Fetch { position, placed: 0 });
        }
        self.offset = end;
        if is_last {
            (self.next, self.offset) = (position + 1, 0);
        }
        Some(RequestFrame { header, position, epoch: self.epoch })
    }

    /// Whether the request at `next` may begin: FENCE and the number of READs in flight permit it,
    /// and its buffers are registered. Otherwise the request fails when all earlier ones are
    /// complete.
    fn may_begin(
        &mut self,
        position: u64,
        limits: &QpLimits,
        domain: DomainId,
        memory: &MemoryTable,
    ) -> bool {
        let request = self.ring.get(position);
        let is_fenced = request.flags.contains(SendFlags::FENCE) && !self.fetches.is_empty();
        let most = self.timers.max_rd_atomic;
        let is_full =
            request.opcode.is_fetching() && most > 0 && self.fetches.len() >= usize::from(most);
        if is_fenced || is_full {
            return false;
        }
        match self.ring.local(position, (limits.max_msg_size, most), domain, memory) {
            Ok(_) => true,
            Err((status, vendor)) => {
                self.fail_at(position, status, vendor);
                false
            }
        }
    }

    /// Records that a request fails when all earlier ones are complete. Nothing is sent any more.
    pub(crate) fn fail_at(&mut self, position: u64, status: WcStatus, vendor: u32) {
        let is_first = self.stop.is_none_or(|stop| position < stop.position);
        if is_first {
            self.stop = Some(Failure { position, status, vendor });
        }
    }

    /// Records that the connection is lost: no acknowledgement can come any more.
    pub(crate) fn lose(&mut self, vendor: u32) {
        self.lost.get_or_insert(vendor);
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost.is_some()
    }

    /// Whether a frame, which was not begun, still has to be sent.
    pub(crate) fn is_current(&self, frame_epoch: u32) -> bool {
        frame_epoch == self.epoch
    }

    /// Records that the last frame of the request at `position` was given to the socket.
    pub(crate) fn transmitted(&mut self, position: u64, epoch: u32) {
        if epoch == self.epoch {
            self.transmitted = self.transmitted.max(position + 1);
        }
    }

    /// Takes an acknowledgement.
    pub(crate) fn on_acked(&mut self, low: u32) -> Result<Acked, Malformed> {
        let acked = expand(self.acked, low);
        if acked < self.acked {
            return Err(Malformed("an acknowledgement went back"));
        }
        if acked > self.transmitted {
            return Ok(Acked::Ahead);
        }
        self.progressed |= acked > self.acked;
        self.acked = acked;
        Ok(Acked::Taken)
    }

    /// Returns the position of the next request that can complete, and counts it as complete.
    pub(crate) fn take_done(&mut self) -> Option<u64> {
        let position = self.settled;
        if position >= self.acked {
            return None;
        }
        if self.ring.get(position).opcode.is_fetching() && position >= self.fetched {
            return None;
        }
        self.settled += 1;
        Some(position)
    }

    /// Takes the answer that a request met no receive. `delay` is the time between two tries.
    pub(crate) fn on_not_ready(&mut self, low: u32, delay: u64, now: u64) -> Result<(), Malformed> {
        let position = expand(self.acked, low);
        // Its acknowledgement of all earlier requests was taken already.
        if position != self.acked || position >= self.next + u64::from(self.offset > 0) {
            return Err(Malformed("a request that was not sent met no receive"));
        }
        let tries = self.timers.rnr_retry;
        let deadline = (tries < 7).then(|| now.saturating_add(u64::from(tries) * delay));
        let until = match self.waiting {
            Some(waiting) if waiting.position == position => waiting.until,
            _ => deadline,
        };
        self.waiting = Some(Waiting { position, until });
        self.take_back(position);
        self.progressed = true;
        Ok(())
    }

    /// Takes the requests from `position` on back: their frames, unless begun, are not sent.
    pub(crate) fn take_back(&mut self, position: u64) {
        self.epoch = self.epoch.wrapping_add(1);
        (self.next, self.offset) = (position, 0);
        self.transmitted = self.transmitted.min(position);
        self.fetches.retain(|fetch| fetch.position < position);
    }

    /// Takes the message that a receive was posted.
    pub(crate) fn on_ready(&mut self, low: u32) -> Result<(), Malformed> {
        let position = expand(self.acked, low);
        match &self.waiting {
            Some(waiting) if waiting.position == position => {
                self.waiting = None;
                self.progressed = true;
                Ok(())
            }
            _ => Err(Malformed("a receive is ready for a request that does not wait")),
        }
    }

    /// Fails the request that waits for a receive, if its time is over.
    pub(crate) fn expire_waiting(&mut self, now: u64) {
        if let Some(Waiting { position, until: Some(until) }) = self.waiting
            && until <= now
        {
            self.fail_at(position, WcStatus::RNR_RETRY_EXC_ERR, vendor::NO_RECEIVE);
        }
    }

    /// When [`expire_waiting`](Self::expire_waiting) has something to do.
    pub(crate) fn waits_until(&self) -> Option<u64> {
        let waiting = self.waiting?;
        let is_stopped = self.stop.is_some_and(|stop| waiting.position >= stop.position);
        waiting.until.filter(|_| !is_stopped)
    }

    /// Checks the header of a response, and returns the position of its request.
    pub(crate) fn on_response(&self, header: &Header) -> Result<u64, Malformed> {
        let fetch = self.fetches.front().ok_or(Malformed("a response without a request"))?;
        let request = self.ring.get(fetch.position);
        let fits = match header.kind {
            Kind::ReadResponse => {
                request.opcode == Opcode::RdmaRead
                    && header.total == request.length
                    && header.offset == fetch.placed
            }
            _ => request.opcode != Opcode::RdmaRead,
        };
        if header.number != fetch.position as u32 || !fits {
            return Err(Malformed("a response does not answer the oldest request"));
        }
        Ok(fetch.position)
    }

    /// Records that a frame of a response is in place.
    pub(crate) fn on_response_placed(&mut self, header: &Header) {
        self.progressed = true;
        if header.kind == Kind::AtomicResponse || header.has(LAST) {
            if let Some(fetch) = self.fetches.pop_front() {
                self.fetched = fetch.position + 1;
            }
        } else if let Some(fetch) = self.fetches.front_mut() {
            fetch.placed += header.length;
        }
    }

    /// Takes a refusal.
    pub(crate) fn on_refusal(&mut self, header: &Header) -> Result<(), Malformed> {
        let position = expand(self.acked, header.number);
        if position < self.settled || position >= self.next + u64::from(self.offset > 0) {
            return Err(Malformed("a request that was not sent is refused"));
        }
        let status = match header.status() {
            status if status.is_success() => {
                return Err(Malformed("a request is refused for no reason"));
            }
            status @ (WcStatus::REM_INV_REQ_ERR
            | WcStatus::REM_ACCESS_ERR
            | WcStatus::REM_OP_ERR) => status,
            // No responder refuses with another one, which could mean something else to the owner.
            _ => WcStatus::BAD_RESP_ERR,
        };
        self.stop = None;
        self.fail_at(position, status, header.rkey);
        self.lose(vendor::PEER_STATE);
        Ok(())
    }

    /// Returns the request that fails now, if one does.
    pub(crate) fn due_failure(&self) -> Option<Failure> {
        if !self.has_outstanding() {
            return None;
        }
        let stops = self.stop.filter(|stop| stop.position == self.settled);
        let lost = self.lost.map(|vendor| Failure {
            position: self.settled,
            status: WcStatus::RETRY_EXC_ERR,
            vendor,
        });
        stops.or(lost)
    }

    /// Counts the request as complete, because it failed or is flushed.
    pub(crate) fn take_failed(&mut self) -> Option<u64> {
        self.has_outstanding().then(|| {
            self.settled += 1;
            self.settled - 1
        })
    }

    /// Ends: no frame is made any more, and everything outstanding is flushed.
    pub(crate) fn end(&mut self) {
        self.next = self.ring.posted();
        self.offset = 0;
        self.epoch = self.epoch.wrapping_add(1);
        self.fetches.clear();
        self.waiting = None;
    }

    /// Whether a request waits for a receive of the peer.
    pub(crate) const fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    /// Returns whether the peer confirmed something since the last call.
    pub(crate) fn take_progress(&mut self) -> bool {
        std::mem::take(&mut self.progressed)
    }

    /// Whether time counts against the outstanding requests. It does not while the peer has no
    /// receive, which has a limit of its own.
    pub(crate) fn is_timed(&self) -> bool {
        self.has_outstanding() && self.waiting.is_none() && self.lost.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyrail_core::verbs::{Imm, SendRequest, Sge};
    use polyrail_nic_parts::lists::Listed;

    const LIMITS: QpLimits = QpLimits {
        max_send_wr: 8,
        max_recv_wr: 8,
        max_inline_data: 16,
        max_msg_size: 1 << 30,
        max_send_sge: 1,
        max_recv_sge: 1,
    };

    /// A queue of empty requests, which need no memory.
    struct Queue {
        requester: Requester,
        memory: MemoryTable,
    }

    impl Queue {
        fn new(max_rd_atomic: u8) -> Self {
            let mut requester = Requester::new(SendRing::new(8, 16, 1), 16);
            requester.timers = Timers { rnr_retry: 7, max_rd_atomic, limit: None };
            Self { requester, memory: MemoryTable::new(1) }
        }

        fn post(&mut self, opcode: Opcode, flags: SendFlags) {
            let request = SendRequest {
                wr_id: self.requester.ring.posted(),
                opcode,
                flags,
                imm: Imm::default(),
                sge: Sge::EMPTY,
                remote_addr: 0,
                rkey: 0,
                compare_add: 0,
                swap: 0,
            };
            let released = self.requester.settled;
            self.requester.ring.accept(&Listed::send(request), &[], &LIMITS, released).unwrap();
        }

        fn writes(count: usize) -> Self {
            let mut queue = Self::new(4);
            (0..count).for_each(|_| queue.post(Opcode::RdmaWrite, SendFlags::empty()));
            queue
        }

        /// Makes a frame and gives it to the socket. Returns the request's position.
        fn send(&mut self) -> Option<u64> {
            let made = self.requester.next_frame(&LIMITS, DomainId(0), &self.memory)?;
            self.requester.transmitted(made.position, made.epoch);
            Some(made.position)
        }

        fn done(&mut self) -> Vec<u64> {
            std::iter::from_fn(|| self.requester.take_done()).collect()
        }

        fn respond(&mut self, position: u64) -> Result<(), Malformed> {
            let flags = FIRST | LAST;
            let header = Header { flags, ..Header::new(Kind::ReadResponse, position) };
            self.requester.on_response(&header)?;
            self.requester.on_response_placed(&header);
            Ok(())
        }
    }

    #[test]
    fn requests_complete_when_they_are_acknowledged_and_not_before_they_are_sent() {
        let mut queue = Queue::writes(3);
        assert_eq!(queue.requester.on_acked(1), Ok(Acked::Ahead));
        assert_eq!([queue.send(), queue.send()], [Some(0), Some(1)]);
        assert_eq!(queue.requester.on_acked(3), Ok(Acked::Ahead));
        assert_eq!(queue.requester.on_acked(2), Ok(Acked::Taken));
        assert_eq!(queue.done(), [0, 1]);
        assert!(queue.requester.on_acked(1).is_err(), "it went back");
        assert_eq!((queue.send(), queue.send()), (Some(2), None));
    }

    #[test]
    fn a_read_completes_with_its_data_and_holds_back_what_was_acknowledged_later() {
        let mut queue = Queue::new(4);
        queue.post(Opcode::RdmaRead, SendFlags::empty());
        queue.post(Opcode::RdmaWrite, SendFlags::empty());
        assert_eq!([queue.send(), queue.send()], [Some(0), Some(1)]);
        assert_eq!(queue.requester.on_acked(2), Ok(Acked::Taken));
        assert_eq!(queue.done(), []);
        assert!(queue.respond(1).is_err(), "not the oldest");
        queue.respond(0).unwrap();
        assert_eq!(queue.done(), [0, 1]);
        assert!(queue.respond(0).is_err(), "nothing is asked for");
    }

    #[test]
    fn reads_in_flight_are_limited_and_a_fence_waits_for_them() {
        let mut queue = Queue::new(2);
        (0..3).for_each(|_| queue.post(Opcode::RdmaRead, SendFlags::empty()));
        queue.post(Opcode::RdmaWrite, SendFlags::FENCE);
        assert_eq!([queue.send(), queue.send(), queue.send()], [Some(0), Some(1), None]);
        queue.respond(0).unwrap();
        assert_eq!([queue.send(), queue.send()], [Some(2), None]);
        queue.respond(1).unwrap();
        assert_eq!(queue.send(), None, "a READ is in flight");
        queue.respond(2).unwrap();
        assert_eq!(queue.send(), Some(3));
    }

    #[test]
    fn a_request_that_met_no_receive_is_sent_again_with_all_behind_it() {
        let mut queue = Queue::writes(4);
        (0..3).for_each(|_| _ = queue.send());
        queue.requester.on_acked(1).unwrap();
        assert!(queue.requester.on_not_ready(2, 10, 0).is_err(), "not the next one");
        queue.requester.on_not_ready(1, 10, 0).unwrap();
        assert_eq!(queue.send(), None);
        assert!(!queue.requester.is_timed());
        assert_eq!(queue.requester.on_acked(2), Ok(Acked::Ahead), "it was taken back");
        assert!(queue.requester.on_ready(2).is_err());
        queue.requester.on_ready(1).unwrap();
        assert!(queue.requester.on_ready(1).is_err(), "it does not wait any more");
        assert_eq!([queue.send(), queue.send(), queue.send()], [Some(1), Some(2), Some(3)]);
        queue.requester.on_acked(4).unwrap();
        assert_eq!(queue.done(), [0, 1, 2, 3]);
    }

    #[test]
    fn frames_that_were_made_before_do_not_count_as_sent() {
        let mut queue = Queue::writes(2);
        let made = queue.requester.next_frame(&LIMITS, DomainId(0), &queue.memory).unwrap();
        queue.requester.on_not_ready(0, 10, 0).unwrap();
        assert!(!queue.requester.is_current(made.epoch));
        queue.requester.on_ready(0).unwrap();
        queue.requester.transmitted(made.position, made.epoch);
        assert_eq!(queue.requester.on_acked(1), Ok(Acked::Ahead));
    }

    #[test]
    fn a_missing_receive_has_a_limit_that_repeated_answers_do_not_move() {
        let mut queue = Queue::writes(1);
        queue.requester.timers.rnr_retry = 2;
        queue.send();
        queue.requester.on_not_ready(0, 10, 100).unwrap();
        assert_eq!(queue.requester.waits_until(), Some(120));
        queue.requester.expire_waiting(119);
        assert_eq!(queue.requester.due_failure(), None);
        queue.requester.expire_waiting(120);
        let failure = queue.requester.due_failure().unwrap();
        assert_eq!((failure.position, failure.status), (0, WcStatus::RNR_RETRY_EXC_ERR));
    }

    #[test]
    fn a_request_that_fails_does_not_hold_back_those_that_are_sent_again() {
        let mut queue = Queue::writes(4);
        queue.requester.timers.rnr_retry = 2;
        (0..2).for_each(|_| _ = queue.send());
        queue.requester.fail_at(2, WcStatus::LOC_PROT_ERR, 1);
        assert_eq!(queue.send(), None);
        queue.requester.on_not_ready(0, 10, 0).unwrap();
        assert_eq!(queue.requester.waits_until(), Some(20));
        queue.requester.on_ready(0).unwrap();
        assert_eq!([queue.send(), queue.send(), queue.send()], [Some(0), Some(1), None]);
        queue.requester.on_acked(2).unwrap();
        assert_eq!(queue.done(), [0, 1]);
        let failure = queue.requester.due_failure().unwrap();
        assert_eq!((failure.position, failure.status), (2, WcStatus::LOC_PROT_ERR));
    }

    #[test]
    fn a_refused_request_fails_after_all_earlier_ones_are_complete() {
        let mut queue = Queue::writes(3);
        (0..2).for_each(|_| _ = queue.send());
        let refusal = Header::refusal(1, WcStatus::REM_ACCESS_ERR, 0x10);
        let none = Header::refusal(2, WcStatus::REM_ACCESS_ERR, 0x10);
        assert!(queue.requester.on_refusal(&none).is_err(), "it was not sent");
        let success = Header::refusal(1, WcStatus::SUCCESS, 0);
        assert!(queue.requester.on_refusal(&success).is_err());
        queue.requester.on_acked(1).unwrap();
        queue.requester.on_refusal(&refusal).unwrap();
        assert_eq!(queue.done(), [0]);
        let failure = queue.requester.due_failure().unwrap();
        let expected = Failure { position: 1, status: WcStatus::REM_ACCESS_ERR, vendor: 0x10 };
        assert_eq!(failure, expected);
        assert_eq!(queue.send(), None);
    }

    #[test]
    fn a_peer_refuses_with_statuses_of_responders_only() {
        for status in [WcStatus::WR_FLUSH_ERR, WcStatus::LOC_PROT_ERR, WcStatus(77)] {
            let mut queue = Queue::writes(1);
            queue.send();
            queue.requester.on_refusal(&Header::refusal(0, status, 1)).unwrap();
            let failure = queue.requester.due_failure().unwrap();
            assert_eq!(failure.status, WcStatus::BAD_RESP_ERR, "{status:?}");
        }
    }

    #[test]
    fn a_lost_connection_fails_only_what_is_outstanding() {
        let mut queue = Queue::writes(0);
        queue.requester.lose(7);
        assert_eq!(queue.requester.due_failure(), None);
        queue.post(Opcode::RdmaWrite, SendFlags::empty());
        let failure = queue.requester.due_failure().unwrap();
        let expected = Failure { position: 0, status: WcStatus::RETRY_EXC_ERR, vendor: 7 };
        assert_eq!(failure, expected);
    }
}
