//! What can happen next.

use super::World;
use super::connection::Connection;
use super::fabric::{Fabric, device_at};
use super::shape::MOST;
use crate::choices::{Choices, pick};
use crate::link::Old;
use polyrail_core::hardware::CqId;
use polyrail_core::p2p::Told;
use polyrail_core::verbs::{Opcode, WcStatus};
use polyrail_core::virtual_cq::CompletionTarget;
use polyrail_core::virtual_qp::RailState;

/// One step of an application, an owner, a NIC or a peer that does not keep to the protocol.
/// Connections and queue pairs are named by their places; a step that cannot be made changes
/// nothing.
#[allow(missing_docs, reason = "the fields are what the variants tell of")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// An application offers buffers, of which the number decides.
    Irecv { connection: usize, draw: u32 },
    /// An application sends.
    Isend { connection: usize, draw: u32 },
    /// An application asks for one of its receives.
    TestReceive { connection: usize, which: u32 },
    /// An application asks for one of its sends.
    TestSend { connection: usize, which: u32 },
    /// An application asks for its oldest flush.
    TestFlush { connection: usize },
    /// An application wants one of its receives back.
    CancelReceive { connection: usize, which: u32 },
    /// An application wants one of its sends back.
    CancelSend { connection: usize, which: u32 },
    /// An owner fences what carries messages that are taken back.
    Hurry { connection: usize },
    /// A host polls, and finds at most this many more completions in each queue.
    Poll { host: usize, budget: usize, most: usize },
    /// The peer's NIC executes requests of a queue pair.
    Execute { at: usize, count: u32 },
    /// The peer's answers arrive.
    Acknowledge { at: usize, count: u32 },
    /// Words become visible.
    Show { which: u32, count: u32 },
    /// The driver of a queue pair does not take the next batch whole.
    RefuseSends { at: usize, taken: u32, is_full: bool },
    /// The driver of a shared receive queue refuses this many batches.
    RefuseReceives { host: usize, device: usize, taken: u32, is_full: bool, count: u32 },
    /// A queue pair goes to the error state by itself.
    Fail { at: usize, status: WcStatus },
    /// A queue pair that dies takes a shared receive with it.
    TakeReceive { at: usize },
    /// A driver does not move a queue pair to the error state for a while.
    KeepWorking { at: usize },
    /// An owner gives an end up.
    Surrender { connection: usize, host: usize },
    /// An end receives the report that its peer has failed.
    Tell { connection: usize, host: usize },
    /// An owner sends the messages that there are.
    Carry { connection: usize, host: usize },
    /// The next message arrives at an end, of the link or of one that broke.
    Hear { connection: usize, host: usize, late: bool },
    /// The link breaks, and is there again.
    Break { connection: usize, old: Old },
    /// An owner notices that the link is a new one.
    Notice { connection: usize, host: usize },
    /// An owner reports that a queue pair failed.
    Distrust { connection: usize, host: usize, place: usize },
    /// Owners make and connect queue pairs for a place that is down, on these rails' devices.
    Renew { connection: usize, place: usize, rails: [usize; 2] },
    /// An owner puts the new queue pair in its place.
    Install { connection: usize, host: usize, place: usize },
    /// New queue pairs cannot be connected.
    Abandon { connection: usize, place: usize },
    /// An owner destroys a queue pair, whose completions are taken later, and reports it as gone.
    Destroy { connection: usize, host: usize, place: usize },
    /// A device is gone, with the completions that were not taken.
    RemoveDevice { host: usize, device: usize },
    /// Owners report that, and the device is there again.
    Mourn { host: usize, device: usize },
    /// A completion queue fails the next polls.
    FailPolls { host: usize, device: usize, count: u32 },
    /// A virtual queue pair that shares a host's completion queues posts a request.
    Bystand { host: usize },
    /// The peer sends what no correct peer sends.
    Forge { connection: usize, draw: u32 },
    /// The peer writes where no end may look any more.
    Scribble { connection: usize, draw: u32 },
    /// A connection that has failed is replaced.
    Replace { connection: usize },
}

