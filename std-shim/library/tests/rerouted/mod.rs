//! Two ends whose rails fail: traffic both ways, every byte checked, every request reported once.

#![allow(dead_code, reason = "every test program uses its own part")]
#![allow(unreachable_pub, reason = "a module of several test programs")]

pub mod fault_schedule;

use crate::fixture::{self, impatient};
use polyrail::endpoint::{
    Endpoint, EndpointBuilder, HealingLink, HealingMessage, NamedRailEvent, ReplacementAddress,
    connect_endpoints,
};
use polyrail::heal::Healing;
use polyrail::memory::RegisteredBuffer;
use polyrail::nic::{Device, Fabric, ProtectionDomain};
use polyrail::verbs::{DeviceKeys, LocalBuffer, RecvWr, SendWr, WcOpcode, WcStatus};
use polyrail::virtual_cq::VirtualWc;
use polyrail::virtual_qp::{QpState, RailFailure, RailId, RailState, Scheme};
use std::time::{Duration, Instant};

/// Bytes of a message: more fragments than there are rails.
pub const LENGTH: usize = 20_000;
/// Messages each way.
pub const MESSAGES: usize = 30;
/// Of which so many are outstanding.
const OUTSTANDING: usize = 12;
/// What a receiver writes over what it was notified of: what comes later is seen.
const TAKEN: u8 = 0xEE;
/// What a sender writes over what is reported: what is read later is seen.
const REPORTED: u8 = 0xDD;

/// A builder of endpoints whose rails are re-routed, over four rails, and which never wait before
/// they try again. Rails that are away go home only when they fail next: a test that takes long
/// would find them on their way.
pub fn healed(scheme: Scheme) -> EndpointBuilder {
    let healing = Healing {
        first_interval: Duration::ZERO,
        longest_interval: Duration::ZERO,
        fallback_after: Duration::ZERO,
        home_after: None,
        ..Healing::default()
    };
    EndpointBuilder::new()
        .scheme(scheme)
        .max_msg_size(4096)
        .rail_failure(RailFailure::Reroute)
        .healing(healing)
        .connect_options(impatient())
}

/// How a message moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// WRITE_WITH_IMM, and the peer is notified.
    Write,
    /// READ of what never changes.
    Read,
    /// SEND, to a receive with a buffer.
    Send,
}

/// How message number `message` moves. DQPLB has no SENDs.
fn kind(message: usize, scheme: Scheme) -> Kind {
    match message % 6 {
        2 => Kind::Read,
        4 if scheme == Scheme::Spray => Kind::Send,
        _ => Kind::Write,
    }
}

/// Parts of a buffer, of so many messages each.
#[derive(Clone, Copy)]
enum Part {
    /// What it writes and sends.
    Source,
    /// What arrives.
    Target,
    /// What the peer may read, and never changes.
    Constant,
    /// What it has read.
    Fetched,
}

fn place(part: Part, message: usize) -> usize {
    (part as usize * MESSAGES + message) * LENGTH
}

/// One of the two ends.
pub struct End {
    pub devices: Vec<Device>,
    pub domains: Vec<ProtectionDomain>,
    pub buffer: RegisteredBuffer,
    pub endpoint: Endpoint,
    pub events: Vec<NamedRailEvent>,
    /// Device keys and address of the other end's buffer.
    keys: Vec<DeviceKeys>,
    target: u64,
    /// Seeds the bytes of what it sends.
    pub salt: usize,
    scheme: Scheme,
    posted: usize,
    sent: usize,
    /// Where each of what is in order goes on: reports of all but SENDs, and of SENDs;
    /// notifications, and what SENDs brought.
    orders: [usize; 4],
    received: usize,
    /// Messages that it posts.
    pub limit: usize,
    /// Whether it may fail for good.
    pub may_fail: bool,
}

fn byte(salt: usize, message: usize, at: usize) -> u8 {
    // Never what is written over what was taken.
    ((salt * 97 + message * 31 + at * 7 + at / 251) % 200) as u8
}

