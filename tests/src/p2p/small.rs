//! Worlds of two messages over two rails and one failure, which are explored in every order.

use super::World;
use super::action::Action;
use super::fabric::device_at;
use super::shape::{Shape, Size, Troubles};
use crate::search::{Every, Fingerprint, Small, SmallWorld};
use polyrail_core::p2p::EntryForm;
use polyrail_core::verbs::WcStatus;

const DEPTH: usize = Size::Small.depth() as usize;
const SLOTS: usize = Size::Small.slots() as usize;

/// Messages of buffers of these lengths, and one failure of a queue pair.
fn failing(script: &[&[u32]], reroutes: bool) -> Shape {
    let mut shape = Shape::small();
    shape.script = script.iter().map(|lengths| lengths.to_vec()).collect();
    shape.renews = false;
    shape.troubles = Troubles { failures: 1, ..Troubles::default() };
    shape.lines[0].reroutes = reroutes;
    shape
}

/// Nothing fails, and words of entries become visible in any order.
fn torn(script: &[&[u32]], form: EntryForm) -> Shape {
    let mut shape = Shape { tears: true, ..failing(script, false) };
    shape.troubles = Troubles::default();
    shape.lines[0].form = form;
    shape
}

/// Both rails are on one device of each host: one queue pair carries all entries.
fn on_one_device(mut shape: Shape) -> Shape {
    shape.devices = [1; 2];
    shape.lines[0].devices = Default::default();
    shape
}

/// The callers want something back.
fn with_cancels(mut shape: Shape, cancels: u32, failures: u32) -> Shape {
    (shape.troubles.cancels, shape.troubles.failures) = (cancels, failures);
    shape.renews = true;
    shape
}

/// Payload is sent ahead of its signal.
fn with_signals(mut shape: Shape) -> Shape {
    shape.lines[0].separate_signal = Some(0);
    shape
}

/// Rail 1 stands by at both ends.
fn with_a_standby_rail(mut shape: Shape) -> Shape {
    shape.lines[0].standby = [2; 2];
    shape
}

/// A device is asked twice whether a queue pair takes receives.
fn with_late_words(shape: Shape) -> Shape {
    Shape { word_after: 1, ..shape }
}

const BOTH: u32 = 256;
const ONE: u32 = 100;

impl Small for Shape {
    fn all_small() -> Vec<Self> {
        let two: &[&[u32]] = &[&[BOTH], &[BOTH]];
        vec![
            torn(&[&[BOTH]], EntryForm::Hashed),
            torn(&[&[BOTH]], EntryForm::Plain),
            torn(&[&[ONE, ONE]], EntryForm::Hashed),
            torn(&[&[ONE], &[ONE]], EntryForm::Plain),
            failing(&[&[BOTH]], false),
            failing(&[&[BOTH]], true),
            failing(two, false),
            failing(two, true),
            on_one_device(failing(&[&[BOTH]], true)),
            on_one_device(failing(two, true)),
            with_signals(failing(two, true)),
            with_late_words(failing(two, true)),
            failing(&[&[ONE, BOTH]], true),
            failing(&[&[BOTH], &[ONE, ONE]], true),
            failing(&[&[0], &[BOTH]], true),
            Shape { tears: true, ..failing(&[&[BOTH]], true) },
            with_a_standby_rail(failing(two, true)),
            with_a_standby_rail(failing(&[&[ONE, BOTH]], true)),
            with_cancels(failing(&[&[BOTH]], true), 2, 0),
            with_cancels(failing(two, true), 1, 0),
            with_cancels(failing(&[&[ONE, ONE]], true), 1, 0),
            with_cancels(failing(&[&[BOTH]], true), 1, 1),
            with_cancels(with_signals(failing(two, true)), 1, 1),
        ]
    }

    fn describe(&self) -> String {
        let Self { script, tears, devices, word_after, troubles, .. } = self;
        let line = &self.lines[0];
        let Troubles { failures, cancels, .. } = troubles;
        let (reroutes, form, separate) = (line.reroutes, line.form, line.separate_signal.is_some());
        let standby = line.standby_of(false);
        format!(
            "{script:?}, {failures} failures, {cancels} wanted back, re-routing {reroutes}, {} devices, torn {tears}, {form:?}, signals \
             apart {separate}, words late {word_after}, standby {standby:?}",
            devices[0]
        )
    }

    fn build_small(&self) -> SmallWorld<Self> {
        Box::new(World::<DEPTH, SLOTS>::new(self.clone()))
    }
}

