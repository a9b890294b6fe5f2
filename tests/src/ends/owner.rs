//! The owners replace rails: both make a queue pair of the next generation, connect them, and hand
//! them over, each at its own time.

use super::World;
use super::fabric::EndQp;
use super::physical::Name;
use super::shape::{connection, peer, side};
use polyrail_core::virtual_qp::{RailId, RailState};

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
    /// Where, host by host.
    devices: [usize; 2],
    /// What each end has made.
    qps: [Option<usize>; 2],
    /// It failed, and which end has noticed.
    failed: bool,
    known: [bool; 2],
}

impl World {
    /// Whether the owner hands over what it has made: when the rail is down, or has passed that
    /// generation.
    pub(super) fn would_replace(&self, end: usize, rail: usize) -> bool {
        let is_down = self.state(end, rail) == RailState::Down;
        let next = self.generation(end, rail) + 1;
        let fits =
            |pending: &Pending| pending.is_connected && (is_down || pending.generation < next);
        self.ends[end].pending[rail].as_ref().is_some_and(fits)
    }

    fn attempt(&self, end: usize, rail: usize) -> Option<&Attempt> {
        self.attempts[connection(end)][rail].as_ref()
    }

    /// The devices, host by host, on which the next queue pairs of a rail may be made, as far as
    /// this end may make its own now.
    pub(super) fn devices_for(&self, end: usize, rail: usize) -> Option<[usize; 2]> {
        let state = self.state(end, rail);
        let is_out = matches!(state, RailState::Draining | RailState::Fenced | RailState::Down);
        let next = self.generation(end, rail) + 1;
        // One that was made for a generation that is past is dropped.
        let has_one = |pending: &Pending| pending.generation == next;
        if !is_out || self.ends[end].pending[rail].as_ref().is_some_and(has_one) {
            return None;
        }
        match self.attempt(end, rail) {
            Some(attempt) if attempt.generation > next => None,
            Some(attempt) if attempt.generation == next && !attempt.is_over() => {
                let is_free = attempt.qps[side(end)].is_none() && !attempt.failed;
                is_free.then_some(attempt.devices)
            }
            _ => self.next_devices(connection(end), rail),
        }
    }

    /// Where the next queue pairs of a rail are made: where the first were, if that works. Requests
    /// have to carry the keys of devices that meet.
    pub(super) fn next_devices(&self, connection: usize, rail: usize) -> Option<[usize; 2]> {
        let ends = [2 * connection, 2 * connection + 1];
        let first = ends.map(|end| self.shape.first_device(end, rail));
        let all = &self.ends[ends[0]].pairs;
        let works = |devices: &[usize; 2]| {
            ends.iter().all(|end| {
                let (own, far) = (devices[side(*end)], devices[1 - side(*end)]);
                !self.is_cq_broken(side(*end), own) && self.meets(*end, rail, own) == far
            })
        };
        let others = all.iter().cycle().skip(rail).take(all.len());
        std::iter::once(&first).chain(others).find(|devices| works(devices)).copied()
    }

    /// The device of the peer whose keys requests of a rail carry when its queue pair is on a
    /// device: the one that the rail met at the beginning, or else the first that meets this
    /// device.
    fn meets(&self, end: usize, rail: usize, device: usize) -> usize {
        let first = [device, self.shape.first_device(peer(end), rail)];
        let pairs = &self.ends[end].pairs;
        let on_device = || pairs.iter().find(|pair| pair[0] == device);
        pairs.iter().find(|pair| **pair == first).or_else(on_device).expect("a device of a rail")[1]
    }

    pub(super) fn is_cq_broken(&self, host: usize, device: usize) -> bool {
        let nics = self.nics.borrow();
        nics.cqs[nics.cq_at(host, device)].is_broken
    }

    pub(super) fn create(&mut self, end: usize, rail: usize) {
        let devices = self.devices_for(end, rail).expect("devices that work");
        let generation = self.generation(end, rail) + 1;
        let name = Name { end, rail, generation };
        let limits = self.shape.limits(rail);
        let at = self.nics.borrow_mut().make(name, devices[side(end)], limits);
        let qp = EndQp::new(&self.nics, at);
        self.ends[end].pending[rail] = Some(Pending { qp, generation, is_connected: false });
        match &mut self.attempts[connection(end)][rail] {
            Some(attempt) if attempt.generation == generation && !attempt.is_over() => {
                attempt.qps[side(end)] = Some(at);
            }
            other => *other = Some(Attempt::new(generation, devices, side(end), at)),
        }
    }

