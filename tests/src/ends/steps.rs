//! What happens when something happens.

use super::action::{Action, How};
use super::direction::RECEIVE;
use super::oracle::is_gap;
use super::physical::{Mood, Name};
use super::shape::{FIRST_NUMBER, connection, peer, side};
use super::{Targets, World};
use crate::link::Link;
use crate::nic::EIO;
use crate::search::Every;
use polyrail_core::hardware::{CommitError, Refusal};
use polyrail_core::verbs::{DeviceId, WcStatus};
use polyrail_core::virtual_cq::{Event, Polled};
use polyrail_core::virtual_qp::{ControlMessage, RailState, Scheme};
use std::fmt::Debug;

impl World {
    /// Lets something happen.
    ///
    /// # Panics
    ///
    /// If a promise is broken.
    pub fn perform(&mut self, action: Action) {
        let is_cancel = matches!(action, Action::Cancel { .. });
        self.is_hurt |= !is_cancel && Every::is_trouble(self, &action);
        self.note_usable(&action);
        self.note_homes();
        self.summary.steps += 1;
        match action {
            Action::Post { end, run } => self.post(end, run),
            Action::Receive { end, data } => self.post_receive(end, data),
            Action::Poll { host, how, budget, most } => self.poll(host, how, budget, most),
            Action::Tell(end) => self.tell(end),
            Action::Hear { end, late } => self.hear(end, late),
            Action::Break { connection, old } => {
                self.left.breaks -= 1;
                self.links[connection].fail(old);
            }
            Action::Notice(end) => {
                self.links[connection(end)].notice(side(end));
                self.ends[end].qp.control_lost();
                self.ends[end].may_tell = true;
            }
            Action::Create { end, rail } => {
                self.create(end, rail);
                self.be_brief(end, rail);
            }
            Action::Connect { end, rail } => self.connect(end, rail),
            Action::Replace { end, rail } => {
                self.replace(end, rail);
                self.touched(end);
            }
            Action::FailConnect { end, rail } => self.fail_connect(end, rail),
            Action::HearOfConnect { end, rail } => self.hear_of_connect(end, rail),
            Action::Surrender(end) => {
                self.left.surrenders -= 1;
                self.surrendered[end] = true;
                self.ends[end].qp.fail();
                self.touched(end);
            }
            Action::Serve { end, rail, in_service } => self.serve(end, rail, in_service),
            Action::Reserve { end, rail, reserved } => {
                self.left.maintenance -= 1;
                assert!(self.ends[end].qp.reserve_rail(rail as u8, reserved), "there is this rail");
                self.touched(end);
            }
            Action::Cancel { end, number } => self.cancel(end, number),
            Action::FenceCancelled(end) => {
                self.ends[end].wants_fence = false;
                self.ends[end].qp.fence_cancelled();
                self.touched(end);
            }
            other => self.perform_trouble(other),
        }
        if self.shape.is_brief {
            self.tell_all();
        }
        if self.is_loud {
            eprintln!("{action:?}\n    {}", self.states());
        }
        self.check();
    }

    /// An application takes a request back. The engine refuses what cannot be.
    fn cancel(&mut self, end: usize, number: usize) {
        self.left.cancels -= 1;
        let before = format!("{:?}", self.ends[end].qp);
        let cancelled = self.ends[end].qp.cancel(number as u64);
        self.say(&cancelled);
        match cancelled {
            Ok(()) => {
                self.directions[end].take_back(number);
                self.ends[end].wants_fence = true;
                self.summary.cancelled += 1;
            }
            Err(error) => {
                assert_eq!(before, format!("{:?}", self.ends[end].qp), "{error}, yet it changed");
                let is_notify_owed = self.is_notify_owed(end, number);
                self.directions[end].check_kept(number, error, is_notify_owed);
            }
        }
        self.touched(end);
    }

    /// Whether the notify of a request is in the rest of a batch of which a driver took the front.
    fn is_notify_owed(&self, end: usize, number: usize) -> bool {
        let nics = self.nics.borrow();
        let notifies =
            nics.qps.iter().filter(|qp| (qp.name.end, qp.name.rail) == (end, self.shape.rails));
        notifies
            .flat_map(|qp| qp.rest.iter().skip(1))
            .any(|request| self.directions[end].notify_of(request) == Some(number))
    }

