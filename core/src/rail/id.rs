//! Which physical queue pair of a virtual one, and sets of them.

use super::tag::Tag;
use core::fmt;

/// Rails that one virtual queue pair can have.
pub const MAX_RAILS: usize = 8;

/// One physical queue pair of a virtual one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RailId {
    /// A data rail, by number.
    Data(u8),
    /// The notify queue pair.
    Notify,
}

impl RailId {
    /// Data rails have numbers below this.
    pub(crate) const MAX: u8 = MAX_RAILS as u8;

    /// The number that tags carry.
    pub(crate) const fn number(self) -> u8 {
        // Also the number in control messages, where data rails and the notify queue pair share a
        // byte.
        if let Self::Data(rail) = self { rail } else { Tag::NOTIFY_RAIL }
    }
}

impl fmt::Display for RailId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Data(rail) => write!(f, "rail {rail}"),
            Self::Notify => f.write_str("the notify queue pair"),
        }
    }
}

/// A set of rails, the notify queue pair included. As an iterator, it lists them.
///
/// ```
/// use polyrail_core::virtual_qp::{RailId, RailSet};
///
/// let set = RailSet::of(RailId::Data(2));
/// assert!(set.contains(RailId::Data(2)) && !set.contains(RailId::Notify));
/// assert!(set.eq([RailId::Data(2)]));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RailSet(u16);

impl RailSet {
    pub(crate) const EMPTY: Self = Self(0);

    /// The set of this one rail; of a number that no rail has, the empty one.
    pub const fn of(rail: RailId) -> Self {
        // The owner chooses this number: 15 would be the notify queue pair, and 16 overflow the
        // shift.
        let is_rail = !matches!(rail, RailId::Data(Tag::NOTIFY_RAIL..));
        if is_rail { Self(1 << rail.number()) } else { Self::EMPTY }
    }

    #[inline]
    pub(crate) fn insert(&mut self, rail: RailId) {
        self.0 |= Self::of(rail).0;
    }

    #[inline]
    pub(crate) fn remove(&mut self, rail: RailId) {
        self.0 &= !Self::of(rail).0;
    }

    /// Whether no rail is in the set.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether this rail is in the set.
    #[inline]
    pub const fn contains(self, rail: RailId) -> bool {
        self.0 & Self::of(rail).0 != 0
    }
}

impl FromIterator<RailId> for RailSet {
    fn from_iter<I: IntoIterator<Item = RailId>>(rails: I) -> Self {
        let mut set = Self::EMPTY;
        rails.into_iter().for_each(|rail| set.insert(rail));
        set
    }
}

/// Such as `rail 0, rail 2, the notify queue pair`; `no rail` of the empty set.
impl fmt::Display for RailSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rails = *self;
        let Some(first) = rails.next() else { return f.write_str("no rail") };
        write!(f, "{first}")?;
        rails.try_for_each(|rail| write!(f, ", {rail}"))
    }
}

impl Iterator for RailSet {
    type Item = RailId;

    fn next(&mut self) -> Option<RailId> {
        let bit = self.0.trailing_zeros() as u8;
        // Clears the lowest bit. Wrapping, because the empty set has none: `trailing_zeros` is 16
        // then.
        self.0 &= self.0.wrapping_sub(1);
        match bit {
            16.. => None,
            Tag::NOTIFY_RAIL => Some(RailId::Notify),
            rail => Some(RailId::Data(rail)),
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    #[test]
    fn a_rail_set_lists_what_was_put_in() {
        let mut set = RailSet::EMPTY;
        set.insert(RailId::Notify);
        set.insert(RailId::Data(7));
        set.insert(RailId::Data(0));
        assert!(set.contains(RailId::Data(7)) && !set.contains(RailId::Data(1)));
        assert!(set.eq([RailId::Data(0), RailId::Data(7), RailId::Notify]));
        assert!(RailSet::EMPTY.is_empty());
        assert_eq!(set.collect::<RailSet>(), set);
        assert_eq!(std::format!("{set}"), "rail 0, rail 7, the notify queue pair");
        assert_eq!(std::format!("{}", RailSet::EMPTY), "no rail");
    }

    #[test]
    fn a_number_that_no_rail_has_is_in_no_set() {
        for number in [Tag::NOTIFY_RAIL, 16, 31, u8::MAX] {
            let rail = RailId::Data(number);
            assert!(RailSet::of(rail).is_empty());
            assert!(!RailSet::of(RailId::Notify).contains(rail));
        }
    }
}
