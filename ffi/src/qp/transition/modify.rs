//! Makes transitions, one at a time.

use super::fill::Fill;
use crate::error::{Argument, VerbsError};
use crate::qp::QueuePair;
use crate::qp::service::Service;
use crate::qp_state::QpState;
use crate::value::ModifyError;
use rdma_sys::{ibv_qp, ibv_qp_attr, ibv_qp_attr_mask as mask};
use std::mem::MaybeUninit;

/// Name of the call that makes transitions.
pub(super) const CALL: &str = "ibv_modify_qp";

/// A transition that queue pairs of service `S` can make.
pub trait Transition<S: Service>: Fill {}

/// The attributes of a transition.
pub(super) struct Attributes {
    raw: ibv_qp_attr,
    given: mask,
    to: QpState,
}

impl Attributes {
    /// Refuses a value that does not fit its field.
    pub(super) fn of<T: Fill>(transition: &T) -> Result<Self, ModifyError> {
        // SAFETY: a C struct of numbers, so zeros are valid.
        let mut raw = unsafe { MaybeUninit::<ibv_qp_attr>::zeroed().assume_init() };
        let given = transition.fill(&mut raw)? | mask::IBV_QP_STATE;
        raw.qp_state = T::TO.raw();
        Ok(Self { raw, given, to: T::TO })
    }

    /// Makes the transition.
    ///
    /// # Safety
    ///
    /// The queue pair is alive.
    pub(super) unsafe fn apply(&mut self, qp: *mut ibv_qp) -> Result<(), VerbsError> {
        // SAFETY: the queue pair is alive, as the caller guarantees, and the attributes are only
        // read.
        let returned =
            unsafe { rdma_sys::ibv_modify_qp(qp, &raw mut self.raw, self.given.0 as libc::c_int) };
        VerbsError::check(returned, CALL, Argument::State(self.to))
    }
}

impl<S: Service> QueuePair<S> {
    /// Makes a transition (`ibv_modify_qp`). Concurrent transitions of a queue pair are serialised.
    ///
    /// ```compile_fail,E0277
    /// // Datagrams have no peer to connect to.
    /// use polyrail_ffi::{QueuePair, ToRts, Ud};
    /// fn connect(qp: &mut QueuePair<Ud>, to_rts: ToRts) {
    ///     qp.modify(&to_rts).unwrap();
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// A value does not fit its field. EINVAL: the queue pair is in another state, or the device
    /// refuses the attributes; ENETUNREACH, EHOSTUNREACH, ETIMEDOUT: the GID cannot be reached.
    /// EBUSY: a [`Connector`](crate::Connector) is moving the queue pair to RTR, from where it can
    /// only be moved to ERR meanwhile.
    pub fn modify<T: Transition<S>>(&self, transition: &T) -> Result<(), ModifyError> {
        let mut attributes = Attributes::of(transition)?;
        self.check_alive(CALL)?;
        let mut last = self.state.lock();
        if last.is_connecting() && T::TO != QpState::Err {
            return Err(VerbsError::new(CALL, libc::EBUSY, Argument::State(T::TO)).into());
        }
        // From another state, a change of attributes would also be a change of state, such as SQD
        // to RTS.
        if T::FROM.is_some_and(|from| from != self.last_state()) {
            return Err(VerbsError::new(CALL, libc::EINVAL, Argument::State(T::TO)).into());
        }
        // A forgotten batch holds the driver's lock. If it were aborted after a reset, it would
        // restore queue positions from before the reset.
        self.sender.abort();
        // SAFETY: the queue pair is alive.
        unsafe { attributes.apply(self.as_ptr()) }?;
        last.set(T::TO);
        self.last_wqe.moved_to(T::TO);
        Ok(())
    }
}
