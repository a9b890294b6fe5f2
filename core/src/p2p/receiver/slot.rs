//! What a receiver remembers of a receive: what has come of it, and what that says of the sizes.

use crate::p2p::entry::{Entry, MAX_BUFFERS};
use crate::p2p::error::ProtocolError;
use crate::p2p::immediate::{Immediate, SIZE_UNIT, Told};
use crate::p2p::mask::Mask;
use crate::p2p::record;
use core::sync::atomic::AtomicU64;

/// How far a receive is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Nobody waits for it: none there was, or its caller was told.
    Free,
    /// Its entries were written; immediates are waited for.
    Waiting,
    /// All immediates are in, and its sizes are known.
    Done,
}

/// A receive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    /// Its number; 0 if there never was one.
    pub(super) number: u64,
    pub(super) state: State,
    /// Buffers of it.
    pub(super) count: u8,
    /// The rails that its message is spread over, once an immediate has said so.
    pub(super) mask: Mask,
    /// Those of them whose immediates are in.
    pub(super) seen: Mask,
    /// The devices over which they came, a bit for each place in the list.
    pub(super) carriers: u8,
    /// Those that were lost while it waited, with completions that nobody had taken: the payload of a share
    /// that is moved may have come over them.
    lost_carriers: u8,
    /// What arrived with immediates, in bytes.
    sum: u64,
    /// What they said of the length, in units of 128 bytes.
    units: Option<u32>,
    /// One of them said that the sizes are in the record.
    by_record: bool,
    /// Exact sizes, once they are known.
    pub(super) sizes: [u32; MAX_BUFFERS],
    /// What was offered to the sender.
    pub(super) entries: [Entry; MAX_BUFFERS],
    /// The place of the queue pair that wrote the entries last.
    pub(super) entries_lane: u8,
    /// They are to be written again, by another queue pair.
    pub(super) wants_entries: bool,
    /// The place of the queue pair that has written them again, until that is known to have ended.
    pub(super) rewriting: Option<u8>,
}

/// An immediate on its way into a slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) immediate: Immediate,
    /// The rail whose share it tells of.
    pub(super) rail: u8,
    /// The place of the device over which it came.
    pub(super) device_at: u8,
    /// Bytes that came with it.
    pub(super) bytes: u32,
}

impl Slot {
    pub(super) const BLANK: Self = Self {
        number: 0,
        state: State::Free,
        count: 0,
        mask: Mask::EMPTY,
        seen: Mask::EMPTY,
        carriers: 0,
        lost_carriers: 0,
        sum: 0,
        units: None,
        by_record: false,
        sizes: [0; MAX_BUFFERS],
        entries: [Entry {
            number: 0,
            addr: 0,
            length: 0,
            tag: 0,
            rkeys: [0; crate::p2p::entry::ENTRY_KEYS],
            count: 0,
            index: 0,
        }; MAX_BUFFERS],
        entries_lane: 0,
        wants_entries: false,
        rewriting: None,
    };

    /// A receive of this number begins to wait. Its entries are there.
    #[inline]
    pub(super) fn wait(&mut self, number: u64, count: u8, entries_lane: u8) {
        self.entries_lane = entries_lane;
        self.wants_entries = false;
        self.number = number;
        self.state = State::Waiting;
        self.count = count;
        self.mask = Mask::EMPTY;
        self.seen = Mask::EMPTY;
        self.carriers = 0;
        self.lost_carriers = 0;
        self.sum = 0;
        self.units = None;
        self.by_record = false;
    }

    /// A queue pair on this device is no more, and what it had completed is not known.
    pub(super) fn note_lost(&mut self, device_at: u8) {
        if self.state == State::Waiting {
            self.lost_carriers |= 1 << device_at;
        }
    }

