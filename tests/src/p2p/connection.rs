//! A connection: its two ends, and the state that the oracle keeps of it.

use super::fabric::{Name, Nics, SimQp, SimSrq, device_at, device_id, srq};
use super::host::Host;
use super::memory::{Memory, Words};
use super::shape::{Line, MOST, Shape};
use crate::link::Link;
use polyrail_core::p2p::ConnectionEnd;
use polyrail_core::p2p::{Account, FlushHandle, Receiver, RecvHandle, Region, SendHandle, Sender};
use polyrail_core::verbs::DeviceKeys;
use polyrail_core::virtual_cq::CompletionTarget;
use polyrail_core::virtual_qp::RailState;

/// Queue pairs that an end has room for.
const QPS: usize = 16;

pub(super) type SimSender<const DEPTH: usize, const SLOTS: usize> =
    Sender<SimQp, Words, QPS, DEPTH, SLOTS>;
pub(super) type SimReceiver<const DEPTH: usize, const SLOTS: usize> =
    Receiver<SimQp, SimSrq, Words, QPS, DEPTH, SLOTS>;

/// A buffer of a receive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) block: usize,
    pub(super) capacity: u32,
    pub(super) tag: u32,
    /// What is sent to it: its block and bytes.
    pub(super) sent: Option<(usize, u32)>,
}

/// A receive.
#[derive(Clone, Debug)]
pub(super) struct Receive {
    /// Until its caller has the result.
    pub(super) handle: Option<RecvHandle>,
    pub(super) places: Vec<Place>,
    /// Its entries are in the sender's memory, though perhaps not shown.
    pub(super) is_offered: bool,
    /// The rails of its message, and those of them whose immediates have been carried out.
    pub(super) mask: u8,
    pub(super) signals: u8,
    /// The receiver's devices that they came over.
    pub(super) carriers: u8,
    /// Its caller wants it back.
    pub(super) is_asked: bool,
    /// The caller of its message, which was posted, wants that back.
    pub(super) is_unwanted: bool,
    /// An end says that it was taken back, or delivered.
    pub(super) is_void: bool,
    pub(super) is_delivered: bool,
}

impl Receive {
    /// Whether all immediates were carried out.
    pub(super) const fn has_arrived(&self) -> bool {
        self.mask != 0 && self.signals == self.mask
    }
}

/// A send whose caller does not have the result yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outgoing {
    pub(super) handle: SendHandle,
    pub(super) block: usize,
    /// Which of the buffers of the receive it goes to.
    pub(super) buffer: usize,
    /// Its caller wants it back.
    pub(super) is_cancelled: bool,
}

/// A flush that is not done.
#[derive(Clone, Debug)]
pub(super) struct Flush {
    pub(super) handle: FlushHandle,
    pub(super) blocks: Vec<usize>,
    /// The devices that must have read.
    pub(super) carriers: u8,
}

#[derive(Debug)]
pub(super) struct Connection<const DEPTH: usize, const SLOTS: usize> {
    pub(super) id: u32,
    pub(super) line: Line,
    pub(super) sender: Box<SimSender<DEPTH, SLOTS>>,
    pub(super) receiver: Box<SimReceiver<DEPTH, SLOTS>>,
    /// The queue pairs of the sender, of the receiver, and those for flushes.
    pub(super) near: Vec<usize>,
    pub(super) far: Vec<usize>,
    pub(super) flush_qps: Vec<usize>,
    /// The block of each end's words.
    pub(super) ring: usize,
    pub(super) records: usize,
    /// Every receive, the first one has number 1.
    pub(super) receives: Vec<Receive>,
    pub(super) outgoing: Vec<Outgoing>,
    pub(super) flushes: Vec<Flush>,
    /// Messages that were sent whole.
    pub(super) sent: usize,
    /// The messages between the owners.
    pub(super) link: Link,
    /// Queue pairs made for each place, of either host, that are not in it yet.
    pub(super) pending: Vec<[Option<(SimQp, u16)>; 2]>,
    /// The newest event of each place, of the sender and of the receiver: generation and step.
    pub(super) newest_events: [Vec<Option<(u16, u8)>>; 2],
    /// Failures of queue pairs, and those of them that may be the fault of requests.
    pub(super) failures: u32,
    pub(super) hard_failures: u32,
    /// Immediates may be carried out again.
    pub(super) is_lossy: bool,
    /// Rails of which a queue pair has failed, as far as the receiver has reported.
    pub(super) told_failed: u8,
    /// Devices whose account means nothing any more.
    pub(super) stale: u8,
    /// By end, the sender first: the home queue pairs that were in service before the last step,
    /// with their generations.
    pub(super) homes: [Vec<(usize, u16)>; 2],
    /// Whether the sender decided on messages that are taken back, before the step.
    pub(super) decides: bool,
    /// Something happened for which it may fail.
    pub(super) may_fail: bool,
    /// Somebody does not keep to the protocol.
    pub(super) is_forged: bool,
}

