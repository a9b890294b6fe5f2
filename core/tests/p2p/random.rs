//! Random orders of everything, by seed: every message arrives, with its bytes and sizes, once; no buffer is
//! touched that was given back; nobody waits for ever.
//!
//! `P2P_SEEDS=n` runs n seeds, `P2P_SEED=n` one.

use crate::device::Step;
use crate::rig::{Memory, Rig, Setup};
use polyrail_core::hardware::Refusal;
use polyrail_core::p2p::{Control, EntryForm, RecvHandle, SendHandle, SplitPolicy};
use polyrail_core::verbs::WcStatus;
use std::collections::VecDeque;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % bound
    }

    fn one_in(&mut self, odds: usize) -> bool {
        self.below(odds) == 0
    }
}

/// One message: its buffers at both ends, and how far it is.
struct Message {
    lengths: Vec<u32>,
    sources: Vec<Memory>,
    target: Memory,
    recv: Option<RecvHandle>,
    sends: Vec<Option<SendHandle>>,
    /// Sends whose callers were told.
    told: Vec<bool>,
    received: bool,
}

const ROOM: u32 = 2048;

/// What a buffer of a message holds.
fn byte(message: usize, buffer: usize, at: usize) -> u8 {
    (message * 31 + buffer * 7 + at * 3 + 1) as u8
}

impl Message {
    fn new(rig: &Rig, random: &mut Random, number: usize) -> Self {
        let count = if random.one_in(3) { 1 + random.below(4) } else { 1 };
        let sizes = [0, 1, 127, 128, 129, 256, 300, 1000, 1024, 2047, 2048];
        let lengths: Vec<_> = (0..count).map(|_| sizes[random.below(sizes.len())]).collect();
        let sources = lengths.iter().enumerate().map(|(buffer, length)| {
            let source = rig.source(*length as usize + 1);
            source.fill(|at| byte(number, buffer, at));
            source
        });
        let sources = sources.collect();
        let target = rig.target(ROOM as usize * count);
        let sends = vec![None; count];
        let told = vec![false; count];
        Self { lengths, sources, target, recv: None, sends, told, received: false }
    }

    fn irecv(&mut self, rig: &mut Rig) -> bool {
        let offered =
            (0..self.lengths.len() as u32).map(|tag| (&self.target, tag * ROOM, ROOM, tag));
        let offered: Vec<_> = offered.collect();
        match rig.try_irecv(&offered) {
            Ok(recv) => self.recv = Some(recv),
            Err(error) => assert!(error.is_not_now(), "{error}"),
        }
        self.recv.is_some()
    }

    /// Sends a buffer that was not sent; returns whether all were.
    fn isend(&mut self, rig: &mut Rig, random: &mut Random) -> bool {
        let left: Vec<_> = (0..self.sends.len()).filter(|at| self.sends[*at].is_none()).collect();
        let at = left[random.below(left.len())];
        match rig.try_isend(&self.sources[at], self.lengths[at], at as u32) {
            Ok(send) => self.sends[at] = Some(send),
            Err(error) => assert!(error.is_not_now(), "{error}"),
        }
        self.sends.iter().all(Option::is_some)
    }

    fn test_recv(&mut self, rig: &mut Rig, number: usize) {
        let Some(recv) = self.recv.filter(|_| !self.received) else { return };
        let Some(received) = rig.received(recv) else { return };
        assert_eq!(received.sizes(), self.lengths, "message {number}");
        let bytes = self.target.bytes();
        for (buffer, length) in self.lengths.iter().enumerate() {
            let start = buffer * ROOM as usize;
            for (at, found) in bytes[start..start + *length as usize].iter().enumerate() {
                assert_eq!(*found, byte(number, buffer, at), "message {number}, {buffer}, {at}");
            }
        }
        self.received = true;
        // It is the caller's again: nobody may write it.
        self.target.fill(|_| 0xcc);
    }

    fn test_sends(&mut self, rig: &mut Rig) {
        for at in 0..self.sends.len() {
            let send = self.sends[at].filter(|_| !self.told[at]);
            self.told[at] |= send.is_some_and(|send| rig.sent(send));
            if self.told[at] {
                // It is the caller's again: what is read from now on is wrong.
                self.sources[at].fill(|_| 0xbb);
            }
        }
    }

    fn is_done(&self) -> bool {
        self.received && self.told.iter().all(|told| *told)
    }
}

struct World {
    rig: Rig,
    random: Random,
    messages: Vec<Message>,
    offered: usize,
    sent: usize,
    /// Control messages on their way, from the sender and from the receiver.
    links: [VecDeque<Control>; 2],
    failures: usize,
    /// The receiver polls so seldom.
    lazy: usize,
    /// Queue pairs that died took shared receives along: until that is polled, others may have to wait.
    stolen: bool,
    /// Control messages take so long.
    deaf: usize,
    /// Every third queue pair from this one on is acknowledged late.
    slow: usize,
}

