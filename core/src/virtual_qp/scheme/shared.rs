//! What the schemes need of their virtual queue pair, and what they learn from it.

use crate::rail::{Rail, RailId};
use crate::verbs::{Completion, ImmOrder};
use crate::virtual_qp::offers::Offers;

/// What a scheme needs of its virtual queue pair to post receives.
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
    /// How users' immediates travel.
    pub(in crate::virtual_qp) imm_order: ImmOrder,
}
