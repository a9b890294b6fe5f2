//! DQPLB's sequence numbers and how they travel in an immediate.
//!
//! Every fragment of a WRITE_WITH_IMM carries the next number, counting modulo
//! [`MODULUS`], and the last fragment of a request is marked. The receiver completes one receive
//! for each mark, once every number up to it has arrived.
//!
//! The format is the reference implementation's, kept so that both can talk to each other: bits
//! 0..=23 the number, bits 24..=30 zero, bit 31 the mark, *written in host order* by little-endian
//! hosts, hence little endian on the wire.

use crate::verbs::Imm;

/// Numbers count 0..=0xFFFFFE, then start again: the reference computes `(n + 1) % 0xFFFFFF`.
pub const MODULUS: u32 = 0xFF_FFFF;

const LAST_BIT: u32 = 1 << 31;

/// A sequence number, always below [`MODULUS`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SequenceNumber(u32);

impl SequenceNumber {
    /// The number 0, with which both sides start.
    pub const ZERO: Self = Self(0);

    /// `number`, if it is below [`MODULUS`].
    pub const fn new(number: u32) -> Option<Self> {
        if number < MODULUS { Some(Self(number)) } else { None }
    }

    /// The plain number.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The next number.
    #[inline]
    pub const fn next(self) -> Self {
        if self.0 + 1 == MODULUS { Self(0) } else { Self(self.0 + 1) }
    }

    /// The number `count` further on; `count` is at most [`MODULUS`].
    #[inline]
    pub const fn advance(self, count: u32) -> Self {
        debug_assert!(count <= MODULUS);
        // Two terms up to 2^24 do not overflow, and one subtraction replaces a division: the
        // modulus is not a power of two.
        let sum = self.0 + count;
        if sum >= MODULUS { Self(sum - MODULUS) } else { Self(sum) }
    }

    /// The number `count` further back; `count` is at most [`MODULUS`].
    #[inline]
    pub const fn retreat(self, count: u32) -> Self {
        self.advance(MODULUS - count)
    }

    /// Steps from `earlier` forward to this number, below [`MODULUS`].
    #[inline]
    pub const fn distance_from(self, earlier: Self) -> u32 {
        if self.0 >= earlier.0 { self.0 - earlier.0 } else { self.0 + MODULUS - earlier.0 }
    }
}

/// What a DQPLB immediate says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceImm {
    /// The fragment's number.
    pub number: SequenceNumber,
    /// Whether it is the last fragment of its request.
    pub last: bool,
}

impl SequenceImm {
    /// The immediate to send.
    #[inline]
    pub const fn encode(self) -> Imm {
        let word = self.number.0 | if self.last { LAST_BIT } else { 0 };
        Imm::from_wire(word.to_le_bytes())
    }

    /// What a peer sent, or `None` if bits 24..=30 are not zero or the number is [`MODULUS`].
    #[inline]
    pub const fn decode(imm: Imm) -> Option<Self> {
        let word = u32::from_le_bytes(imm.wire());
        // Any of bits 24..=30 makes the number too large.
        match SequenceNumber::new(word & !LAST_BIT) {
            Some(number) => Some(Self { number, last: word & LAST_BIT != 0 }),
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(n: u32) -> SequenceNumber {
        SequenceNumber::new(n).unwrap()
    }

    /// Interoperability with the reference: the exact bytes on the wire.
    #[test]
    fn wire_bytes_are_the_references() {
        let imm = SequenceImm { number: number(0x12_3456), last: true }.encode();
        assert_eq!(imm.wire(), [0x56, 0x34, 0x12, 0x80]);
        let imm = SequenceImm { number: number(1), last: false }.encode();
        assert_eq!(imm.wire(), [1, 0, 0, 0]);
    }

    #[test]
    fn counting_skips_the_modulus() {
        assert_eq!(number(MODULUS - 1).next(), SequenceNumber::ZERO);
        assert_eq!(number(0xFF_FFFE).get(), 0xFF_FFFE);
        assert_eq!(SequenceNumber::new(0xFF_FFFF), None);
        assert_eq!(number(MODULUS - 2).advance(5), number(3));
        assert_eq!(number(3).distance_from(number(MODULUS - 2)), 5);
        assert_eq!(number(7).distance_from(number(7)), 0);
    }

    #[test]
    fn malformed_immediates_are_refused() {
        for bit in 24..=30 {
            assert_eq!(SequenceImm::decode(Imm::from_wire((1u32 << bit).to_le_bytes())), None);
        }
        assert_eq!(SequenceImm::decode(Imm::from_wire(MODULUS.to_le_bytes())), None);
        let top = SequenceImm { number: number(MODULUS - 1), last: true };
        assert_eq!(SequenceImm::decode(top.encode()), Some(top));
    }
}
