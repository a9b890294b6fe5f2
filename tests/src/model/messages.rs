//! What a peer of the p2p protocol sends, value by value: any bytes are read or refused.

use polyrail_core::p2p::{Control, Entry, EntryError, EntryForm, ImmLayout, Mask, Told};
use polyrail_core::verbs::Imm;
use std::sync::atomic::AtomicU64;

const NUMBER: usize = 7;

/// Reads `bytes` as immediates, control messages and entries.
///
/// # Panics
///
/// If bytes are read that were never written, or are not read as they were written.
pub fn messages(bytes: &[u8]) {
    let immediates = bytes.as_chunks().0.iter();
    immediates.for_each(|number| immediate(u32::from_le_bytes(*number)));
    bytes.as_chunks().0.iter().for_each(control);
    let words = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
    let words: Vec<_> = words.collect();
    words.as_chunks().0.iter().for_each(entry);
}

/// Every number is an immediate, whatever the number of rails; and has no other one's meaning.
fn immediate(number: u32) {
    for layout in (1..=8).filter_map(ImmLayout::new) {
        let immediate = layout.decode(Imm::from_number(number));
        assert_eq!(layout.encode(immediate).number(), number, "{immediate:?} has one form");
        let all = Mask::first(layout.rails()).bits();
        assert_eq!(immediate.mask.bits() & !all, 0, "{immediate:?}: a rail that does not exist");
        match immediate.told {
            Told::Units(units) => assert!(units <= layout.largest_units()),
            Told::Moved(rail) => assert!(rail < layout.rails()),
            Told::Record => {}
        }
    }
}

fn control(bytes: &[u8; Control::BYTES]) {
    // As it is, and nearly a message: what follows the magic decides.
    let mut near = *bytes;
    let magic = Control::decode(bytes).map_or(3, |_| 0);
    let error = polyrail_core::virtual_qp::ControlMessage::Error.encode();
    near[..magic].copy_from_slice(&error[..magic]);
    for bytes in [*bytes, near] {
        if let Ok(message) = Control::decode(&bytes) {
            assert_eq!(message.encode(), bytes, "a message has one form");
        }
    }
}

/// Memory in which a NIC wrote these words.
fn memory(words: &[u64; 8]) -> [AtomicU64; 8] {
    words.map(|word| AtomicU64::new(word.to_le()))
}

fn entry(words: &[u64; 8]) {
    let (number, index) = (words[NUMBER], (words[6] >> 8) as u8);
    let load = |form, expected| Entry::load(&memory(words), form, expected, index);
    if let Some(next) = number.checked_add(1) {
        assert_eq!(load(EntryForm::Plain, next), None, "an old one");
    }
    if let Some(before) = number.checked_sub(1) {
        let ahead = EntryError::Number { expected: before, found: number };
        assert_eq!(load(EntryForm::Plain, before), Some(Err(ahead)));
    }
    let loaded = load(EntryForm::Plain, number).expect("its number is there");
    if let Ok(entry) = loaded {
        assert_eq!(entry.encode(EntryForm::Plain), *words, "an entry has one form");
        hashed(&entry);
    }
    // Nobody who does not know the hash writes one.
    assert_eq!(load(EntryForm::Hashed, number), None);
}

/// An entry that any word of which vouches for.
fn hashed(entry: &Entry) {
    let words = entry.encode(EntryForm::Hashed);
    let load = |words: &[u64; 8]| {
        Entry::load(&memory(words), EntryForm::Hashed, entry.number, entry.index)
    };
    assert_eq!(load(&words), Some(Ok(*entry)));
    for at in 0..words.len() {
        let mut torn = words;
        torn[at] ^= 1 << (entry.addr % 64);
        assert_eq!(load(&torn), None, "word {at} is another one");
    }
}