impl End {
    fn new(fabric: &Fabric, name: &str, devices: usize, builder: &EndpointBuilder) -> Self {
        let host = fixture::Host::new(fabric, name, devices, 4 * MESSAGES * LENGTH);
        let endpoint = builder.build(&host.all()).unwrap();
        let fixture::Host { devices, domains, buffer } = host;
        let salt = name.len();
        let bytes = |message| (0..LENGTH).map(move |at| byte(salt, message, at));
        let all: Vec<u8> = (0..MESSAGES).flat_map(bytes).collect();
        buffer.write_at(place(Part::Source, 0), &all).unwrap();
        buffer.write_at(place(Part::Constant, 0), &all).unwrap();
        let scheme = endpoint.virtual_qp().config().scheme;
        Self {
            devices,
            domains,
            buffer,
            endpoint,
            events: Vec::new(),
            keys: Vec::new(),
            target: 0,
            salt,
            scheme,
            posted: 0,
            sent: 0,
            orders: [0; 4],
            received: 0,
            limit: MESSAGES,
            may_fail: false,
        }
    }

    fn meet(&mut self, peer: &Self) {
        self.keys = self.buffer.toward(&peer.buffer.remote()).unwrap();
        self.target = peer.buffer.addr();
        let local_keys = self.buffer.local_keys();
        for message in 0..MESSAGES {
            let wr_id = message as u64;
            let wr = match kind(message, self.scheme) {
                Kind::Write => RecvWr::notification(wr_id),
                Kind::Send => RecvWr::data(wr_id, self.local(Part::Target, message), &local_keys),
                Kind::Read => continue,
            };
            self.endpoint.post_recv(&wr).unwrap();
        }
    }

    fn local(&self, part: Part, message: usize) -> LocalBuffer {
        self.buffer.local(place(part, message), LENGTH as u32).unwrap()
    }

    /// Keeps requests outstanding, as long as it has messages.
    fn post(&mut self) {
        let is_well = self.endpoint.state() != QpState::Error;
        while is_well && self.posted < self.limit && self.posted < self.sent + OUTSTANDING {
            let message = self.posted;
            let wr_id = message as u64;
            let source = self.local(Part::Source, message);
            let remote = |part| self.target + place(part, message) as u64;
            let keys = &self.keys;
            let wr = match kind(message, self.scheme) {
                Kind::Write => {
                    SendWr::write_with_imm(wr_id, source, remote(Part::Target), wr_id as u32, keys)
                }
                Kind::Send => SendWr::send(wr_id, source, keys),
                Kind::Read => {
                    let local = self.local(Part::Fetched, message);
                    SendWr::read(wr_id, local, remote(Part::Constant), keys)
                }
            };
            self.endpoint.post_send(&wr).unwrap();
            self.posted += 1;
        }
    }

    /// Posts what there is to post, and polls.
    pub fn go_on(&mut self, peer_salt: usize) {
        self.post();
        self.poll(peer_salt);
    }

    /// Polls, and checks what comes: all in order, each once. A completion queue may be broken: the
    /// others are polled all the same.
    fn poll(&mut self, peer_salt: usize) {
        let batch = self.endpoint.poll(16);
        assert_eq!(batch.foreign, []);
        for wc in batch.completions {
            self.take(&wc, peer_salt);
        }
        self.events.extend(std::iter::from_fn(|| self.endpoint.take_rail_event()));
    }

    fn take(&mut self, wc: &VirtualWc, peer_salt: usize) {
        if wc.status != WcStatus::SUCCESS && !self.may_fail {
            panic!("{wc:?}: {}; {:?}", self.endpoint.explain(wc.status), self.told());
        }
        match wc.opcode {
            WcOpcode::RECV_RDMA_WITH_IMM => self.receive(Kind::Write, wc, peer_salt),
            WcOpcode::RECV => self.receive(Kind::Send, wc, peer_salt),
            _ => self.reported(wc, peer_salt),
        }
    }

    /// Each once, SENDs in order and all others in order, and what is given back is written over.
    fn reported(&mut self, wc: &VirtualWc, peer_salt: usize) {
        let is_send = wc.opcode == WcOpcode::SEND;
        let message = self.next(usize::from(is_send), |kind| (kind == Kind::Send) == is_send);
        assert_eq!(wc.wr_id, message as u64, "{wc:?}");
        if kind(message, self.scheme) == Kind::Read && wc.status.is_success() {
            self.check(Part::Fetched, message, peer_salt);
        }
        self.buffer.write_at(place(Part::Source, message), &[REPORTED; LENGTH]).unwrap();
        self.sent += 1;
    }

    /// The next of its kind, and everything of it is there.
    fn receive(&mut self, of: Kind, wc: &VirtualWc, peer_salt: usize) {
        let message = self.next(2 + usize::from(of == Kind::Send), |kind| kind == of);
        assert_eq!(wc.wr_id, message as u64, "{wc:?}");
        assert!(wc.imm.is_none_or(|imm| imm == message as u32), "{wc:?}");
        if wc.status.is_success() {
            self.check(Part::Target, message, peer_salt);
            self.received += 1;
        }
    }

