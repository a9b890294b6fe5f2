//! Connects a queue pair on another thread.

use super::aside::ToErr;
use super::forward::{ToRtr, ToRts};
use super::modify::{Attributes, CALL};
use crate::cq::CqHandle;
use crate::error::{Argument, VerbsError};
use crate::owned::Owned;
use crate::pd::ProtectionDomain;
use crate::qp::QueuePair;
use crate::qp::last_state::LastState;
use crate::qp::service::Rc;
use crate::qp_state::QpState;
use crate::srq;
use crate::value::ModifyError;
use rdma_sys::ibv_qp;
use std::sync::Arc;

/// Moves a queue pair from INIT to RTS, on any thread.
///
/// For RTR the kernel resolves the peer's address over RoCE, which takes a second or more if the
/// peer does not answer. Meanwhile the owner of the queue pair can post receives, move the queue
/// pair to ERR, and drop it. A queue pair that is dropped is moved to ERR, so that no peer reaches
/// it, and is destroyed when the connector has been dropped as well.
#[derive(Debug)]
pub struct Connector {
    // First, so that the queue pair is destroyed before the objects that it was made from, if this
    // is the last owner.
    raw: Arc<Owned<ibv_qp>>,
    state: Arc<LastState>,
    _srq: Option<Arc<srq::Shared>>,
    _cqs: [CqHandle; 2],
    _pd: ProtectionDomain,
}

/// Moves a queue pair to ERR. If the driver refuses, nothing changes.
///
/// # Safety
///
/// The queue pair is alive.
pub(in crate::qp) unsafe fn move_to_err(raw: *mut ibv_qp) {
    // SAFETY: guaranteed by the caller.
    _ = Attributes::of(&ToErr).map(|mut to_err| unsafe { to_err.apply(raw) });
}

impl QueuePair<Rc> {
    /// Returns a handle that connects the queue pair on another thread.
    ///
    /// # Errors
    ///
    /// EINVAL: the queue pair is destroyed, because its
    /// [last receive](polyrail_core::hardware::QueuePair::last_wqe_reached) was asked for. EPERM:
    /// it belongs to the process that this one is a fork of.
    pub fn connector(&self) -> Result<Connector, VerbsError> {
        Ok(Connector {
            raw: Arc::clone(self.check_alive(CALL)?),
            state: Arc::clone(&self.state),
            _srq: self.srq.clone(),
            _cqs: [self.send_cq.clone(), self.recv_cq.clone()],
            _pd: self.pd.clone(),
        })
    }
}

impl Connector {
    /// Moves the queue pair from INIT to RTR, then to RTS.
    ///
    /// # Errors
    ///
    /// As [`QueuePair::modify`]. The queue pair is in the state that was reached. EINVAL: it is not
    /// in INIT, or was moved to ERR or dropped meanwhile. EBUSY: another connector is moving it.
    pub fn connect(self, to_rtr: &ToRtr, to_rts: &ToRts) -> Result<(), ModifyError> {
        let [mut rtr, mut rts] = [Attributes::of(to_rtr)?, Attributes::of(to_rts)?];
        let qp = self.raw.for_call(CALL)?;
        let refused = |errno| VerbsError::new(CALL, errno, Argument::State(QpState::Rtr));
        let mut last = self.state.lock();
        match () {
            () if last.is_connecting() => return Err(refused(libc::EBUSY).into()),
            () if last.get() != QpState::Init => return Err(refused(libc::EINVAL).into()),
            () => last.set_connecting(true),
        }
        drop(last);
        // SAFETY: the queue pair is alive.
        let reached = unsafe { rtr.apply(qp) };
        let mut last = self.state.lock();
        last.set_connecting(false);
        if last.get() == QpState::Err {
            // rxe of Linux 6.1 does not serialise transitions: it may have gone to RTR behind ERR.
            // SAFETY: the queue pair is alive.
            unsafe { Attributes::of(&ToErr)?.apply(qp) }?;
            return Err(refused(libc::EINVAL).into());
        }
        reached?;
        last.set(QpState::Rtr);
        // SAFETY: the queue pair is alive.
        unsafe { rts.apply(qp) }?;
        last.set(QpState::Rts);
        Ok(())
    }
}
