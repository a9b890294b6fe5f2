//! A peer of which every byte is chosen: what it writes into the ring and the records, what its
//! immediates and its control messages contain.

use super::World;
use super::fabric::Fabric;
use super::memory::{Kind, Memory};
use super::shape::{Line, Shape, Size};
use crate::choices::{Bytes, Choices, pick};
use polyrail_core::internals::{entry_word, ring_words};
use polyrail_core::p2p::{
    Control, ENTRY_BYTES, Entry, ImmLayout, Immediate, MAX_BUFFERS, Mask, RECORD_BYTES, Told,
};
use polyrail_core::verbs::{Imm, SendRequest, WcOpcode};
use std::collections::HashSet;

const ENTRY_WORDS: usize = ENTRY_BYTES / 8;
const RECORD_WORDS: usize = RECORD_BYTES / 8;
const DEPTH: usize = Size::Small.depth() as usize;
const SLOTS: usize = Size::Small.slots() as usize;
const ENTRIES: usize = ring_words(SLOTS) / ENTRY_WORDS;

/// The connection whose peers send anything. The peers of the other one keep to the protocol.
const BAD: usize = 0;

/// Lets the peers of both ends of a connection send what `bytes` choose, beside another connection
/// on the same pools.
///
/// # Panics
///
/// If anything but that connection fails, or it with anything but a typed error; if the count of a
/// pool is wrong after a step; if its sender writes anywhere but into buffers that it was offered.
pub fn any_peer(bytes: &[u8]) {
    let mut choices = Bytes::new(bytes);
    let mut ends = Ends::new(&mut choices);
    while !choices.is_empty() {
        ends.step(&mut choices);
    }
    ends.world.finish();
}

/// A buffer that an entry in the ring has offered: address, bytes, keys.
type Offer = (u64, u32, [u64; 4]);

struct Ends {
    world: World<DEPTH, SLOTS>,
    /// Everything that was ever in the ring.
    offers: HashSet<Offer>,
    /// The newest message that the sender has begun.
    begun: u64,
}

fn number(choices: &mut dyn Choices) -> u32 {
    choices.below(1 << 16) << 16 | choices.below(1 << 16)
}

fn word(choices: &mut dyn Choices) -> u64 {
    u64::from(number(choices)) << 32 | u64::from(number(choices))
}

impl Ends {
    fn new(choices: &mut dyn Choices) -> Self {
        let mut shape = Shape::small();
        shape.devices = [0; 2].map(|_| pick(choices, &[1, 2, 3]));
        shape.tears = choices.coin();
        let line = |_| Line { from: 0, ..Line::choose(&shape, choices) };
        shape.lines = (0..2).map(line).collect();
        let mut world = World::new(shape);
        world.connections[BAD].note_forgery(&mut world.nics.borrow_mut());
        Self { world, offers: HashSet::new(), begun: 0 }
    }

    fn step(&mut self, choices: &mut dyn Choices) {
        match choices.below(16) {
            0 | 1 => self.write_entry(choices),
            2 => self.write_words(choices),
            3..=5 => self.deliver(choices),
            6 => self.tell(choices),
            7 | 8 => self.send(choices),
            9 => self.offer(choices),
            _ => {
                let action = self.world.choose(choices);
                self.world.perform(action);
            }
        }
        self.world.check();
        self.note_offers();
        let nics = self.world.nics.borrow();
        let requests = self.world.connections[BAD].near.iter().flat_map(|at| nics.requests(*at));
        requests.for_each(|request| self.check_request(&nics, request));
    }

    /// Words of what could be an entry, whole or in part.
    fn write_entry(&self, choices: &mut dyn Choices) {
        let connection = &self.world.connections[BAD];
        let nics = self.world.nics.borrow();
        let block = choices.below(64) as usize;
        let entry = Entry {
            number: self.begun + u64::from(choices.below(3)),
            addr: pick(choices, &[1 << 60, u64::MAX, 0]) ^ u64::from(choices.below(256)),
            length: if choices.coin() { 4096 } else { number(choices) },
            tag: choices.below(3),
            rkeys: [Memory::key(block, choices.below(8) as usize); 8],
            count: choices.below(10) as u8,
            index: choices.below(9) as u8,
        };
        let slot = entry.number.saturating_sub(1) as usize % SLOTS;
        // Sometimes where entries of another number of buffers belong.
        let count = if choices.one_in(8) { MAX_BUFFERS } else { usize::from(entry.count) };
        let index = usize::from(entry.index) % MAX_BUFFERS;
        let first = entry_word(SLOTS, slot, count) + index * ENTRY_WORDS;
        let kept = pick(choices, &[0, 0, 0, 255]) & choices.below(256);
        for (at, word) in entry.encode(connection.line.form).into_iter().enumerate() {
            if kept >> at & 1 == 0 {
                nics.write_word(connection.ring, first + at, word);
            }
        }
    }