    /// The next message of this order, which holds those of a kind.
    fn next(&mut self, order: usize, is_of_it: impl Fn(Kind) -> bool) -> usize {
        let from = self.orders[order];
        let found = (from..MESSAGES).find(|message| is_of_it(kind(*message, self.scheme)));
        let message = found.expect("no more than there are");
        self.orders[order] = message + 1;
        message
    }

    fn check(&self, part: Part, message: usize, salt: usize) {
        let mut bytes = vec![0; LENGTH];
        self.buffer.read_at(place(part, message), &mut bytes).unwrap();
        let wrong = (0..LENGTH).find(|at| bytes[*at] != byte(salt, message, *at));
        assert_eq!(wrong, None, "a byte of message {message}");
        self.buffer.write_at(place(part, message), &[TAKEN; LENGTH]).unwrap();
    }

    pub fn is_done(&self) -> bool {
        self.has_done(MESSAGES)
    }

    /// Whether it and the peer have moved so many messages.
    fn has_done(&self, messages: usize) -> bool {
        let arrives = |message: &usize| kind(*message, self.scheme) != Kind::Read;
        let due = (0..messages).filter(arrives).count();
        self.sent >= messages && self.received >= due
    }

    /// Nothing changed after it was handed over.
    pub fn check_memory(&self) {
        for message in 0..MESSAGES {
            self.check_all_are(Part::Source, message, REPORTED);
            let part = match kind(message, self.scheme) {
                Kind::Read => Part::Fetched,
                Kind::Write | Kind::Send => Part::Target,
            };
            self.check_all_are(part, message, TAKEN);
        }
    }

    fn check_all_are(&self, part: Part, message: usize, value: u8) {
        let mut bytes = vec![0; LENGTH];
        self.buffer.read_at(place(part, message), &mut bytes).unwrap();
        let late = bytes.iter().position(|byte| *byte != value);
        assert_eq!(late, None, "a byte of message {message} that was written late");
    }

    /// Whether it failed for good, and has reported everything.
    pub fn has_ended(&self) -> bool {
        let ended = self.endpoint.state() == QpState::Error && self.endpoint.unreported() == 0;
        assert!(!ended || self.sent == self.posted);
        ended
    }

    pub fn state(&self, rail: RailId) -> RailState {
        self.endpoint.virtual_qp().rail_state(rail).unwrap()
    }

    pub fn generation(&self, rail: RailId) -> u16 {
        self.endpoint.virtual_qp().rail_generation(rail).unwrap()
    }

    /// Messages that were taken so far.
    pub fn received(&self) -> usize {
        self.received
    }

    /// How it stands, for failed tests.
    pub fn report(&self, name: &str) -> String {
        let qp = self.endpoint.virtual_qp();
        let Self { posted, sent, received, .. } = self;
        let mut text = format!("{name}: {posted} posted, {sent} sent, {received} received, ");
        text += &format!("{:?}, {:?}\n", qp.state(), qp.failure());
        let reports = self.endpoint.rail_reports();
        let told = reports.iter().map(ToString::to_string).chain(self.told());
        told.for_each(|told| text += &format!("  {told}\n"));
        text
    }

    /// What happened, in words.
    pub fn told(&self) -> Vec<String> {
        self.events.iter().map(ToString::to_string).collect()
    }
}

/// The two ends.
pub struct Ends {
    pub fabric: Fabric,
    pub near: End,
    pub far: End,
}

impl Ends {
    /// Rails on `devices` devices each, connected, with traffic both ways to come.
    pub fn new(seed: u64, devices: usize, builder: &EndpointBuilder) -> Self {
        Self::on(Fabric::deterministic(seed), devices, builder)
    }

    /// [`new`](Self::new) on any fabric.
    pub fn on(fabric: Fabric, devices: usize, builder: &EndpointBuilder) -> Self {
        let mut near = End::new(&fabric, "near", devices, builder);
        let mut far = End::new(&fabric, "far", devices, builder);
        connect_endpoints(&mut near.endpoint, &mut far.endpoint).unwrap();
        Self::meet(fabric, near, far)
    }