impl Every for World<DEPTH, SLOTS> {
    /// What NICs can do comes first, then what ends do, and trouble last: so that the plainest
    /// order is one in which all goes well.
    fn possible(&self) -> Vec<Action> {
        let mut actions = Vec::with_capacity(32);
        self.add_steps(&mut actions);
        (0..2).for_each(|host| self.add_polls(host, &mut actions));
        (0..self.connections.len()).for_each(|at| self.add_messages(at, &mut actions));
        self.add_failures(&mut actions);
        actions
    }

    fn is_trouble(&self, action: &Action) -> bool {
        match action {
            Action::Fail { at, .. } => !self.nics.borrow().is_unanswered(*at),
            Action::TakeReceive { .. } => true,
            _ => false,
        }
    }

    fn fingerprint(&self) -> u64 {
        let Self { nics, hosts, connections, left, .. } = self;
        let nics = nics.borrow();
        let (memory, devices, hidden) =
            (&nics.memory, (&nics.qps, &nics.cqs, &nics.srqs), &nics.hidden);
        Fingerprint::of(format_args!(
            "{memory:?}{devices:?}{hidden:?}{hosts:?}{connections:?}{left:?}"
        ))
    }
}

impl World<DEPTH, SLOTS> {
    fn add_messages(&self, connection: usize, actions: &mut Vec<Action>) {
        let this = &self.connections[connection];
        let (offered, sent) = (this.receives.len(), this.sent);
        if offered < self.shape.script.len() && this.receiver.failure().is_none() {
            actions.push(Action::Irecv { connection, draw: 0 });
        }
        let is_there = this.receives.get(sent).is_some_and(|front| front.is_offered);
        if is_there && this.sender.failure().is_none() {
            actions.push(Action::Isend { connection, draw: 0 });
        }
        if self.left.cancels > 0 && this.line.reroutes {
            let receives = 0..this.waiting_receives().len() as u32;
            actions.extend(receives.map(|which| Action::CancelReceive { connection, which }));
            let sends = 0..this.outgoing.len() as u32;
            actions.extend(sends.map(|which| Action::CancelSend { connection, which }));
        }
        if this.sender.being_taken_back() > 0 {
            actions.push(Action::Hurry { connection });
        }
        for host in 0..2 {
            if this.link.carries(1 - host, false) {
                actions.push(Action::Hear { connection, host, late: false });
            }
            if !this.line.reroutes && this.has_failed_at(1 - host) && !this.has_failed_at(host) {
                actions.push(Action::Tell { connection, host });
            }
        }
    }

    fn add_polls(&self, host: usize, actions: &mut Vec<Action>) {
        let waiting = |device| self.nics.borrow().waiting(device_at(host, device)) > 0;
        let finds = (0..self.shape.devices[host]).any(waiting);
        let needs_poll = self.connections.iter().any(|connection| connection.needs_poll(host));
        if finds || needs_poll {
            actions.push(Action::Poll { host, budget: usize::MAX, most: usize::MAX });
        }
        if finds && needs_poll {
            actions.push(Action::Poll { host, budget: usize::MAX, most: 0 });
        }
    }

    fn add_steps(&self, actions: &mut Vec<Action>) {
        let nics = self.nics.borrow();
        for at in 0..nics.qps.len() {
            if nics.can_execute(at) {
                actions.push(Action::Execute { at, count: 1 });
            }
            if nics.can_acknowledge(at) {
                actions.push(Action::Acknowledge { at, count: u32::MAX });
            }
        }
        let hidden = 0..nics.hidden.len() as u32;
        actions.extend(hidden.map(|which| Action::Show { which, count: 1 }));
    }

    fn add_failures(&self, actions: &mut Vec<Action>) {
        let nics = self.nics.borrow();
        let fails = |at: &usize| {
            let may_fail = self.left.failures > 0 || nics.is_unanswered(*at);
            may_fail && !nics.qps[*at].in_error
        };
        let failing = (0..nics.qps.len()).filter(fails);
        let failures = failing.map(|at| Action::Fail { at, status: WcStatus::RETRY_EXC_ERR });
        actions.extend(failures);
        let dying = (0..nics.qps.len()).filter(|at| nics.can_take(*at));
        actions.extend(dying.map(|at| Action::TakeReceive { at }));
    }
}

impl<const DEPTH: usize, const SLOTS: usize> World<DEPTH, SLOTS> {
    /// Applications ask at once, and owners send their messages at once.
    pub(super) fn be_brief(&mut self) {
        self.test_all();
        for at in 0..self.connections.len() {
            (0..2).for_each(|host| self.carry(at, host));
        }
    }
}
