//! A peer that does not keep to the protocol: immediates, entries and records that no correct one
//! sends. And a peer that writes where no end may look any more, which must change nothing.

use super::World;
use super::connection::{Connection, Receive};
use super::fabric::Fabric;
use super::memory::Memory;
use crate::choices::{Choices, Seeded, pick};
use polyrail_core::internals::{entry_word, ring_words};
use polyrail_core::p2p::{ENTRY_BYTES, Entry, EntryForm, Immediate, MAX_BUFFERS, Mask, Told};
use polyrail_core::verbs::{Imm, WcOpcode};

const ENTRY_WORDS: usize = ENTRY_BYTES / 8;

/// Words of the record of a slot.
const RECORD_WORDS: usize = 8;

fn any(choices: &mut dyn Choices) -> u32 {
    choices.below(1 << 16) << 16 | choices.below(1 << 16)
}

/// A word that may mean something.
fn word(choices: &mut dyn Choices) -> u64 {
    let random = u64::from(any(choices)) << 32 | u64::from(any(choices));
    pick(choices, &[random, 0, 1, 128, random >> 32, u64::from(u32::MAX), 1 << 32, u64::MAX])
}

impl<const DEPTH: usize, const SLOTS: usize> World<DEPTH, SLOTS> {
    /// The peer sends what no correct peer sends.
    pub(super) fn forge(&mut self, at: usize, draw: u32) {
        if self.left.forgeries == 0 {
            return;
        }
        self.left.forgeries -= 1;
        let mut choices = Seeded::new(draw.into());
        let connection = &mut self.connections[at];
        let nics = &mut *self.nics.borrow_mut();
        connection.note_forgery(nics);
        match choices.below(4) {
            0 | 1 => connection.forge_immediate(nics, &mut choices),
            2 => connection.forge_entry(nics, &mut choices),
            _ => {
                let words = (SLOTS * RECORD_WORDS + ring_words(SLOTS)) as u32;
                let near = choices.coin();
                let all = if near { (SLOTS * RECORD_WORDS) as u32 } else { words };
                let place = choices.below(all) as usize;
                nics.write_word(connection.records, place, word(&mut choices));
            }
        }
        self.summary.forgeries += 1;
    }

    /// The peer writes where no end may look any more.
    pub(super) fn scribble(&mut self, at: usize, draw: u32) {
        let mut choices = Seeded::new(draw.into());
        let is_idle = self.is_idle(1 - self.connections[at].line.from);
        let connection = &mut self.connections[at];
        if self.left.scribbles == 0 || connection.receives.is_empty() {
            return;
        }
        self.left.scribbles -= 1;
        let nics = &mut *self.nics.borrow_mut();
        if choices.coin() {
            connection.scribble_entries(nics, &mut choices);
        } else {
            connection.scribble_record(nics, is_idle, &mut choices);
        }
    }

    /// Whether a host has taken all its completions.
    fn is_idle(&self, host: usize) -> bool {
        let nics = self.nics.borrow();
        let devices = 0..self.shape.devices[host];
        devices.into_iter().all(|device| nics.waiting(super::fabric::device_at(host, device)) == 0)
    }
}

impl<const DEPTH: usize, const SLOTS: usize> Connection<DEPTH, SLOTS> {
    /// From now on, its peers may send anything.
    pub(super) fn note_forgery(&mut self, nics: &mut Fabric) {
        self.may_fail = true;
        self.is_forged = true;
        for queue_pair in self.queue_pairs() {
            nics.qps[queue_pair].is_honest = false;
        }
    }