    /// In a brief world, the other owner makes its queue pair as well, if it can, and both are
    /// connected.
    pub(super) fn be_brief(&mut self, end: usize, rail: usize) {
        if !self.shape.is_brief {
            return;
        }
        if self.devices_for(peer(end), rail).is_some() {
            self.create(peer(end), rail);
        }
        for end in [end.min(peer(end)), end.max(peer(end))] {
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
        let attempt = self.attempt(end, rail)?;
        let is_ours = attempt.qps[side(end)] == Some(pending.qp.at) && !attempt.failed;
        attempt.qps[1 - side(end)].filter(|_| is_ours)
    }

    pub(super) fn connect(&mut self, end: usize, rail: usize) {
        let pending = self.ends[end].pending[rail].as_ref().expect("one was made");
        let (at, partner) = (pending.qp.at, self.partner(end, rail, pending));
        self.nics.borrow_mut().qps[at].peer = partner;
        if let Some(pending) = &mut self.ends[end].pending[rail] {
            pending.is_connected = true;
        }
    }

    /// Hands a queue pair over. It may be of a generation that the rail has meanwhile passed: then
    /// the engine refuses it.
    pub(super) fn replace(&mut self, end: usize, rail: usize) {
        let Pending { qp, generation, .. } =
            self.ends[end].pending[rail].take().expect("one was made");
        let fits = self.state(end, rail) == RailState::Down
            && self.generation(end, rail) + 1 == generation;
        let (at, id) = (qp.at, self.shape.rail_id(rail));
        let (cq, index) = (&mut self.cqs[side(end)], connection(end) as u16);
        let this = &mut self.ends[end];
        if let RailId::Data(number) = id
            && self.shape.standby != [0; 2]
        {
            // Before it returns, since requests may be waiting for it.
            let changes = generation % 3 == 1;
            this.standby[rail] = self.shape.is_standby(end, rail) != changes;
            this.qp.set_standby(number, this.standby[rail]);
        }
        match this.qp.replace_rail(cq, index, id, generation, qp) {
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

    /// The engine is done with a queue pair: its peer's queue pair of the same generation does not
    /// answer any more.
    fn check_old(&self, old: &EndQp) {
        let nics = self.nics.borrow();
        let qp = &nics.qps[old.at];
        assert!(qp.in_error, "a queue pair that works was given back");
        assert!(!nics.answers(old.at), "{:?} was replaced while its peer answers", qp.name);
    }

    pub(super) fn fail_connect(&mut self, end: usize, rail: usize) {
        self.left.failed_connects -= 1;
        let pending = self.ends[end].pending[rail].take().expect("one was made");
        if let Some(attempt) = &mut self.attempts[connection(end)][rail]
            && attempt.qps[side(end)] == Some(pending.qp.at)
        {
            attempt.failed = true;
            attempt.known[side(end)] = true;
        }
    }

    pub(super) fn hears_of_connect(&self, end: usize, rail: usize) -> bool {
        let is_news = |attempt: &Attempt| attempt.failed && !attempt.known[side(end)];
        self.attempt(end, rail).is_some_and(is_news)
    }

    /// The other end's owner could not connect: what this end made for it is of no use.
    pub(super) fn hear_of_connect(&mut self, end: usize, rail: usize) {
        let Some(attempt) = &mut self.attempts[connection(end)][rail] else { return };
        attempt.known[side(end)] = true;
        let Some(at) = attempt.qps[side(end)] else { return };
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
    fn new(generation: u16, devices: [usize; 2], side: usize, at: usize) -> Self {
        let mut attempt =
            Self { generation, devices, qps: [None; 2], failed: false, known: [false; 2] };
        attempt.qps[side] = Some(at);
        attempt
    }

    /// It failed, and both ends have noticed.
    fn is_over(&self) -> bool {
        let knows = |end: usize| self.known[end] || self.qps[end].is_none();
        self.failed && knows(0) && knows(1)
    }
}
