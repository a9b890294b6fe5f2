//! Random traffic between two queue pairs, and what was posted.

use super::image::{FETCH_BYTES, Image, SOURCE_BYTES, TARGET_BYTES, WORDS};
use super::support::{Buffer, poll, request};
use polyrail_core::hardware::{QueuePair as _, ReceiveQueue as _, RecvBatch as _, SendBatch as _};
use polyrail_core::verbs::{Completion, Imm, Opcode, SendFlags, SendRequest, Sge};
use polyrail_nic_parts::options::{ConnectOptions, QpCap};
use polyrail_nic_parts::sync::SplitMix64;
use polyrail_tcp_nic::{
    CompletionQueue, Device, DeviceOptions, ProtectionDomain, QpInit, QueuePair, connect_pair,
};

const RECEIVE_BYTES: usize = 12 << 20;

const OPCODES: [Opcode; 7] = [
    Opcode::RdmaWrite,
    Opcode::RdmaWriteWithImm,
    Opcode::Send,
    Opcode::SendWithImm,
    Opcode::RdmaRead,
    Opcode::FetchAdd,
    Opcode::CompareSwap,
];

pub(crate) const KINDS: usize = OPCODES.len();

/// Draws the index of an opcode.
pub(crate) fn kind(rng: &mut SplitMix64) -> usize {
    rng.below(KINDS)
}

/// Memory of an end that can be deregistered.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Region {
    /// What its requests send.
    Source,
    /// What the peer writes and reads.
    Target,
    /// Where its own READs and atomics go.
    Fetched,
    /// What it receives.
    Received,
}

impl Region {
    pub(crate) const ALL: [Self; 4] = [Self::Source, Self::Target, Self::Fetched, Self::Received];
}

/// What a request does.
#[derive(Debug)]
pub(crate) enum Effect {
    Write { at: usize, pieces: Vec<(usize, usize)> },
    Read { from: usize, pieces: Vec<(usize, usize)> },
    Add { word: usize, add: u64, to: usize },
    Swap { word: usize, compare: u64, swap: u64, to: usize },
    Send { pieces: Vec<(usize, usize)> },
}

#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) effect: Effect,
    pub(crate) opcode: Opcode,
    pub(crate) is_signaled: bool,
    pub(crate) length: usize,
    pub(crate) imm: Imm,
    /// Where it fetches to, and what.
    fetched: Option<(usize, Vec<u8>)>,
}

#[derive(Debug)]
pub(crate) struct Receive {
    pub(crate) at: usize,
    pub(crate) length: usize,
}

pub(crate) struct End {
    pub(crate) qp: QueuePair,
    cq: CompletionQueue,
    pub(crate) source: Vec<u8>,
    sources: Buffer,
    pub(crate) target: Buffer,
    pub(crate) words: Buffer,
    pub(crate) fetched: Buffer,
    pub(crate) received: Buffer,
    /// By `wr_id`.
    pub(crate) sent: Vec<Sent>,
    /// Requests of the peer that take a receive, in order, by their `wr_id`.
    pub(crate) takers: Vec<usize>,
    pub(crate) receives: Vec<Receive>,
    next_fetch: usize,
    /// The model, after all requests.
    image: Image,
    pub(crate) completed: Vec<Completion>,
    _pd: ProtectionDomain,
}

impl End {
    fn new(device: &Device, rng: &mut SplitMix64) -> Self {
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(1024).unwrap();
        let cap = QpCap { max_send_sge: 4, max_recv_sge: 4, ..QpCap::default() };
        let qp = pd.create_qp(&QpInit::new(&cq, cap)).unwrap();
        let source: Vec<u8> =
            (0..SOURCE_BYTES / 8).flat_map(|_| rng.next().to_ne_bytes()).collect();
        let buffer = |length| Buffer::new(length, &pd);
        let sources = buffer(SOURCE_BYTES);
        sources.write(0, &source);
        Self {
            qp,
            cq,
            source,
            sources,
            target: buffer(TARGET_BYTES),
            words: buffer(8 * WORDS),
            fetched: buffer(FETCH_BYTES),
            received: buffer(RECEIVE_BYTES),
            sent: Vec::new(),
            takers: Vec::new(),
            receives: Vec::new(),
            next_fetch: 0,
            image: Image::new(),
            completed: Vec::new(),
            _pd: pd,
        }
    }

    fn buffer(&mut self, region: Region) -> &mut Buffer {
        match region {
            Region::Source => &mut self.sources,
            Region::Target => &mut self.target,
            Region::Fetched => &mut self.fetched,
            Region::Received => &mut self.received,
        }
    }

