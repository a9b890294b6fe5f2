//! The immediate of a share: the message that the share belongs to, the rails of the message, and
//! its length.
//!
//! ```text
//!  31              8+R  8+R-1      8  7        0
//! +-------------------+------------+-----------+
//! |       size_q      |    mask    |   slot    |
//! +-------------------+------------+-----------+
//!        24-R bits        R bits       8 bits
//! ```
//!
//! *size_q* is the length of the whole message in units of 128 bytes, rounded up. Its highest value
//! means that the sizes are in the completion record. The R values below it, the lowest for rail 0,
//! mean that this share of rail r was moved to another rail; the sizes are in the record, too. With
//! two rails, the layout is that of an earlier protocol for two rails, except for the codes of
//! moved shares.
//!
//! # Why 8 bits name a message
//!
//! The slot is the number of a message modulo the number of slots, without a generation, and the
//! receives of a shared queue are all alike. A late immediate would therefore count for the message
//! that uses its slot now. There is no late immediate, because nothing of a message is in flight
//! when its slot is reused:
//!
//! - a queue pair executes requests in order, and a receive ends, and its slot becomes free, only
//!   when the immediates of all rails in its mask have arrived; so nothing is left of a message
//!   that lost nothing;
//! - a lost share is sent again only after the fence, when the lost request can no longer be
//!   executed, and the receive waits for it; completions of a fenced queue pair are ignored;
//! - entries that are written again hold their slot until that write has ended (`rewriting` in the
//!   receiver's slot);
//! - both ends key their state by the full number of the message, so a late *acknowledgement* of an
//!   earlier message changes nothing either.
//!
//! An immediate for a slot in which nothing waits fails the connection, as does a second one of a
//! rail.

use super::mask::Mask;
use crate::rail::MAX_RAILS;
use crate::verbs::Imm;

/// Slots that one connection can have: their numbers have 8 bits.
pub const MAX_SLOTS: usize = 1 << 8;

/// Bytes of one unit of size_q; parts of messages are multiples of it.
pub const SIZE_UNIT: u32 = 128;

/// How an immediate states the sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Told {
    /// The length of the message, in units of [`SIZE_UNIT`] bytes, rounded up.
    Units(u32),
    /// Read the record.
    Record,
    /// Read the record. The share is that of this rail, which failed.
    Moved(u8),
}

/// An immediate, field by field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Immediate {
    /// The slot of the message. It needs no generation, because nothing of an earlier message of
    /// the slot is in flight.
    pub slot: u8,
    /// The rails of the message, each of which sends one immediate.
    pub mask: Mask,
    /// Its sizes.
    pub told: Told,
}

/// The layout of immediates for one number of rails.
///
/// ```
/// use polyrail_core::p2p::{ImmLayout, Immediate, Mask, Told};
///
/// let layout = ImmLayout::new(2).expect("1 to 8 rails");
/// let immediate = Immediate { slot: 7, mask: Mask::first(2), told: layout.told(300) };
/// let imm = layout.encode(immediate);
/// assert_eq!(imm.number(), 7 | 0b11 << 8 | 3 << 10);
/// assert_eq!(layout.decode(imm), Immediate { told: Told::Units(3), ..immediate });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImmLayout {
    rails: u8,
    /// Where size_q begins.
    // Stored, because every message needs them and they never change.
    size_shift: u8,
    /// All rails.
    all: Mask,
    largest_units: u32,
}

const SLOT_BITS: u32 = 8;

impl ImmLayout {
    /// The layout for 1 to 8 rails; `None` of other numbers.
    pub const fn new(rails: u8) -> Option<Self> {
        if rails == 0 || rails > MAX_RAILS as u8 {
            return None;
        }
        // The mask has one bit for each rail, whether their number is even or not; the size has the
        // rest.
        let size_shift = SLOT_BITS as u8 + rails;
        let record = u32::MAX >> size_shift;
        // The codes for the record and for moved shares are the highest values, so that lengths
        // keep the codes that they had in the protocol without moved shares.
        let largest_units = record - rails as u32 - 1;
        Some(Self { rails, size_shift, all: Mask::first(rails), largest_units })
    }

    /// Returns the number of rails.
    #[inline]
    pub const fn rails(self) -> u8 {
        self.rails
    }

    /// "Read the record": all ones.
    #[inline]
    const fn record(self) -> u32 {
        self.moved() + self.rails as u32
    }

    /// The first of the values that mean "moved", that of rail 0.
    #[inline]
    const fn moved(self) -> u32 {
        self.largest_units + 1
    }

    /// Returns the longest length that an immediate can state, in units of [`SIZE_UNIT`] bytes.
    #[inline]
    pub const fn largest_units(self) -> u32 {
        self.largest_units
    }

    /// Returns how an immediate states the size of a message of one buffer of `bytes` bytes.
    #[inline]
    pub const fn told(self, bytes: u32) -> Told {
        let units = bytes.div_ceil(SIZE_UNIT);
        // Not an error: the record has room for every length.
        if units <= self.largest_units() { Told::Units(units) } else { Told::Record }
    }