    fn forge_immediate(&self, nics: &mut Fabric, choices: &mut dyn Choices) {
        let at = pick(choices, &self.far);
        let srq = nics.cq_of(at);
        if nics.qps[at].in_error || nics.srqs[srq].receives == 0 {
            return;
        }
        nics.srqs[srq].is_robbed = true;
        let waiting = self.receives.iter().rposition(|receive| receive.handle.is_some());
        let slot = match waiting {
            Some(number) if !choices.one_in(4) => number % SLOTS,
            _ => choices.below(256) as usize,
        };
        let told = match choices.below(4) {
            0 => Told::Record,
            1 => Told::Moved(choices.below(8) as u8),
            _ => Told::Units(pick(choices, &[0, 1, 2, 8_388_605])),
        };
        let mask = Mask::from_bits(choices.below(256) as u8);
        let immediate = Immediate { slot: slot as u8, mask, told };
        let plausible = self.line.layout().encode(immediate);
        let imm = if choices.one_in(3) { Imm::from_number(any(choices)) } else { plausible };
        let rare = [WcOpcode::RECV_RDMA_WITH_IMM, WcOpcode::RECV_RDMA_WITH_IMM, WcOpcode::RECV];
        let bytes = pick(choices, &[0, 1, 128, 200, 8, u32::MAX]);
        nics.deliver(at, imm, bytes, pick(choices, &rare));
    }

    fn forge_entry(&self, nics: &mut Fabric, choices: &mut dyn Choices) {
        let next = self.sent as u64 + 1;
        let block = choices.below(64) as usize;
        let entry = Entry {
            number: pick(choices, &[next, next, next, next + 1, u64::MAX]),
            addr: pick(choices, &[1 << 60, u64::MAX, 0]),
            length: pick(choices, &[0, 1, 128, 4096, u32::MAX]),
            tag: choices.below(3),
            rkeys: [Memory::key(block, choices.below(8) as usize); 8],
            count: choices.below(10) as u8,
            index: pick(choices, &[0, 0, 0, 1, 9]),
        };
        let slot = Self::slot(next);
        let index = usize::from(entry.index % 8);
        // Sometimes where entries of another number of buffers belong.
        let count = if choices.one_in(8) { 8 } else { usize::from(entry.count) };
        let first = entry_word(SLOTS, slot, count) + index * ENTRY_WORDS;
        let mut words = entry.encode(self.line.form);
        if choices.one_in(3) {
            words[choices.below(8) as usize] = word(choices);
        }
        if choices.one_in(3) {
            // A little of what is there is another one.
            let which = choices.below(8) as usize;
            return nics.write_word(self.ring, first + which, words[which]);
        }
        for (at, value) in words.into_iter().enumerate() {
            nics.write_word(self.ring, first + at, value);
        }
    }

    /// Entries that the sender has copied.
    fn scribble_entries(&mut self, nics: &mut Fabric, choices: &mut dyn Choices) {
        let front = choices.coin().then(|| Self::slot(self.sent as u64 + 1));
        let slot = front.unwrap_or_else(|| choices.below(SLOTS as u32) as usize);
        let (sent, form) = (self.sent, self.line.form);
        let newest = self.receives.len();
        let Some(receive) = self.in_slot(slot) else { return };
        let is_copied = receive.places.iter().any(|place| place.sent.is_some());
        let number = (1..=newest).rev().find(|number| (number - 1) % SLOTS == slot);
        if !is_copied && number.is_none_or(|number| number > sent) {
            return;
        }
        // A plain number that is ahead would have a meaning.
        let words = if form == EntryForm::Plain { ENTRY_WORDS - 1 } else { ENTRY_WORDS };
        let index = choices.below(9) as usize;
        let entry = match index.checked_sub(1) {
            Some(index) => entry_word(SLOTS, slot, MAX_BUFFERS) + index * ENTRY_WORDS,
            None => entry_word(SLOTS, slot, 1),
        };
        for at in 0..words {
            if choices.coin() {
                nics.write_word(self.ring, entry + at, word(choices));
            }
        }
    }

    /// The record of a message that has arrived.
    fn scribble_record(&mut self, nics: &mut Fabric, is_idle: bool, choices: &mut dyn Choices) {
        let done = |receive: &Receive| receive.handle.is_some() && receive.has_arrived();
        let done = self.receives.iter().rposition(done).map(|index| index % SLOTS);
        let slot = done.unwrap_or_else(|| choices.below(SLOTS as u32) as usize);
        let Some(receive) = self.in_slot(slot) else { return };
        // The slot of a receive that was taken back waits for the record of a void message.
        let is_awaited = receive.handle.is_some() || receive.holds_slot();
        if is_awaited && !(receive.has_arrived() && is_idle) {
            return;
        }
        for at in 0..RECORD_WORDS {
            nics.write_word(self.records, slot * RECORD_WORDS + at, word(choices));
        }
    }
}
