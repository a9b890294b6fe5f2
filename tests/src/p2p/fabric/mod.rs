//! The state of all NICs of both hosts, and what they do when the test lets them.
//!
//! `driver` is what the engine asks for and polls, `execution` what a NIC does for its peer,
//! `words` when that is seen; `completions` are how requests come back, `failing` is what becomes
//! of those whose queue pair or device is lost.

mod completions;
mod driver;
mod execution;
mod failing;
mod words;

pub(super) use driver::srq;

use super::memory::Memory;
use super::shape::{MOST, Shape};
use crate::nic;
use polyrail_core::hardware::{CommitError, QpLimits};
use polyrail_core::verbs::{Completion, DeviceId, SendRequest};
use std::collections::VecDeque;

/// All NICs of both hosts.
pub(super) type Nics = nic::Shared<Fabric>;

/// A queue pair as an owner or the engine has it.
pub(super) type SimQp = nic::Qp<Fabric>;

/// A completion queue as the engine has it.
pub(super) type SimCq = nic::Cq<Fabric>;

/// A handle of a device's shared receive queue.
pub(super) type SimSrq = nic::Srq<Fabric>;

/// A queue pair: which connection's, which end's, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name {
    /// The connection, counted with those that were replaced.
    pub(super) connection: u32,
    pub(super) host: usize,
    pub(super) device: usize,
    /// Behind those of all rails: one for flushes.
    pub(super) place: usize,
    pub(super) rail: u8,
    pub(super) is_receivers: bool,
    pub(super) is_for_flushes: bool,
}

/// The queue pairs of bystanders are of no connection.
pub(super) const NO_CONNECTION: u32 = u32::MAX;

/// A request on its way.
#[derive(Clone, Debug)]
struct Sent {
    request: SendRequest,
    is_executed: bool,
    /// The words that it brings along.
    inline: Option<Vec<u64>>,
}

#[derive(Debug)]
pub(super) struct Qp {
    pub(super) name: Name,
    pub(super) qp_num: u32,
    pub(super) limits: QpLimits,
    pub(super) peer: Option<usize>,
    pub(super) in_error: bool,
    /// Its device is gone, or it was destroyed.
    pub(super) is_gone: bool,
    /// Its number may be given away.
    is_destroyed: bool,
    /// One more message may still be taken, though it is in the error state.
    takes_one_more: bool,
    pub(super) said_word: bool,
    /// How often the driver is asked in vain for its word.
    pub(super) word_after: u32,
    sent: VecDeque<Sent>,
    /// Requests that had left when it went to the error state.
    stragglers: VecDeque<Sent>,
    /// Requests whose completions were not taken.
    slots: u32,
    silent: u32,
    /// Requests that its driver took.
    pub(super) posted: u64,
    /// Its driver refused requests.
    pub(super) has_refused: bool,
    /// Before the last step: how many requests its driver had taken, and whether a share may have
    /// waited for it.
    pub(super) before: (u64, bool),
    /// What the driver answers to the next batch, if it does not take all of it.
    pub(super) mood: Option<CommitError>,
    /// The driver refuses this many times to move it to the error state.
    pub(super) keeps_working: u32,
    /// Its peer keeps to the protocol, and so does it.
    pub(super) is_honest: bool,
}

#[derive(Debug)]
pub(super) struct Cq {
    entries: VecDeque<Entry>,
    /// Those of them that are of receives.
    pub(super) receives: u32,
    capacity: u32,
    /// Those of them, the oldest, that a poll finds.
    visible: usize,
    /// Polls that fail before one works again.
    pub(super) fails: u32,
}

#[derive(Clone, Debug)]
struct Entry {
    at: usize,
    completion: Completion,
    frees: u32,
}

#[derive(Debug, Default)]
pub(super) struct Srq {
    pub(super) receives: u32,
    /// What the driver answers to this many of the next batches, if it does not take all of them.
    pub(super) mood: Option<(CommitError, u32)>,
    /// Receives were taken that no account had reserved.
    pub(super) is_robbed: bool,
    /// Counts those that were there before, and went with their device.
    pub(super) generation: u32,
}

/// A word that was written and is not visible yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hidden {
    block: usize,
    word: usize,
    value: u64,
    /// Words of the same 128 bytes are shown in order.
    in_order: bool,
}