/// How a request fails that was not flushed.
const STATUSES: [WcStatus; 4] =
    [WcStatus::RETRY_EXC_ERR, WcStatus::FATAL_ERR, WcStatus::GENERAL_ERR, WcStatus::WR_FLUSH_ERR];

fn any(choices: &mut dyn Choices) -> u32 {
    choices.below(1 << 16)
}

impl<const DEPTH: usize, const SLOTS: usize> World<DEPTH, SLOTS> {
    /// What happens next.
    pub(super) fn choose(&self, choices: &mut dyn Choices) -> Action {
        let connection = choices.below(self.connections.len() as u32) as usize;
        let pace = &self.shape.pace;
        let is_eager = self.left.forgeries + self.left.scribbles > 0
            || self.left.surrenders > 1
            || self.shape.is_brisk && self.left.failures > 0;
        let trouble = 1 + 3 * u32::from(is_eager);
        let is_hurt = self.connections.iter().any(|connection| connection.failures > 0);
        let control = if is_hurt { self.shape.control } else { 0 };
        let weights =
            [pace[0], pace[1], pace[2], pace[3], 2 * pace[4], pace[5], 2 * control, trouble];
        let mut draw = choices.below(weights.iter().sum());
        let kind = weights.iter().position(|weight| {
            let is_it = draw < *weight;
            draw = draw.saturating_sub(*weight);
            is_it
        });
        match kind {
            Some(0) => Action::Irecv { connection, draw: any(choices) },
            Some(1) => Action::Isend { connection, draw: any(choices) },
            Some(2) => self.choose_test(connection, choices),
            Some(3) => self.choose_poll(choices),
            Some(4) => self.choose_step(choices, true),
            Some(5) => self.choose_step(choices, false),
            Some(6) => self.choose_control(connection, choices),
            _ => self.choose_trouble(connection, choices),
        }
    }

    /// Something that owners do with queue pairs that fail.
    fn choose_control(&self, connection: usize, choices: &mut dyn Choices) -> Action {
        let line = &self.connections[connection].line;
        let host = choices.below(2) as usize;
        let places = line.rails * line.each;
        let place = choices.below(places as u32) as usize;
        let dead = self.nics.borrow().is_dead.iter().position(|is_dead| *is_dead);
        if let Some(at) = dead.filter(|_| choices.one_in(4)) {
            return Action::Mourn { host: at / MOST, device: at % MOST };
        }
        // One that this can be done for, if there is one.
        let this = &self.connections[connection];
        let find = |fits: &dyn Fn(usize) -> bool| {
            (0..places)
                .map(|step| (place + step) % places)
                .find(|place| fits(*place))
                .unwrap_or(place)
        };
        let waits = |place: usize| this.pending[place][host].is_some();
        let is_down = |place: usize| this.state(host, place).0 == RailState::Down && !waits(place);
        let rail = |choices: &mut dyn Choices, place: usize| match choices.below(4) {
            0 => choices.below(line.rails as u32) as usize,
            _ => place % line.rails,
        };
        match choices.below(16) {
            0..=3 if choices.one_in(self.shape.mute[host]) => Action::Carry { connection, host },
            0..=8 if choices.one_in(self.shape.deaf[host]) => {
                Action::Hear { connection, host, late: choices.one_in(4) }
            }
            0..=8 => Action::Install { connection, host, place },
            9 | 10 => Action::Notice { connection, host },
            11 | 12 => Action::Install { connection, host, place: find(&waits) },
            13 | 15 if self.shape.renews => {
                let place = find(&is_down);
                Action::Renew { connection, place, rails: [0; 2].map(|_| rail(choices, place)) }
            }
            14 => Action::Abandon { connection, place },
            _ => Action::Notice { connection, host },
        }
    }