fn setup(random: &mut Random) -> Setup {
    let rails = 2 + random.below(3) as u8;
    let mut setup = Setup::rerouting(rails);
    setup.each = 1 + random.below(2);
    setup.devices = 1 + random.below(usize::from(rails)) as u8;
    setup.limit = [8, 12, 64][random.below(3)] * u32::from(rails);
    // A receive of 8 buffers needs 512 bytes.
    setup.max_msg_size = [512, 640, 4096][random.below(3)];
    setup.max_send_wr = [4, 9, 32][random.below(3)];
    setup.max_inline_data = [0, 64, 128][random.below(3)];
    setup.sender.split_threshold = [0, 300][random.below(2)];
    setup.sender.separate_signal = [None, Some(1), Some(500)][random.below(3)];
    setup.sender.min_rails = 0;
    setup.sender.entry_form = [EntryForm::Plain, EntryForm::Hashed][random.below(2)];
    let shares = [1, 2, 3, 0, 1, 1, 1, 1];
    setup.sender.split = [
        SplitPolicy::Even,
        SplitPolicy::Weighted { weights: shares },
        SplitPolicy::LeastFinishTime { bandwidth_mbps: shares },
    ][random.below(3)];
    setup
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        for _ in 0..10 {
            random.below(2);
        }
        let rig = setup(&mut random).rig();
        let count = 12 + random.below(40);
        let messages = (0..count).map(|number| Message::new(&rig, &mut random, number)).collect();
        let links = [VecDeque::new(), VecDeque::new()];
        let failures = random.below(5);
        let lazy = [1, 1, 5, 25][random.below(4)];
        let deaf = [1, 1, 10, 40][random.below(4)];
        let slow = random.below(6);
        let (offered, sent) = (0, 0);
        let stolen = false;
        Self { rig, random, messages, offered, sent, links, failures, lazy, stolen, deaf, slow }
    }

    fn places(&self) -> usize {
        self.rig.connections[0].near.len()
    }

    /// A queue pair of either end.
    fn any_queue_pair(&mut self) -> usize {
        let place = self.random.below(self.places());
        if self.random.one_in(2) { self.rig.near(place) } else { self.rig.far(place) }
    }

    fn step(&mut self) {
        match self.random.below(24) {
            0 | 1 if self.offered < self.messages.len() => {
                let number = self.offered;
                self.offered += usize::from(self.messages[number].irecv(&mut self.rig));
            }
            2 | 3 if self.sent < self.offered => {
                let number = self.sent;
                let Self { rig, random, messages, .. } = self;
                self.sent += usize::from(messages[number].isend(rig, random));
            }
            4..=8 => {
                let at = self.any_queue_pair();
                if self.rig.fabric.execute(at) == Step::Dead {
                    self.rig.fabric.fail(at, WcStatus::RETRY_EXC_ERR);
                }
            }
            9..=12 => {
                let at = self.any_queue_pair();
                if at % 3 != self.slow || self.random.one_in(40) {
                    self.rig.fabric.acknowledge(at);
                }
            }
            13 | 14 => self.rig.poll_near(),
            15 | 16 if self.random.one_in(self.lazy) => self.rig.poll_far(),
            17 => self.test(),
            18 => self.talk(),
            19 if self.random.one_in(self.deaf) => self.hear(),
            20 => {
                let all = self.rig.fabric.queue_pairs();
                let at = self.random.below(all);
                let late = self.random.one_in(2);
                self.rig.fabric.straggle(at, late);
            }
            21 if self.failures > 0 && self.random.one_in(8) => self.fail(),
            22 if self.random.one_in(4) => self.replace(),
            23 if self.random.one_in(2) => self.refuse(),
            _ => {
                let Self { rig, random, .. } = self;
                let place = random.below(rig.connections[0].far.len());
                rig.fabric.hold_word(rig.far(place), random.one_in(3));
            }
        }
    }

    fn test(&mut self) {
        let number = self.random.below(self.messages.len());
        let message = &mut self.messages[number];
        if self.random.one_in(2) {
            message.test_recv(&mut self.rig, number);
        } else {
            message.test_sends(&mut self.rig);
        }
    }

    fn talk(&mut self) {
        while let Some(control) = self.rig.sender().next_control() {
            self.links[0].push_back(control);
        }
        while let Some(control) = self.rig.receiver().next_control() {
            self.links[1].push_back(control);
        }
    }

    fn hear(&mut self) {
        if let Some(control) = self.links[0].pop_front() {
            self.rig.receiver().control(control).expect("a correct peer");
        }
        if self.random.one_in(2)
            && let Some(control) = self.links[1].pop_front()
        {
            self.rig.sender().control(control).expect("a correct peer");
        }
    }

    fn fail(&mut self) {
        self.failures -= 1;
        let place = self.random.below(self.places());
        match self.random.below(6) {
            5 => {
                let device = self.random.below(usize::from(self.rig.setup.devices));
                self.rig.lose_device(device);
            }
            0 => drop(self.rig.sender().fail_queue_pair(place)),
            1 => drop(self.rig.receiver().fail_queue_pair(place)),
            2 => self.rig.fabric.fail(self.rig.near(place), WcStatus::RETRY_EXC_ERR),
            3 => self.rig.fabric.fail(self.rig.far(place), WcStatus::RETRY_EXC_ERR),
            _ => self.break_link(),
        }
    }

    /// A driver is full, or one that dies takes a shared receive along.
    fn refuse(&mut self) {
        let at = self.any_queue_pair();
        let accepted = self.random.below(3) as u32;
        match self.random.below(3) {
            0 => self.rig.fabric.refuse(at, accepted, Refusal::QueueFull),
            1 => {
                let srq = self.random.below(self.rig.srqs.len());
                self.rig.fabric.refuse_receives(
                    self.rig.srqs[srq].at,
                    accepted,
                    Refusal::QueueFull,
                );
            }
            _ => {
                let place = self.random.below(self.places());
                self.stolen |= self.rig.fabric.die_with_receive(self.rig.far(place));
            }
        }
    }

    /// The link of control messages breaks; both ends have a new one.
    fn break_link(&mut self) {
        self.links.iter_mut().for_each(VecDeque::clear);
        self.rig.sender().control_lost();
        self.rig.receiver().control_lost();
    }

    fn replace(&mut self) {
        let place = self.random.below(self.places());
        if self.rig.is_down(place) {
            let device = self.random.below(usize::from(self.rig.setup.devices));
            self.rig.replace(place, device);
        }
    }

    /// Nothing fails any more: everything must come to its end.
    fn finish(&mut self) {
        for place in 0..self.places() {
            self.rig.fabric.hold_word(self.rig.far(place), false);
        }
        for round in 0..400 {
            self.rig.fabric.run();
            self.rig.poll();
            self.talk();
            self.hear();
            (0..self.places()).for_each(|place| {
                self.rig.fabric.hold_word(self.rig.far(place), false);
                if self.rig.is_down(place) {
                    self.rig.replace(place, place % usize::from(self.rig.setup.devices));
                }
            });
            for number in 0..self.messages.len() {
                let message = &mut self.messages[number];
                if number == self.offered && message.irecv(&mut self.rig) {
                    self.offered += 1;
                }
                let message = &mut self.messages[number];
                if number == self.sent && number < self.offered {
                    let random = &mut self.random;
                    self.sent += usize::from(message.isend(&mut self.rig, random));
                }
                let message = &mut self.messages[number];
                message.test_recv(&mut self.rig, number);
                message.test_sends(&mut self.rig);
            }
            if self.messages.iter().all(Message::is_done) {
                return self.check(round);
            }
        }
        let waits = self.messages.iter().position(|message| !message.is_done());
        let places = (0..self.places()).map(|place| {
            let connection = &self.rig.connections[0];
            let near = connection.sender.queue_pair_state(place);
            (near, connection.receiver.queue_pair_state(place))
        });
        let places: Vec<_> = places.collect();
        panic!("message {waits:?} of {} waits for ever: {places:?}", self.messages.len());
    }

    fn check(&mut self, _rounds: usize) {
        while self.rig.fabric.straggle_any() {}
        for message in &self.messages {
            let bytes = message.target.bytes();
            assert!(bytes.iter().all(|byte| *byte == 0xcc), "a late write");
        }
        assert!(self.stolen || self.rig.fabric.rnr() == 0, "somebody found a pool dry");
        assert_eq!(self.rig.sender().failure(), None);
        assert_eq!(self.rig.receiver().failure(), None);
    }
}

fn run(seed: u64) {
    let mut world = World::new(seed);
    for _ in 0..2500 {
        world.step();
    }
    world.finish();
}

#[test]
fn every_message_arrives_once_in_any_order_of_steps() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    if let Some(seed) = number("P2P_SEED") {
        return run(seed);
    }
    for seed in 1..=number("P2P_SEEDS").unwrap_or(150) {
        if let Err(cause) = std::panic::catch_unwind(|| run(seed)) {
            println!("P2P_SEED={seed}");
            std::panic::resume_unwind(cause);
        }
    }
}
