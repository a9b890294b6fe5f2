//! What is to be offered to drivers again.

use crate::rail::RailSet;

/// The rails whose drivers are to be offered something.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offers {
    /// Their drivers refused send requests, or the rest of a batch of them.
    pub(super) sends: RailSet,
    /// Their posted receives have sunk to the low-water mark, or their drivers refused receives.
    pub(super) receives: RailSet,
}

impl Offers {
    pub(super) const NONE: Self = Self { sends: RailSet::EMPTY, receives: RailSet::EMPTY };

    /// Whether a poll has something to offer.
    #[inline]
    pub(super) const fn any(&self) -> bool {
        !self.sends.is_empty() || !self.receives.is_empty()
    }
}
