//! What can happen next.

use super::World;
use super::physical::Name;
use super::shape::{FRAGMENT, Shape, peer, side};
use crate::choices::{Choices, pick};
use crate::link::Old;
use polyrail_core::verbs::WcStatus;
use polyrail_core::virtual_qp::{QpState, RailState};

/// One step of an application, an owner, a NIC or the network.
#[allow(missing_docs, reason = "the fields are what the variants tell of")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// An application posts its next request, or with one call a run of at most this many.
    Post { end: usize, run: usize },
    /// An application posts a receive, with a buffer or for a notification.
    Receive { end: usize, data: bool },
    /// The peer's NIC executes the next request of a queue pair.
    Execute(Name),
    /// All that was executed is acknowledged.
    Acknowledge(Name),
    /// A queue pair goes to the error state by itself.
    Fail(Name, WcStatus),
    /// One request, or receive, of a queue pair in the error state is flushed.
    Flush { name: Name, sends: bool },
    /// A host polls, and each of its queues returns at most this many completions.
    Poll { host: usize, how: How, budget: usize, most: usize },
    /// An owner sends the control messages that there are.
    Tell(usize),
    /// The next control message arrives at an end, of the link or of one that broke.
    Hear { end: usize, late: bool },
    /// The control link breaks, and is there again.
    Break { connection: usize, old: Old },
    /// An owner notices that the link is a new one.
    Notice(usize),
    /// An owner makes the next queue pair in the place of a rail that is down.
    Create { end: usize, rail: usize },
    /// An owner connects the queue pair that it made.
    Connect { end: usize, rail: usize },
    /// An owner hands the queue pair that it made over.
    Replace { end: usize, rail: usize },
    /// A queue pair that an owner made cannot be connected.
    FailConnect { end: usize, rail: usize },
    /// The owner at the other end receives that.
    HearOfConnect { end: usize, rail: usize },
    /// An owner reports that a rail failed.
    Distrust { end: usize, rail: usize },
    /// A device is gone, with this queue pair.
    Remove(Name),
    /// An owner reports that a rail's device is gone; its completions may or may not be found.
    Lose { end: usize, rail: usize, purges: bool },
    /// A completion queue breaks.
    BreakCq { host: usize, device: usize },
    /// The driver does not take the next batch whole that is longer, and nothing of what it is
    /// offered then, this many times.
    Refuse { name: Name, taken: u32, times: u32, sends: bool, is_full: bool },
    /// An owner gives the virtual queue pair up.
    Surrender(usize),
    /// An owner takes a rail out of service, or back in.
    Serve { end: usize, rail: usize, in_service: bool },
    /// An owner reserves a rail, or ends that.
    Reserve { end: usize, rail: usize, reserved: bool },
    /// An application takes a request back, or tries to.
    Cancel { end: usize, number: usize },
    /// The time for acknowledgements of what was taken back is over.
    FenceCancelled(usize),
}

/// How an owner polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// All queues.
    All,
    /// Until one thing is reported.
    One,
    /// The queue of this device.
    Queue(usize),
    /// The owner takes completions of this device's queue, and feeds them to the engine.
    Feed(usize),
}

/// A poll of all queues that keeps nothing back.
pub(super) const fn poll_all(host: usize, budget: usize) -> Action {
    Action::Poll { host, how: How::All, budget, most: usize::MAX }
}

impl World {
    /// Everything that can happen next.
    pub fn possible(&self) -> Vec<Action> {
        let mut actions = Vec::with_capacity(64);
        for end in self.all_ends() {
            self.add_traffic(end, &mut actions);
            self.add_control(end, &mut actions);
            for rail in 0..self.shape.queue_pairs() {
                self.add_owner(end, rail, &mut actions);
            }
            if self.left.surrenders > 0 && !self.ends[end].failed {
                actions.push(Action::Surrender(end));
            }
        }
        for host in 0..2 {
            if self.has_something_to_poll(host) {
                actions.push(poll_all(host, self.shape.budget));
            }
            if self.left.broken_cqs > 0 {
                let working = |device: &usize| !self.is_cq_broken(host, *device);
                let devices = (1..self.shape.devices[host]).filter(working);
                actions.extend(devices.map(|device| Action::BreakCq { host, device }));
            }
        }
        let nics = self.nics.borrow();
        (0..nics.qps.len()).for_each(|at| self.add_nic(at, &mut actions));
        if self.left.breaks > 0 {
            for connection in 0..self.shape.connections {
                let broken = |old| Action::Break { connection, old };
                actions.extend([Old::Lost, Old::First, Old::Late].map(broken));
            }
        }
        actions
    }