/// The queue pairs of one end.
fn queue_pairs(
    nics: &Nics,
    line: &Line,
    id: u32,
    is_receivers: bool,
    word_after: u32,
) -> Vec<SimQp> {
    let host = if is_receivers { 1 - line.from } else { line.from };
    let make = |place: usize| {
        let rail = place % line.rails;
        let device = line.devices[host][rail];
        let name = Name {
            connection: id,
            host,
            device,
            place,
            rail: rail as u8,
            is_receivers,
            is_for_flushes: false,
        };
        let at = nics.borrow_mut().make(name, line.limits(host, place), word_after);
        SimQp::new(nics, at)
    };
    (0..line.rails * line.each).map(make).collect()
}

/// A queue pair for flushes on each device of the receiver's.
fn flush_qps(nics: &Nics, line: &Line, id: u32) -> Vec<SimQp> {
    let host = 1 - line.from;
    let devices = receivers_devices(line);
    let make = |device: usize| {
        let place = line.rails * line.each + device;
        let name = Name {
            connection: id,
            host,
            device,
            place,
            rail: 0,
            is_receivers: true,
            is_for_flushes: true,
        };
        let at = nics.borrow_mut().make(name, line.limits(host, 0), 0);
        nics.borrow_mut().connect(at, at);
        SimQp::new(nics, at)
    };
    devices.into_iter().filter(|_| line.flushes).map(make).collect()
}

pub(super) fn receivers_devices(line: &Line) -> Vec<usize> {
    let rails = &line.devices[1 - line.from][..line.rails];
    (0..MOST).filter(|device| rails.contains(device)).collect()
}

/// The keys of a block for all devices of its host.
pub(super) fn keys(host: usize, block: usize) -> Vec<DeviceKeys> {
    let keys = |device: usize| {
        let key = Memory::key(block, device);
        DeviceKeys { device: device_id(host, device), lkey: key, rkey: key }
    };
    (0..MOST).map(keys).collect()
}

/// Words that a host's devices reach.
fn region(nics: &Nics, id: u32, host: usize, count: usize) -> (Region<Words>, usize) {
    let words = Words::new(count);
    let block = nics.borrow_mut().memory.words(id, host, &words);
    // SAFETY: the fabric keeps the words.
    (unsafe { Region::new(words, keys(host, block)) }.expect("few devices"), block)
}

