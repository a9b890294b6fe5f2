//! The owners replace rails: both make a queue pair of the next generation, connect them, and hand them
//! over, each at its own time.

use super::World;
use super::nic::EndQp;
use super::physical::Name;
use polyrail_core::virtual_qp::{RailId, RailState};
use std::rc::Rc;

/// A queue pair that an owner has made and not handed over.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) qp: EndQp,
    generation: u16,
    pub(super) is_connected: bool,
}

/// Two owners about to connect a pair of queue pairs: what they have exchanged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt {
    generation: u16,
    device: usize,
    /// What each end has made.
    qps: [Option<usize>; 2],
    /// It came to nothing, and which end knows.
    failed: bool,
    known: [bool; 2],
}

impl World {
    /// Whether the owner hands over what it has made: when the rail is down, or has passed that generation.
    pub(super) fn would_replace(&self, end: usize, rail: usize) -> bool {
        let is_down = self.state(end, rail) == RailState::Down;
        let next = self.generation(end, rail) + 1;
        let fits =
            |pending: &Pending| pending.is_connected && (is_down || pending.generation < next);
        self.ends[end].pending[rail].as_ref().is_some_and(fits)
    }

    /// Devices on which this end may make its next queue pair for a rail.
    pub(super) fn devices_for(&self, end: usize, rail: usize) -> std::ops::Range<usize> {
        let state = self.state(end, rail);
        let is_out = matches!(state, RailState::Draining | RailState::Fenced | RailState::Down);
        let next = self.generation(end, rail) + 1;
        // One that was made for a generation that is past is dropped.
        let has_one = |pending: &Pending| pending.generation == next;
        if !is_out || self.ends[end].pending[rail].as_ref().is_some_and(has_one) {
            return 0..0;
        }
        match &self.attempts[rail] {
            Some(attempt) if attempt.generation > next => 0..0,
            Some(attempt) if attempt.generation == next && !attempt.is_over() => {
                let is_free = attempt.qps[end].is_none() && !attempt.failed;
                if is_free { attempt.device..attempt.device + 1 } else { 0..0 }
            }
            _ => self.next_device(rail),
        }
    }

    /// Where the next pair of queue pairs is made: where the first was, if that works.
    fn next_device(&self, rail: usize) -> std::ops::Range<usize> {
        let works = |device: &usize| (0..2).all(|end| !self.is_cq_broken(end, *device));
        let first = self.shape.first_device(rail);
        let device = (first..self.shape.devices).chain(0..first).find(works);
        device.map_or(0..0, |device| device..device + 1)
    }

    pub(super) fn is_cq_broken(&self, end: usize, device: usize) -> bool {
        self.nics.borrow().cqs[end * self.shape.devices + device].is_broken
    }

    pub(super) fn create(&mut self, end: usize, rail: usize, device: usize) {
        let generation = self.generation(end, rail) + 1;
        let name = Name { end, rail, generation };
        let at = self.nics.borrow_mut().make(name, device, self.shape.limits(rail));
        let qp = EndQp { nics: Rc::clone(&self.nics), at };
        self.ends[end].pending[rail] = Some(Pending { qp, generation, is_connected: false });
        match &mut self.attempts[rail] {
            Some(attempt) if attempt.generation == generation && !attempt.is_over() => {
                attempt.qps[end] = Some(at);
            }
            other => *other = Some(Attempt::new(generation, device, end, at)),
        }
    }

    /// In a brief world, the other owner makes its queue pair as well, if it can, and both are connected.
    pub(super) fn be_brief(&mut self, end: usize, rail: usize) {
        if !self.shape.is_brief {
            return;
        }
        let devices = self.devices_for(1 - end, rail);
        devices.for_each(|device| self.create(1 - end, rail, device));
        for end in 0..2 {
            if self.can_connect(end, rail) {
                self.connect(end, rail);
            }
        }
    }

    pub(super) fn can_connect(&self, end: usize, rail: usize) -> bool {
        self.ends[end].pending[rail].as_ref().is_some_and(|pending| {
            !pending.is_connected && self.partner(end, rail, pending).is_some()
        })
    }

