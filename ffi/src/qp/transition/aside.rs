//! Transitions that leave RTS: SQD and back, recovery from SQE, ERR and RESET.

use super::fill::Fill;
use super::modify::Transition;
use crate::qp::service::{Service, Uc, Ud};
use crate::qp_state::QpState;
use crate::value::ModifyError;
use rdma_sys::{ibv_qp_attr, ibv_qp_attr_mask as mask};

/// RTS to SQD: the send queue starts no further requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToSqd {
    /// Whether [`SqDrained`](crate::AsyncEvent::SqDrained) is raised when the requests in progress
    /// have completed.
    pub notify: bool,
}

impl<S: Service> Transition<S> for ToSqd {}

impl Fill for ToSqd {
    const TO: QpState = QpState::Sqd;

    fn fill(&self, raw: &mut ibv_qp_attr) -> Result<mask, ModifyError> {
        raw.en_sqd_async_notify = self.notify.into();
        Ok(mask::IBV_QP_EN_SQD_ASYNC_NOTIFY)
    }
}

/// SQD to RTS: the send queue resumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resume;

impl<S: Service> Transition<S> for Resume {}

impl Fill for Resume {
    const TO: QpState = QpState::Rts;

    fn fill(&self, raw: &mut ibv_qp_attr) -> Result<mask, ModifyError> {
        raw.cur_qp_state = QpState::Sqd.raw();
        Ok(mask::IBV_QP_CUR_STATE)
    }
}

/// SQE to RTS, for UC and UD: the send queue resumes after a request failed. Requests behind the
/// failed one were flushed; receives were not affected.
///
/// ```compile_fail,E0277
/// // An RC queue pair whose send queue failed is in ERR, and only RESET leads out of it.
/// use polyrail_ffi::{QueuePair, Rc, Recover};
/// fn recover(qp: &mut QueuePair<Rc>) {
///     qp.modify(&Recover).unwrap();
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recover;

impl Transition<Uc> for Recover {}
impl Transition<Ud> for Recover {}

impl Fill for Recover {
    const TO: QpState = QpState::Rts;

    fn fill(&self, raw: &mut ibv_qp_attr) -> Result<mask, ModifyError> {
        raw.cur_qp_state = QpState::Sqe.raw();
        Ok(mask::IBV_QP_CUR_STATE)
    }
}

/// To ERR: all outstanding requests are flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToErr;

impl<S: Service> Transition<S> for ToErr {}

impl Fill for ToErr {
    const TO: QpState = QpState::Err;

    fn fill(&self, _: &mut ibv_qp_attr) -> Result<mask, ModifyError> {
        Ok(mask(0))
    }
}

/// To RESET: all outstanding requests are discarded without completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToReset;

impl<S: Service> Transition<S> for ToReset {}

impl Fill for ToReset {
    const TO: QpState = QpState::Reset;

    fn fill(&self, _: &mut ibv_qp_attr) -> Result<mask, ModifyError> {
        Ok(mask(0))
    }
}
