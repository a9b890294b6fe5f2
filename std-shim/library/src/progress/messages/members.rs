//! The members of a [`P2pEndpointSet`] under the progress loop.

use super::mailbox::{MemberEvent, P2pMailbox};
use super::port::P2pPort;
use crate::backend::Domain;
use crate::endpoint::WaitError;
use crate::p2p::{P2pEndpointSet, P2pMember};
#[cfg(feature = "metrics")]
use crate::progress::metering::Meter;
use crate::progress::set::{ArmedPoll, Awaits, FLUSH_TIMEOUT, POLL_BUDGET, Ports, ProgressSet};
use std::os::fd::BorrowedFd;
use std::task::Waker;
use std::time::{Duration, Instant};

/// The members that a progress thread owns.
pub(super) struct Members<D: Domain, const ROUTES: usize> {
    set: P2pEndpointSet<D, ROUTES>,
    /// Since when a completion queue cannot be polled.
    broken: Option<Instant>,
    #[cfg(feature = "metrics")]
    meter: Meter,
}

impl<D: Domain, const ROUTES: usize> Members<D, ROUTES> {
    pub(super) fn new(set: P2pEndpointSet<D, ROUTES>) -> Self {
        Self {
            set,
            broken: None,
            #[cfg(feature = "metrics")]
            meter: Meter::default(),
        }
    }

    /// Reports requests that ended. Returns whether any did.
    fn finish(&mut self, ports: &mut Ports<P2pPort>) -> bool {
        let mut moved = false;
        for port in ports.iter_mut() {
            let member = self.set.get_mut(port.member);
            moved |= member.is_some_and(|member| port.finish(member));
        }
        moved
    }

    /// Collects the events of the members' rails.
    fn collect(&mut self, mailbox: &P2pMailbox) {
        if !self.set.reroutes() {
            return;
        }
        for number in 0..self.set.bound() {
            let Some(member) = self.set.get_mut(number) else { continue };
            while let Some((end, place, event)) = member.take_rail_event() {
                mailbox.rail_events.push(MemberEvent { member: number, end, place, event });
            }
        }
    }
}

impl<D: Domain, const ROUTES: usize> ProgressSet for Members<D, ROUTES> {
    type Set = P2pEndpointSet<D, ROUTES>;
    type Port = P2pPort;
    type Mailbox = P2pMailbox;

    fn has_instructions(mailbox: &P2pMailbox) -> bool {
        mailbox.has_given_up()
    }

    fn follow_instructions(&mut self, mailbox: &P2pMailbox) -> bool {
        let given_up = mailbox.take_given_up();
        for number in &given_up {
            self.set.get_mut(*number).into_iter().for_each(P2pMember::fail);
        }
        if !given_up.is_empty() {
            // So that the peers receive the report: the polls that follow may be too few for that.
            self.set.heal();
        }
        !given_up.is_empty()
    }

    fn set_waker(&self, waker: &Waker) {
        let members = self.set.numbers().filter_map(|number| self.set.get(number));
        members.filter_map(P2pMember::healing_link).for_each(|link| link.set_waker(waker));
        #[cfg(feature = "metrics")]
        self.meter.set_waker(waker);
    }

    fn has_messages(&self) -> bool {
        let mut members = self.set.numbers().filter_map(|number| self.set.get(number));
        self.set.reroutes() && members.any(P2pMember::has_messages)
    }

    fn submit(&mut self, _: usize, port: &mut P2pPort) -> bool {
        self.set.get_mut(port.member).is_some_and(|member| port.start(member))
    }

    /// When a completion queue breaks, members whose rails are re-routed do without it as far as
    /// they can, and all others fail.
    fn poll(&mut self, ports: &mut Ports<P2pPort>, mailbox: &P2pMailbox) -> bool {
        match self.set.poll(POLL_BUDGET).error {
            None => self.broken = None,
            Some(error) => {
                mailbox.queue_broke(error);
                if !self.set.reroutes() && self.broken.is_none() {
                    self.fail_all();
                }
                self.broken.get_or_insert_with(Instant::now);
            }
        }
        self.finish(ports)
    }

    fn poll_armed(&mut self, ports: &mut Ports<P2pPort>) -> Result<ArmedPoll, WaitError> {
        let polled = self.set.poll_armed()?;
        let finished = self.finish(ports);
        // Completions make room for requests that wait.
        let started = ports.in_turn(|number, port| self.submit(number, port));
        Ok(ArmedPoll { moved: finished || started, is_broken: polled.error.is_some() })
    }

    fn completion_fd(&self) -> Option<BorrowedFd<'_>> {
        self.set.completion_fd()
    }

    fn look(&mut self, _: &Ports<P2pPort>, mailbox: &P2pMailbox) {
        self.collect(mailbox);
        #[cfg(feature = "metrics")]
        self.meter.look(&mailbox.handover, || self.set.metrics());
    }

    fn wake(&mut self, ports: &mut Ports<P2pPort>, mailbox: &P2pMailbox) {
        if self.set.reroutes() {
            self.set.heal();
        }
        self.look(ports, mailbox);
    }

    /// Devices have had time to return the buffers of members that failed, and the completions are
    /// lost with the completion queue.
    fn has_lost(&self, port: &P2pPort) -> bool {
        self.broken.is_some_and(|since| since.elapsed() >= FLUSH_TIMEOUT)
            && self.set.get(port.member).is_none_or(hangs)
    }

    fn awaits(&self, ports: &Ports<P2pPort>) -> Awaits {
        let hangs = |number| self.set.get(number).is_some_and(hangs);
        // Messages that were started before the thread began, so no port counts them.
        let sends = |number| self.set.get(number).is_some_and(sends);
        let takes_back = |number| self.set.get(number).is_some_and(P2pMember::is_taking_back);
        match () {
            () if ports.iter().any(P2pPort::waits_for_peer) => Awaits::Memory,
            () if self.set.numbers().any(takes_back) => Awaits::Memory,
            () if ports.iter().any(P2pPort::is_busy) => Awaits::Devices,
            () if self.set.numbers().any(sends) => Awaits::Devices,
            () if self.set.reroutes() || self.set.numbers().any(hangs) => Awaits::Peers,
            () => Awaits::Handles,
        }
    }

    fn stall_interval(&self) -> Option<Duration> {
        self.set.stall_interval()
    }

    fn fail_all(&mut self) {
        for number in 0..self.set.bound() {
            self.set.get_mut(number).into_iter().for_each(P2pMember::fail);
        }
        // The peers are to learn of it, and the polls that follow may be too few for that.
        self.set.heal();
    }

    fn into_set(mut self, mailbox: &P2pMailbox) -> Self::Set {
        self.collect(mailbox);
        #[cfg(feature = "metrics")]
        self.meter.end(&mailbox.handover, || self.set.metrics());
        self.set
    }
}

/// Whether an end of a member has failed, and devices may still access its buffers.
fn hangs<D: Domain>(member: &P2pMember<D>) -> bool {
    let sender = member.sender().filter(|sender| sender.failure().is_some());
    let receiver = member.receiver().filter(|receiver| receiver.failure().is_some());
    sender.is_some_and(|sender| !sender.is_drained())
        || receiver.is_some_and(|receiver| !receiver.is_drained())
}

/// Whether messages of a member are under way.
fn sends<D: Domain>(member: &P2pMember<D>) -> bool {
    let sender = member.sender().filter(|sender| sender.failure().is_none());
    sender.is_some_and(|sender| sender.under_way() > 0)
}

#[cfg(test)]
mod rt_tests;