    /// [`on`](Self::on), as hosts do that know each other's address only: what they tell each other
    /// is to be carried.
    pub fn apart(fabric: Fabric, devices: usize, builder: &EndpointBuilder) -> Self {
        let mut near = End::new(&fabric, "near", devices, builder);
        let mut far = End::new(&fabric, "far", devices, builder);
        let addresses = [near.endpoint.address(), far.endpoint.address()];
        near.endpoint.connect(&addresses[1]).unwrap();
        far.endpoint.connect(&addresses[0]).unwrap();
        Self::meet(fabric, near, far)
    }

    fn meet(fabric: Fabric, mut near: End, mut far: End) -> Self {
        near.meet(&far);
        far.meet(&near);
        Self { fabric, near, far }
    }

    /// One step of the fabric and of both ends.
    pub fn step(&mut self) {
        self.near.post();
        self.far.post();
        self.fabric.step();
        self.near.poll(self.far.salt);
        self.far.poll(self.near.salt);
    }

    /// Goes on until `is_there`, doing `then` after every step.
    pub fn go_on(&mut self, mut then: impl FnMut(&mut Self), is_there: impl Fn(&Self) -> bool) {
        /// Far more than all messages take.
        const STEPS: usize = 200_000;
        for _ in 0..STEPS {
            if is_there(self) {
                return;
            }
            self.step();
            then(self);
        }
        panic!("{}", self.report());
    }

    /// Until `messages` arrived and are reported both ways; nothing is under way then.
    pub fn pause_after(&mut self, messages: usize) {
        self.limit(messages);
        self.go_on(|_| (), |ends| [&ends.near, &ends.far].iter().all(|end| end.has_done(messages)));
        for _ in 0..200 {
            self.step();
        }
        self.limit(MESSAGES);
    }

    /// Until all messages arrived and are reported; then checks that nothing changed afterwards,
    /// also when all that is under way has ended.
    pub fn finish(&mut self, mut then: impl FnMut(&mut Self)) {
        self.go_on(&mut then, |ends| ends.near.is_done() && ends.far.is_done());
        for _ in 0..500 {
            self.step();
            then(self);
        }
        for end in [&self.near, &self.far] {
            assert_eq!(end.endpoint.unreported(), 0);
            assert_eq!(end.endpoint.virtual_qp().protocol_errors(), 0);
            assert_eq!(end.endpoint.virtual_qp().duplicates(), 0);
            end.check_memory();
        }
    }

    /// The links of both ends, which [live apart](Self::apart).
    pub fn links(&self) -> [HealingLink; 2] {
        [&self.near, &self.far].map(|end| end.endpoint.healing_link().unwrap())
    }

    /// One end.
    pub fn side(&self, near: bool) -> &End {
        if near { &self.near } else { &self.far }
    }

    /// Polls both ends until `is_there`, without any requests.
    pub fn poll_until(&mut self, is_there: impl Fn(&Self) -> bool) {
        self.limit(0);
        let begin = Instant::now();
        while !is_there(self) {
            self.step();
            assert!(begin.elapsed() < fixture::LONG, "{}", self.report());
        }
    }

    /// Lets each end post so many messages altogether.
    pub fn limit(&mut self, messages: usize) {
        self.near.limit = messages;
        self.far.limit = messages;
    }

    pub fn is_ready(&self) -> bool {
        [&self.near, &self.far].iter().all(|end| end.endpoint.state() == QpState::Ready)
    }

    pub fn report(&self) -> String {
        self.near.report("near") + &self.far.report("far")
    }
}

/// The address of a queue pair that no other queue pair goes with: another pair of endpoints made
/// it.
pub fn unwanted() -> ReplacementAddress {
    let mut others = Ends::apart(Fabric::deterministic(3), 4, &healed(Scheme::Spray));
    others.limit(0);
    others.near.endpoint.fail_rail(RailId::Data(1));
    let links = others.links();
    first_offer(&mut others, &links).1
}

/// Carries everything between the two ends but the first offer. Returns the place among the links
/// of the end that made the offer, and the offer.
pub fn first_offer(ends: &mut Ends, links: &[HealingLink; 2]) -> (usize, ReplacementAddress) {
    let begin = Instant::now();
    loop {
        ends.step();
        for at in 0..2 {
            while let Some(message) = links[at].next_message() {
                match message {
                    HealingMessage::Offer(offered) => return (at, offered),
                    message => links[1 - at].handle(message).unwrap(),
                }
            }
        }
        assert!(begin.elapsed() < fixture::LONG, "{}", ends.report());
    }
}
