//! What a world is made of.

use super::bystander;
use crate::choices::{Choices, pick};
use polyrail_core::hardware::QpLimits;
use polyrail_core::p2p::{
    EntryForm, ImmLayout, Mask, ReceiverConfig, SIZE_UNIT, SenderConfig, SplitPolicy,
};

/// Devices that each host can have, and rails of a connection.
pub(super) const MOST: usize = 8;

/// How many requests each queue pair may have in flight, and how many messages a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Size {
    /// 4 requests, 8 messages.
    Small,
    /// 32 requests, 16 messages.
    Middle,
    /// 32 requests, 256 messages.
    Large,
}

impl Size {
    pub(super) const fn depth(self) -> u32 {
        match self {
            Self::Small => 4,
            Self::Middle | Self::Large => 32,
        }
    }

    pub(super) const fn slots(self) -> u32 {
        match self {
            Self::Small => 8,
            Self::Middle => 16,
            Self::Large => 256,
        }
    }
}

/// How much of each kind of trouble there may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Troubles {
    /// Posts that a driver does not take whole.
    pub refusals: u32,
    /// Queue pairs that fail by themselves.
    pub failures: u32,
    /// Ends that their owner gives up.
    pub surrenders: u32,
    /// Things that no correct peer sends.
    pub forgeries: u32,
    /// Devices that are gone, with the completions that were not taken, and are there again.
    pub losses: u32,
    /// Breaks of the link between owners.
    pub breaks: u32,
    /// Replacements that cannot be connected.
    pub failed_connects: u32,
    /// Memory that a peer writes when no end may look at it any more.
    pub scribbles: u32,
    /// Polls that a completion queue fails.
    pub polls: u32,
    /// Messages and receives that their callers want back.
    pub cancels: u32,
}

/// A connection, one way.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// The sender's host.
    pub from: usize,
    /// Rails.
    pub rails: usize,
    /// Queue pairs of each rail.
    pub each: usize,
    /// The device of each rail, of either host.
    pub devices: [[usize; MOST]; 2],
    /// Send slots of each queue pair, of either host.
    pub slots: [Vec<u32>; 2],
    /// The longest message of each rail's port, of either host.
    pub max_message: [[u32; MOST]; 2],
    /// The most that requests can bring along.
    pub inline: u32,
    /// Receives that each account may have posted.
    pub limit: u32,
    /// How messages are spread over rails.
    pub split: SplitPolicy,
    /// See [`SenderConfig`].
    pub split_threshold: u32,
    /// See [`SenderConfig`].
    pub separate_signal: Option<u32>,
    /// How entries are written.
    pub form: EntryForm,
    /// There are queue pairs for flushes.
    pub flushes: bool,
    /// Other rails take over from one that fails.
    pub reroutes: bool,
    /// See [`SenderConfig`].
    pub min_rails: u8,
    /// Standby rails of the sender and of the receiver, bit by bit. What an end cannot have is left
    /// out: rails that do not exist, and all of them if all stand by, or if rails are not re-routed.
    pub standby: [u8; 2],
    /// How much may be received before anything is sent, relatively to the slots.
    pub ahead: u32,
    /// The most buffers of a receive.
    pub buffers: u32,
}

/// Two hosts, connections between them, and what may befall them.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// The capacities of all ends.
    pub size: Size,
    /// Devices of each host.
    pub devices: [usize; 2],
    /// The connections.
    pub lines: Vec<Line>,
    /// Words of entries are shown one by one, in any order that their form allows.
    pub tears: bool,
    /// Requests that are not signaled complete when they are flushed, too.
    pub flushes_all: bool,
    /// How often a driver is asked before it gives its word that a queue pair takes no receives any
    /// more.
    pub word_after: u32,
    /// Completions that become visible in each queue between two polls, at most.
    pub most: usize,
    /// Each host's completions become visible in one of this many polls: an owner receives messages
    /// first, and a driver's word is the first thing that shows them.
    pub unseen: [u32; 2],
    /// The budget of a poll.
    pub budget: usize,
    /// Connections that have failed are replaced.
    pub replaces: bool,
    /// Queue pairs that failed are replaced.
    pub renews: bool,
    /// How often owners send and receive messages, relatively.
    pub control: u32,
    /// Each host's owner receives its messages one in this many times.
    pub deaf: [u32; 2],
    /// Each host's owner sends its messages one in this many times.
    pub mute: [u32; 2],
    /// Owners make new queue pairs before a place is down at both ends, each puts its own in when
    /// its end is.
    pub is_early: bool,
    /// A host, and the place of its queue pairs whose requests are long on their way.
    pub slow: Option<(usize, usize)>,
    /// Signals that went out again are acknowledged late.
    pub is_tardy: bool,
    /// On each host, a device with a virtual queue pair that shares completion queues with the
    /// connections.
    pub bystanders: [Option<usize>; 2],
    /// Polls that brought all there is are followed by one that must find nothing to do.
    pub rests: bool,
    /// What left a queue pair that failed arrives one in this many times.
    pub late: u32,
    /// Messages follow each other fast, so that slots are used again while old faults last.
    pub is_brisk: bool,
    /// The lengths of the buffers of each message, if not all is chosen. Then applications send
    /// what fits, and ask at once; owners send their messages at once.
    pub script: Vec<Vec<u32>>,
    /// What may happen.
    pub troubles: Troubles,
    /// How often each kind of step happens, relatively: receives, sends, tests, polls, executions,
    /// acknowledgements.
    pub pace: [u32; 6],
}

