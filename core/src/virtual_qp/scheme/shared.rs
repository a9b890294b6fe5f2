//! Types that the schemes share with their virtual queue pair.

use crate::rail::{Rail, RailId, RailSet};
use crate::verbs::{Completion, ImmOrder};

/// The rails whose drivers must be offered requests or receives.
#[derive(Clone, Copy, Debug)]
pub(in crate::virtual_qp) struct Offers {
    /// Their drivers refused send requests, or the rest of a batch of them.
    pub(in crate::virtual_qp) sends: RailSet,
    /// Their posted receives are at the low-water mark, or their drivers refused receives.
    pub(in crate::virtual_qp) receives: RailSet,
}

impl Offers {
    pub(in crate::virtual_qp) const NONE: Self =
        Self { sends: RailSet::EMPTY, receives: RailSet::EMPTY };

    /// Returns whether a poll has something to offer.
    #[inline]
    pub(in crate::virtual_qp) const fn any(&self) -> bool {
        !self.sends.is_empty() || !self.receives.is_empty()
    }
}

/// The state of the virtual queue pair that a scheme needs to post receives.
pub(in crate::virtual_qp) struct Receiving<'q, Q, const DEPTH: usize> {
    /// The data rails.
    pub(in crate::virtual_qp) rails: &'q mut [Rail<Q, DEPTH>],
    pub(in crate::virtual_qp) offers: &'q mut Offers,
    /// Rail 0's receive queue is used for data receives.
    pub(in crate::virtual_qp) serves_data: bool,
    /// The virtual queue pair is in the error state.
    pub(in crate::virtual_qp) failed: bool,
}

/// The completion of a receive that the scheme posted.
pub(in crate::virtual_qp) struct Notification<'c> {
    pub(in crate::virtual_qp) rail: RailId,
    pub(in crate::virtual_qp) completion: &'c Completion,
    /// The byte order of users' immediates.
    pub(in crate::virtual_qp) imm_order: ImmOrder,
}
