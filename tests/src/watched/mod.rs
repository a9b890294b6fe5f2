//! A virtual queue pair on the scripted NIC, with every physical request and every report checked
//! against these rules:
//!
//! - every byte of a request is posted once, and every accepted request is reported once;
//! - fragmented requests are reported in posting order, but for those that ask to be reported when they are
//!   done, and only when nothing of them is in flight;
//! - SUCCESS means that all of it, its notify included, succeeded, and only a driver's refusal
//!   turns such a success into a failure;
//! - the first of several errors is reported;
//! - fragmented requests are started in posting order, SENDs and atomics are posted in it;
//! - a notify follows everything before it; nothing is notified at or past a failure;
//! - a fenced request follows everything before it;
//! - DQPLB's numbers have no holes and stay within the span; a numbered request follows every plain
//!   WRITE before it; every fragment of a solicited one wakes the receiver; SENDs are refused;
//! - each fragment has the keys of its rail's device, and none is longer than its rail takes;
//! - rails take turns (`turns`), and nothing waits without a reason (`progress`);
//! - counters agree with what the NIC saw;
//! - nothing is left in the end.
//!
//! The caller chooses what happens next: at random, or every possibility in turn.

mod progress;
mod turns;

use crate::rig::{KEYS, LOCAL, REMOTE, Rig, Setup, Way, keys_on};
use crate::scripted::{Note, QpHandle};
use polyrail_core::internals::SequenceImm;
use polyrail_core::verbs::{
    LocalBuffer, LocalPart, Opcode, ReportOrder, SendFlags, SendRequest, SendWr, WcStatus,
};
use polyrail_core::virtual_cq::VirtualWc;
use polyrail_core::virtual_qp::{
    PassThroughOrder, PeerWindow, QpState, RailCounters, RailId, Scheme,
};
use std::collections::BTreeSet;
use turns::Turns;

/// Address space of one request, so that an address identifies its request.
const STRIDE: u64 = 1 << 32;

/// The state of an accepted request.
#[derive(Clone, Debug)]
struct Request {
    opcode: Opcode,
    flags: SendFlags,
    when_done: bool,
    bytes: u32,
    /// Its bytes; of a signal that travels as an empty fragment, 1.
    length: u64,
    /// Bytes posted, and bytes whose requests ended, well or not.
    posted: u64,
    ended: u64,
    /// The first thing that went wrong with its bytes, and with its notify.
    error: Option<WcStatus>,
    notify_error: Option<WcStatus>,
    /// SPRAY: the notify was posted, and acknowledged.
    notified: bool,
    notify_acknowledged: bool,
    /// What completions have shown: bytes that ended, and that the notify is acknowledged. A batch
    /// shows nothing before its last request.
    completed: u64,
    notify_completed: bool,
    reported: bool,
}

impl Request {
    fn is_fragmented(&self) -> bool {
        use Opcode::{RdmaRead, RdmaWrite, RdmaWriteWithImm};
        matches!(self.opcode, RdmaRead | RdmaWrite | RdmaWriteWithImm)
    }

    /// Whether all that precedes its notify, if anything does, was begun.
    fn is_started(&self) -> bool {
        self.posted > 0 || self.length == 0
    }

    fn data_done(&self) -> bool {
        self.ended == self.length && self.error.is_none()
    }

    /// Whether all of it is acknowledged; over SPRAY that may include a notify.
    fn is_done(&self, spray: bool) -> bool {
        let wants_notify = spray && self.opcode == Opcode::RdmaWriteWithImm;
        self.data_done() && (!wants_notify || self.notify_acknowledged)
    }

    /// Whether completions have shown that it is done.
    fn is_completed(&self, spray: bool) -> bool {
        let wants_notify = spray && self.opcode == Opcode::RdmaWriteWithImm;
        self.completed == self.length && (!wants_notify || self.notify_completed)
    }

    /// The status that it has to be reported with if it is not done: what never left is flushed.
    fn expected_error(&self) -> WcStatus {
        self.error.or(self.notify_error).unwrap_or(WcStatus::WR_FLUSH_ERR)
    }
}

