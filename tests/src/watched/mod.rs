//! A virtual queue pair on the scripted NIC, with every physical request and every report checked
//! against these rules:
//!
//! - every byte of a request is posted once, and every accepted request is reported once;
//! - fragmented requests are reported in posting order, but for those that ask to be reported when
//!   they are done, and only when nothing of them is in flight;
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
//!
//! `post` is a request to be posted, `request` what is known of it from then on, and `fragment` how
//! it is known again in what a NIC gets. `posting` checks what rails post, `reporting` what ends
//! and is reported.

mod fragment;
mod post;
mod posting;
mod progress;
mod reporting;
mod request;
mod turns;

pub use post::Post;

use crate::rig::{Rig, Setup, Way};
use crate::scripted::QpHandle;
use polyrail_core::verbs::{Opcode, ReportOrder, SendFlags, SendRequest, WcStatus};
use polyrail_core::virtual_qp::{PassThroughOrder, PeerWindow, QpState, Scheme};
use request::Request;
use std::collections::BTreeSet;
use turns::Turns;

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
            with_notify: false,
            completed: 0,
            notify_completed: false,
            reported: false,
        });
    }

    /// This many of the requests from `first` on were accepted.
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

    /// The next send of a queue pair fails with its own status, and everything behind it is
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