    fn add_traffic(&self, end: usize, actions: &mut Vec<Action>) {
        let this = &self.ends[end];
        if this.failed {
            // What is left is reported as flushed.
        } else {
            if this.next_job < self.shape.jobs[end].len() {
                actions.push(Action::Post { end, run: 0 });
            }
            for data in [false, true] {
                if self.wants_receive(end, data) {
                    actions.push(Action::Receive { end, data });
                }
            }
            let requests = self.directions[end].requests.len();
            if self.left.cancels > 0 && requests > 0 {
                if self.shape.is_brief {
                    let cancel = |number| Action::Cancel { end, number };
                    actions.extend((0..requests).map(cancel));
                } else {
                    actions.push(Action::Cancel { end, number: 0 });
                }
            }
            if this.wants_fence {
                actions.push(Action::FenceCancelled(end));
            }
        }
    }

    fn add_control(&self, end: usize, actions: &mut Vec<Action>) {
        let link = self.link(end);
        if link.is_unnoticed(side(end)) {
            actions.push(Action::Notice(end));
        } else {
            if self.ends[end].may_tell {
                actions.push(Action::Tell(end));
            }
            if link.carries(side(peer(end)), false) {
                actions.push(Action::Hear { end, late: false });
            }
        }
        if link.carries(side(peer(end)), true) {
            actions.push(Action::Hear { end, late: true });
        }
    }

    fn add_owner(&self, end: usize, rail: usize, actions: &mut Vec<Action>) {
        let this = &self.ends[end];
        if self.is_removed(end, rail) && !this.lost[rail] {
            actions.push(Action::Lose { end, rail, purges: true });
        }
        if this.failed {
            return;
        }
        let is_weak = self.shape.weak >> rail & 1 == 1;
        if self.shape.replaces {
            if self.devices_for(end, rail).is_some() {
                actions.push(Action::Create { end, rail });
            }
            if self.can_connect(end, rail) {
                actions.push(Action::Connect { end, rail });
            }
            if self.would_replace(end, rail) {
                actions.push(Action::Replace { end, rail });
            }
            if self.hears_of_connect(end, rail) {
                actions.push(Action::HearOfConnect { end, rail });
            }
            if self.left.failed_connects > 0 && is_weak && this.pending[rail].is_some() {
                actions.push(Action::FailConnect { end, rail });
            }
        }
        let works = matches!(self.state(end, rail), RailState::InService | RailState::Joining);
        if self.left.failures > 0 && is_weak && works && !self.shape.is_brief {
            actions.push(Action::Distrust { end, rail });
        }
        if rail < self.shape.rails {
            self.add_maintenance(end, rail, actions);
        }
    }

    fn add_maintenance(&self, end: usize, rail: usize, actions: &mut Vec<Action>) {
        let is_wanted = self.ends[end].wanted[rail];
        if self.left.maintenance > 0 {
            actions.push(Action::Reserve { end, rail, reserved: true });
            if is_wanted {
                actions.push(Action::Serve { end, rail, in_service: false });
            }
        }
        if !is_wanted && self.shape.restores {
            actions.push(Action::Serve { end, rail, in_service: true });
        }
    }