/// A request to be posted.
#[derive(Clone, Copy, Debug)]
pub struct Post {
    /// What to do.
    pub opcode: Opcode,
    /// Bytes.
    pub length: u32,
    /// How.
    pub flags: SendFlags,
    /// When it is reported.
    pub report_order: Option<ReportOrder>,
    /// Its local bytes are a list of buffers, if that is not 0: which of [`LISTS`](Self::LISTS). For posts on
    /// their own.
    pub list: u8,
}

impl Post {
    /// Ways to make a list.
    pub const LISTS: u8 = 5;

    /// The buffers of its list, which lie one behind the other: some with one byte, or none.
    fn parts(self, whole: LocalBuffer) -> Vec<LocalPart<'static>> {
        let length = self.length;
        let borders = match self.list {
            1 => vec![1, 1, 2],
            2 => vec![0, length / 2, length / 2],
            3 => vec![128, 129, 256],
            4 => vec![length / 3, length - 1],
            _ => vec![1, 2, 3, 4, 5, 6, 7],
        };
        let mut from = 0;
        let part = |to: u32| {
            let to = to.clamp(from, length);
            let local = whole.slice(from, to - from).expect("within");
            from = to;
            LocalPart { local, keys: &KEYS }
        };
        borders.into_iter().chain([length]).map(part).collect()
    }

    /// The request of this number, in an address space of its own.
    fn wr(self, id: u64) -> SendWr<'static> {
        let Self { opcode, length, flags, report_order, list: _ } = self;
        // SAFETY: the scripted NIC never touches memory.
        let local = unsafe { LocalBuffer::new(LOCAL + id * STRIDE, length) };
        let wr = SendWr::write(id, local, REMOTE + id * STRIDE, &KEYS);
        SendWr { opcode, imm: id as u32, report_order, ..wr.with_flags(flags) }
    }
}

/// A rig under watch. Traffic goes through its methods, so that nothing escapes the watch.
#[derive(Debug)]
pub struct Watched<const RAILS: usize = 4, const DEPTH: usize = 16, const WRS: usize = 32> {
    rig: Rig<RAILS, DEPTH, WRS>,
    /// The rails, then the notify queue pair.
    handles: Vec<QpHandle>,
    /// Requests that may be in flight on each of them, and the device of each.
    limits: Vec<u32>,
    devices: Vec<usize>,
    /// Which rails are in service.
    in_service: Vec<bool>,
    turns: Turns,
    requests: Vec<Request>,
    /// DQPLB: numbers posted, and those not acknowledged.
    next_number: u32,
    unacknowledged: BTreeSet<u32>,
    /// Those that no completion has shown.
    incomplete: BTreeSet<u32>,
    /// Requests of each queue pair that ended without a completion so far.
    silent: Vec<Vec<SendRequest>>,
    span: Option<u32>,
    ordered: bool,
    /// Rails may fail and drivers refuse.
    failing: bool,
}

impl<const RAILS: usize, const DEPTH: usize, const WRS: usize> Watched<RAILS, DEPTH, WRS> {
    /// The rig of a set-up; with DQPLB the peer lets it run ahead by `span` numbers. Requests may
    /// fail only if it is `failing`.
    ///
    /// # Panics
    ///
    /// If the span is 0.
    pub fn new(setup: &Setup, span: u32, failing: bool) -> Self {
        let mut rig = setup.build();
        let span = (setup.config.scheme == Scheme::Dqplb).then_some(span);
        if let Some(span) = span {
            let peer = PeerWindow { window: span + setup.rails as u32, receives_per_rail: 1 };
            rig.qp.set_peer_window(peer).expect("a span of at least 1");
        }
        rig.nic.keep_log();
        let handles: Vec<_> = rig.rails.iter().chain(&rig.notify).cloned().collect();
        let most = setup.config.max_msgs_per_qp.min(DEPTH as u32);
        let limits: Vec<_> = handles.iter().map(|qp| most.min(qp.limits().max_send_wr)).collect();
        Self {
            turns: Turns::new(setup, limits.clone()),
            devices: (0..setup.rails).map(|rail| setup.device_of(rail)).chain([0]).collect(),
            in_service: vec![true; setup.rails],
            rig,
            handles,
            limits,
            silent: vec![Vec::new(); setup.rails + 1],
            requests: Vec::new(),
            next_number: 0,
            unacknowledged: BTreeSet::new(),
            incomplete: BTreeSet::new(),
            span,
            ordered: setup.config.pass_through == PassThroughOrder::Ordered,
            failing,
        }
    }