/// A request that the peer's NIC executed.
#[derive(Clone, Debug)]
pub(super) struct Executed {
    pub(super) request: SendRequest,
    /// The block that it wrote or read at the other end, and where.
    pub(super) remote: Option<(usize, u32)>,
    pub(super) local: Option<(usize, u32)>,
    /// It had left its queue pair before that failed.
    pub(super) is_straggler: bool,
    /// The first word of each 64 bytes that it wrote, if it wrote words.
    pub(super) entries: Vec<u64>,
}

/// What became of a step.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Done(Executed),
    /// The peer has no receive.
    NoReceive,
    /// The peer refuses that access.
    BadAccess,
}

#[derive(Debug)]
pub(super) struct Fabric {
    pub(super) memory: Memory,
    pub(super) qps: Vec<Qp>,
    /// `MOST` of each host, one for each device; the same number of shared receive queues.
    pub(super) cqs: Vec<Cq>,
    pub(super) srqs: Vec<Srq>,
    /// Devices that are gone.
    pub(super) is_dead: [bool; 2 * MOST],
    pub(super) hidden: Vec<Hidden>,
    tears: bool,
    flushes_all: bool,
    receives: u32,
    /// Requests that drivers took.
    pub(super) posted: u64,
    /// Requests carried out and completed, and completions taken.
    pub(super) moved: u64,
    /// A driver did not take a batch whole.
    pub(super) has_refused: bool,
    /// How the world would have ended does not matter.
    pub(super) is_abandoned: bool,
}

pub(super) const fn device_at(host: usize, device: usize) -> usize {
    host * MOST + device
}

pub(super) const fn device_id(host: usize, device: usize) -> DeviceId {
    DeviceId((host * 100 + device) as u32)
}

impl Fabric {
    pub(super) fn new(shape: &Shape) -> Self {
        let capacity = shape.capacity();
        let cq = |_| Cq { entries: VecDeque::new(), receives: 0, capacity, visible: 0, fails: 0 };
        Self {
            memory: Memory::default(),
            qps: Vec::new(),
            cqs: (0..2 * MOST).map(cq).collect(),
            srqs: (0..2 * MOST).map(|_| Srq::default()).collect(),
            is_dead: [false; 2 * MOST],
            hidden: Vec::new(),
            tears: shape.tears,
            flushes_all: shape.flushes_all,
            receives: shape.receives(),
            posted: 0,
            moved: 0,
            has_refused: false,
            is_abandoned: false,
        }
    }

    /// A new queue pair, with the lowest number that is free on its device.
    pub(super) fn make(&mut self, name: Name, limits: QpLimits, word_after: u32) -> usize {
        let taken = |number: &u32| {
            let same = |qp: &Qp| (qp.name.host, qp.name.device) == (name.host, name.device);
            self.qps.iter().any(|qp| same(qp) && !qp.is_destroyed && qp.qp_num == *number)
        };
        let qp_num = (1..).find(|number| !taken(number)).expect("few queue pairs");
        self.qps.push(Qp {
            name,
            qp_num,
            limits,
            peer: None,
            in_error: false,
            is_gone: false,
            is_destroyed: false,
            takes_one_more: name.is_receivers && !name.is_for_flushes,
            said_word: false,
            word_after,
            sent: VecDeque::new(),
            stragglers: VecDeque::new(),
            slots: 0,
            silent: 0,
            posted: 0,
            has_refused: false,
            before: (0, false),
            mood: None,
            keeps_working: 0,
            is_honest: true,
        });
        self.qps.len() - 1
    }

    /// Takes note of what was posted before a step.
    pub(super) fn note_posted(&mut self) {
        for qp in &mut self.qps {
            // A share that is longer than the queue, or was refused in part, goes on where it began.
            qp.before = (qp.posted, qp.slots > 0 || qp.has_refused);
        }
    }

    pub(super) fn connect(&mut self, near: usize, far: usize) {
        self.qps[near].peer = Some(far);
        self.qps[far].peer = Some(near);
    }

    pub(super) fn cq_of(&self, at: usize) -> usize {
        let Name { host, device, .. } = self.qps[at].name;
        device_at(host, device)
    }
}
