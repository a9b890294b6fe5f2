//! What holds after every step, and how a world ends: with all trouble over, nothing waits.

use super::action::Action;
use super::shape::{Kind, Troubles};
use super::{Summary, World};
use polyrail_core::virtual_qp::{Failure, RailState, Scheme};

impl World {
    /// Checks what holds between any two steps.
    pub(super) fn check(&mut self) {
        for end in 0..2 {
            let this = &mut self.ends[end];
            this.qp.invariants();
            this.cq.invariants();
            assert_eq!(this.qp.duplicates(), 0, "a fragment arrived twice at end {end}");
            let broken = this.qp.take_protocol_error();
            assert!(broken.is_none(), "end {end}: {broken:?}");
            while let Some(event) = this.qp.take_rail_event() {
                self.directions[end].rail_events.push(event);
            }
            if !self.ends[end].failed && self.is_in_error(end) {
                self.ends[end].failed = true;
                self.check_excused(end);
            }
        }
        (0..2).for_each(|end| self.check_ready(end));
        self.directions.iter().for_each(super::Direction::check_memory);
    }

    /// Requests go to queue pairs only that the peer has got, and has said to be ready.
    fn check_ready(&self, end: usize) {
        if self.ends[end].failed {
            return;
        }
        let nics = self.nics.borrow();
        for rail in 0..self.shape.queue_pairs() {
            let (state, generation) = (self.state(end, rail), self.generation(end, rail));
            let is_used = match state {
                RailState::InService => true,
                RailState::Joining => !nics.qps[self.ends[end].installed[rail]].sent.is_empty(),
                _ => false,
            };
            let peer = self.generation(1 - end, rail);
            let is_ready = peer >= generation && state == RailState::InService;
            assert!(!is_used || is_ready, "end {end}: {rail} is used, generation {generation}");
        }
    }

    /// A virtual queue pair failed for good: there must be a reason.
    fn check_excused(&mut self, end: usize) {
        let failure = self.ends[end].qp.failure().expect("why it is in the error state");
        let atomics = self.directions[end].count(Kind::FetchAdd) > 0;
        let is_fair = match failure {
            Failure::Rail(_) => atomics || self.hard_failures > 2 * self.shape.rails,
            Failure::TooFewRails { .. } => self.usable < usize::from(self.shape.min_rails),
            Failure::Peer => self.ends[1 - end].failed,
            Failure::CompletionsLost { .. } => self.lost_completions,
            Failure::Owner => self.surrendered[end],
            Failure::Control(_) => false,
        };
        assert!(is_fair, "end {end} failed, and for no good reason: {failure}");
    }

    /// Takes note of how many data rails there are for requests before a step that takes one of them away.
    pub(super) fn note_usable(&mut self, action: &Action) {
        let usable = (0..self.shape.rails).filter(|rail| self.is_usable(*rail)).count();
        let taken = matches!(action, Action::Distrust { rail, .. } if self.is_usable(*rail));
        self.usable = usable - usize::from(taken && usable > 0);
    }

    fn is_usable(&self, rail: usize) -> bool {
        let nics = self.nics.borrow();
        rail < self.shape.rails
            && self.ends.iter().all(|end| {
                let qp = &nics.qps[end.installed[rail]];
                let in_good_mood = qp.mood.is_none() && qp.recv_mood.is_none();
                !qp.in_error && in_good_mood && end.is_in_service(&self.shape, rail)
            })
    }

    /// Lifts all trouble, lets everything happen that must, and checks that nothing waits.
    ///
    /// # Panics
    ///
    /// If a promise is broken.
    pub fn finish(&mut self) -> Summary {
        self.left = Troubles::default();
        for qp in &mut self.nics.borrow_mut().qps {
            (qp.mood, qp.recv_mood) = (None, None);
        }
        self.settle_in_silence();
        self.settle(false);
        self.check_fences();
        self.check_all_that_can_is_done();
        self.settle(true);
        if self.ends.iter().any(|end| end.failed) {
            self.end_in_error();
        } else {
            self.check_all_rails_are_back();
            (0..2).for_each(|end| self.check_done(end));
        }
        self.summary
    }

    /// Lets everything happen but what the owners do, then what had left queue pairs that failed: a fence
    /// that was not awaited shows.
    fn settle_in_silence(&mut self) {
        self.shape.replaces = false;
        self.settle_some(|world, action| match action {
            Action::Tell(_) | Action::Hear { .. } | Action::Notice(_) => false,
            Action::Execute(name) => !world.has_failed(*name),
            _ => true,
        });
        self.settle_some(|_, action| matches!(action, Action::Execute(_)));
    }

    /// Lets everything happen that must, until nothing is left.
    fn settle(&mut self, replaces: bool) {
        self.shape.replaces = replaces;
        self.settle_some(|_, _| true);
    }