    /// The rails, then the notify queue pair.
    pub fn handles(&self) -> Vec<QpHandle> {
        self.handles.clone()
    }

    /// Completion queues.
    pub fn queues(&self) -> usize {
        self.rig.cqs.len()
    }

    /// Whether a rail failed.
    pub fn has_failed(&self) -> bool {
        self.rig.qp.state() == QpState::Error
    }

    /// Completions that wait to be polled.
    pub fn unpolled(&self) -> usize {
        self.rig.nic.unpolled()
    }

    /// Posts a request. Returns whether it was accepted. A refused request is forgotten, as it must
    /// be.
    ///
    /// # Panics
    ///
    /// If a promise is broken; so do all methods here.
    pub fn post(&mut self, posted: Post) -> bool {
        let id = self.requests.len() as u64;
        // Entered first: what the post sends at once is checked right after.
        self.enter(&posted);
        self.turns.posts();
        let wr = posted.wr(id);
        let accepted = if posted.list == 0 {
            self.rig.qp.post_send(&wr).is_ok()
        } else {
            self.rig.qp.post_list(&wr, &posted.parts(wr.local)).is_ok()
        };
        self.rig.qp.invariants();
        self.check_posts();
        self.settle_posts(&[posted], id as usize, usize::from(accepted));
        accepted
    }

    /// Posts requests with one call. Returns how many were accepted.
    pub fn post_many(&mut self, posts: &[Post]) -> usize {
        let first = self.requests.len();
        posts.iter().for_each(|post| self.enter(post));
        let wrs: Vec<_> = posts.iter().zip(first as u64..).map(|(post, id)| post.wr(id)).collect();
        self.turns.posts();
        let accepted = match self.rig.qp.post_many(&wrs) {
            Ok(()) => posts.len(),
            Err(error) => error.posted,
        };
        self.rig.qp.invariants();
        self.check_posts();
        self.settle_posts(posts, first, accepted);
        accepted
    }

    fn enter(&mut self, &Post { opcode, length, flags, report_order, .. }: &Post) {
        let report_order = report_order.unwrap_or(self.rig.qp.config().report_order);
        let bytes = length;
        let is_empty_fragment = length == 0 && self.span.is_some();
        let length = u64::from(if is_empty_fragment { 1 } else { bytes });
        self.requests.push(Request {
            opcode,
            flags,
            when_done: report_order == ReportOrder::WhenDone,
            bytes,
            length,
            posted: 0,
            ended: 0,
            error: None,
            notify_error: None,
            notified: false,
            notify_acknowledged: false,
            completed: 0,
            notify_completed: false,
            reported: false,
        });
    }

    /// Of the requests from `first` on, so many were accepted.
    fn settle_posts(&mut self, posts: &[Post], first: usize, accepted: usize) {
        let refused = self.requests.split_off(first + accepted);
        assert!(refused.iter().all(|request| request.posted == 0), "refused, yet posted");
        let is_inline = |flags: SendFlags| flags.contains(SendFlags::INLINE);
        if refused.first().is_some_and(|first| self.span.is_some() && is_inline(first.flags)) {
            self.turns.skip();
        }
        let sends = posts[..accepted].iter().any(|post| post.opcode == Opcode::Send);
        assert!(self.span.is_none() || !sends, "no receive for it");
        let inline = self.requests[first..].iter().filter(|request| is_inline(request.flags));
        let posted_at_once = inline.clone().all(|request| request.posted == request.length);
        // Of a queue pair that failed at one of them, the others are flushed.
        assert!(posted_at_once || self.has_failed(), "inline is posted at once");
    }

    /// Takes a rail out of service, or back in.
    pub fn set_rail_in_service(&mut self, rail: u8, in_service: bool) {
        self.turns.upset();
        if self.rig.qp.set_rail_in_service(rail, in_service) {
            self.in_service[rail as usize] = in_service;
        }
        self.check_posts();
    }

