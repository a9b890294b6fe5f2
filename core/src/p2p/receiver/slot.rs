//! The state of one receive: its immediates so far, and the sizes that follow from them.

use crate::p2p::entry::{Entry, MAX_BUFFERS};
use crate::p2p::error::ProtocolError;
use crate::p2p::immediate::{Immediate, SIZE_UNIT, Told};
use crate::p2p::mask::Mask;
use crate::p2p::record;
use core::sync::atomic::AtomicU64;

/// The progress of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Unused, or `test` has returned the result.
    Free,
    /// The entries are written, and immediates are missing.
    Waiting,
    /// All immediates have arrived, and the sizes are known.
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
    /// The rails that carry the message; empty before the first immediate.
    pub(super) mask: Mask,
    /// The rails whose immediates have arrived.
    pub(super) seen: Mask,
    /// The devices that delivered immediates, one bit for each place in the list.
    pub(super) carriers: u8,
    /// Devices that were lost while the receive waited, with completions that were not polled. They
    /// may have delivered the payload of a share that is moved.
    lost_carriers: u8,
    /// Bytes that arrived with immediates.
    sum: u64,
    /// Length in the immediates, in units of 128 bytes.
    units: u32,
    /// The sizes are in the record: there are several buffers, or an immediate refers to it.
    /// Otherwise the size is the [sum](Self::add_up).
    pub(super) needs_record: bool,
    /// Exact sizes, once they are known.
    pub(super) sizes: [u32; MAX_BUFFERS],
    /// What was offered to the sender.
    pub(super) entries: [Entry; MAX_BUFFERS],
    /// The place of the queue pair that wrote the entries last.
    pub(super) entries_lane: u8,
    /// The entries must be written again by another queue pair.
    pub(super) wants_entries: bool,
    /// The place of the queue pair that writes the entries again, until that write has ended.
    pub(super) rewriting: Option<u8>,
}