    /// Any word, anywhere in what a peer may write.
    fn write_words(&self, choices: &mut dyn Choices) {
        let connection = &self.world.connections[BAD];
        let nics = self.world.nics.borrow();
        let (block, words) = match choices.coin() {
            true => (connection.ring, ENTRIES * ENTRY_WORDS),
            false => (connection.records, SLOTS * RECORD_WORDS),
        };
        let at = choices.below(words as u32) as usize;
        let small = u64::from(choices.below(256));
        nics.write_word(block, at, if choices.coin() { small } else { word(choices) });
    }

    /// Any immediate, with any number of bytes.
    fn deliver(&self, choices: &mut dyn Choices) {
        let connection = &self.world.connections[BAD];
        let mut nics = self.world.nics.borrow_mut();
        let at = pick(choices, &connection.far);
        let srq = nics.cq_of(at);
        if nics.qps[at].in_error || nics.srqs[srq].receives == 0 {
            return;
        }
        nics.srqs[srq].is_robbed = true;
        let imm = if choices.coin() {
            Imm::from_number(number(choices))
        } else {
            plausible(connection.line.layout(), choices)
        };
        let bytes = pick(choices, &[None, Some(0), Some(8), Some(128)]);
        let bytes = bytes.unwrap_or_else(|| number(choices));
        let opcode = if choices.one_in(16) { WcOpcode::RECV } else { WcOpcode::RECV_RDMA_WITH_IMM };
        nics.deliver(at, imm, bytes, opcode);
    }

    /// Any control message, to either end.
    fn tell(&mut self, choices: &mut dyn Choices) {
        let mut bytes = [0; Control::BYTES];
        bytes.iter_mut().for_each(|byte| *byte = choices.below(256) as u8);
        let host = choices.below(2) as usize;
        if let Ok(control) = Control::decode(&bytes) {
            self.world.connections[BAD].hear(host, control);
        }
    }

    fn send(&mut self, choices: &mut dyn Choices) {
        let length = self.world.connections[BAD].line.length(choices);
        let length = if choices.coin() { choices.below(256) } else { length };
        if self.world.send(BAD, choices.below(3), length) {
            let newest = self.world.connections[BAD].outgoing.last().expect("it was taken");
            self.begun = newest.handle.number();
        }
    }

    fn offer(&mut self, choices: &mut dyn Choices) {
        let count = 1 + choices.below(MAX_BUFFERS as u32) as usize;
        let count = if choices.coin() { 1 } else { count };
        let length = self.world.connections[BAD].line.length(choices);
        self.world.offer(BAD, &vec![length; count], &vec![choices.below(3); count]);
    }

    /// Remembers what is in the ring.
    fn note_offers(&mut self) {
        let nics = self.world.nics.borrow();
        let ring = self.world.connections[BAD].ring;
        let Kind::Words(words) = &nics.memory.block(ring).kind else { panic!("no words") };
        let words = words.read(0, ENTRIES * ENTRY_WORDS);
        let entries = words.as_chunks::<ENTRY_WORDS>().0;
        let offers = entries
            .iter()
            .map(|[addr, length, a, b, c, d, ..]| (*addr, *length as u32, [*a, *b, *c, *d]));
        self.offers.extend(offers.filter(|(_, length, _)| *length > 0));
    }

    /// A request writes into a buffer that was offered, or a record, or nothing at all.
    fn check_request(&self, nics: &Fabric, request: &SendRequest) {
        let (length, start) = (request.sge.length(), request.remote_addr);
        let is_within = |addr: u64, room: u64| {
            start >= addr
                && u128::from(start) + u128::from(length) <= u128::from(addr) + u128::from(room)
        };
        let has_key = |keys: &[u64; 4]| {
            keys.iter().any(|two| [*two as u32, (*two >> 32) as u32].contains(&request.rkey))
        };
        let records = nics.memory.block(self.world.connections[BAD].records).addr;
        let is_record = is_within(records, (SLOTS * RECORD_BYTES) as u64);
        let is_offered =
            |(addr, room, keys): &Offer| is_within(*addr, u64::from(*room)) && has_key(keys);
        let is_fine = length == 0 || is_record || self.offers.iter().any(is_offered);
        assert!(is_fine, "{request:?} goes where nothing was offered");
    }
}

/// An immediate that could be due.
fn plausible(layout: ImmLayout, choices: &mut dyn Choices) -> Imm {
    let told = match choices.below(4) {
        0 => Told::Record,
        1 => Told::Moved(choices.below(8) as u8),
        _ => Told::Units(choices.below(3)),
    };
    let (slot, mask) = (choices.below(3) as u8, Mask::from_bits(choices.below(256) as u8));
    layout.encode(Immediate { slot, mask, told })
}