    /// What the other end has made for the same attempt.
    fn partner(&self, end: usize, rail: usize, pending: &Pending) -> Option<usize> {
        let attempt = self.attempts[rail].as_ref()?;
        let is_ours = attempt.qps[end] == Some(pending.qp.at) && !attempt.failed;
        attempt.qps[1 - end].filter(|_| is_ours)
    }

    pub(super) fn connect(&mut self, end: usize, rail: usize) {
        let pending = self.ends[end].pending[rail].as_ref().expect("one was made");
        let (at, partner) = (pending.qp.at, self.partner(end, rail, pending));
        self.nics.borrow_mut().qps[at].peer = partner;
        if let Some(pending) = &mut self.ends[end].pending[rail] {
            pending.is_connected = true;
        }
    }

    /// Hands a queue pair over. It may be of a generation that the rail has meanwhile passed: then the
    /// engine refuses it.
    pub(super) fn replace(&mut self, end: usize, rail: usize) {
        let Pending { qp, generation, .. } =
            self.ends[end].pending[rail].take().expect("one was made");
        let fits = self.state(end, rail) == RailState::Down
            && self.generation(end, rail) + 1 == generation;
        let (at, id) = (qp.at, self.shape.rail_id(rail));
        let this = &mut self.ends[end];
        match this.qp.replace_rail(&mut this.cq, 0, id, generation, qp) {
            Ok(old) => {
                this.installed[rail] = at;
                this.lost[rail] = false;
                if let RailId::Data(number) = id {
                    // As owners do who put it on another device.
                    this.qp.reserve_rail(number, !generation.is_multiple_of(2));
                }
                assert!(fits, "a queue pair that does not fit was taken");
                self.check_old(&old);
                self.summary.replaced += 1;
            }
            Err(rejected) => {
                let given_up = this.failed || self.is_in_error(end);
                assert!(!fits || given_up, "refused: {:?}", rejected.error);
            }
        }
    }

    /// The engine is done with a queue pair: its peer's, of the same generation, answers no more.
    fn check_old(&self, old: &EndQp) {
        let nics = self.nics.borrow();
        let qp = &nics.qps[old.at];
        assert!(qp.in_error, "a queue pair that works was given back");
        assert!(!nics.answers(old.at), "{:?} was replaced while its peer answers", qp.name);
    }

    pub(super) fn fail_connect(&mut self, end: usize, rail: usize) {
        self.left.failed_connects -= 1;
        let pending = self.ends[end].pending[rail].take().expect("one was made");
        if let Some(attempt) = &mut self.attempts[rail]
            && attempt.qps[end] == Some(pending.qp.at)
        {
            attempt.failed = true;
            attempt.known[end] = true;
        }
    }

    pub(super) fn hears_of_connect(&self, end: usize, rail: usize) -> bool {
        self.attempts[rail].as_ref().is_some_and(|attempt| attempt.failed && !attempt.known[end])
    }

    /// The other end's owner could not connect: what this end made for it is of no use.
    pub(super) fn hear_of_connect(&mut self, end: usize, rail: usize) {
        let Some(attempt) = &mut self.attempts[rail] else { return };
        attempt.known[end] = true;
        let Some(at) = attempt.qps[end] else { return };
        let this = &mut self.ends[end];
        if this.pending[rail].as_ref().is_some_and(|pending| pending.qp.at == at) {
            this.pending[rail] = None;
        } else if this.installed[rail] == at {
            this.qp.fail_rail(self.shape.rail_id(rail));
            this.may_tell = true;
        }
    }

    /// Whether the device of a rail's queue pair is gone.
    pub(super) fn is_removed(&self, end: usize, rail: usize) -> bool {
        self.nics.borrow().qps[self.ends[end].installed[rail]].is_gone
    }
}

impl Attempt {
    fn new(generation: u16, device: usize, end: usize, at: usize) -> Self {
        let mut attempt =
            Self { generation, device, qps: [None; 2], failed: false, known: [false; 2] };
        attempt.qps[end] = Some(at);
        attempt
    }

    /// It failed, and whoever took part knows.
    fn is_over(&self) -> bool {
        let knows = |end: usize| self.known[end] || self.qps[end].is_none();
        self.failed && knows(0) && knows(1)
    }
}