/// An immediate that arrived for a slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) immediate: Immediate,
    /// The rail of its share.
    pub(super) rail: u8,
    /// The set of only that rail.
    pub(super) own: Mask,
    /// The bit of the device that delivered it, by its place in the list.
    pub(super) carrier: u8,
    /// Bytes that arrived with it.
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
        units: UNTOLD,
        needs_record: false,
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

    /// Starts to wait for the message of receive `number`, whose entries are written.
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
        self.units = UNTOLD;
        // An immediate has room for one size only.
        self.needs_record = count > 1;
    }

    /// Notes that a queue pair on this device was lost with completions that were not polled.
    pub(super) fn note_lost(&mut self, device_at: u8) {
        // A message that is done has all its devices in `carriers`.
        if self.state == State::Waiting {
            self.lost_carriers |= 1 << device_at;
        }
    }

    /// What was offered.
    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries[..usize::from(self.count)]
    }

    /// Returns whether all immediates have arrived.
    pub(super) fn is_complete(&self) -> bool {
        // Before the first immediate both are empty.
        !self.mask.is_empty() && self.seen == self.mask
    }

    /// Records an immediate. Returns whether all have arrived.
    #[inline]
    pub(super) fn note(&mut self, arrival: &Arrival) -> Result<bool, ProtocolError> {
        let Arrival { immediate: Immediate { slot, mask, told }, own, carrier, bytes, .. } =
            *arrival;
        // One expression for all four errors keeps the usual case short; `not_due` finds the
        // reason. An empty mask fails the first condition.
        let is_due = !(mask & own).is_empty()
            && (self.mask == mask || self.mask.is_empty())
            && (self.seen & own).is_empty();
        if !is_due {
            return Err(self.not_due(arrival));
        }
        // The first immediate decides; later ones were compared with it above.
        self.mask = mask;
        self.seen |= own;
        // The device that delivered this immediate, which for a moved share is not that of its
        // rail: `flush` has to read on it.
        self.carriers |= carrier;
        match told {
            Told::Units(units) => {
                self.sum += u64::from(bytes);
                self.note_units(slot, units)?;
            }
            // The bytes of these immediates are the record or nothing, so they are not part of the
            // sum.
            Told::Record | Told::Moved(_) => {
                self.needs_record = true;
                if told != Told::Record {
                    // The sender may repeat only the signal, so the payload may have arrived over a
                    // lost device, which `flush` must know.
                    self.carriers |= self.lost_carriers;
                }
            }
        }
        Ok(self.seen == self.mask)
    }

    /// Returns the error of an unexpected immediate.
    #[cold]
    fn not_due(&self, arrival: &Arrival) -> ProtocolError {
        let Arrival { immediate: Immediate { slot, mask, .. }, rail, own, .. } = *arrival;
        if mask.is_empty() {
            ProtocolError::EmptyMask { slot }
        } else if !self.mask.is_empty() && self.mask != mask {
            ProtocolError::MaskChanged { slot, before: self.mask, now: mask }
        } else if (mask & own).is_empty() {
            ProtocolError::ForeignMask { slot, rail, mask }
        } else {
            ProtocolError::Twice { slot, rail }
        }
    }

    #[inline]
    fn note_units(&mut self, slot: u8, units: u32) -> Result<(), ProtocolError> {
        if self.units != units {
            // Every immediate has the length of the whole message, so all must agree.
            if self.units != UNTOLD {
                let (said, came) = (in_bytes(self.units), in_bytes(units));
                return Err(ProtocolError::SizesDisagree { slot, said, came });
            }
            self.units = units;
        }
        Ok(())
    }

    /// Sets the size of the only buffer from the immediates, none of which refers to the record.
    #[inline]
    pub(super) fn add_up(&mut self, slot: u8) -> Result<(), ProtocolError> {
        let said = in_bytes(self.units);
        // Separate signals have no payload: then the length in the immediates is exact, since other
        // lengths use the record (messages.md, "Exact sizes").
        let size = if self.sum == 0 { said } else { self.sum };
        check_units(slot, said, size)?;
        let capacity = self.entries[0].length;
        // The caller would read beyond its buffer.
        if size > u64::from(capacity) {
            return Err(ProtocolError::TooLong { slot, size, capacity });
        }
        self.sizes[0] = size as u32;
        Ok(())
    }

    /// Copies the sizes out of the record, because the sender may write the record again once the
    /// slot is reused.
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
        // A moved share refers to the record although earlier shares had the length.
        if self.units == UNTOLD { Ok(()) } else { check_units(slot, in_bytes(self.units), all) }
    }

    /// Notes that the queue pair at `place` has written the entries again.
    pub(super) fn written_again(&mut self, place: usize, number: u64) {
        // A completion of an earlier receive of the slot, or of a queue pair that failed since,
        // must not free the slot while the newer write is in flight.
        if self.number == number && self.rewriting == Some(place as u8) {
            self.rewriting = None;
        }
    }
}

/// A value that is not a number of units, which has at most 23 bits.
const UNTOLD: u32 = u32::MAX;

const fn in_bytes(units: u32) -> u64 {
    units as u64 * SIZE_UNIT as u64
}

/// Checks that a length, rounded up to units, is the length in the immediates.
#[inline]
fn check_units(slot: u8, said: u64, size: u64) -> Result<(), ProtocolError> {
    // A size above the said length wraps to a large number, so one comparison tests both bounds.
    let is_it = said.wrapping_sub(size) < u64::from(SIZE_UNIT);
    if is_it { Ok(()) } else { Err(ProtocolError::SizesDisagree { slot, said, came: size }) }
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
        Arrival { immediate, rail, own: Mask::of(rail), carrier: 1 << rail, bytes }
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
            assert_eq!(slot.note(arrival)?, at + 1 == arrivals.len());
            assert_eq!(slot.is_complete(), at + 1 == arrivals.len());
        }
        if slot.needs_record {
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
            assert_eq!(slot.note(&first), Ok(false));
            assert_eq!(slot.note(&arrival), Err(error));
        }
    }
}
