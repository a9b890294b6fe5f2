//! Which rails a message is spread over.

use crate::rail::MAX_RAILS;
use core::fmt;

/// A set of rails, bit r for rail r. As an iterator, it lists their numbers, lowest first.
///
/// ```
/// use polyrail_core::p2p::Mask;
///
/// let mask = Mask::of(0) | Mask::of(2);
/// assert!(mask.contains(2) && !mask.contains(1));
/// assert!(mask.eq([0, 2]));
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Mask(u8);

const _: () = assert!(MAX_RAILS == 8, "a bit for each rail");

impl Mask {
    /// No rail.
    pub const EMPTY: Self = Self(0);

    /// The set with these bits.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// Bit r for rail r.
    #[inline]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Returns the set of this rail only, or the empty set if no rail has this number.
    #[inline]
    pub const fn of(rail: u8) -> Self {
        // Checked, because a shift by more than seven would overflow.
        if rail < MAX_RAILS as u8 { Self(1 << rail) } else { Self::EMPTY }
    }

    /// The first `rails` rails.
    pub const fn first(rails: u8) -> Self {
        if rails < MAX_RAILS as u8 { Self((1 << rails) - 1) } else { Self(u8::MAX) }
    }

    /// Whether this rail is in the set.
    #[inline]
    pub const fn contains(self, rail: u8) -> bool {
        self.0 & Self::of(rail).0 != 0
    }

    /// Whether no rail is in the set.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the number of rails in the set.
    #[inline]
    pub const fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// Returns the lowest rail, which carries the record.
    #[inline]
    pub const fn leader(self) -> Option<u8> {
        // Any fixed choice would do: both ends derive it from the mask, so no message has to name
        // it.
        if self.is_empty() { None } else { Some(self.0.trailing_zeros() as u8) }
    }

    /// Returns the `rails` lowest rails of the set.
    pub(super) fn lowest(self, rails: u32) -> Self {
        self.take(rails as usize).fold(Self::EMPTY, |lowest, rail| lowest | Self::of(rail))
    }

    /// The rails up to the highest one of the set.
    #[inline]
    pub(super) const fn rails_up_to_last(self) -> u8 {
        (u8::BITS - self.0.leading_zeros()) as u8
    }

    /// The rails that are not in the set.
    pub(super) const fn others(self) -> Self {
        Self(!self.0)
    }

    /// The set without this rail.
    #[inline]
    pub const fn without(self, rail: u8) -> Self {
        Self(self.0 & !Self::of(rail).0)
    }
}

impl core::ops::BitOr for Mask {
    type Output = Self;

    #[inline]
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl core::ops::BitOrAssign for Mask {
    #[inline]
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

impl core::ops::BitAnd for Mask {
    type Output = Self;

    #[inline]
    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl Iterator for Mask {
    type Item = u8;

    #[inline]
    fn next(&mut self) -> Option<u8> {
        let rail = self.leader()?;
        self.0 &= self.0 - 1;
        Some(rail)
    }
}

/// The numbers of the rails, separated by commas.
impl fmt::Display for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, rail) in { *self }.enumerate() {
            let separator = if at > 0 { ", " } else { "" };
            write!(f, "{separator}{rail}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mask({:#010b})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_lists_its_rails_from_the_lowest() {
        for bits in 0..=u8::MAX {
            let mask = Mask::from_bits(bits);
            assert_eq!(mask.fold(Mask::EMPTY, |all, rail| all | Mask::of(rail)), mask);
            assert_eq!(mask.count(), bits.count_ones());
            assert_eq!(mask.leader(), (0..8).find(|rail| mask.contains(*rail)));
        }
        assert!(Mask::of(8).is_empty() && !Mask::from_bits(u8::MAX).contains(8));
        assert_eq!(Mask::first(3).bits(), 0b111);
        assert_eq!(Mask::first(8).bits(), u8::MAX);
    }
}
