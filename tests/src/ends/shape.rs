//! What a world is made of.

use crate::choices::{Choices, pick};
use polyrail_core::hardware::QpLimits;
use polyrail_core::virtual_qp::{
    Config, PassThroughOrder, RailChoice, RailFailure, RailId, Scheme,
};

/// Bytes of a fragment.
pub const FRAGMENT: u32 = 128;

/// Fragments of the longest request that takes a receive with a buffer.
pub(super) const LONGEST_SEND: u32 = 6;

/// Fragments of the longest request that does not.
const LONGEST: u32 = 14;

/// Bytes that a request has at most.
pub(super) const MOST_BYTES: usize = (LONGEST * FRAGMENT) as usize;

/// The number of the first virtual queue pair; the others follow.
pub(super) const FIRST_NUMBER: u32 = 1000;

/// The other end of a connection: the two ends of a connection stand side by side.
pub(super) const fn peer(end: usize) -> usize {
    end ^ 1
}

/// Which of the two hosts an end is on.
pub(super) const fn side(end: usize) -> usize {
    end & 1
}

/// Which connection an end is of.
pub(super) const fn connection(end: usize) -> usize {
    end >> 1
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A plain WRITE.
    Write,
    /// A WRITE_WITH_IMM.
    WriteImm,
    /// A READ.
    Read,
    /// A SEND.
    Send,
    /// An atomic.
    FetchAdd,
}

/// A request that one end will post.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Job {
    /// What it does.
    pub kind: Kind,
    /// Its bytes.
    pub length: u32,
    /// It waits for everything before it.
    pub fence: bool,
    /// It is reported.
    pub signaled: bool,
    /// It is reported when it is done, whatever was posted before it.
    pub when_done: bool,
    /// It wakes its receiver.
    pub solicited: bool,
    /// Its local bytes are a list of buffers, if that is not 0: which list.
    pub list: u8,
    /// Buffers that the queue pairs take with a request.
    pub sge: u8,
}

/// Ways to make a list.
const LISTS: u8 = 6;

impl Job {
    /// A signaled request of this many fragments, the last one shorter; of none, a signal.
    pub const fn new(kind: Kind, fragments: u32) -> Self {
        let length = match kind {
            Kind::FetchAdd => 8,
            _ => (fragments * FRAGMENT).saturating_sub(28),
        };
        let (fence, solicited, signaled, when_done) = (false, false, true, false);
        Self { kind, length, fence, signaled, when_done, solicited, list: 0, sge: 1 }
    }

    /// The lengths of its buffers, which lie one behind the other. A request that is not cut has at
    /// most as many as the queue pairs take.
    pub fn parts(self) -> Vec<u32> {
        let Self { length, sge, .. } = self;
        let borders = match self.list {
            0 => vec![],
            1 => vec![1, 2, 2, 3],
            2 => vec![FRAGMENT - 1, FRAGMENT, FRAGMENT + 1],
            3 => vec![FRAGMENT, 2 * FRAGMENT, 2 * FRAGMENT],
            4 => vec![length / 2, length - 1],
            5 => (1..6).map(|part| part * length / 6).collect(),
            _ => vec![0, length / 3, length / 3 + 1, 2 * length / 3],
        };
        let most = if self.is_fragmented() { borders.len() } else { usize::from(sge) - 1 };
        let mut from = 0;
        let ends = borders.into_iter().take(most).chain([length]);
        let part = |to: u32| {
            let to = to.clamp(from, length);
            to - std::mem::replace(&mut from, to)
        };
        ends.map(part).collect()
    }

    /// Where its fragments begin, found byte by byte if it has a list. One of no bytes has one
    /// fragment.
    pub(super) fn cuts(self) -> Vec<u32> {
        if self.list == 0 {
            return (0..self.length.div_ceil(FRAGMENT).max(1)).map(|at| at * FRAGMENT).collect();
        }
        let (mut cuts, mut at) = (Vec::new(), 0);
        let (mut bytes, mut buffers) = (FRAGMENT, 0);
        for part in self.parts() {
            buffers += u32::from(part > 0);
            for _ in 0..part {
                if bytes == FRAGMENT || buffers > u32::from(self.sge) {
                    cuts.push(at);
                    (bytes, buffers) = (0, 1);
                }
                (bytes, at) = (bytes + 1, at + 1);
            }
        }
        cuts
    }