    fn choose_test(&self, connection: usize, choices: &mut dyn Choices) -> Action {
        let which = if self.shape.is_brisk { 0 } else { any(choices) };
        if self.left.cancels > 0 && choices.one_in(4) {
            let which = any(choices);
            return match choices.coin() {
                true => Action::CancelReceive { connection, which },
                false => Action::CancelSend { connection, which },
            };
        }
        if self.connections[connection].sender.being_taken_back() > 0 && choices.one_in(4) {
            return Action::Hurry { connection };
        }
        match choices.below(9) {
            0..=3 => Action::TestReceive { connection, which },
            4..=7 => Action::TestSend { connection, which },
            _ => Action::TestFlush { connection },
        }
    }

    fn choose_poll(&self, choices: &mut dyn Choices) -> Action {
        let host = choices.below(2) as usize;
        if self.shape.bystanders[host].is_some() && choices.coin() {
            return Action::Bystand { host };
        }
        if let Some(device) = self.awaited(host)
            && !choices.one_in(4)
        {
            return Action::FailPolls { host, device, count: 1 + choices.below(6) };
        }
        let most = if choices.one_in(self.shape.unseen[host]) { self.shape.most } else { 0 };
        Action::Poll { host, budget: self.shape.budget, most }
    }

    /// Whether the oldest request of a queue pair is the signal of a share that was moved.
    fn goes_out_again(&self, nics: &Fabric, at: usize) -> bool {
        let Some(oldest) = nics.requests(at).next() else { return false };
        let id = nics.qps[at].name.connection;
        let connection = self.connections.iter().find(|connection| connection.id == id);
        let is_moved = |connection: &Connection<DEPTH, SLOTS>| {
            matches!(connection.line.layout().decode(oldest.imm).told, Told::Moved(_))
        };
        oldest.opcode == Opcode::RdmaWriteWithImm && connection.is_some_and(is_moved)
    }

    /// A device whose completion queue is to be seen empty, holds something, and may fail.
    fn awaited(&self, host: usize) -> Option<usize> {
        if self.left.polls == 0 {
            return None;
        }
        let nics = self.nics.borrow();
        let here = self.connections.iter().filter(|connection| connection.line.from != host);
        let mut awaited = here.filter_map(|connection| connection.receiver.awaits_empty());
        let holds = |cq: &CqId| nics.waiting(cq.0 as usize) > 0;
        awaited.find(holds).map(|cq| cq.0 as usize - device_at(host, 0))
    }

    /// Something that NICs can do.
    fn choose_step(&self, choices: &mut dyn Choices, executes: bool) -> Action {
        let nics = self.nics.borrow();
        if executes && !nics.hidden.is_empty() && choices.one_in(3) {
            return Action::Show { which: any(choices), count: pick(choices, &[1, 1, 4, 64]) };
        }
        let is_late = choices.below(self.shape.late) > 0;
        let slow = self.shape.slow.filter(|_| executes && choices.below(40) > 0);
        let is_tardy = self.shape.is_tardy && !executes && choices.below(40) > 0;
        let is_slow = |at: usize| {
            let name = nics.qps[at].name;
            slow == Some((name.host, name.place)) || is_tardy && self.goes_out_again(&nics, at)
        };
        let can_execute = |at| nics.can_execute(at) && !(is_late && nics.qps[at].in_error);
        let can = |at: &usize| {
            let can = if executes { can_execute(*at) } else { nics.can_acknowledge(*at) };
            can && !is_slow(*at)
        };
        let ready: Vec<_> = (0..nics.qps.len()).filter(can).collect();
        if ready.is_empty() {
            return self.choose_poll(choices);
        }
        let at = pick(choices, &ready);
        let count = if self.shape.is_brisk { 8 } else { pick(choices, &[1, 1, 2, 8]) };
        if executes { Action::Execute { at, count } } else { Action::Acknowledge { at, count } }
    }