    pub(crate) fn deregister(&mut self, region: Region) {
        self.buffer(region).deregister();
    }

    pub(crate) fn bytes(&mut self, region: Region) -> Vec<u8> {
        self.buffer(region).all()
    }

    /// Whether a request can complete only with the answer of the peer: READs and atomics that have
    /// not completed.
    fn fetches_outstanding(&self) -> impl Iterator<Item = &Sent> {
        let done = self.completed.iter().filter(|one| is_send(one)).map(|one| one.wr_id + 1);
        let done = done.max().unwrap_or(0) as usize;
        self.sent[done..].iter().filter(|sent| sent.opcode.is_fetching())
    }
}

pub(crate) fn is_send(completion: &Completion) -> bool {
    completion.wr_id < RECEIVES
}

/// `wr_id`s of receives begin here.
pub(crate) const RECEIVES: u64 = 1 << 32;

/// Draws a length of 0 B to 1 MiB.
fn length(rng: &mut SplitMix64) -> usize {
    match rng.below(10) {
        0 => 0,
        1..4 => 1 + rng.below(64),
        4..7 => 1 + rng.below(5000),
        7..9 => 1 + rng.below(300_000),
        _ => 1 + rng.below(1 << 20),
    }
}

/// Cuts a length in up to four pieces.
fn cut(rng: &mut SplitMix64, length: usize) -> Vec<usize> {
    let mut pieces = Vec::new();
    let mut left = length;
    for _ in 0..rng.below(4) {
        let piece = rng.below(left + 1);
        pieces.push(piece);
        left -= piece;
    }
    pieces.push(left);
    pieces
}

pub(crate) struct World {
    pub(crate) ends: [End; 2],
    pub(crate) rng: SplitMix64,
}

impl World {
    pub(crate) fn new(network: u8, seed: u64) -> Self {
        let mut rng = SplitMix64::new(seed.wrapping_mul(0x9e37_79b9) + u64::from(network));
        let mut end = |host: u8| {
            let device =
                Device::open(&format!("127.6.{network}.{host}"), &DeviceOptions::default());
            End::new(&device.unwrap(), &mut rng)
        };
        let ends = [end(1), end(2)];
        let options = ConnectOptions {
            max_rd_atomic: 1 + rng.below(4) as u8,
            min_rnr_timer: 1,
            ..ConnectOptions::default()
        };
        connect_pair(&ends[0].qp, &ends[1].qp, &options).unwrap();
        Self { ends, rng }
    }

    pub(crate) fn step(&mut self) {
        let end = self.rng.below(2);
        self.step_of(end);
    }

    /// Does something at this end: posts a request, posts a receive, polls, or lets the I/O thread
    /// work.
    pub(crate) fn step_of(&mut self, end: usize) {
        match self.rng.below(10) {
            0..5 => self.send(end),
            5..7 => self.receive(end),
            7..9 => self.poll(end),
            _ => {
                self.ends[end].cq.req_notify(false);
                std::thread::yield_now();
            }
        }
    }

    pub(crate) fn poll(&mut self, end: usize) {
        let end = &mut self.ends[end];
        let polled = poll(&mut end.cq).unwrap();
        for done in polled.iter().filter(|one| is_send(one) && one.status.is_success()) {
            if let Some((start, bytes)) = &end.sent[done.wr_id as usize].fetched {
                let found = end.fetched.read(*start, bytes.len());
                assert!(found == *bytes, "{} completed before its data came", done.wr_id);
            }
        }
        end.completed.extend(polled);
    }

    fn source_pieces(&mut self, length: usize) -> Vec<(usize, usize)> {
        let rng = &mut self.rng;
        let pieces = cut(rng, length);
        pieces.into_iter().map(|piece| (rng.below(SOURCE_BYTES - piece + 1), piece)).collect()
    }

    /// Takes a place for what is fetched, which no outstanding request uses.
    fn fetch_pieces(&mut self, end: usize, length: usize) -> Option<Vec<(usize, usize)>> {
        let own = &mut self.ends[end];
        let start = own.next_fetch;
        if start + length > FETCH_BYTES {
            return None;
        }
        own.next_fetch += length;
        let mut at = start;
        let mut pieces = Vec::new();
        for piece in cut(&mut self.rng, length) {
            pieces.push((at, piece));
            at += piece;
        }
        Some(pieces)
    }

