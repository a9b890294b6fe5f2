//! What holds after every step, and how a world ends: with all trouble over, nothing waits.

use super::action::{Action, poll_all};
use super::physical::Name;
use super::shape::{Kind, Troubles, connection, peer};
use super::{End, Summary, World};
use crate::link::Link;
use polyrail_core::verbs::{Opcode, SendRequest};
use polyrail_core::virtual_cq::VirtualCq;
use polyrail_core::virtual_qp::{Failure, RailEvent, RailEventKind, RailState, Scheme};

/// What an engine reports of a rail, in this order for each generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Heard {
    Returned,
    Failed,
    Fenced,
}

impl End {
    /// The engine reports what became of a rail: once, in the order in which it happened.
    fn hear(&mut self, rail: usize, event: RailEvent) {
        let what = match event.kind {
            RailEventKind::Returned => Heard::Returned,
            RailEventKind::Failed { .. } => Heard::Failed,
            RailEventKind::Fenced { .. } => Heard::Fenced,
        };
        let next = Some((event.generation, what));
        let before = std::mem::replace(&mut self.heard[rail], next);
        assert!(before < next, "{event:?} comes behind {before:?}");
    }
}

impl World {
    /// Checks what holds between any two steps.
    pub(super) fn check(&mut self) {
        self.cqs.iter().for_each(VirtualCq::invariants);
        for end in self.all_ends() {
            let this = &mut self.ends[end];
            this.qp.invariants();
            assert_eq!(this.qp.duplicates(), 0, "a fragment arrived twice at end {end}");
            let broken = this.qp.take_protocol_error();
            assert!(broken.is_none(), "end {end}: {broken:?}");
            while let Some(event) = this.qp.take_rail_event() {
                let rail = self.shape.rail_at(event.rail);
                match event.kind {
                    RailEventKind::Failed { why, .. } => {
                        this.on_purpose[rail] = why.is_on_purpose();
                        self.summary.on_purpose += u64::from(why.is_on_purpose());
                    }
                    RailEventKind::Returned => this.on_purpose[rail] = false,
                    RailEventKind::Fenced { .. } => {}
                }
                this.hear(rail, event);
            }
            if !self.ends[end].failed && self.is_in_error(end) {
                self.ends[end].failed = true;
                self.check_excused(end);
            }
        }
        self.check_posted();
        self.all_ends().for_each(|end| self.check_received(end));
        self.all_ends().for_each(|end| self.check_ready(end));
        self.directions.iter_mut().for_each(super::Direction::check_memory);
    }

    /// What was posted since the last call may be.
    pub(super) fn check_posted(&mut self) {
        for qp in &mut self.nics.borrow_mut().qps {
            let Name { end, rail, .. } = qp.name;
            let posted = &qp.sent[qp.seen..];
            for request in posted {
                self.directions[end].number_posted(request);
                self.directions[end].data_posted(request, &qp.was_rest);
                if rail == self.shape.rails {
                    self.directions[end].notify_posted(request);
                }
            }
            let is_fragment =
                |request: &&SendRequest| !matches!(request.opcode, Opcode::Send | Opcode::FetchAdd);
            let fragments = posted.iter().filter(is_fragment).count();
            if fragments > 0 && rail < self.shape.rails && self.ends[end].standby[rail] {
                self.summary.stood_in += fragments as u64;
                let was_open = (0..self.shape.rails).all(|home| {
                    let before = self.homes[end][home];
                    before.is_none() || before != self.home_in_service(end, home)
                });
                // The rest of a batch follows its front, whatever has returned since.
                assert!(
                    was_open || qp.was_owed,
                    "end {end} uses standby rail {rail} while a home rail is in service: {posted:?}"
                );
            }
            qp.seen = qp.sent.len();
        }
    }

    /// Takes note of the home rails in service, and of what drivers had not taken, before a step.
    pub(super) fn note_homes(&mut self) {
        for end in self.all_ends() {
            let homes = (0..self.shape.rails).map(|rail| self.home_in_service(end, rail));
            self.homes[end] = homes.collect();
        }
        for qp in &mut self.nics.borrow_mut().qps {
            qp.was_owed = qp.is_owed;
            qp.was_rest.clone_from(&qp.rest);
        }
    }