impl<const DEPTH: usize, const SLOTS: usize> Connection<DEPTH, SLOTS> {
    pub(super) fn new(
        id: u32,
        at: usize,
        nics: &Nics,
        hosts: &mut [Host; 2],
        shape: &Shape,
    ) -> Self {
        let line = shape.lines[at].clone();
        let (from, to) = (line.from, 1 - line.from);
        let near = queue_pairs(nics, &line, id, false, 0);
        let far = queue_pairs(nics, &line, id, true, shape.word_after);
        let flushes = flush_qps(nics, &line, id);
        for (near, far) in near.iter().zip(&far) {
            nics.borrow_mut().connect(near.at, far.at);
        }
        let places = |all: &[SimQp]| all.iter().map(|qp| qp.at).collect::<Vec<_>>();
        let all = (places(&near), places(&far), places(&flushes));
        let (region_near, ring) = region(nics, id, from, SimSender::<DEPTH, SLOTS>::REGION_WORDS);
        let (region_far, records) = region(nics, id, to, SimReceiver::<DEPTH, SLOTS>::REGION_WORDS);
        let number = at as u32;
        let sender = Sender::new(line.sender_config(number), near, region_near);
        let mut sender = Box::new(sender.expect("a good sender"));
        let accounts = Self::accounts(nics, &line, &mut hosts[to]);
        let config = line.receiver_config(number);
        let receiver = Receiver::new(config, far, flushes, accounts, region_far);
        let mut receiver = Box::new(receiver.expect("a good receiver"));
        sender.connect(&receiver.card()).expect("the ends fit");
        receiver.connect(&sender.card()).expect("the ends fit");
        hosts[from].cq.attach(at as u16, &*sender).expect("deep completion queues");
        hosts[to].cq.attach(at as u16, &*receiver).expect("deep completion queues");
        let (near, far, flush_qps) = all;
        let pending = near.iter().map(|_| [None, None]).collect();
        let newest_events = [(); 2].map(|()| vec![None; near.len()]);
        Self {
            id,
            line,
            sender,
            receiver,
            near,
            far,
            flush_qps,
            ring,
            records,
            receives: Vec::new(),
            outgoing: Vec::new(),
            flushes: Vec::new(),
            sent: 0,
            link: Link::default(),
            pending,
            newest_events,
            failures: 0,
            hard_failures: 0,
            is_lossy: false,
            told_failed: 0,
            stale: 0,
            homes: Default::default(),
            decides: false,
            may_fail: false,
            is_forged: false,
        }
    }

    fn accounts(nics: &Nics, line: &Line, host: &mut Host) -> Vec<Account<SimSrq>> {
        let to = 1 - line.from;
        let open = |device: usize| {
            let srq = srq(nics, device_at(to, device));
            host.pools[device].open(srq, line.limit).expect("room in the pool")
        };
        receivers_devices(line).into_iter().map(open).collect()
    }

    /// The end that takes completions of this host.
    pub(super) fn target(&mut self, host: usize) -> &mut dyn CompletionTarget {
        if host == self.line.from { &mut *self.sender } else { &mut *self.receiver }
    }

    /// Immediates that may still come over a device of the receiver's, of a connection of which
    /// nothing has failed.
    pub(super) fn awaits(&self, device: usize) -> u32 {
        if self.failures > 0 || self.may_fail {
            return 0;
        }
        let rails = &self.line.devices[1 - self.line.from][..self.line.rails];
        let here = rails.iter().enumerate().filter(|(_, other)| **other == device);
        let here = here.fold(0u8, |here, (rail, _)| here | 1 << rail);
        let waits = |receive: &&Receive| receive.handle.is_some() && !receive.has_arrived();
        let waiting = self.receives.iter().rev().take(SLOTS).filter(waits);
        // The mask of a message that is on its way names the rails that may deliver.
        let due = |receive: &Receive| match receive.mask {
            0 => here.count_ones(),
            mask => (mask & here & !receive.signals).count_ones(),
        };
        waiting.map(due).sum()
    }

    /// Whether the end at this host has something to do, even if nothing completes.
    pub(super) fn needs_poll(&self, host: usize) -> bool {
        if host == self.line.from { self.sender.needs_poll() } else { self.receiver.needs_poll() }
    }

    /// Every queue pair, those included that are not in their places yet.
    pub(super) fn queue_pairs(&self) -> impl Iterator<Item = usize> {
        let pending = self.pending.iter().flatten().flatten().map(|(qp, _)| qp.at);
        self.near.iter().chain(&self.far).chain(&self.flush_qps).copied().chain(pending)
    }

    pub(super) const fn slot(number: u64) -> usize {
        (number as usize - 1) % SLOTS
    }

