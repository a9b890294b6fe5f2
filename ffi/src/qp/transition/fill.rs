//! What a transition writes into `struct ibv_qp_attr`, and the values that several of them check.

use crate::qp_state::QpState;
use crate::value::{ModifyError, small};
use rdma_sys::{ibv_qp_attr, ibv_qp_attr_mask as mask};

/// What seals [`Transition`](super::Transition): how it fills in the attributes.
pub trait Fill {
    /// Where it leads.
    const TO: QpState;

    /// The only state that it may be made from, if the driver must not be asked elsewhere.
    const FROM: Option<QpState> = None;

    /// Writes the attributes; returns which.
    fn fill(&self, raw: &mut ibv_qp_attr) -> Result<mask, ModifyError>;
}

pub(super) fn min_rnr_timer(code: u8) -> Result<u8, ModifyError> {
    small("min_rnr_timer", code, 5)
}

pub(super) fn timeout(code: u8) -> Result<u8, ModifyError> {
    small("timeout", code, 5)
}

pub(super) fn retry_cnt(count: u8) -> Result<u8, ModifyError> {
    small("retry_cnt", count, 3)
}

pub(super) fn rnr_retry(count: u8) -> Result<u8, ModifyError> {
    small("rnr_retry", count, 3)
}