    /// Checks everything that was posted since the last call.
    fn check_posts(&mut self) {
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

    /// The engine counted what the NIC saw. Bytes of a batch whose rest a driver will take later may
    /// be counted already.
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
    fn unnumbered_before(&self, id: usize) -> impl Iterator<Item = (usize, &Request)> {
        self.requests[..id].iter().enumerate().filter(|(_, earlier)| match earlier.opcode {
            Opcode::RdmaWrite | Opcode::RdmaRead => true,
            Opcode::RdmaWriteWithImm => false,
            _ => self.ordered,
        })
    }

    /// Requests before a solicited one of DQPLB that have numbers and are not solicited.
    fn unsolicited_before(&self, id: usize) -> impl Iterator<Item = (usize, &Request)> {
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
            return self.notify_posted(request);
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
        let fragmented = self.requests[..=id].iter().filter(|request| request.is_fragmented());
        assert!(fragmented.clone().all(Request::data_done), "notify of {id} is premature");
        let earlier = &self.requests[..id];
        if self.requests[id].bytes == 0 && self.requests[id].flags.contains(SendFlags::FENCE) {
            assert!(earlier.iter().all(|earlier| earlier.is_done(true)), "fence of {id}");
        }
        let bypassing = earlier.iter().filter(|request| self.ordered && !request.is_fragmented());
        let ended = |request: &Request| request.ended == request.length;
        assert!(bypassing.clone().all(ended), "notify of {id} overtakes a pass-through request");
        let wanting = earlier.iter().filter(|r| r.opcode == Opcode::RdmaWriteWithImm);
        assert!(wanting.clone().all(|earlier| earlier.notified), "notifies go in order");
        assert!(!std::mem::replace(&mut self.requests[id].notified, true), "notified once");
    }

    /// Whether it is one of SPRAY's notifies. DQPLB's signals are fragments.
    fn is_notify(&self, request: &SendRequest) -> bool {
        self.span.is_none() && request.sge.length() == 0
    }

    /// The next requests of a queue pair end: these.
    fn ended(&mut self, qp_num: u32, requests: &[SendRequest], status: WcStatus) {
        let at = self.handles.iter().position(|qp| qp.qp_num() == qp_num).expect("one of ours");
        for request in requests {
            self.silent[at].push(*request);
            if request.flags.contains(SendFlags::SIGNALED) || !status.is_success() {
                std::mem::take(&mut self.silent[at])
                    .iter()
                    .for_each(|request| self.note_completed(request));
            }
            if is_marker(request) {
                continue;
            }
            if self.is_notify(request) {
                let this = &mut self.requests[((request.remote_addr - REMOTE) / STRIDE) as usize];
                this.notify_acknowledged = status.is_success();
                this.notify_error = (!status.is_success()).then_some(status);
                continue;
            }
            let (id, _) = place(request);
            let this = &mut self.requests[id];
            this.ended += units(request);
            this.error = this.error.or((!status.is_success()).then_some(status));
            if self.span.is_some() && this.opcode == Opcode::RdmaWriteWithImm {
                let number = SequenceImm::decode(request.imm).expect("a number").number.get();
                assert!(self.unacknowledged.remove(&number));
            }
        }
    }

    /// A completion shows that this request ended.
    fn note_completed(&mut self, request: &SendRequest) {
        if is_marker(request) {
            return;
        }
        if self.is_notify(request) {
            let id = ((request.remote_addr - REMOTE) / STRIDE) as usize;
            self.requests[id].notify_completed = true;
            return;
        }
        let (id, _) = place(request);
        self.requests[id].completed += units(request);
        if request.opcode == Opcode::RdmaWriteWithImm
            && let Some(imm) = SequenceImm::decode(request.imm)
        {
            self.incomplete.remove(&imm.number.get());
        }
    }

    /// The next sends of a queue pair succeed, `most` at most.
    pub fn complete(&mut self, handle: &QpHandle, most: usize) {
        let sends = handle.sends();
        let n = most.min(sends.len());
        self.ended(handle.qp_num(), &sends[..n], WcStatus::SUCCESS);
        handle.complete(n);
    }

    /// A queue pair goes to the error state.
    pub fn fail(&mut self, handle: &QpHandle) {
        let sends = handle.sends();
        self.ended(handle.qp_num(), &sends, WcStatus::WR_FLUSH_ERR);
        handle.flush();
    }

    /// The next send of a queue pair fails with a status of its own, and everything behind it is
    /// flushed. Without a send there is only the flush.
    pub fn fail_next(&mut self, handle: &QpHandle, status: WcStatus) {
        let sends = handle.sends();
        let Some((first, rest)) = sends.split_first() else { return self.fail(handle) };
        self.ended(handle.qp_num(), &[*first], status);
        self.ended(handle.qp_num(), rest, WcStatus::WR_FLUSH_ERR);
        handle.fail(status);
    }

    /// Polls. Returns the number of reports.
    pub fn poll(&mut self, budget: usize) -> usize {
        self.poll_by(Way::All(budget))
    }

    /// Polls in this way. Returns the number of reports.
    pub fn poll_by(&mut self, way: Way) -> usize {
        let refusals = self.rig.nic.refusals();
        let (events, _) = self.rig.poll_by(way);
        self.check_posts();
        for event in &events {
            let wc = event.completion().expect("nothing foreign");
            self.reported(&wc);
        }
        let saw_all = way == Way::All(usize::MAX) && self.unpolled() == 0;
        if saw_all && !self.has_failed() && self.rig.nic.refusals() == refusals {
            self.check_progress();
        }
        events.len()
    }

    fn reported(&mut self, wc: &VirtualWc) {
        let id = wc.wr_id as usize;
        let this = &self.requests[id];
        assert!(!this.reported, "{id} is reported twice");
        assert_eq!((wc.opcode, wc.byte_len), (this.opcode.completion(), this.bytes));
        assert_eq!(this.posted, this.ended, "{id} is in flight still");
        let is_done = this.is_done(self.span.is_none());
        if wc.status.is_success() {
            assert!(is_done, "{id} is not done: {this:?}");
            assert!(this.flags.contains(SendFlags::SIGNALED), "{id} is unsignaled");
        } else {
            assert_eq!(self.rig.qp.state(), QpState::Error, "{id} failed, and nothing else");
            // A driver's refusal has no status of its own, and what it takes later is still done.
            let refused = wc.status == WcStatus::GENERAL_ERR && self.failing;
            let first = !is_done && wc.status == this.expected_error();
            assert!(refused || first, "{id} failed as {wc:?}: {this:?}");
        }
        if this.is_fragmented() && !this.when_done {
            let before = self.requests[..id].iter().filter(|earlier| earlier.is_fragmented());
            // The report of one that is done ahead may wait for budget.
            let due = before.filter(|earlier| {
                earlier.flags.contains(SendFlags::SIGNALED) && !earlier.when_done
            });
            assert!(due.clone().all(|earlier| earlier.reported), "{id} is out of order");
        }
        self.requests[id].reported = true;
    }

    /// Lets everything end and checks that nothing is left.
    pub fn finish(&mut self) {
        for rail in 0..self.in_service.len() as u8 {
            if !self.in_service[rail as usize] {
                self.set_rail_in_service(rail, true);
            }
        }
        let mut idle = 0;
        while idle < 8 {
            let mut busy = self.poll(usize::MAX);
            for handle in self.handles() {
                let waiting = handle.sends().len();
                if self.has_failed() {
                    self.fail(&handle)
                } else {
                    self.complete(&handle, waiting)
                }
                busy += waiting;
            }
            idle = if busy == 0 { idle + 1 } else { 0 };
        }
        assert_eq!(self.rig.qp.unreported_sends(), 0);
        assert_eq!(self.rig.qp.protocol_errors(), 0);
        for (id, request) in self.requests.iter().enumerate() {
            let signaled = request.flags.contains(SendFlags::SIGNALED);
            let due = signaled || !request.is_done(self.span.is_none());
            assert!(request.reported || !due, "{id} is missing: {request:?}");
            assert!(self.failing || request.posted == request.length);
        }
        assert_eq!(self.unacknowledged.len(), 0);
    }
}

/// Whether a request moves nothing and notifies no peer: it stands for the rest of a batch that was
/// given up, so that a completion covers the part that was posted.
fn is_marker(request: &SendRequest) -> bool {
    request.opcode == Opcode::RdmaWrite && request.sge.length() == 0
}

/// What a fragment counts for: its bytes, or 1 if it is empty.
fn units(request: &SendRequest) -> u64 {
    u64::from(request.sge.length().max(1))
}

/// The request of a fragment, and the fragment's place in it.
fn place(request: &SendRequest) -> (usize, u64) {
    let at = request.sge.addr() - LOCAL;
    assert!(at == request.remote_addr.wrapping_sub(REMOTE) || request.remote_addr == 0);
    ((at / STRIDE) as usize, at % STRIDE)
}