impl Shape {
    /// Any world.
    pub fn choose(choices: &mut dyn Choices) -> Self {
        let size = pick(choices, &[Size::Small, Size::Small, Size::Small, Size::Middle]);
        let size = if choices.one_in(16) { Size::Large } else { size };
        let devices = [0; 2].map(|_| pick(choices, &[1, 1, 2, 2, 3, 4, 8]));
        let mut shape = Self {
            size,
            devices,
            lines: Vec::new(),
            tears: choices.coin(),
            flushes_all: choices.coin(),
            word_after: pick(choices, &[0, 0, 1, 3]),
            most: pick(choices, &[usize::MAX, usize::MAX, 1, 2, 5]),
            unseen: [0; 2].map(|_| pick(choices, &[1, 1, 1, 4, 16])),
            budget: pick(choices, &[usize::MAX, usize::MAX, 1, 2]),
            replaces: choices.coin(),
            renews: choices.coin(),
            control: pick(choices, &[1, 4, 8]),
            deaf: [0; 2].map(|_| pick(choices, &[1, 1, 1, 4, 40])),
            mute: [0; 2].map(|_| pick(choices, &[1, 1, 1, 4, 40])),
            is_early: choices.coin(),
            slow: Self::choose_place(3, choices),
            is_tardy: choices.coin(),
            bystanders: devices
                .map(|count| choices.coin().then(|| choices.below(count as u32) as usize)),
            rests: choices.coin(),
            late: pick(choices, &[1, 1, 4, 40]),
            is_brisk: false,
            script: Vec::new(),
            troubles: match choices.below(8) {
                0 | 1 => Troubles::calm(choices),
                2 => Troubles::of_peers(choices),
                3 if choices.coin() => Troubles::of_owners(choices),
                _ => Troubles::of_rails(choices),
            },
            pace: [0; 6].map(|_| pick(choices, &[1, 4, 8, 8])),
        };
        if choices.one_in(4) {
            return Self::brisk(choices);
        }
        if shape.bystanders != [None; 2] {
            shape.budget = pick(choices, &[usize::MAX, 1, 1, 2]);
        }
        if shape.troubles.surrenders > 1 {
            // Others take the places of connections whose completions were not taken yet.
            (shape.replaces, shape.tears) = (true, false);
            shape.most = pick(choices, &[1, 2]);
            shape.unseen = [4, 16];
            shape.pace[3] = 1;
        }
        let lines = if size == Size::Large { 1 } else { pick(choices, &[1, 1, 2, 2, 3]) };
        shape.lines = (0..lines).map(|_| Line::choose(&shape, choices)).collect();
        shape
    }

    /// One connection over two rails, and nothing that goes wrong.
    pub fn small() -> Self {
        let devices = [2, 2];
        let mut shape = Self {
            size: Size::Small,
            devices,
            lines: Vec::new(),
            tears: false,
            flushes_all: true,
            word_after: 0,
            most: usize::MAX,
            unseen: [1; 2],
            budget: usize::MAX,
            replaces: false,
            renews: true,
            control: 8,
            deaf: [1; 2],
            mute: [1; 2],
            is_early: false,
            slow: None,
            is_tardy: false,
            bystanders: [None; 2],
            rests: false,
            late: 1,
            is_brisk: false,
            script: Vec::new(),
            troubles: Troubles::default(),
            pace: [8; 6],
        };
        shape.lines.push(Line::small());
        shape
    }

