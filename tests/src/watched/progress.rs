//! Nothing waits without a reason: what must have been posted, notified and reported once a poll
//! has seen everything.

use super::Watched;
use super::request::Request;
use polyrail_core::verbs::{Opcode, SendFlags};

impl<const RAILS: usize, const DEPTH: usize, const WRS: usize> Watched<RAILS, DEPTH, WRS> {
    /// Called after a poll that saw all completions, and in which no driver refused anything.
    pub(super) fn check_progress(&self) {
        self.check_pass_through();
        self.check_fragmented();
        if self.span.is_none() {
            self.check_notifies();
        }
        self.check_reports();
    }

    fn room(&self, at: usize) -> bool {
        self.handles[at].slots() < self.limits[at]
    }

    /// Whether everything posted before is complete.
    fn all_completed(&self, id: usize) -> bool {
        self.requests[..id].iter().all(|earlier| earlier.is_completed(self.span.is_none()))
    }

    /// Whether a request may still wait for its fence.
    fn waits_for_fence(&self, id: usize) -> bool {
        self.requests[id].flags.contains(SendFlags::FENCE) && !self.all_completed(id)
    }

    fn first(&self, of: impl Fn(&Request) -> bool) -> Option<usize> {
        self.requests.iter().position(of)
    }

    /// A SEND or atomic waits for room on rail 0, its fence and, ordered, for fragmented requests.
    fn check_pass_through(&self) {
        let waiting = |request: &Request| !request.is_fragmented() && request.posted == 0;
        let Some(id) = self.first(waiting) else { return };
        let spray = self.span.is_none();
        let earlier = self.requests[..id].iter().filter(|request| request.is_fragmented());
        let ordered = self.ordered && !earlier.clone().all(|request| request.is_completed(spray));
        let excused = !self.in_service[0] || !self.room(0) || ordered || self.waits_for_fence(id);
        assert!(excused, "{id} waits for nothing: {:?}", self.requests[id]);
    }

    /// A fragmented request waits for room on any rail, its fence, and for numbers.
    fn check_fragmented(&self) {
        let waiting =
            |request: &Request| request.is_fragmented() && request.posted < request.length;
        let Some(id) = self.first(waiting) else { return };
        let this = &self.requests[id];
        let fenced = this.posted == 0 && self.may_be_fenced(id);
        // SPRAY's signals are not posted to rails, and hold up what is behind them all the same.
        let signals = (0..id).filter(|at| self.requests[*at].length == 0);
        let behind_fence = signals.into_iter().any(|at| self.may_be_fenced(at));
        let room = (0..self.in_service.len()).any(|rail| self.in_service[rail] && self.room(rail));
        let excused = !room || fenced || behind_fence || self.waits_for_numbers(id);
        assert!(excused, "{id} waits for nothing: {this:?}");
    }

    /// Whether a fragmented request may still wait for its fence. What bypassed the ring has no
    /// place that shows whether it came before.
    fn may_be_fenced(&self, id: usize) -> bool {
        let passes =
            |request: &Request| !request.is_fragmented() && request.completed < request.posted;
        let bypassing =
            self.requests[id].flags.contains(SendFlags::FENCE) && self.requests.iter().any(passes);
        bypassing || self.waits_for_fence(id)
    }

    fn waits_for_numbers(&self, id: usize) -> bool {
        let Some(span) = self.span else { return false };
        if self.requests[id].opcode != Opcode::RdmaWriteWithImm {
            return false;
        }
        let oldest = self.incomplete.first().copied().unwrap_or(self.next_number);
        let used_up = self.next_number - oldest >= span;
        let incomplete = |earlier: &Request| earlier.completed < earlier.length;
        // Behind one of those it also waits for everything fragmented before that one.
        let earlier = self.unnumbered_before(id).chain(self.unsolicited_before(id));
        let last = earlier.map(|(at, _)| at).max().unwrap_or(0);
        let mut up_to_last = self.requests[..last].iter();
        let mut earlier = self.unnumbered_before(id).chain(self.unsolicited_before(id));
        let behind = earlier.any(|(_, earlier)| incomplete(earlier))
            || up_to_last.any(|earlier| earlier.is_fragmented() && incomplete(earlier));
        used_up || (self.requests[id].posted == 0 && behind)
    }

    /// A notify waits for room, for fragmented requests and, ordered, for SENDs and atomics.
    fn check_notifies(&self) {
        let waiting =
            |request: &Request| request.opcode == Opcode::RdmaWriteWithImm && !request.notified;
        let Some(id) = self.first(waiting) else { return };
        let blocks = |request: &&Request| {
            let counts = request.is_fragmented() || self.ordered;
            counts && request.completed < request.length
        };
        let blocked = self.requests[..=id].iter().any(|request| blocks(&request))
            || self.requests[id].length == 0 && self.may_be_fenced(id);
        assert!(
            blocked || !self.room(self.in_service.len()),
            "the notify of {id} waits for nothing"
        );
    }

    /// SENDs and atomics are reported when they are done, and so are fragmented requests that ask
    /// for it; the others when those before are done too.
    fn check_reports(&self) {
        let spray = self.span.is_none();
        let mut in_turn = true;
        for (id, request) in self.requests.iter().enumerate() {
            let done = request.is_completed(spray);
            let due = if request.is_fragmented() {
                in_turn &= done;
                in_turn || request.when_done && done
            } else {
                done
            };
            let due = due && request.flags.contains(SendFlags::SIGNALED);
            assert!(request.reported || !due, "{id} is done, and not reported: {request:?}");
        }
    }
}