    /// Whether a request changes what a READ in flight reads.
    fn needs_fence(&self, end: usize, effect: &Effect) -> bool {
        let Effect::Write { at, pieces } = effect else { return false };
        let length: usize = pieces.iter().map(|piece| piece.1).sum();
        self.ends[end].fetches_outstanding().any(|sent| match &sent.effect {
            Effect::Read { from, .. } => *from < at + length && *at < from + sent.length,
            _ => false,
        })
    }

    fn send(&mut self, end: usize) {
        let peer = 1 - end;
        let opcode = OPCODES[kind(&mut self.rng)];
        let takes = matches!(opcode, Opcode::Send | Opcode::SendWithImm | Opcode::RdmaWriteWithImm);
        let mut length = length(&mut self.rng);
        if opcode == Opcode::Send || opcode == Opcode::SendWithImm {
            // Receives that are posted later are as long as they have to be.
            let receive = self.ends[peer].receives.get(self.ends[peer].takers.len());
            length = receive.map_or(length, |receive| length.min(receive.length));
        }
        let (mut remote_addr, mut rkey, mut compare_add, mut swap) = (0, 0, 0, 0);
        let effect = match opcode {
            Opcode::Send | Opcode::SendWithImm => {
                Effect::Send { pieces: self.source_pieces(length) }
            }
            Opcode::RdmaWrite | Opcode::RdmaWriteWithImm => {
                let at = self.rng.below(TARGET_BYTES - length + 1);
                let target = &self.ends[peer].target;
                (remote_addr, rkey) = (target.addr(at), target.rkey);
                Effect::Write { at, pieces: self.source_pieces(length) }
            }
            Opcode::RdmaRead => {
                let from = self.rng.below(TARGET_BYTES - length + 1);
                let Some(pieces) = self.fetch_pieces(end, length) else { return };
                let target = &self.ends[peer].target;
                (remote_addr, rkey) = (target.addr(from), target.rkey);
                Effect::Read { from, pieces }
            }
            _ => {
                length = 8;
                let own = &mut self.ends[end];
                if own.next_fetch + 8 > FETCH_BYTES {
                    return;
                }
                let to = own.next_fetch;
                own.next_fetch += 8;
                let word = self.rng.below(WORDS);
                let words = &self.ends[peer].words;
                (remote_addr, rkey) = (words.addr(8 * word), words.rkey);
                compare_add = self.rng.below(3) as u64;
                swap = self.rng.below(3) as u64;
                match opcode {
                    Opcode::FetchAdd => Effect::Add { word, add: compare_add, to },
                    _ => Effect::Swap { word, compare: compare_add, swap, to },
                }
            }
        };
        let mut flags = SendFlags::empty();
        let is_signaled = self.rng.below(3) > 0;
        flags.set(SendFlags::SIGNALED, is_signaled);
        flags.set(SendFlags::FENCE, self.needs_fence(end, &effect) || self.rng.below(8) == 0);
        let may_inline = length <= 64 && !opcode.is_fetching();
        flags.set(SendFlags::INLINE, may_inline && self.rng.below(2) == 0);
        let own = &mut self.ends[end];
        let list = own.sges(&effect);
        let imm = Imm::from_number(self.rng.next() as u32);
        let wr_id = own.sent.len() as u64;
        let request = SendRequest {
            flags,
            imm,
            remote_addr,
            rkey,
            compare_add,
            swap,
            ..request(opcode, wr_id)
        };
        let mut batch = own.qp.start_send();
        match list[..] {
            [sge] => batch.add(&SendRequest { sge, ..request }),
            _ => batch.add_list(&request, &list),
        }
        // A full queue takes no request.
        if batch.commit().is_ok() {
            own.image.execute(&effect, &own.source);
            let start = match &effect {
                Effect::Read { pieces, .. } => Some(pieces[0].0),
                &(Effect::Add { to, .. } | Effect::Swap { to, .. }) => Some(to),
                _ => None,
            };
            let fetched =
                start.map(|start| (start, own.image.fetched[start..start + length].to_vec()));
            own.sent.push(Sent { effect, opcode, is_signaled, length, imm, fetched });
            if takes {
                self.ends[peer].takers.push(wr_id as usize);
            }
        }
    }