    /// What was offered.
    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries[..usize::from(self.count)]
    }

    /// Whether all immediates are in.
    #[inline]
    pub(super) fn is_complete(&self) -> bool {
        !self.mask.is_empty() && self.seen == self.mask
    }

    /// Takes note of an immediate.
    #[inline]
    pub(super) fn note(&mut self, arrival: &Arrival) -> Result<(), ProtocolError> {
        let Arrival { immediate: Immediate { slot, mask, told }, rail, device_at, bytes } =
            *arrival;
        if mask.is_empty() {
            return Err(ProtocolError::EmptyMask { slot });
        }
        if self.mask.is_empty() {
            self.mask = mask;
        } else if self.mask != mask {
            return Err(ProtocolError::MaskChanged { slot, before: self.mask, now: mask });
        }
        let own = Mask::of(rail);
        if (mask & own).is_empty() {
            return Err(ProtocolError::ForeignMask { slot, rail, mask });
        }
        if !(self.seen & own).is_empty() {
            return Err(ProtocolError::Twice { slot, rail });
        }
        self.seen |= own;
        self.carriers |= 1 << device_at;
        match told {
            Told::Units(units) => {
                self.sum += u64::from(bytes);
                self.note_units(slot, units)
            }
            // What comes with these is the record, or nothing.
            Told::Record | Told::Moved(_) => {
                self.by_record = true;
                if told != Told::Record {
                    // Perhaps only the signal comes, again.
                    self.carriers |= self.lost_carriers;
                }
                Ok(())
            }
        }
    }

    #[inline]
    fn note_units(&mut self, slot: u8, units: u32) -> Result<(), ProtocolError> {
        match self.units.replace(units) {
            Some(before) if before != units => {
                let (said, came) = (in_bytes(before), in_bytes(units));
                Err(ProtocolError::SizesDisagree { slot, said, came })
            }
            _ => Ok(()),
        }
    }

    /// Whether its sizes are in the record: otherwise they [add up](Self::add_up).
    #[inline]
    pub(super) const fn needs_record(&self) -> bool {
        self.count > 1 || self.by_record
    }

    /// The length of the only buffer's message, of which no immediate said that it is in the record.
    #[inline]
    pub(super) fn add_up(&mut self, slot: u8) -> Result<(), ProtocolError> {
        let units = self.units.unwrap_or_default();
        let size = if self.sum == 0 { in_bytes(units) } else { self.sum };
        self.check_units(slot, size)?;
        let capacity = self.entries[0].length;
        if size > u64::from(capacity) {
            return Err(ProtocolError::TooLong { slot, size, capacity });
        }
        self.sizes[0] = size as u32;
        Ok(())
    }

    /// Whether a length is what immediates said, if any of them did.
    #[inline]
    fn check_units(&self, slot: u8, size: u64) -> Result<(), ProtocolError> {
        let Some(units) = self.units else { return Ok(()) };
        let said = in_bytes(units);
        if size.div_ceil(u64::from(SIZE_UNIT)) == u64::from(units) {
            Ok(())
        } else {
            Err(ProtocolError::SizesDisagree { slot, said, came: size })
        }
    }

    /// The sizes are copied, since the sender may use the record again once the slot is taken anew.
    #[cold]
    pub(super) fn read_record(
        &mut self,
        slot: u8,
        words: &[AtomicU64],
    ) -> Result<(), ProtocolError> {
        let mut capacities = [0; MAX_BUFFERS];
        for (capacity, entry) in capacities.iter_mut().zip(self.entries()) {
            *capacity = entry.length;
        }
        let loaded = record::load(words, &capacities[..usize::from(self.count)]);
        self.sizes = loaded.map_err(|source| ProtocolError::Record { slot, source })?;
        let all = self.sizes[..usize::from(self.count)].iter().map(|size| u64::from(*size)).sum();
        self.check_units(slot, all)
    }
}