    /// Whether it writes memory of the peer's.
    pub(super) const fn writes(self) -> bool {
        matches!(self.kind, Kind::Write | Kind::WriteImm)
    }

    /// The same, behind a fence.
    pub const fn fenced(self) -> Self {
        Self { fence: true, ..self }
    }

    /// Whether it is spread over rails; others take rail 0.
    pub const fn is_fragmented(self) -> bool {
        matches!(self.kind, Kind::Write | Kind::WriteImm | Kind::Read)
    }

    fn choose(shape: &Shape, choices: &mut dyn Choices) -> Self {
        let kind = shape.kind(choices);
        let fragments = pick(choices, &[1, 1, 2, 2, 3, 4, LONGEST_SEND, 9, LONGEST]);
        let most = if kind == Kind::Send { LONGEST_SEND } else { LONGEST };
        let fragments = most.min(fragments);
        let is_signal = kind == Kind::WriteImm && choices.one_in(5);
        let job = Self::new(kind, if is_signal { 0 } else { fragments });
        let unsignaled = matches!(kind, Kind::WriteImm | Kind::Send) && choices.one_in(6);
        let when_done = job.is_fragmented() && choices.one_in(3);
        let fence = choices.one_in(6);
        let solicited = matches!(kind, Kind::WriteImm | Kind::Send) && choices.one_in(4);
        let may_be_list = job.length > 0 && kind != Kind::FetchAdd;
        let list =
            if may_be_list && choices.one_in(3) { 1 + choices.below(LISTS.into()) } else { 0 };
        let (list, sge) = (list as u8, shape.sge);
        Self { fence, signaled: !unsignaled, when_done, solicited, list, sge, ..job }
    }
}

/// How much of each kind of trouble there may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Troubles {
    /// Queue pairs that fail by themselves, or are given up by their owner.
    pub failures: u32,
    /// Devices that are gone for a queue pair.
    pub losses: u32,
    /// Completion queues that break.
    pub broken_cqs: u32,
    /// Breaks of the control link.
    pub breaks: u32,
    /// Replacements that cannot be connected.
    pub failed_connects: u32,
    /// Posts that a driver does not take whole.
    pub refusals: u32,
    /// An owner gives the virtual queue pair up.
    pub surrenders: u32,
    /// Rails that an owner takes out of service, or reserves.
    pub maintenance: u32,
    /// Requests that an application takes back, or tries to.
    pub cancels: u32,
}

/// In which order requests carry the keys of a buffer. Those of one device stand in the order of
/// the rails that need them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyOrder {
    /// In the order of the rails.
    Rails,
    /// Behind those of a device that no rail is on.
    BehindOthers,
    /// Those of the last device first.
    Backwards,
}