    /// The queue pairs of one place, at either host; none, except in one of this many worlds.
    fn choose_place(odds: u32, choices: &mut dyn Choices) -> Option<(usize, usize)> {
        let host = choices.below(2) as usize;
        let place = pick(choices, &[0, 1, 1, 2, 3]);
        choices.one_in(odds).then_some((host, place))
    }

    /// One connection of a few rails, whose slots are soon used again, and one of whose owners
    /// receives messages late.
    fn brisk(choices: &mut dyn Choices) -> Self {
        let rails = pick(choices, &[2, 3, 3]);
        let devices = [0; 2].map(|_| pick(choices, &[1, rails]));
        let mut shape = Self {
            devices,
            is_brisk: true,
            deaf: pick(choices, &[[1, 1], [8, 1], [1, 8], [40, 1], [1, 40], [40, 40]]),
            mute: pick(choices, &[[1, 1], [1, 1], [40, 1], [1, 40]]),
            is_early: choices.coin(),
            slow: Self::choose_place(2, choices),
            is_tardy: choices.coin(),
            rests: choices.one_in(4),
            unseen: [0; 2].map(|_| pick(choices, &[1, 1, 1, 4, 16])),
            late: pick(choices, &[1, 40, 40]),
            control: pick(choices, &[2, 4, 8]),
            renews: !choices.one_in(4),
            troubles: Troubles::of_rails(choices),
            ..Self::small()
        };
        shape.troubles.failures = pick(choices, &[2, 4, 10]);
        shape.troubles.losses = pick(choices, &[0, 1, 2]);
        shape.troubles.polls = pick(choices, &[0, 20]);
        shape.troubles.surrenders = 0;
        // Slots wait for their messages, or these follow at once.
        shape.pace[1] = pick(choices, &[2, 4, 8]);
        shape.lines[0].from = choices.below(2) as usize;
        let to = 1 - shape.lines[0].from;
        let kind = choices.below(3);
        match kind {
            0 => shape.write_entries_slowly(to),
            1 => shape.lose_completions(to, rails),
            _ => {}
        }
        let line = &mut shape.lines[0];
        line.rails = rails;
        line.each = if kind < 2 { 1 } else { pick(choices, &[1, 1, 2]) };
        line.slots = [0; 2].map(|_| vec![4; rails * line.each]);
        line.reroutes = true;
        line.flushes = true;
        line.limit = 8 * rails as u32;
        line.split_threshold = pick(choices, &[0, 1 << 30]);
        line.choose_standby(choices);
        for (host, devices) in line.devices.iter_mut().enumerate() {
            (0..MOST).for_each(|rail| devices[rail] = rail % rails % shape.devices[host]);
        }
        shape
    }

    /// The queue pair that writes entries again when the first one fails is slow: slots are done,
    /// and may be used again before their entries have come a second time.
    fn write_entries_slowly(&mut self, to: usize) {
        self.be_swift();
        self.devices[to] = 1;
        self.slow = Some((to, 1));
        (self.pace, self.control) = ([8, 2, 16, 16, 4, 4], 16);
        (self.troubles.failures, self.troubles.losses) = (3, 0);
    }

    /// Devices are gone with completions that were not taken, so that signals go out again for
    /// messages that are done.
    fn lose_completions(&mut self, to: usize, rails: usize) {
        self.be_swift();
        self.devices = [rails; 2];
        self.is_tardy = true;
        self.unseen[to] = 4;
        (self.troubles.failures, self.troubles.losses) = (0, 6);
    }

    /// Owners receive and do everything soon.
    fn be_swift(&mut self) {
        (self.deaf, self.mute, self.unseen) = ([1; 2], [1; 2], [1; 2]);
        (self.slow, self.is_tardy, self.late) = (None, false, 1);
        (self.control, self.renews, self.lines[0].min_rails) = (8, true, 0);
    }

    /// Room in the completion queue of each device for all that can be there.
    pub(super) fn capacity(&self) -> u32 {
        let lanes = |line: &Line| (line.rails * line.each + 1) as u32 * self.size.depth();
        let lanes: u32 = self.lines.iter().map(lanes).sum();
        // Those of connections that were replaced may still be there.
        lanes * if self.replaces { 8 } else { 1 } + self.receives() + bystander::DEPTH
    }