    fn choose_trouble(&self, connection: usize, choices: &mut dyn Choices) -> Action {
        let host = choices.below(2) as usize;
        let at = {
            let nics = self.nics.borrow();
            let dying: Vec<_> = (0..nics.qps.len()).filter(|at| nics.can_take(*at)).collect();
            let unanswered: Vec<_> =
                (0..nics.qps.len()).filter(|at| nics.is_unanswered(*at)).collect();
            let has_failed = |connection: &Connection<DEPTH, SLOTS>| {
                (0..2).all(|host| connection.has_failed_at(host))
            };
            let is_alone = |connection: &Connection<DEPTH, SLOTS>| {
                connection.has_failed() && !has_failed(connection)
            };
            let alone = self.connections.iter().position(is_alone);
            if let Some(connection) = alone.filter(|_| self.shape.replaces && choices.coin()) {
                return Action::Tell { connection, host };
            }
            let ended = self.connections.iter().position(has_failed);
            let ended = ended.filter(|_| self.shape.replaces && choices.one_in(3));
            if let Some(connection) = ended {
                return Action::Replace { connection };
            }
            if let Some(action) = self.choose_failure(&nics, choices) {
                return action;
            }
            let may_take = self.shape.troubles.failures + self.shape.troubles.forgeries > 0;
            if may_take && !dying.is_empty() && choices.one_in(3) {
                return Action::TakeReceive { at: pick(choices, &dying) };
            }
            if !unanswered.is_empty() && choices.one_in(3) {
                let at = pick(choices, &unanswered);
                return Action::Fail { at, status: WcStatus::RETRY_EXC_ERR };
            }
            choices.below(nics.qps.len() as u32) as usize
        };
        let (taken, is_full) = (choices.below(4), !choices.one_in(16));
        let place = choices.below(16) as usize;
        let device = choices.below(self.shape.devices[host] as u32) as usize;
        match choices.below(20) {
            19 => Action::FailPolls { host, device, count: 1 + choices.below(3) },
            14 => Action::Distrust { connection, host, place },
            15 => Action::RemoveDevice { host, device },
            18 => Action::Destroy { connection, host, place },
            16 => {
                let old = pick(choices, &[Old::Lost, Old::First, Old::Late]);
                Action::Break { connection, old }
            }
            17 => Action::Fail { at, status: WcStatus::RETRY_EXC_ERR },
            0 | 1 => Action::RefuseSends { at, taken, is_full },
            2 | 3 => {
                let (taken, count) = (pick(choices, &[0, 1, 3, 20]), pick(choices, &[1, 1, 4, 20]));
                Action::RefuseReceives { host, device, taken, is_full, count }
            }
            4 => Action::Fail { at, status: pick(choices, &STATUSES) },
            5 => Action::KeepWorking { at },
            6 => Action::Surrender { connection, host },
            7 => Action::Tell { connection, host },
            8 | 9 => Action::Forge { connection, draw: any(choices) },
            10..=12 => Action::Scribble { connection, draw: any(choices) },
            _ => Action::Replace { connection },
        }
    }

    /// An end has a new queue pair, and its peer does not know yet what became of the one before:
    /// the new one fails.
    fn ahead(&self) -> Option<Action> {
        let mut all = self.connections.iter().enumerate();
        all.find_map(|(connection, this)| {
            (0..this.near.len()).find_map(|place| {
                let [one, other] = [0, 1].map(|host| this.state(host, place));
                let is_ahead = |one: (RailState, u16), other: (RailState, u16)| {
                    one.1 == other.1.wrapping_add(1)
                        && one.0 == RailState::Joining
                        && other.0 == RailState::Fenced
                };
                let host = if is_ahead(one, other) { 0 } else { 1 };
                let is_one = is_ahead(one, other) || is_ahead(other, one);
                is_one.then_some(Action::Distrust { connection, host, place })
            })
        })
    }

