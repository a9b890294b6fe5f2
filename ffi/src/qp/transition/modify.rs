//! Makes transitions, one at a time.

use super::fill::Fill;
use crate::error::{Argument, VerbsError};
use crate::qp::QueuePair;
use crate::qp::service::Service;
use crate::value::ModifyError;
use rdma_sys::{ibv_qp_attr, ibv_qp_attr_mask as mask};
use std::mem::MaybeUninit;

/// A transition that queue pairs of service `S` can make.
pub trait Transition<S: Service>: Fill {}

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
    pub fn modify<T: Transition<S>>(&self, transition: &T) -> Result<(), ModifyError> {
        // SAFETY: a C struct of numbers, so zeros are valid.
        let mut raw = unsafe { MaybeUninit::<ibv_qp_attr>::zeroed().assume_init() };
        let given = transition.fill(&mut raw)? | mask::IBV_QP_STATE;
        raw.qp_state = T::TO.raw();
        self.check_alive("ibv_modify_qp")?;
        let mut last = self.state.lock();
        // From another state, a change of attributes would also be a change of state, such as SQD
        // to RTS.
        if T::FROM.is_some_and(|from| from != self.last_state()) {
            let argument = Argument::State(T::TO);
            return Err(VerbsError::new("ibv_modify_qp", libc::EINVAL, argument).into());
        }
        // A forgotten batch holds the driver's lock. If it were aborted after a reset, it would
        // restore queue positions from before the reset.
        self.sender.abort();
        // SAFETY: the queue pair is alive, and the attributes are only read.
        let returned =
            unsafe { rdma_sys::ibv_modify_qp(self.as_ptr(), &raw mut raw, given.0 as libc::c_int) };
        VerbsError::check(returned, "ibv_modify_qp", Argument::State(T::TO))?;
        last.set(T::TO);
        self.last_wqe.moved_to(T::TO);
        Ok(())
    }
}