    /// Receives that a device's shared queue holds.
    pub(super) fn receives(&self) -> u32 {
        let limits: u32 = self.lines.iter().map(|line| line.limit).sum();
        // What those of connections that were replaced had is unsettled for a while.
        limits * if self.replaces { 2 } else { 1 }
    }
}

impl Troubles {
    /// Nothing fails for good.
    fn calm(choices: &mut dyn Choices) -> Self {
        Self {
            refusals: pick(choices, &[0, 0, 4, 20]),
            cancels: pick(choices, &[0, 0, 4, 40]),
            ..Self::default()
        }
    }

    /// Rails fail.
    fn of_rails(choices: &mut dyn Choices) -> Self {
        Self {
            refusals: pick(choices, &[0, 2, 8]),
            failures: pick(choices, &[1, 2, 3, 4, 6, 10]),
            surrenders: u32::from(choices.one_in(8)),
            losses: pick(choices, &[0, 0, 0, 1, 2]),
            breaks: pick(choices, &[0, 0, 1, 2]),
            failed_connects: pick(choices, &[0, 0, 1]),
            scribbles: pick(choices, &[0, 0, 40]),
            polls: pick(choices, &[0, 2, 20]),
            cancels: pick(choices, &[0, 0, 2, 8, 40]),
            ..Self::default()
        }
    }

    /// Owners give connections up, and make others in their places.
    fn of_owners(choices: &mut dyn Choices) -> Self {
        let (refusals, cancels) = (pick(choices, &[0, 0, 4]), pick(choices, &[0, 0, 10]));
        Self { surrenders: 6, refusals, cancels, ..Self::default() }
    }

    /// Peers do not keep to the protocol.
    fn of_peers(choices: &mut dyn Choices) -> Self {
        Self {
            refusals: pick(choices, &[0, 2, 8]),
            failures: pick(choices, &[0, 0, 1]),
            surrenders: u32::from(choices.one_in(4)),
            forgeries: pick(choices, &[0, 0, 1, 2, 5]),
            scribbles: pick(choices, &[0, 40, 40]),
            cancels: pick(choices, &[0, 0, 10]),
            ..Self::default()
        }
    }
}

impl Line {
    fn small() -> Self {
        let mut devices = [[0; MOST]; 2];
        devices.iter_mut().for_each(|devices| devices[1] = 1);
        Self {
            from: 0,
            rails: 2,
            each: 1,
            devices,
            slots: [vec![4; 2], vec![4; 2]],
            max_message: [[1 << 20; MOST]; 2],
            inline: 64,
            limit: 16,
            split: SplitPolicy::Even,
            split_threshold: 0,
            separate_signal: None,
            form: EntryForm::Hashed,
            flushes: false,
            reroutes: false,
            min_rails: 0,
            standby: [0; 2],
            ahead: 8,
            buffers: 1,
        }
    }

    pub(super) fn choose(shape: &Shape, choices: &mut dyn Choices) -> Self {
        let rails = pick(choices, &[1, 2, 2, 2, 2, 3, 3, 4, 5, 6, 7, 8]);
        let rails =
            if shape.troubles.losses + shape.troubles.failures > 1 { rails.max(2) } else { rails };
        let each = pick(choices, &[1, 1, 1, 2, 3]).min(16 / rails);
        let slots = shape.size.slots();
        let full = slots * rails as u32;
        let mut line = Self {
            from: choices.below(2) as usize,
            rails,
            each,
            limit: pick(choices, &[full, full, full / 2, rails as u32 + 1]),
            inline: pick(choices, &[0, 64, 64, 512]),
            split: SplitPolicy::choose(choices),
            split_threshold: pick(choices, &[0, 0, 128, 1000, 64 << 10]),
            separate_signal: pick(choices, &[None, None, Some(0), Some(129), Some(8 << 10)]),
            form: pick(choices, &[EntryForm::Plain, EntryForm::Hashed, EntryForm::Hashed]),
            flushes: choices.coin(),
            reroutes: rails > 1 && !choices.one_in(8),
            min_rails: pick(choices, &[0, 0, 0, 1, 2]).min(rails as u8),
            ahead: pick(choices, &[slots, slots, slots, 2, slots / 2]),
            buffers: pick(choices, &[1, 1, 2, 4, 8]),
            ..Self::small()
        };
        let (uneven, long) =
            (choices.one_in(3), pick(choices, &[512, 700, 4096, 8 << 20, 1 << 30]));
        for (host, devices) in line.devices.iter_mut().enumerate() {
            let shift = choices.below(MOST as u32) as usize;
            let places = devices.iter_mut().enumerate();
            places.for_each(|(rail, place)| *place = (rail + shift) % shape.devices[host]);
            let depth = shape.size.depth();
            let room = |choices: &mut dyn Choices| {
                if uneven { 2 + choices.below(depth - 1) } else { depth }
            };
            line.slots[host] = (0..rails * each).map(|_| room(choices)).collect();
            for longest in &mut line.max_message[host] {
                *longest = if uneven { pick(choices, &[long, long / 2 + 256, 4096]) } else { long };
            }
        }
        line.choose_standby(choices);
        line
    }