    /// The generation of a data rail that keeps the standby rails of its end closed.
    fn home_in_service(&self, end: usize, rail: usize) -> Option<u16> {
        let serves = self.ends[end].wanted[rail] && self.state(end, rail) == RailState::InService;
        let is_home = serves && !self.ends[end].standby[rail];
        is_home.then(|| self.generation(end, rail))
    }

    /// The events give the owner the state of every rail.
    fn check_received(&self, end: usize) {
        if self.ends[end].failed {
            return;
        }
        for (rail, heard) in self.ends[end].heard.iter().enumerate() {
            let (state, generation) = (self.state(end, rail), self.generation(end, rail));
            let wanted = match state {
                RailState::InService if generation == 0 => None,
                RailState::InService => Some((generation, Heard::Returned)),
                RailState::Draining | RailState::Fenced => Some((generation, Heard::Failed)),
                RailState::Down => Some((generation, Heard::Fenced)),
                RailState::Joining => Some((generation - 1, Heard::Fenced)),
            };
            assert_eq!(*heard, wanted, "the last event of rail {rail} of end {end}, {state:?}");
        }
    }

    /// Requests go to queue pairs only that the peer has got, and has reported as ready.
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
            let peer = self.generation(peer(end), rail);
            let is_ready = peer >= generation && state == RailState::InService;
            assert!(!is_used || is_ready, "end {end}: {rail} is used, generation {generation}");
        }
    }

    /// A virtual queue pair failed for good: there must be a reason.
    fn check_excused(&mut self, end: usize) {
        let failure = self.ends[end].qp.failure().expect("why it is in the error state");
        let atomics = self.directions[end].count(Kind::FetchAdd) > 0;
        let is_fair = match failure {
            Failure::Rail(_) => {
                atomics && self.is_hurt
                    || self.hard_failures[connection(end)] > 2 * self.shape.rails
            }
            Failure::TooFewRails { .. } => {
                let usable = self.usable[end].saturating_sub(self.replaced_in_vain(end));
                usable < usize::from(self.shape.min_rails)
            }
            Failure::Peer => self.ends[peer(end)].failed,
            Failure::CompletionsLost { .. } => self.nics.borrow().lost_completions[connection(end)],
            Failure::Owner => self.surrendered[end],
            Failure::Control(_) => false,
        };
        assert!(is_fair, "end {end} failed, and for no good reason: {failure}");
    }

    /// Returns how many rails were out on purpose before this step, and are no more, because a
    /// replacement failed.
    fn replaced_in_vain(&self, end: usize) -> usize {
        let this = &self.ends[end];
        let is_in_vain = |rail: &usize| {
            let was = this.was_on_purpose[*rail] && !this.on_purpose[*rail];
            was && !this.is_in_service(&self.shape, *rail)
        };
        (0..self.shape.rails).filter(is_in_vain).count()
    }

    /// Takes note of how many data rails there are for requests before a step that takes one of
    /// them away.
    pub(super) fn note_usable(&mut self, action: &Action) {
        for end in self.all_ends() {
            let usable = (0..self.shape.rails).filter(|rail| self.is_usable(end, *rail)).count();
            let taken = match action {
                Action::Distrust { end: other, rail } | Action::Serve { end: other, rail, .. } => {
                    connection(*other) == connection(end) && self.is_usable(end, *rail)
                }
                _ => false,
            };
            self.usable[end] = usable - usize::from(taken && usable > 0);
            let this = &mut self.ends[end];
            this.was_on_purpose.clone_from(&this.on_purpose);
        }
    }

    fn is_usable(&self, end: usize, rail: usize) -> bool {
        let nics = self.nics.borrow();
        let works = |this: &End| {
            let qp = &nics.qps[this.installed[rail]];
            let in_good_mood = qp.mood.is_none() && qp.recv_mood.is_none();
            !qp.in_error && in_good_mood && this.is_in_service(&self.shape, rail)
        };
        let both = [end, peer(end)].map(|end| &self.ends[end]);
        // Nothing is wrong with a rail that is out on purpose, or about to be: the peer's queue pair
        // has stopped, which may fail this one. Once the peer's is replaced, this one is new, too.
        let is_new = self.state(peer(end), rail) == RailState::Joining;
        let has_failed = nics.qps[both[0].installed[rail]].in_error;
        let is_next = both[1].on_purpose[rail] && both[0].is_in_service(&self.shape, rail);
        let is_out = both[0].on_purpose[rail] || is_next && !(is_new && has_failed);
        rail < self.shape.rails
            && both[0].wanted[rail]
            && (is_out || both.iter().all(|this| works(this)))
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
        self.settle(false, false);
        let connections = 0..self.shape.connections;
        connections.clone().for_each(|at| self.check_fences(at));
        self.all_ends().for_each(|end| self.check_all_that_can_is_done(end));
        self.settle(true, false);
        let has_rail = |end: &usize| {
            let this = &self.ends[*end];
            let serves =
                |rail: &usize| this.wanted[*rail] && this.is_in_service(&self.shape, *rail);
            (0..self.shape.rails).any(|rail| serves(&rail))
        };
        self.all_ends().filter(has_rail).for_each(|end| self.check_accepted(end));
        self.settle(true, true);
        for at in connections.clone() {
            if self.has_failed_end(at) {
                self.enter_error(at);
            } else {
                self.check_all_rails_are_back(at);
                (2 * at..2 * at + 2).for_each(|end| self.check_done(end));
            }
        }
        self.settle(true, true);
        for at in connections {
            if self.has_failed_end(at) {
                self.summary.given_up += 1;
                (2 * at..2 * at + 2).for_each(|end| self.check_flushed(end));
            }
        }
        self.summary
    }

    fn has_failed_end(&self, connection: usize) -> bool {
        self.ends[2 * connection..][..2].iter().any(|end| end.failed)
    }

    /// Lets everything happen but what the owners do, then what had left queue pairs that failed: a
    /// fence that was not awaited shows.
    fn settle_in_silence(&mut self) {
        (self.shape.replaces, self.shape.restores) = (false, false);
        self.settle_some(|world, action| match action {
            Action::Tell(_) | Action::Hear { .. } | Action::Notice(_) => false,
            Action::Execute(name) => !world.has_failed(*name),
            _ => true,
        });
        self.settle_some(|_, action| matches!(action, Action::Execute(_)));
    }

    /// Lets everything happen that must, until nothing is left: rails are replaced, or brought back
    /// into service, or not.
    fn settle(&mut self, replaces: bool, restores: bool) {
        (self.shape.replaces, self.shape.restores) = (replaces, restores);
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
                (0..2).for_each(|host| self.perform(poll_all(host, usize::MAX)));
                refused.clear();
                continue;
            }
            let action = actions[turn * 7 % actions.len()];
            self.perform(action);
            if self.ticks() != before {
                refused.clear();
            } else if matches!(action, Action::Post { .. } | Action::Receive { .. }) {
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
        let carried: u64 = self.links.iter().map(Link::carried).sum();
        requests + receives + reports + moved as u64 + carried
    }

    /// The states of a rail of a connection, and the generations.
    fn both(&self, connection: usize, rail: usize) -> [(RailState, u16); 2] {
        let ends = [2 * connection, 2 * connection + 1];
        ends.map(|end| (self.state(end, rail), self.generation(end, rail)))
    }

    /// With every message delivered, both ends know of every failure, and have had the fence.
    fn check_fences(&self, connection: usize) {
        if self.has_failed_end(connection) {
            return;
        }
        for rail in 0..self.shape.queue_pairs() {
            let states = self.both(connection, rail);
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

    /// Without a rail being replaced, everything is done that does not need one that is down, or
    /// out of service.
    fn check_all_that_can_is_done(&self, end: usize) {
        if self.has_failed_end(connection(end)) {
            return;
        }
        let ends = [end, peer(end)];
        let is_up =
            |rail: usize| ends.iter().all(|end| self.ends[*end].is_in_service(&self.shape, rail));
        let wanted = &self.ends[end].wanted;
        let any_up = (0..self.shape.rails).any(|rail| is_up(rail) && wanted[rail]);
        // The peer's requests are notified of, and reported, by other rails.
        let jobs = &self.shape.jobs[end];
        let needs_rail_0 = jobs.iter().any(|job| !job.is_fragmented());
        let notifies =
            self.shape.scheme == Scheme::Spray && jobs.iter().any(|job| job.kind == Kind::WriteImm);
        let rail_0 = !needs_rail_0 || is_up(0);
        if any_up && rail_0 && (!notifies || is_up(self.shape.rails)) {
            self.check_accepted(end);
            if !needs_rail_0 || wanted[0] {
                self.check_done(end);
            }
        }
    }

    fn check_all_rails_are_back(&self, connection: usize) {
        for rail in 0..self.shape.queue_pairs() {
            let states = self.both(connection, rail);
            let [(near, g), (far, h)] = states;
            let wanted = match self.next_devices(connection, rail) {
                Some(_) => RailState::InService,
                // Requests have no keys for the devices that are left.
                None => RailState::Down,
            };
            let back = (near == RailState::InService || near == wanted) && near == far && g == h;
            assert!(back, "rail {rail} does not come back: {states:?}");
        }
    }

    /// Everything that an end has posted is reported, whatever rails are out of service.
    fn check_accepted(&self, end: usize) {
        if self.has_failed_end(connection(end)) {
            return;
        }
        let direction = &self.directions[end];
        for (number, request) in direction.requests.iter().enumerate() {
            let is_reported = request.report.is_some();
            let done = is_reported || !request.job.signaled && !request.is_wanted_back;
            let is_there = direction.is_complete(number) || request.is_wanted_back;
            assert!(done && is_there, "end {end} waits: {number}, {request:?}");
            assert!(direction.is_counted(number), "end {end} keeps numbers of {number}");
        }
        assert_eq!(self.ends[end].qp.unreported_sends(), 0, "of end {end}");
    }

    /// Everything that an end was to post is reported, and has arrived.
    fn check_done(&self, end: usize) {
        let direction = &self.directions[end];
        let left = self.shape.jobs[end].len() - self.ends[end].next_job;
        assert_eq!(left, 0, "end {end} waits: requests are not accepted");
        self.check_accepted(end);
        let wanted = (direction.count(Kind::WriteImm), direction.count(Kind::Send));
        let told = (direction.notifications, direction.deliveries);
        assert_eq!(told, wanted, "notifications and SENDs of end {end} that arrived");
    }

    /// One virtual queue pair of a connection failed for good: so did the other, and all queue
    /// pairs go to the error state.
    fn enter_error(&mut self, connection: usize) {
        let ends = [2 * connection, 2 * connection + 1];
        let failed = ends.map(|end| self.ends[end].failed);
        assert_eq!(failed, [true, true], "one end has failed for good, the other has not");
        let mut nics = self.nics.borrow_mut();
        for at in 0..nics.qps.len() {
            if ends.contains(&nics.qps[at].name.end) {
                nics.move_to_error(at);
            }
        }
    }

    /// Everything that was posted at an end that failed for good is reported.
    fn check_flushed(&self, end: usize) {
        let is_silent = |number: &usize| {
            let request = &self.directions[end].requests[*number];
            (request.job.signaled || request.is_wanted_back) && request.report.is_none()
        };
        let silent = (0..self.directions[end].requests.len()).find(is_silent);
        assert_eq!(silent, None, "end {end} failed, and never reports this request");
        let far = &self.directions[peer(end)];
        let reported = far.notifications + far.failed_notifications;
        assert_eq!(reported, far.notification_receives, "notification receives of end {end}");
        let open = far.data_receives.iter().filter(|receive| !receive.is_reported).count();
        assert_eq!(open, 0, "data receives of end {end}");
    }
}