    fn perform_trouble(&mut self, action: Action) {
        match action {
            Action::Execute(name) => self.execute(name),
            Action::Acknowledge(name) => self.acknowledge(name),
            Action::Flush { name, sends } => {
                let at = self.at(name);
                self.nics.borrow_mut().flush(at, sends);
            }
            Action::Fail(name, status) => {
                let at = self.at(name);
                if !self.nics.borrow().is_unanswered(at) {
                    self.left.failures -= 1;
                }
                self.summary.failures += 1;
                let is_hard = matches!(status, WcStatus::FATAL_ERR | WcStatus::GENERAL_ERR);
                self.hard_failures[connection(name.end)] += usize::from(is_hard);
                self.nics.borrow_mut().fail(at, status);
            }
            Action::Distrust { end, rail } => {
                self.left.failures -= 1;
                self.summary.failures += 1;
                if self.ends[end].qp.fail_rail(self.shape.rail_id(rail)) {
                    // Its owner waits no longer for a fence on purpose.
                    self.ends[end].on_purpose[rail] = false;
                }
                self.touched(end);
            }
            Action::Remove(name) => {
                self.left.losses -= 1;
                self.summary.failures += 1;
                let at = self.at(name);
                self.nics.borrow_mut().remove(at, false);
            }
            Action::Lose { end, rail, purges } => self.lose(end, rail, purges),
            Action::BreakCq { host, device } => {
                self.left.broken_cqs -= 1;
                self.summary.failures += 1;
                let mut nics = self.nics.borrow_mut();
                let cq = nics.cq_at(host, device);
                nics.break_cq(cq);
            }
            Action::Refuse { name, taken, times, sends, is_full } => {
                self.left.refusals -= 1;
                self.summary.failures += 1;
                self.hard_failures[connection(name.end)] += usize::from(!is_full);
                self.refuse(name, taken, times, sends, is_full);
            }
            other => unreachable!("{other:?} is no trouble"),
        }
    }

    /// Prints what happens, if that is wanted.
    fn say(&self, what: &dyn Debug) {
        if self.is_loud {
            eprintln!("  {what:?}");
        }
    }

    /// The newest queue pair of this name.
    pub(super) fn at(&self, name: Name) -> usize {
        self.nics.borrow().find(name).expect("a queue pair of this name")
    }

    /// An engine was called: it may have messages to send and events to report.
    pub(super) fn touched(&mut self, end: usize) {
        self.ends[end].may_tell = true;
        self.may_report[side(end)] = true;
    }

    fn poll(&mut self, host: usize, how: How, budget: usize, most: usize) {
        let events = self.take_events(host, how, budget, most);
        let is_all = how == How::All && most == usize::MAX;
        if events == 0 && is_all && budget == usize::MAX {
            self.check_nothing_is_left(host);
        }
        // Another queue may have what this one had not.
        self.may_report[host] = events > 0 || self.may_report[host] && !is_all;
        self.ends.iter_mut().skip(host).step_by(2).for_each(|end| end.may_tell = true);
    }

    /// Polls, and passes the results to the oracle. Returns the number of results.
    pub(super) fn take_events(
        &mut self,
        host: usize,
        how: How,
        budget: usize,
        most: usize,
    ) -> usize {
        self.nics.borrow_mut().cqs_of(host).iter_mut().for_each(|cq| cq.most = most);
        let mut events = Vec::new();
        let mut targets = Targets { ends: &mut self.ends, host };
        let cq = &mut self.cqs[host];
        let mut sink = |event| events.push(event);
        let mut budget = budget;
        let polled = match how {
            How::All => cq.poll(&mut targets, budget, sink),
            How::Queue(device) => cq.poll_cq(device, &mut targets, budget, sink),
            How::One => {
                budget = 1;
                let (event, polled) = cq.poll_one(&mut targets);
                event.into_iter().for_each(sink);
                polled
            }
            How::Feed(device) => {
                budget = usize::MAX;
                let completions = self.nics.borrow_mut().take_some(host, device, most);
                let id = DeviceId(device as u32);
                // SAFETY: what was taken from the queue is fed once, in its order.
                let events = unsafe { cq.feed(&mut targets, id, &completions, &mut sink) };
                Polled { events, error: None }
            }
        };
        let devices = 0..self.shape.devices[host];
        let any_broken = devices.into_iter().any(|device| self.is_cq_broken(host, device));
        assert!(polled.error.is_none() || any_broken, "{:?}", polled.error);
        assert!(events.len() <= budget, "{} events with a budget of {budget}", events.len());
        assert_eq!(polled.events, events.len(), "events are counted");
        for event in &events {
            self.say(event);
            self.arrived(host, event);
        }
        events.len()
    }

    /// A poll with a budget without limit brought nothing: after as many of them as the engine asks
    /// for, and unless it needs another one, its owner may sleep until a completion queue has
    /// something, so that another one does nothing.
    fn check_nothing_is_left(&mut self, host: usize) {
        for _ in 1..self.cqs[host].polls_before_waiting() {
            if self.take_events(host, How::All, usize::MAX, usize::MAX) > 0 {
                return;
            }
        }
        let needs_poll = self.cqs[host].needs_poll();
        let before = self.done(host);
        if self.nics.borrow().has_completions(host) {
            // They wake the owner.
            return;
        }
        let events = self.take_events(host, How::All, usize::MAX, usize::MAX);
        let after = self.done(host);
        if !needs_poll {
            self.summary.sleeps += 1;
            assert_eq!((events, after), (0, before), "another poll of host {host} does something");
        } else if events == 0 && after == before && self.cqs[host].needs_poll() {
            assert!(self.is_any_loud(host), "host {host} is awake for nothing");
        }
    }