    fn receive(&mut self, end: usize) {
        let (own, peer) = (&self.ends[end], &self.ends[1 - end]);
        let taker = own.takers.get(own.receives.len()).map(|&wr_id| &peer.sent[wr_id]);
        let needed = taker.filter(|sent| sent.opcode != Opcode::RdmaWriteWithImm);
        let length = needed.map_or(0, |sent| sent.length) + length(&mut self.rng) / 2;
        let at = own.receives.last().map_or(0, |last| last.at + last.length);
        if at + length > RECEIVE_BYTES {
            // Too short only if the request needs it: later ones are limited by its length.
            return self.receive_of(end, needed.map_or(0, |sent| sent.length));
        }
        self.receive_of(end, length);
    }

    fn receive_of(&mut self, end: usize, length: usize) {
        let pieces = cut(&mut self.rng, length);
        let own = &mut self.ends[end];
        let start = own.receives.last().map_or(0, |last| last.at + last.length);
        if start + length > RECEIVE_BYTES {
            return;
        }
        let mut at = start;
        let mut list = Vec::new();
        for piece in pieces {
            list.push(own.received.sge(at, piece));
            at += piece;
        }
        let mut batch = own.qp.start_recv();
        batch.add_list(RECEIVES + own.receives.len() as u64, &list);
        if batch.commit().is_ok() {
            own.receives.push(Receive { at: start, length });
        }
    }

    /// Posts receives for all requests that need one.
    pub(crate) fn post_missing_receives(&mut self) {
        for end in 0..2 {
            while self.ends[end].receives.len() < self.ends[end].takers.len() {
                let before = self.ends[end].receives.len();
                self.receive(end);
                // The receive queue is full until completions are polled.
                if self.ends[end].receives.len() == before {
                    self.poll(0);
                    self.poll(1);
                }
            }
        }
    }

    pub(crate) fn posted(&self, end: usize) -> usize {
        self.ends[end].sent.len()
    }

    /// Receives of the end that requests of the peer have taken.
    pub(crate) fn posted_receives(&self, end: usize) -> usize {
        self.ends[end].takers.len()
    }

    fn count(&self, end: usize, sends: bool) -> usize {
        self.ends[end].completed.iter().filter(|one| is_send(one) == sends).count()
    }

    /// Whether everything has completed.
    pub(crate) fn is_quiet(&self) -> bool {
        (0..2).all(|end| {
            let signaled = self.ends[end].sent.iter().filter(|sent| sent.is_signaled).count();
            self.count(end, true) >= signaled
                && self.count(end, false) >= self.posted_receives(end)
                && self.unsignaled_is_done(end)
        })
    }

    /// Whether the effects of unsignaled requests at the end of the queue are in memory.
    fn unsignaled_is_done(&self, end: usize) -> bool {
        if self.ends[end].sent.last().is_none_or(|sent| sent.is_signaled) {
            return true;
        }
        let image = Image::after(self, end, self.posted(end));
        self.ends[1 - end].target.all() == image.target
            && self.ends[1 - end].words.all() == words(&image)
            && self.ends[end].fetched.all() == image.fetched
    }

    /// Whether both ends have flushed everything.
    pub(crate) fn is_flushed(&self) -> bool {
        (0..2).all(|end| {
            let own = &self.ends[end];
            let last = own.completed.iter().rfind(|one| is_send(one));
            let sends = match last {
                Some(last) => last.wr_id + 1 == own.sent.len() as u64,
                None => own.sent.iter().all(|sent| !sent.is_signaled),
            };
            let rest = last.map_or(0, |last| last.wr_id as usize + 1);
            let unsignaled = own.sent[rest..].iter().all(|sent| !sent.is_signaled);
            (sends || unsignaled) && self.count(end, false) == own.receives.len()
        })
    }

    /// All memory of an end that its peer's requests or answers change.
    pub(crate) fn bytes(&self, end: usize) -> Vec<u8> {
        let own = &self.ends[end];
        [&own.target, &own.words, &own.fetched, &own.received].map(Buffer::all).concat()
    }
}

pub(crate) fn words(image: &Image) -> Vec<u8> {
    image.words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

impl End {
    fn sges(&self, effect: &Effect) -> Vec<Sge> {
        let list = |buffer: &Buffer, pieces: &[(usize, usize)]| {
            pieces.iter().map(|&(at, length)| buffer.sge(at, length)).collect()
        };
        match effect {
            Effect::Write { pieces, .. } | Effect::Send { pieces } => list(&self.sources, pieces),
            Effect::Read { pieces, .. } => list(&self.fetched, pieces),
            &(Effect::Add { to, .. } | Effect::Swap { to, .. }) => vec![self.fetched.sge(to, 8)],
        }
    }
}