    fn settle_some(&mut self, wanted: impl Fn(&Self, &Action) -> bool) {
        // What an engine has no room for, until something else happens.
        let mut refused = Vec::new();
        let mut quiet_at = u64::MAX;
        for turn in 0.. {
            assert!(turn < 100_000, "it never ends");
            let mut actions = self.possible();
            actions.retain(|action| !refused.contains(action) && wanted(self, action));
            let before = self.ticks();
            if actions.is_empty() {
                if before == std::mem::replace(&mut quiet_at, before) {
                    return;
                }
                (0..2).for_each(|end| self.perform(Action::Poll { end, most: usize::MAX }));
                refused.clear();
                continue;
            }
            let action = actions[turn * 7 % actions.len()];
            self.perform(action);
            if self.ticks() != before {
                refused.clear();
            } else if matches!(action, Action::Post(_) | Action::Receive { .. }) {
                refused.push(action);
            }
        }
    }

    /// Grows with everything that an application, a NIC or the link did.
    fn ticks(&self) -> u64 {
        let Summary { requests, receives, reports, .. } = self.summary;
        let nics = self.nics.borrow();
        let per_qp = |qp: &super::physical::Qp| {
            qp.executed + qp.completed + qp.used + qp.sent.len() + qp.recvs.len()
        };
        let moved: usize = nics.qps.iter().map(per_qp).sum();
        requests + receives + reports + moved as u64 + self.link.carried()
    }

    /// With every message delivered, both ends know of every failure, and have had the fence.
    fn check_fences(&self) {
        if self.ends.iter().any(|end| end.failed) {
            return;
        }
        for rail in 0..self.shape.queue_pairs() {
            let states = [0, 1].map(|end| (self.state(end, rail), self.generation(end, rail)));
            let [(near, g), (far, h)] = states;
            let fits = match (near, far) {
                (RailState::InService, RailState::InService)
                | (RailState::Down, RailState::Down) => g == h,
                (RailState::Joining, RailState::Down) => g == h + 1,
                (RailState::Down, RailState::Joining) => g + 1 == h,
                _ => false,
            };
            assert!(fits, "rail {rail} stays like this: {states:?}");
        }
    }

    /// Without a rail being replaced, everything is done that does not need one that is down.
    fn check_all_that_can_is_done(&self) {
        if self.ends.iter().any(|end| end.failed) {
            return;
        }
        let is_up = |rail: usize| self.ends.iter().all(|end| end.is_in_service(&self.shape, rail));
        let any_up = (0..self.shape.rails).any(is_up);
        for end in 0..2 {
            let jobs = &self.shape.jobs[end];
            let needs_rail_0 = jobs.iter().any(|job| !job.is_fragmented());
            let notifies = self.shape.scheme == Scheme::Spray
                && jobs.iter().any(|job| job.kind == Kind::WriteImm);
            let rail_0 = !needs_rail_0 || is_up(0);
            if any_up && rail_0 && (!notifies || is_up(self.shape.rails)) {
                self.check_done(end);
            }
        }
    }

    fn check_all_rails_are_back(&self) {
        for rail in 0..self.shape.queue_pairs() {
            let states = [0, 1].map(|end| (self.state(end, rail), self.generation(end, rail)));
            let [(near, g), (far, h)] = states;
            let back = near == RailState::InService && near == far && g == h;
            assert!(back, "rail {rail} does not come back: {states:?}");
        }
    }

    /// Everything that an end was to post is reported, and has arrived.
    fn check_done(&self, end: usize) {
        let direction = &self.directions[end];
        let left = self.shape.jobs[end].len() - self.ends[end].next_job;
        assert_eq!(left, 0, "end {end} waits: requests are not accepted");
        for (number, request) in direction.requests.iter().enumerate() {
            let done = request.report.is_some() || !request.job.signaled;
            assert!(
                done && direction.is_complete(number),
                "end {end} waits: {number}, {request:?}"
            );
        }
        let wanted = (direction.count(Kind::WriteImm), direction.count(Kind::Send));
        let told = (direction.notifications, direction.deliveries);
        assert_eq!(told, wanted, "notifications and SENDs of end {end} that arrived");
        assert_eq!(self.ends[end].qp.unreported_sends(), 0, "of end {end}");
    }

    /// One virtual queue pair failed for good: so did the other, and everything is reported.
    fn end_in_error(&mut self) {
        let failed = [0, 1].map(|end: usize| self.ends[end].failed);
        assert_eq!(failed, [true, true], "one end has failed for good, the other has not");
        self.summary.given_up += 1;
        let count = self.nics.borrow().qps.len();
        (0..count).for_each(|at| self.nics.borrow_mut().enter_error(at));
        self.settle(true);
        for end in 0..2 {
            let is_silent = |number: &usize| {
                let request = &self.directions[end].requests[*number];
                request.job.signaled && request.report.is_none()
            };
            let silent = (0..self.directions[end].requests.len()).find(is_silent);
            assert_eq!(silent, None, "end {end} failed, and never reports this request");
            let peer = &self.directions[1 - end];
            let reported = peer.notifications + peer.failed_notifications;
            assert_eq!(reported, peer.notification_receives, "notification receives of end {end}");
            let open = peer.data_receives.iter().filter(|receive| !receive.is_reported).count();
            assert_eq!(open, 0, "data receives of end {end}");
        }
    }
}