    /// What drivers of a host took, and how often they refused.
    fn done(&self, host: usize) -> (usize, usize) {
        let nics = self.nics.borrow();
        (nics.taken[host], nics.refused[host])
    }

    /// Whether there is a queue pair at a host that could not be moved to the error state.
    fn is_any_loud(&self, host: usize) -> bool {
        let nics = self.nics.borrow();
        let ends = self.ends.iter().enumerate().skip(host).step_by(2);
        let mut rails = ends.flat_map(|(end, this)| {
            this.installed.iter().enumerate().map(move |(rail, at)| (end, rail, *at))
        });
        rails.any(|(end, rail, at)| {
            self.state(end, rail) == RailState::Draining && nics.qps[at].is_gone
        })
    }

    fn arrived(&mut self, host: usize, event: &Event) {
        self.summary.reports += 1;
        let Event::Completion(wc) = event else { panic!("nobody's completion: {event:?}") };
        let end = (wc.qp_num - FIRST_NUMBER) as usize;
        assert_eq!(side(end), host, "a report of the other host: {wc:?}");
        let in_error = self.is_in_error(end);
        self.summary.not_delivered += u64::from(wc.status == WcStatus::CANCELLED);
        if wc.wr_id & RECEIVE == 0 {
            self.directions[end].reported(wc, in_error);
        } else {
            self.directions[peer(end)].received(wc, in_error);
        }
    }

    /// Both owners send what there is.
    fn tell_all(&mut self) {
        for end in self.all_ends() {
            if !self.link(end).is_unnoticed(side(end)) {
                self.tell(end);
            }
        }
    }

    fn tell(&mut self, end: usize) {
        while let Some(message) = self.ends[end].qp.next_control() {
            self.links[connection(end)].send(side(end), message.encode());
        }
        self.ends[end].may_tell = false;
    }

    fn hear(&mut self, end: usize, late: bool) {
        let link = &mut self.links[connection(end)];
        let bytes = link.receive(side(peer(end)), late).expect("a message");
        let message = ControlMessage::decode(&bytes).expect("what was encoded");
        self.say(&message);
        let heard = self.ends[end].qp.control(message);
        heard.unwrap_or_else(|error| panic!("{message:?} of a correct peer: {error}"));
        self.touched(end);
    }

    fn execute(&mut self, name: Name) {
        let at = self.at(name);
        let executed = self.nics.borrow_mut().execute(at);
        self.say(&executed.request);
        let is_numbered = self.shape.scheme == Scheme::Dqplb;
        self.summary.gaps += u64::from(is_numbered && is_gap(&executed.request));
        let unfenced = self.ends[name.end].qp.unfenced();
        let may_be_late = unfenced.contains(self.shape.rail_id(name.rail));
        self.directions[name.end].executed(&executed, may_be_late);
        self.summary.stragglers += u64::from(self.nics.borrow().qps[at].in_error);
    }

    fn acknowledge(&mut self, name: Name) {
        let at = self.at(name);
        let acknowledged = self.nics.borrow_mut().acknowledge(at);
        for request in &acknowledged {
            self.directions[name.end].landed(request);
        }
    }

    fn lose(&mut self, end: usize, rail: usize, purges: bool) {
        let at = self.ends[end].installed[rail];
        self.nics.borrow_mut().lose(at, purges);
        self.ends[end].lost[rail] = true;
        let id = self.shape.rail_id(rail);
        // SAFETY: these NICs touch no memory but their own, and this queue pair is gone.
        unsafe { self.ends[end].qp.lose_rail(id) };
        self.touched(end);
    }

    fn refuse(&mut self, name: Name, taken: u32, times: u32, sends: bool, is_full: bool) {
        let refusal = if is_full { Refusal::QueueFull } else { Refusal::Driver(EIO) };
        let answer = CommitError { accepted: taken, refusal };
        let mood = Some(Mood { answer, times });
        let at = self.at(name);
        let qp = &mut self.nics.borrow_mut().qps[at];
        if sends { qp.mood = mood } else { qp.recv_mood = mood }
    }

    /// An owner takes a rail out of service, or back in: all but the last one can be.
    fn serve(&mut self, end: usize, rail: usize, in_service: bool) {
        let serves =
            |at: &usize| self.ends[end].wanted[*at] && self.state(end, *at) == RailState::InService;
        let others = (0..self.shape.rails).filter(|at| *at != rail).any(|at| serves(&at));
        self.left.maintenance -= u32::from(!in_service);
        let is_done = self.ends[end].qp.set_rail_in_service(rail as u8, in_service);
        assert_eq!(is_done, in_service || others, "rail {rail}, others in service: {others}");
        if is_done {
            self.ends[end].wanted[rail] = in_service;
            self.summary.out_of_service += u64::from(!in_service);
        }
        self.touched(end);
    }

    pub(super) fn link(&self, end: usize) -> &Link {
        &self.links[connection(end)]
    }
}