    /// The receive whose message has this slot now.
    pub(super) fn in_slot(&mut self, slot: usize) -> Option<&mut Receive> {
        let index = self.index_in_slot(slot)?;
        self.receives.get_mut(index)
    }

    pub(super) fn index_in_slot(&self, slot: usize) -> Option<usize> {
        let newest = self.receives.len().checked_sub(1)?;
        let before = (newest + SLOTS - slot) % SLOTS;
        newest.checked_sub(before)
    }

    /// Whether either end has failed.
    pub(super) fn has_failed(&self) -> bool {
        self.sender.failure().is_some() || self.receiver.failure().is_some()
    }

    /// What is known of it holds for any bytes.
    pub(super) fn is_known(&self) -> bool {
        !self.is_forged
    }

    pub(super) fn fail(&mut self, end: usize, by_peer: bool) {
        match (end == self.line.from, by_peer) {
            (true, false) => self.sender.fail(),
            (true, true) => self.sender.peer_failed(),
            (false, false) => self.receiver.fail(),
            (false, true) => self.receiver.peer_failed(),
        }
    }

    /// Whether the end at this host has failed.
    pub(super) fn has_failed_at(&self, host: usize) -> bool {
        let failure =
            if host == self.line.from { self.sender.failure() } else { self.receiver.failure() };
        failure.is_some()
    }

    /// The queue pairs that keep the standby rails of an end closed, with their generations.
    fn homes(&self, is_receivers: bool) -> impl Iterator<Item = (usize, u16)> {
        let standby = self.line.standby_of(is_receivers);
        let places = if standby.is_empty() { 0 } else { self.near.len() };
        let is_home = move |place: &usize| !standby.contains((*place % self.line.rails) as u8);
        (0..places).filter(is_home).filter_map(move |place| {
            let state = match is_receivers {
                true => self.receiver.queue_pair_state(place),
                false => self.sender.queue_pair_state(place),
            };
            let (state, generation) = state.expect("a queue pair in each place");
            (state == RailState::InService).then_some((place, generation))
        })
    }

    /// Takes note of the home rails in service before a step.
    pub(super) fn note_homes(&mut self) {
        self.homes = [false, true].map(|is_receivers| self.homes(is_receivers).collect());
        self.decides = self.sender.being_taken_back() > 0;
    }

    /// Checks that no idle standby rail was used in a step in which a home rail was in service.
    /// Returns how many requests standby rails were given.
    pub(super) fn check_standby(&self, nics: &Nics) -> u64 {
        let nics = nics.borrow();
        let mut stood_in = 0;
        if self.is_forged {
            return stood_in;
        }
        for (is_receivers, places) in [(false, &self.near), (true, &self.far)] {
            let standby = self.line.standby_of(is_receivers);
            let before = &self.homes[usize::from(is_receivers)];
            let home = self.homes(is_receivers).find(|home| before.contains(home));
            let stands_by = |at: &&usize| standby.contains(nics.qps[**at].name.rail);
            for qp in places.iter().filter(stands_by).map(|at| &nics.qps[*at]) {
                let (posted, was_busy) = qp.before;
                // One that was installed in this step was idle.
                stood_in += qp.posted - posted;
                // A share of a message that is being taken back waits, on its queue pair, until the
                // result is known. If the message is void, its signal goes out there.
                let is_void = self.decides && !is_receivers && qp.posted == posted + 1;
                let is_busy = was_busy || qp.has_refused || is_void;
                let is_fine = qp.posted == posted || home.is_none() || is_busy;
                assert!(is_fine, "{:?} is used while home rail {home:?} is in service", qp.name);
            }
        }
        stood_in
    }

    /// Checks what must hold between any two steps.
    pub(super) fn invariants(&self) {
        self.sender.invariants();
        self.receiver.invariants();
        if !self.may_fail {
            let failure = self.sender.failure().or(self.receiver.failure());
            assert_eq!(failure, None, "nothing happened for which connection {} may fail", self.id);
        }
    }
}
