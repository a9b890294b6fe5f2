//! What happens when something happens.

use super::World;
use super::action::Action;
use super::direction::RECEIVE;
use super::fabric::EIO;
use super::physical::Name;
use polyrail_core::hardware::{CommitError, Refusal};
use polyrail_core::verbs::WcStatus;
use polyrail_core::virtual_cq::Event;
use polyrail_core::virtual_qp::ControlMessage;
use std::fmt::Debug;

impl World {
    /// Lets something happen.
    ///
    /// # Panics
    ///
    /// If a promise is broken.
    pub fn perform(&mut self, action: Action) {
        self.note_usable(&action);
        self.summary.steps += 1;
        match action {
            Action::Post(end) => self.post(end),
            Action::Receive { end, data } => self.post_receive(end, data),
            Action::Poll { end, most } => self.poll(end, most),
            Action::Tell(end) => self.tell(end),
            Action::Hear { end, late } => self.hear(end, late),
            Action::Break(old) => {
                self.left.breaks -= 1;
                self.link.fail(old);
            }
            Action::Notice(end) => {
                self.link.notice(end);
                self.ends[end].qp.control_lost();
                self.ends[end].may_tell = true;
            }
            Action::Create { end, rail, device } => {
                self.create(end, rail, device);
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
                self.hard_failures += usize::from(is_hard);
                self.nics.borrow_mut().fail(at, status);
            }
            Action::Distrust { end, rail } => {
                self.left.failures -= 1;
                self.summary.failures += 1;
                self.ends[end].qp.fail_rail(self.shape.rail_id(rail));
                self.touched(end);
            }
            Action::Remove(name) => {
                self.left.losses -= 1;
                self.summary.failures += 1;
                let at = self.at(name);
                self.nics.borrow_mut().remove(at, false);
            }
            Action::Lose { end, rail, purges } => self.lose(end, rail, purges),
            Action::BreakCq { end, device } => {
                self.left.broken_cqs -= 1;
                self.summary.failures += 1;
                let cq = end * self.shape.devices + device;
                self.lost_completions |= self.nics.borrow_mut().break_cq(cq);
            }
            Action::Refuse { name, taken, sends, is_full } => {
                self.left.refusals -= 1;
                self.summary.failures += 1;
                self.hard_failures += usize::from(!is_full);
                self.refuse(name, taken, sends, is_full);
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

    /// An engine was called: it may have something to say, and to report.
    pub(super) fn touched(&mut self, end: usize) {
        self.ends[end].may_tell = true;
        self.ends[end].may_report = true;
    }

    fn poll(&mut self, end: usize, most: usize) {
        for device in 0..self.shape.devices {
            self.nics.borrow_mut().cqs[end * self.shape.devices + device].most = most;
        }
        self.touched(end);
        let mut events = Vec::new();
        let this = &mut self.ends[end];
        let polled = this.cq.poll(&mut *this.qp, self.shape.budget, |event| events.push(event));
        let any_broken = (0..self.shape.devices).any(|device| self.is_cq_broken(end, device));
        assert!(polled.error.is_none() || any_broken, "{:?}", polled.error);
        self.ends[end].may_report = !events.is_empty();
        for event in events {
            self.say(&event);
            self.arrived(end, &event);
        }
    }

    fn arrived(&mut self, end: usize, event: &Event) {
        self.summary.reports += 1;
        let in_error = self.is_in_error(end);
        match event {
            Event::Completion(wc) if wc.wr_id & RECEIVE == 0 => {
                self.directions[end].reported(wc, in_error);
            }
            Event::Completion(wc) => self.directions[1 - end].received(wc, in_error),
            Event::Foreign { completion, .. } => panic!("nobody's completion: {completion:?}"),
        }
    }

    /// Both owners send what there is.
    fn tell_all(&mut self) {
        for end in 0..2 {
            if !self.link.is_unnoticed(end) {
                self.tell(end);
            }
        }
    }

    fn tell(&mut self, end: usize) {
        while let Some(message) = self.ends[end].qp.next_control() {
            self.link.send(end, message.encode());
        }
        self.ends[end].may_tell = false;
    }

    fn hear(&mut self, end: usize, late: bool) {
        let bytes = self.link.receive(1 - end, late).expect("a message");
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
        self.lost_completions |= self.nics.borrow_mut().remove(at, purges);
        self.ends[end].lost[rail] = true;
        let id = self.shape.rail_id(rail);
        // SAFETY: these NICs touch no memory but their own, and this queue pair is gone.
        unsafe { self.ends[end].qp.lose_rail(id) };
        self.touched(end);
    }

    fn refuse(&mut self, name: Name, taken: u32, sends: bool, is_full: bool) {
        let refusal = if is_full { Refusal::QueueFull } else { Refusal::Driver(EIO) };
        let mood = Some(CommitError { accepted: taken, refusal });
        let at = self.at(name);
        let qp = &mut self.nics.borrow_mut().qps[at];
        if sends { qp.mood = mood } else { qp.recv_mood = mood }
    }
}
