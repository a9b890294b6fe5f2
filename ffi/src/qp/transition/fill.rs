//! Fills in `struct ibv_qp_attr`, and checks values that several transitions share.

use crate::qp_state::QpState;
use crate::value::{ModifyError, small};
use rdma_sys::{ibv_qp_attr, ibv_qp_attr_mask as mask};

/// Seals [`Transition`](super::Transition), and fills in its attributes.
pub trait Fill {
    /// The target state.
    const TO: QpState;

    /// The only state in which the driver may be called, if there is one.
    const FROM: Option<QpState> = None;

    /// Writes the attributes; returns their mask.
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