    /// What hurts most: a queue pair fails with requests on their way, a device is gone with
    /// completions that were not taken.
    fn choose_failure(&self, nics: &Fabric, choices: &mut dyn Choices) -> Option<Action> {
        if self.left.failures > 0
            && let Some(action) = self.ahead()
            && choices.coin()
        {
            return Some(action);
        }
        if self.left.losses > 0 && choices.one_in(4) {
            let holds = |at: &usize| nics.cqs[*at].receives > 0 && !nics.is_dead[*at];
            let at = (0..2 * MOST).find(holds)?;
            return Some(Action::RemoveDevice { host: at / MOST, device: at % MOST });
        }
        if self.left.failures > 0 && choices.one_in(4) {
            // Of a receiver's, the requests are entries.
            let is_receivers = self.shape.is_brisk && choices.coin();
            let is_one = |at: &usize| {
                nics.has_sent(*at) && (nics.qps[*at].name.is_receivers || !is_receivers)
            };
            let working: Vec<_> = (0..nics.qps.len()).filter(is_one).collect();
            let status = pick(choices, &STATUSES);
            return (!working.is_empty())
                .then(|| Action::Fail { at: pick(choices, &working), status });
        }
        None
    }

    /// Lets something happen, if it can.
    pub(super) fn perform(&mut self, action: Action) {
        if self.is_loud {
            eprintln!("{action:?}");
        }
        self.summary.steps += 1;
        match action {
            Action::Irecv { connection, draw } => self.irecv(connection, draw),
            Action::Isend { connection, draw } => self.isend(connection, draw),
            Action::TestReceive { connection, which } => self.test_receive(connection, which),
            Action::TestSend { connection, which } => self.test_send(connection, which),
            Action::TestFlush { connection } => self.test_flush(connection),
            Action::CancelReceive { connection, which } => self.cancel_receive(connection, which),
            Action::CancelSend { connection, which } => self.cancel_send(connection, which),
            Action::Hurry { connection } => self.hurry(connection),
            Action::Poll { host, budget, most } => self.poll(host, budget, most),
            Action::Execute { at, count } => self.execute(at, count),
            Action::Acknowledge { at, count } => self.acknowledge(at, count),
            Action::Show { which, count } => self.show(which, count),
            Action::RefuseSends { at, taken, is_full } => self.refuse_sends(at, taken, is_full),
            Action::RefuseReceives { host, device, taken, is_full, count } => {
                self.refuse_receives(device_at(host, device), (taken, is_full), count);
            }
            Action::Fail { at, status } => self.fail(at, status),
            Action::TakeReceive { at } => self.take_receive(at),
            Action::KeepWorking { at } => self.keep_working(at),
            Action::Surrender { connection, host } => self.surrender(connection, host),
            Action::Tell { connection, host } => self.tell(connection, host),
            Action::Carry { connection, host } => self.carry(connection, host),
            Action::Hear { connection, host, late } => self.hear(connection, host, late),
            Action::Break { connection, old } => self.break_link(connection, old),
            Action::Notice { connection, host } => self.notice(connection, host),
            Action::Distrust { connection, host, place } => self.distrust(connection, host, place),
            Action::Renew { connection, place, rails } => self.renew(connection, place, rails),
            Action::Install { connection, host, place } => self.install(connection, host, place),
            Action::Abandon { connection, place } => self.abandon(connection, place),
            Action::Destroy { connection, host, place } => self.destroy(connection, host, place),
            Action::RemoveDevice { host, device } => self.remove_device(host, device),
            Action::Mourn { host, device } => self.mourn(host, device),
            Action::FailPolls { host, device, count } => self.fail_polls(host, device, count),
            Action::Bystand { host } => self.bystand(host),
            Action::Forge { connection, draw } => self.forge(connection, draw),
            Action::Scribble { connection, draw } => self.scribble(connection, draw),
            Action::Replace { connection } => self.replace(connection),
        }
        if !self.shape.script.is_empty() {
            self.be_brief();
        }
        self.check();
    }
}
