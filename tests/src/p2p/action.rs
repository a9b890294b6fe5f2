//! What can happen next.

use super::World;
use super::connection::Connection;
use super::fabric::device_at;
use crate::choices::{Choices, pick};
use crate::link::Old;
use polyrail_core::verbs::WcStatus;

/// One step of an application, an owner, a NIC or a peer that does not keep to the protocol. Connections and
/// queue pairs are named by their places; a step that cannot be made changes nothing.
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
    /// A host polls, and finds so many completions more in each queue at most.
    Poll { host: usize, budget: usize, most: usize },
    /// The peer's NIC executes requests of a queue pair.
    Execute { at: usize, count: u32 },
    /// The peer's answers arrive.
    Acknowledge { at: usize, count: u32 },
    /// Words become visible.
    Show { which: u32, count: u32 },
    /// The driver of a queue pair does not take the next batch whole.
    RefuseSends { at: usize, taken: u32, is_full: bool },
    /// That of a shared receive queue does not.
    RefuseReceives { host: usize, device: usize, taken: u32, is_full: bool },
    /// A queue pair goes to the error state by itself.
    Fail { at: usize, status: WcStatus },
    /// A queue pair that dies takes a shared receive with it.
    TakeReceive { at: usize },
    /// A driver does not move a queue pair to the error state for a while.
    KeepWorking { at: usize },
    /// An owner gives an end up.
    Surrender { connection: usize, host: usize },
    /// An end hears that its peer's has failed.
    Tell { connection: usize, host: usize },
    /// An owner sends the messages that there are.
    Carry { connection: usize, host: usize },
    /// The next message arrives at an end, of the link or of one that broke.
    Hear { connection: usize, host: usize, late: bool },
    /// The link breaks, and is there again.
    Break { connection: usize, old: Old },
    /// An owner notices that the link is a new one.
    Notice { connection: usize, host: usize },
    /// An owner says that a queue pair failed.
    Distrust { connection: usize, host: usize, place: usize },
    /// Owners make and connect queue pairs for a place that is down, on these rails' devices.
    Renew { connection: usize, place: usize, rails: [usize; 2] },
    /// An owner puts the new queue pair in its place.
    Install { connection: usize, host: usize, place: usize },
    /// New queue pairs cannot be connected.
    Abandon { connection: usize, place: usize },
    /// An owner destroys a queue pair, whose completions are taken later, and says that it is gone.
    Destroy { connection: usize, host: usize, place: usize },
    /// A device is gone, with the completions that were not taken.
    RemoveDevice { host: usize, device: usize },
    /// Owners say so, and the device is there again.
    Mourn { host: usize, device: usize },
    /// The peer sends what no correct peer sends.
    Forge { connection: usize, draw: u32 },
    /// The peer writes where nobody is to look any more.
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
        let trouble = 1 + 3 * u32::from(self.left.forgeries + self.left.scribbles > 0);
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
        let place = choices.below((line.rails * line.each) as u32) as usize;
        let rail = |choices: &mut dyn Choices| match choices.below(4) {
            0 => choices.below(line.rails as u32) as usize,
            _ => place % line.rails,
        };
        match choices.below(16) {
            0..=3 => Action::Carry { connection, host },
            4..=8 if choices.one_in(self.shape.deaf[host]) => {
                Action::Hear { connection, host, late: choices.one_in(4) }
            }
            4..=8 => Action::Carry { connection, host },
            9 | 10 => Action::Notice { connection, host },
            11 | 12 => Action::Install { connection, host, place },
            13 if self.shape.renews => {
                Action::Renew { connection, place, rails: [0; 2].map(|_| rail(choices)) }
            }
            14 => Action::Abandon { connection, place },
            15 => {
                let device = choices.below(self.shape.devices[host] as u32) as usize;
                Action::Mourn { host, device }
            }
            _ => Action::Notice { connection, host },
        }
    }

    fn choose_test(&self, connection: usize, choices: &mut dyn Choices) -> Action {
        let which = if self.shape.is_brisk { 0 } else { any(choices) };
        match choices.below(9) {
            0..=3 => Action::TestReceive { connection, which },
            4..=7 => Action::TestSend { connection, which },
            _ => Action::TestFlush { connection },
        }
    }

    fn choose_poll(&self, choices: &mut dyn Choices) -> Action {
        let host = choices.below(2) as usize;
        let most = if choices.one_in(self.shape.unseen[host]) { self.shape.most } else { 0 };
        Action::Poll { host, budget: self.shape.budget, most }
    }

    /// Something that NICs can do.
    fn choose_step(&self, choices: &mut dyn Choices, executes: bool) -> Action {
        let nics = self.nics.borrow();
        if executes && !nics.hidden.is_empty() && choices.one_in(3) {
            return Action::Show { which: any(choices), count: pick(choices, &[1, 1, 4, 64]) };
        }
        let is_late = choices.below(self.shape.late) > 0;
        let can_execute = |at| nics.can_execute(at) && !(is_late && nics.qps[at].in_error);
        let can = |at: &usize| if executes { can_execute(*at) } else { nics.can_acknowledge(*at) };
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
            let ended = self.connections.iter().position(has_failed);
            let ended = ended.filter(|_| self.shape.replaces && choices.one_in(3));
            if let Some(connection) = ended {
                return Action::Replace { connection };
            }
            if !dying.is_empty() && choices.one_in(3) {
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
        match choices.below(19) {
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
                let taken = pick(choices, &[0, 1, 3, 20]);
                Action::RefuseReceives { host, device, taken, is_full }
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
            Action::Poll { host, budget, most } => self.poll(host, budget, most),
            Action::Execute { at, count } => self.execute(at, count),
            Action::Acknowledge { at, count } => self.acknowledge(at, count),
            Action::Show { which, count } => self.show(which, count),
            Action::RefuseSends { at, taken, is_full } => self.refuse_sends(at, taken, is_full),
            Action::RefuseReceives { host, device, taken, is_full } => {
                self.refuse_receives(device_at(host, device), taken, is_full);
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