    /// Encodes an immediate. A length that does not fit becomes "read the record", and rails that
    /// do not exist are removed from the mask.
    #[inline]
    pub const fn encode(self, immediate: Immediate) -> Imm {
        let Immediate { slot, mask, told } = immediate;
        let size = match told {
            // Cut off at the word's end, a length that does not fit would be another, valid length.
            Told::Units(units) if units <= self.largest_units() => units,
            Told::Moved(rail) if rail < self.rails => self.moved() + rail as u32,
            Told::Units(_) | Told::Moved(_) | Told::Record => self.record(),
        };
        // The bit of a rail that does not exist would belong to the size.
        let mask = mask.bits() & self.all.bits();
        Imm::from_number(slot as u32 | (mask as u32) << SLOT_BITS | size << self.size_shift)
    }

    /// Encodes an immediate with a length that fits, over rails that exist.
    #[inline]
    pub(super) const fn encode_units(self, slot: u8, mask: Mask, units: u32) -> Imm {
        // Messages of this form are at most `longest_fast` bytes long, which an immediate can say.
        debug_assert!(units <= self.largest_units());
        let fields = (mask.bits() as u32) << SLOT_BITS | units << self.size_shift;
        Imm::from_number(slot as u32 | fields)
    }

    /// Decodes an immediate. Every number is a valid immediate; the receiver checks whether it is
    /// due.
    #[inline]
    pub const fn decode(self, imm: Imm) -> Immediate {
        let number = imm.number();
        let mask = (number >> SLOT_BITS) as u8 & self.all.bits();
        let size = number >> self.size_shift;
        let told = if size <= self.largest_units() {
            Told::Units(size)
        } else if size == self.record() {
            Told::Record
        } else {
            Told::Moved((size - self.moved()) as u8)
        };
        Immediate { slot: number as u8, mask: Mask::from_bits(mask), told }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layouts() -> impl Iterator<Item = ImmLayout> {
        (1..=8).map(|rails| ImmLayout::new(rails).expect("1 to 8 rails"))
    }

    #[test]
    fn the_largest_size_for_each_number_of_rails() {
        let table = [8388605, 4194300, 2097147, 1048570, 524281, 262136, 131063, 65526];
        assert!(layouts().map(ImmLayout::largest_units).eq(table));
        assert_eq!(ImmLayout::new(0), None);
        assert_eq!(ImmLayout::new(9), None);
    }

    /// The layout of the earlier protocol for two rails: `slot | mask << 8 | size_q << 10`, all
    /// ones for "read the record".
    #[test]
    fn with_two_rails_it_is_the_earlier_layout_bit_by_bit() {
        let layout = ImmLayout::new(2).expect("two rails");
        for slot in [0, 1, 77, 255] {
            for mask in 1..=3 {
                for size in [0, 1, 2, 0x15_5555, 0x2A_AAAA, layout.largest_units()] {
                    let number = u32::from(slot) | u32::from(mask) << 8 | size << 10;
                    let told = Told::Units(size);
                    let immediate = Immediate { slot, mask: Mask::from_bits(mask), told };
                    assert_eq!(layout.encode(immediate), Imm::from_number(number));
                    let record = Immediate { told: Told::Record, ..immediate };
                    let number = u32::from(slot) | u32::from(mask) << 8 | 0x3F_FFFF << 10;
                    assert_eq!(layout.encode(record), Imm::from_number(number));
                }
            }
        }
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        for layout in layouts() {
            let rails = layout.rails();
            let largest = layout.largest_units();
            let units = [0, 1, 127, largest - 1, largest].map(Told::Units);
            let moved = (0..rails).map(Told::Moved);
            for told in units.into_iter().chain([Told::Record]).chain(moved) {
                for slot in [0, 128, 255] {
                    for bits in 0..=Mask::first(rails).bits() {
                        let immediate = Immediate { slot, mask: Mask::from_bits(bits), told };
                        assert_eq!(layout.decode(layout.encode(immediate)), immediate);
                    }
                }
            }
        }
    }

    #[test]
    fn every_number_is_decoded_to_what_encodes_to_it() {
        for layout in layouts() {
            for number in (0..=u32::MAX).step_by(65_521).chain(u32::MAX - 4096..=u32::MAX) {
                let imm = Imm::from_number(number);
                let immediate = layout.decode(imm);
                assert_eq!(layout.encode(immediate), imm);
                assert!({ immediate.mask }.all(|rail| rail < layout.rails()));
            }
        }
    }

    #[test]
    fn a_size_beyond_what_fits_is_in_the_record() {
        for layout in layouts() {
            let end = u64::from(layout.largest_units()) * u64::from(SIZE_UNIT);
            for (bytes, units) in [(0, 0), (1, 1), (128, 1), (129, 2)] {
                assert_eq!(layout.told(bytes), Told::Units(units));
            }
            assert_eq!(layout.told(end as u32), Told::Units(layout.largest_units()));
            assert_eq!(layout.told(end as u32 + 1), Told::Record);
        }
    }

    #[test]
    fn what_does_not_fit_is_not_encoded_as_something_else() {
        let layout = ImmLayout::new(2).expect("two rails");
        let immediate =
            Immediate { slot: 1, mask: Mask::from_bits(0b101), told: Told::Units(1 << 22) };
        let decoded = layout.decode(layout.encode(immediate));
        assert_eq!((decoded.mask, decoded.told), (Mask::of(0), Told::Record));
        let moved = Immediate { told: Told::Moved(2), ..immediate };
        assert_eq!(layout.decode(layout.encode(moved)).told, Told::Record);
    }
}