    fn add_nic(&self, at: usize, actions: &mut Vec<Action>) {
        let nics = self.nics.borrow();
        let qp = &nics.qps[at];
        let name = qp.name;
        if nics.can_execute(at) {
            actions.push(Action::Execute(name));
        }
        if qp.is_gone {
            return;
        }
        for sends in [true, false] {
            if nics.can_flush(at, sends) {
                actions.push(Action::Flush { name, sends });
            }
        }
        if qp.in_error {
            return;
        }
        if qp.completed < qp.executed {
            actions.push(Action::Acknowledge(name));
        }
        let is_weak = self.shape.weak >> name.rail & 1 == 1;
        if nics.is_unanswered(at) || is_weak && self.left.failures > 0 {
            actions.push(Action::Fail(name, WcStatus::RETRY_EXC_ERR));
        }
        if self.left.losses > 0 && is_weak {
            actions.push(Action::Remove(name));
        }
        if self.left.refusals > 0 && is_weak && qp.mood.is_none() && qp.recv_mood.is_none() {
            let (taken, times) = (0, 0);
            actions.push(Action::Refuse { name, taken, times, sends: true, is_full: false });
        }
    }

    /// How often this happens, relatively.
    fn weight(&self, action: &Action) -> u32 {
        match action {
            Action::Execute(name) if self.has_failed(*name) => 3,
            Action::Post { .. } | Action::Execute(_) => 12,
            Action::Poll { host, .. } => self.shape.polls[*host],
            Action::Acknowledge(_) => self.shape.acknowledgements,
            Action::Tell(_) | Action::Hear { late: false, .. } => self.shape.control,
            Action::Receive { .. } | Action::Create { .. } | Action::Flush { .. } => 6,
            Action::Connect { .. } | Action::Replace { .. } => 6,
            Action::Hear { .. } | Action::Notice(_) | Action::HearOfConnect { .. } => 2,
            // SENDs that were accepted need rail 0, also if it is out of service.
            Action::Serve { end, rail: 0, .. } if self.directions[*end].has_open_pass_through() => {
                8
            }
            Action::Lose { .. } | Action::Serve { .. } => 2,
            Action::Cancel { end, .. } if self.directions[*end].is_busy() => 6,
            Action::FenceCancelled(_) => 4,
            // What a driver has not accepted when its queue pair fails was never posted.
            Action::Fail(name, _) if self.is_owed(*name) => 60,
            // A SEND that rail 0 loses while it is out of service has no other rail.
            Action::Fail(Name { end, rail: 0, .. }, _)
                if !self.ends[*end].wanted[0] && self.directions[*end].has_open_pass_through() =>
            {
                40
            }
            // A batch that comes is not taken whole.
            Action::Refuse { name, .. } if self.has_long_job(name.end) => 6,
            // Where one rail has failed, the next failure is more of a test.
            Action::Fail(name, _) if self.is_busy(*name) => 12,
            Action::Fail(..) if self.is_disturbed() => 2,
            // A link without messages breaks without consequences.
            Action::Break { connection, .. } => {
                self.shape.breaks * u32::from(self.is_talking(*connection))
            }
            _ => 1,
        }
    }

    /// Whether messages are under way.
    fn is_talking(&self, connection: usize) -> bool {
        (0..2).any(|side| self.links[connection].carries(side, false))
    }

    /// Whether the next request of an end has several fragments.
    fn has_long_job(&self, end: usize) -> bool {
        let next = self.shape.jobs[end].get(self.ends[end].next_job);
        next.is_some_and(|job| job.is_fragmented() && job.length > FRAGMENT)
    }

    fn is_owed(&self, name: Name) -> bool {
        self.nics.borrow().qps[self.at(name)].is_owed
    }

    pub(super) fn has_failed(&self, name: Name) -> bool {
        self.nics.borrow().qps[self.at(name)].in_error
    }

    fn is_busy(&self, name: Name) -> bool {
        let at = self.at(name);
        let qp = &self.nics.borrow().qps[at];
        qp.completed < qp.sent.len()
    }