    /// The ends may differ, since each decides for what it sends.
    fn choose_standby(&mut self, choices: &mut dyn Choices) {
        if choices.one_in(3) {
            let some = choices.below(256) as u8;
            self.standby = [0; 2].map(|_| pick(choices, &[!1, !2, some, 0]));
        }
    }

    /// The standby rails of the sender, or of the receiver.
    pub(super) fn standby_of(&self, is_receivers: bool) -> Mask {
        let all = Mask::first(self.rails as u8);
        let standby = Mask::from_bits(self.standby[usize::from(is_receivers)]) & all;
        if self.reroutes && standby != all { standby } else { Mask::EMPTY }
    }

    /// What a queue pair is granted.
    pub(super) fn limits(&self, host: usize, place: usize) -> QpLimits {
        QpLimits {
            max_send_wr: self.slots[host][place],
            max_recv_wr: 0,
            max_inline_data: self.inline,
            max_msg_size: self.max_message[host][place % self.rails],
            max_send_sge: 1,
            max_recv_sge: 0,
        }
    }

    pub(super) fn sender_config(&self, number: u32) -> SenderConfig {
        SenderConfig {
            virtual_qp_num: number,
            rails: self.rails as u8,
            split: self.split,
            split_threshold: self.split_threshold,
            separate_signal: self.separate_signal,
            entry_form: self.form,
            reroutes: self.reroutes,
            min_rails: self.min_rails,
            standby: self.standby_of(false),
        }
    }

    pub(super) fn receiver_config(&self, number: u32) -> ReceiverConfig {
        ReceiverConfig {
            virtual_qp_num: number,
            rails: self.rails as u8,
            reroutes: self.reroutes,
            min_rails: self.min_rails,
            standby: self.standby_of(true),
        }
    }

    pub(super) fn layout(&self) -> ImmLayout {
        ImmLayout::new(self.rails as u8).expect("1 to 8 rails")
    }

    /// The longest message of which no rail has more than a few requests.
    fn longest(&self) -> u32 {
        let longest = self.max_message.iter().flatten().min().copied().unwrap_or(SIZE_UNIT);
        let pieces = 8 * self.rails as u32;
        (longest / SIZE_UNIT * SIZE_UNIT).saturating_mul(pieces).min(1 << 30)
    }

    /// A length, often one beside a boundary.
    pub(super) fn length(&self, choices: &mut dyn Choices) -> u32 {
        let end = u64::from(self.layout().largest_units()) * u64::from(SIZE_UNIT);
        let rail = choices.below(self.rails as u32) as usize;
        let port = self.max_message[choices.below(2) as usize][rail];
        let rails = self.rails as u32;
        let power = 1 << choices.below(31);
        let around = pick(
            choices,
            &[
                0,
                SIZE_UNIT,
                SIZE_UNIT,
                SIZE_UNIT * rails,
                power,
                self.split_threshold,
                self.separate_signal.unwrap_or(0),
                end.min(1 << 30) as u32,
                port,
                port.saturating_mul(rails),
            ],
        );
        let near = pick(choices, &[-129, -128, -28, -1, 0, 0, 0, 1, 128, 130]);
        around.saturating_add_signed(near).min(self.longest())
    }
}

trait Chosen {
    fn choose(choices: &mut dyn Choices) -> Self;
}

impl Chosen for SplitPolicy {
    fn choose(choices: &mut dyn Choices) -> Self {
        let numbers = [0; MOST].map(|_| pick(choices, &[0, 1, 100, 200, 100_000]));
        match choices.below(4) {
            0 => Self::Weighted { weights: numbers },
            1 => Self::LeastFinishTime { bandwidth_mbps: numbers },
            _ => Self::Even,
        }
    }
}