const fn in_bytes(units: u32) -> u64 {
    units as u64 * SIZE_UNIT as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::p2p::record::RecordError;

    const SLOT: u8 = 9;

    fn waiting(capacities: &[u32]) -> Slot {
        let mut slot = Slot::BLANK;
        for (entry, length) in slot.entries.iter_mut().zip(capacities) {
            entry.length = *length;
        }
        slot.wait(1, capacities.len() as u8, 0);
        slot
    }

    fn arrival(rail: u8, mask: u8, told: Told, bytes: u32) -> Arrival {
        let immediate = Immediate { slot: SLOT, mask: Mask::from_bits(mask), told };
        Arrival { immediate, rail, device_at: rail, bytes }
    }

    fn record(sizes: &[u32]) -> [AtomicU64; MAX_BUFFERS] {
        let words = [const { AtomicU64::new(0) }; MAX_BUFFERS];
        record::poison(&words);
        record::store(&words, sizes.iter().copied());
        words
    }

    /// Takes these immediates, after which the receive is complete, and finishes it.
    fn sizes(
        slot: &mut Slot,
        arrivals: &[Arrival],
        written: &[u32],
    ) -> Result<[u32; 2], ProtocolError> {
        for (at, arrival) in arrivals.iter().enumerate() {
            slot.note(arrival)?;
            assert_eq!(slot.is_complete(), at + 1 == arrivals.len());
        }
        if slot.needs_record() {
            slot.read_record(SLOT, &record(written))?;
        } else {
            slot.add_up(SLOT)?;
        }
        Ok([slot.sizes[0], slot.sizes[1]])
    }

    #[test]
    fn the_size_is_what_the_nic_says() {
        let units = Told::Units(2);
        let mut slot = waiting(&[256]);
        let shares = [arrival(0, 0b11, units, 128), arrival(1, 0b11, units, 72)];
        assert_eq!(sizes(&mut slot, &shares, &[]), Ok([200, 0]));
        assert_eq!(slot.carriers, 0b11);
    }

    #[test]
    fn without_payload_the_size_is_what_the_immediate_says() {
        let none = [arrival(2, 0b100, Told::Units(3), 0)];
        assert_eq!(sizes(&mut waiting(&[500]), &none, &[]), Ok([384, 0]));
        let empty = [arrival(0, 1, Told::Units(0), 0)];
        assert_eq!(sizes(&mut waiting(&[0]), &empty, &[]), Ok([0, 0]));
    }

    #[test]
    fn the_record_is_read_where_it_is_told_of_and_its_bytes_are_not_added() {
        let signals = [arrival(0, 0b11, Told::Record, 8), arrival(1, 0b11, Told::Record, 0)];
        assert_eq!(sizes(&mut waiting(&[200]), &signals, &[100]), Ok([100, 0]));
        let two = [arrival(0, 1, Told::Record, 16)];
        assert_eq!(sizes(&mut waiting(&[50, 60]), &two, &[7, 60]), Ok([7, 60]));
        let moved = [arrival(1, 0b11, Told::Units(1), 50), arrival(0, 0b11, Told::Moved(0), 8)];
        assert_eq!(sizes(&mut waiting(&[200]), &moved, &[100]), Ok([100, 0]));
    }

    #[test]
    fn several_buffers_are_in_the_record_whatever_was_told() {
        let told = [arrival(0, 1, Told::Units(1), 5)];
        let missing = RecordError::NotWritten { buffer: 0 };
        let error = ProtocolError::Record { slot: SLOT, source: missing };
        assert_eq!(sizes(&mut waiting(&[50, 60]), &told, &[]), Err(error));
    }

    #[test]
    fn sizes_that_disagree_are_refused() {
        let disagree = |said, came| Err(ProtocolError::SizesDisagree { slot: SLOT, said, came });
        let short = [arrival(0, 1, Told::Units(2), 100)];
        assert_eq!(sizes(&mut waiting(&[256]), &short, &[]), disagree(256, 100));
        let units = [arrival(0, 0b11, Told::Units(2), 1), arrival(1, 0b11, Told::Units(1), 1)];
        assert_eq!(sizes(&mut waiting(&[256]), &units, &[]), disagree(256, 128));
        let moved = [arrival(0, 0b11, Told::Units(2), 1), arrival(1, 0b11, Told::Moved(1), 8)];
        assert_eq!(sizes(&mut waiting(&[999]), &moved, &[300]), disagree(256, 300));
    }

    #[test]
    fn more_than_the_buffer_holds_is_refused() {
        let long = [arrival(0, 1, Told::Units(2), 200)];
        let error = ProtocolError::TooLong { slot: SLOT, size: 200, capacity: 199 };
        assert_eq!(sizes(&mut waiting(&[199]), &long, &[]), Err(error));
        let said = [arrival(0, 1, Told::Units(2), 0)];
        let error = ProtocolError::TooLong { slot: SLOT, size: 256, capacity: 199 };
        assert_eq!(sizes(&mut waiting(&[199]), &said, &[]), Err(error));
    }

    #[test]
    fn immediates_that_are_not_due_are_refused() {
        let units = Told::Units(1);
        let first = arrival(0, 0b11, units, 10);
        let bad = [
            (arrival(0, 0b11, units, 1), ProtocolError::Twice { slot: SLOT, rail: 0 }),
            (arrival(1, 0, units, 1), ProtocolError::EmptyMask { slot: SLOT }),
            (
                arrival(1, 0b10, units, 1),
                ProtocolError::MaskChanged {
                    slot: SLOT,
                    before: Mask::from_bits(0b11),
                    now: Mask::of(1),
                },
            ),
            (
                arrival(2, 0b11, units, 1),
                ProtocolError::ForeignMask { slot: SLOT, rail: 2, mask: Mask::from_bits(0b11) },
            ),
        ];
        for (arrival, error) in bad {
            let mut slot = waiting(&[100]);
            assert_eq!(slot.note(&first), Ok(()));
            assert_eq!(slot.note(&arrival), Err(error));
        }
    }
}