    /// Whether a rail is anything but in service.
    fn is_disturbed(&self) -> bool {
        let rails = self.shape.queue_pairs();
        let ends = self.all_ends().flat_map(|end| (0..rails).map(move |rail| (end, rail)));
        ends.into_iter().any(|(end, rail)| self.state(end, rail) != RailState::InService)
    }

    /// One of the things that can happen next, if there is any.
    pub(super) fn choose(&self, choices: &mut dyn Choices) -> Option<Action> {
        let actions = self.possible();
        let total: u32 = actions.iter().map(|action| self.weight(action)).sum();
        if total == 0 {
            return None;
        }
        let mut at = choices.below(total);
        let chosen = actions.into_iter().find(|action| {
            let weight = self.weight(action);
            let found = at < weight;
            at = at.wrapping_sub(weight);
            found
        });
        chosen.map(|action| self.vary(action, choices))
    }

    /// Draws what an action leaves open.
    fn vary(&self, action: Action, choices: &mut dyn Choices) -> Action {
        match action {
            Action::Fail(name, _) => Action::Fail(name, pick(choices, &STATUSES)),
            Action::Post { end, .. } if self.shape.posts_many => {
                Action::Post { end, run: pick(choices, &[0, 1, 2, 3, 4, 8, 8]) }
            }
            Action::Poll { host, .. } => self.vary_poll(host, choices),
            Action::Cancel { end, .. } => {
                // One of the newest, most of which are under way.
                let requests = self.directions[end].requests.len();
                let back = choices.below(requests.min(8) as u32) as usize;
                Action::Cancel { end, number: requests - 1 - back }
            }
            Action::Lose { end, rail, .. } => Action::Lose { end, rail, purges: choices.coin() },
            Action::Refuse { name, .. } => {
                let (taken, times) = (pick(choices, &[0, 1, 1, 2, 3]), pick(choices, &[0, 1, 3]));
                let (sends, is_full) = (!choices.one_in(4), choices.coin());
                Action::Refuse { name, taken, times, sends, is_full }
            }
            Action::Reserve { end, rail, .. } => {
                Action::Reserve { end, rail, reserved: choices.coin() }
            }
            other => other,
        }
    }

    fn vary_poll(&self, host: usize, choices: &mut dyn Choices) -> Action {
        let Shape { budget, polls_anyhow, flushes_at_once, devices, .. } = self.shape;
        let most = [usize::MAX, usize::MAX, 1, 2, 3];
        let most = if polls_anyhow || !flushes_at_once { pick(choices, &most) } else { usize::MAX };
        if !polls_anyhow {
            return Action::Poll { host, how: How::All, budget, most };
        }
        let device = choices.below(devices[host] as u32) as usize;
        let how = [How::All, How::All, How::One, How::Queue(device), How::Feed(device)];
        let (how, budget) = (pick(choices, &how), pick(choices, &[budget, budget, 1, usize::MAX]));
        Action::Poll { host, how, budget, most }
    }

    pub(super) fn state(&self, end: usize, rail: usize) -> RailState {
        let id = self.shape.rail_id(rail);
        self.ends[end].qp.rail_state(id).expect("a rail of ours")
    }

    pub(super) fn generation(&self, end: usize, rail: usize) -> u16 {
        let id = self.shape.rail_id(rail);
        self.ends[end].qp.rail_generation(id).expect("a rail of ours")
    }

    pub(super) fn is_in_error(&self, end: usize) -> bool {
        self.ends[end].qp.state() == QpState::Error
    }
}

/// How a request fails for reasons that another rail may not have.
const STATUSES: [WcStatus; 10] = [
    WcStatus::RETRY_EXC_ERR,
    WcStatus::RETRY_EXC_ERR,
    WcStatus::RETRY_EXC_ERR,
    WcStatus::RNR_RETRY_EXC_ERR,
    WcStatus::RESP_TIMEOUT_ERR,
    WcStatus::REM_OP_ERR,
    WcStatus::WR_FLUSH_ERR,
    WcStatus::WR_FLUSH_ERR,
    WcStatus::FATAL_ERR,
    WcStatus::GENERAL_ERR,
];