/// A world: virtual queue pairs of two hosts, what they will post, and what may befall them.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// How receivers are notified.
    pub scheme: Scheme,
    /// Connections, which share the completion queues of both hosts.
    pub connections: usize,
    /// Data rails.
    pub rails: usize,
    /// Devices of each host; rail `i` of the first connection begins on device `i % devices`.
    pub devices: [usize; 2],
    /// Keys of a buffer.
    pub keys: KeyOrder,
    /// What each end posts.
    pub jobs: Vec<Vec<Job>>,
    /// See [`Config`].
    pub max_msgs_per_qp: u32,
    /// See [`Config`].
    pub min_rails: u8,
    /// See [`Config`].
    pub order: PassThroughOrder,
    /// Standby rails of each host, bit by bit. Rail 0, and rails that do not exist, are left out.
    pub standby: [u8; 2],
    /// Which rail gets the next fragments is decided by their bandwidth.
    pub uneven: bool,
    /// Send and receive slots of each physical queue pair, the notify queue pair's last.
    pub slots: Vec<(u32, u32)>,
    /// Buffers that each of them takes with a request, or receive.
    pub sge: u8,
    /// Maximum number of reports of a poll, unless its owner chooses another.
    pub budget: usize,
    /// Owners call whatever reports: all queues, one queue, one completion, what they polled
    /// themselves; with the budget of the day.
    pub polls_anyhow: bool,
    /// Applications post several requests with one call.
    pub posts_many: bool,
    /// A queue pair's flush is there as soon as it is in the error state.
    pub flushes_at_once: bool,
    /// Rails that may fail, bit by bit; the notify queue pair's is the highest.
    pub weak: u16,
    /// Rails are replaced.
    pub replaces: bool,
    /// Rails that were taken out of service are taken back.
    pub restores: bool,
    /// What may happen.
    pub troubles: Troubles,
    /// How often a host polls, relatively.
    pub polls: [u32; 2],
    /// How often acknowledgements come, relatively.
    pub acknowledgements: u32,
    /// How often owners send and receive messages, relatively.
    pub control: u32,
    /// How often the link breaks while it carries something, relatively.
    pub breaks: u32,
    /// Numbers that a sender may have on their way, at most.
    pub span: u32,
    /// Failures after which everything is let happen that must, and steps before that.
    pub last_failure: u64,
    /// See above.
    pub then: u64,
    /// What may be posted.
    pub kinds: Vec<Kind>,
    /// Fewer steps: applications post everything at the start, control messages leave at once,
    /// owners make and connect both queue pairs of a rail at the same time.
    pub is_brief: bool,
}

impl Shape {
    /// Two rails, and nothing to do.
    pub fn small(scheme: Scheme) -> Self {
        Self {
            scheme,
            connections: 1,
            rails: 2,
            devices: [1; 2],
            keys: KeyOrder::Rails,
            jobs: vec![Vec::new(); 2],
            max_msgs_per_qp: 4,
            min_rails: 0,
            order: PassThroughOrder::Ordered,
            standby: [0; 2],
            uneven: false,
            slots: vec![(4, 4); 3],
            sge: 1,
            budget: usize::MAX,
            polls_anyhow: false,
            posts_many: false,
            flushes_at_once: true,
            weak: u16::MAX,
            replaces: true,
            restores: true,
            troubles: Troubles { failures: 1, ..Troubles::default() },
            polls: [12; 2],
            acknowledgements: 6,
            control: 6,
            breaks: 6,
            span: u32::MAX,
            last_failure: u64::MAX,
            then: 0,
            kinds: Vec::new(),
            is_brief: false,
        }
    }

    /// Any world.
    pub fn choose(choices: &mut dyn Choices) -> Self {
        let scheme = pick(choices, &[Scheme::Spray, Scheme::Dqplb]);
        let rails = pick(choices, &[2, 2, 2, 2, 3, 3, 3, 4, 4, 5, 6, 7, 8]);
        let connections = if choices.one_in(6) { 2 } else { 1 };
        let devices = 1 + choices.below(rails as u32) as usize;
        let others =
            if choices.one_in(4) { 1 + choices.below(rails as u32) as usize } else { devices };
        let keys = [KeyOrder::Rails, KeyOrder::BehindOthers, KeyOrder::Backwards];
        let mut shape = Self {
            connections,
            rails,
            devices: [devices, others],
            keys: pick(choices, &keys),
            jobs: vec![Vec::new(); 2 * connections],
            max_msgs_per_qp: pick(choices, &[1, 2, 2, 3, 4, 100]),
            min_rails: pick(choices, &[0, 0, 0, 0, 1, 1, 2]),
            order: pick(choices, &[PassThroughOrder::Ordered, PassThroughOrder::Unordered]),
            uneven: choices.one_in(4),
            budget: pick(choices, &[usize::MAX, usize::MAX, 1, 2]),
            polls_anyhow: choices.coin(),
            posts_many: choices.coin(),
            flushes_at_once: choices.coin(),
            weak: if choices.coin() { u16::MAX } else { 1 << choices.below(rails as u32 + 1) },
            replaces: !choices.one_in(8),
            troubles: Troubles::choose(choices),
            ..Self::small(scheme)
        };
        let even = choices.coin();
        shape.slots = (0..=rails)
            .map(|_| if even { (8, 8) } else { (1 + choices.below(4), 1 + choices.below(4)) })
            .collect();
        shape.sge = pick(choices, &[1, 2, 3]);
        shape.polls = [0, 1].map(|_| pick(choices, &[1, 4, 12, 12]));
        shape.acknowledgements = pick(choices, &[1, 3, 6, 12]);
        shape.control = pick(choices, &[1, 3, 6, 12]);
        shape.breaks = pick(choices, &[1, 2, 6]);
        shape.span = pick(choices, &[1, 2, 3, 4, 6, u32::MAX]);
        shape.last_failure = pick(choices, &[1, 2, 3, u64::MAX, u64::MAX, u64::MAX]);
        shape.then = u64::from(choices.below(12));
        shape.choose_jobs(choices);
        if choices.one_in(5) {
            shape.strain(choices);
        }
        if choices.one_in(3) {
            // The ends may differ, since only the sender decides.
            let some = choices.below(256) as u8;
            shape.standby = [0; 2].map(|_| pick(choices, &[u8::MAX, u8::MAX, some, 0]));
        }
        shape.troubles.cancels = shape.choose_cancels();
        shape
    }

    /// How many requests are taken back: some in one world of three. Not drawn, so that all others
    /// stay as they were before there was that.
    fn choose_cancels(&self) -> u32 {
        let lengths = self.jobs.iter().flatten().map(|job| u64::from(job.length));
        let seed = lengths.fold(self.then ^ self.rails as u64, |seed, length| {
            (seed ^ length).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23)
        });
        const CANCELS: [u32; 12] = [1, 2, 4, 8, 0, 0, 0, 0, 0, 0, 0, 0];
        CANCELS[(seed >> 7) as usize % CANCELS.len()]
    }

    /// Long requests of one kind over few rails, of which one fails, and whose drivers take batches
    /// in part.
    fn strain(&mut self, choices: &mut dyn Choices) {
        self.scheme = pick(choices, &[Scheme::Dqplb, Scheme::Dqplb, Scheme::Spray]);
        self.rails = pick(choices, &[2, 3, 4, 4, 5]);
        self.devices = self.devices.map(|devices| devices.min(self.rails));
        self.slots = vec![(8, 8); self.rails + 1];
        self.max_msgs_per_qp = pick(choices, &[3, 4, 100]);
        self.span = pick(choices, &[2, 3, 4, 6]);
        // The fence comes while there is much to send.
        (self.polls, self.control) = ([12; 2], 12);
        self.acknowledgements = pick(choices, &[1, 1, 3, 6]);
        let rail = choices.below(self.queue_pairs() as u32);
        self.weak = if choices.one_in(4) { u16::MAX } else { 1 << rail };
        self.last_failure = u64::MAX;
        let (failures, refusals) = (1 + choices.below(3), pick(choices, &[0, 2, 3]));
        self.troubles = Troubles { failures, refusals, ..Troubles::default() };
        self.kinds = vec![Kind::WriteImm];
        for end in 0..self.jobs.len() {
            let count = if side(end) == 1 { 0 } else { 4 + choices.below(10) };
            self.jobs[end] = (0..count).map(|_| Job::choose(self, choices)).collect();
        }
    }

    fn choose_jobs(&mut self, choices: &mut dyn Choices) {
        use Kind::{FetchAdd, Read, Send, Write, WriteImm};
        let all = [Write, WriteImm, WriteImm, Read, Send, Send, FetchAdd];
        self.kinds = (0..pick(choices, &[1, 2, 3, 7])).map(|_| pick(choices, &all)).collect();
        let one_way = choices.coin();
        for end in 0..self.jobs.len() {
            let most = if one_way && side(end) == 1 { 0 } else { pick(choices, &[2, 4, 8, 14]) };
            let count = choices.below(most + 1);
            self.jobs[end] = (0..count).map(|_| Job::choose(self, choices)).collect();
        }
        if !choices.one_in(12) {
            let no_atomics = |job: &Job| job.kind != Kind::FetchAdd;
            self.jobs.iter_mut().for_each(|jobs| jobs.retain(no_atomics));
        }
    }

    fn kind(&self, choices: &mut dyn Choices) -> Kind {
        let kind = pick(choices, &self.kinds);
        // With DQPLB there are no receives that a SEND could take.
        let cannot = kind == Kind::Send && self.scheme == Scheme::Dqplb;
        if cannot { Kind::WriteImm } else { kind }
    }

    /// The queue pairs of an end: data rails, and SPRAY's notify queue pair.
    pub fn queue_pairs(&self) -> usize {
        self.rails + usize::from(self.scheme.uses_notify_qp())
    }

    /// The engine's name for a queue pair.
    pub fn rail_id(&self, rail: usize) -> RailId {
        if rail == self.rails { RailId::Notify } else { RailId::Data(rail as u8) }
    }

    /// Where the engine's rail is among the queue pairs.
    pub fn rail_at(&self, rail: RailId) -> usize {
        if let RailId::Data(rail) = rail { rail.into() } else { self.rails }
    }

    /// The device of a rail of an end at the beginning. The notify queue pair is with rail 0.
    pub fn first_device(&self, end: usize, rail: usize) -> usize {
        let devices = self.devices[side(end)];
        match rail % self.rails % devices {
            0 => 0,
            // The rails of the connections are not in step.
            at if connection(end) == 1 => devices - at,
            at => at,
        }
    }

    /// The devices of the host and of its peer that meet on rails of an end, each pair once, in the
    /// order of the rails.
    pub(super) fn pairs(&self, end: usize) -> Vec<[usize; 2]> {
        let mut pairs = Vec::new();
        for rail in 0..self.rails {
            let pair = [end, peer(end)].map(|end| self.first_device(end, rail));
            if !pairs.contains(&pair) {
                pairs.push(pair);
            }
        }
        pairs
    }

    /// Whether a rail of an end is a standby rail.
    pub(super) const fn is_standby(&self, end: usize, rail: usize) -> bool {
        rail > 0 && rail < self.rails && self.standby[side(end)] >> rail & 1 == 1
    }

    /// What a queue pair is granted.
    pub fn limits(&self, rail: usize) -> QpLimits {
        let (max_send_wr, max_recv_wr) = self.slots[rail];
        QpLimits {
            max_send_wr,
            max_recv_wr,
            max_inline_data: 0,
            max_msg_size: 1 << 20,
            max_send_sge: self.sge.into(),
            max_recv_sge: self.sge.into(),
        }
    }

    /// The configuration of both virtual queue pairs.
    pub fn config(&self, end: usize) -> Config {
        let bandwidth_mbps = [100, 200, 100, 400, 100, 100, 100, 100];
        let uneven = RailChoice::LeastFinishTime { bandwidth_mbps };
        Config {
            virtual_qp_num: FIRST_NUMBER + end as u32,
            scheme: self.scheme,
            max_msg_size: FRAGMENT,
            max_msgs_per_qp: self.max_msgs_per_qp,
            rail_choice: if self.uneven { uneven } else { RailChoice::RoundRobin },
            pass_through: self.order,
            rail_failure: RailFailure::Reroute,
            min_rails: self.min_rails,
            standby: (0..self.rails)
                .filter(|rail| self.is_standby(end, *rail))
                .map(|rail| self.rail_id(rail))
                .collect(),
            ..Config::default()
        }
    }
}

impl Troubles {
    fn choose(choices: &mut dyn Choices) -> Self {
        let rare = |choices: &mut dyn Choices, odds: u32| u32::from(choices.one_in(odds));
        Self {
            failures: pick(choices, &[0, 1, 1, 2, 2, 3, 4, 4, 6, 6]),
            losses: rare(choices, 3),
            broken_cqs: rare(choices, 8),
            breaks: pick(choices, &[0, 0, 1, 1, 2]),
            failed_connects: pick(choices, &[0, 0, 1]),
            refusals: pick(choices, &[0, 0, 1, 2]),
            surrenders: rare(choices, 20),
            maintenance: pick(choices, &[0, 0, 0, 1, 2, 3]),
            cancels: 0,
        }
    }
}
