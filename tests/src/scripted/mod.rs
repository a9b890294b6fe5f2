//! A NIC on which the test decides every completion.
//!
//! It moves no data. It records what is posted and completes it when and as the test decides: the
//! test keeps a [`QpHandle`] while the virtual queue pair owns the [`ScriptedQp`]. What hardware
//! guarantees, it guarantees too: requests of one queue pair complete in posting order, unsignaled
//! ones silently; a failure flushes everything behind it, signaled or not, and both queues; a send
//! slot is free again only after a completion at or behind it was polled; a full queue refuses. The
//! fields that verbs leaves undefined on a failure hold rubbish.

mod handle;
mod state;

pub use handle::QpHandle;
pub use state::{Note, State};

use crate::nic::{self, Shared};
use polyrail_core::hardware::{CqId, QpLimits};
use polyrail_core::verbs::DeviceId;
use state::{CqState, QpState};
use std::rc::Rc;

/// A queue pair as the engine owns it.
pub type ScriptedQp = nic::Qp<State>;

/// A completion queue as the engine owns it. Clones are the same queue.
pub type ScriptedCq = nic::Cq<State>;

/// What every queue pair gets unless the test overrides it.
pub const LIMITS: QpLimits = QpLimits {
    max_send_wr: 1024,
    max_recv_wr: 1024,
    max_inline_data: 256,
    max_msg_size: 1 << 31,
    max_send_sge: 1,
    max_recv_sge: 1,
};

/// All devices of a test.
#[derive(Clone, Debug, Default)]
pub struct Nic {
    state: Shared<State>,
}

impl Nic {
    /// A NIC without devices.
    pub fn new() -> Self {
        Self::default()
    }

    /// A completion queue of `capacity` entries. An overrun panics: the engine promises to avoid
    /// it.
    pub fn cq(&self, device: u32, capacity: u32) -> ScriptedCq {
        let mut state = self.state.borrow_mut();
        state.cqs.push(CqState::new(DeviceId(device), capacity));
        ScriptedCq::new(&self.state, state.cqs.len() - 1)
    }

    /// A queue pair on `cq`, and the handle that scripts it.
    pub fn qp(&self, qp_num: u32, cq: &ScriptedCq, limits: QpLimits) -> (ScriptedQp, QpHandle) {
        let mut state = self.state.borrow_mut();
        let device = state.cqs[cq.at].device;
        state.qps.push(QpState::new(device, qp_num, cq.at, limits));
        let at = state.qps.len() - 1;
        (ScriptedQp::new(&self.state, at), QpHandle { nic: self.clone(), at })
    }

    /// Polls of a completion queue fail with this code from now on, or work again if it is `None`.
    pub fn break_cq(&self, cq: &ScriptedCq, errno: Option<i32>) {
        self.state.borrow_mut().cqs[cq.at].broken = errno;
    }

    /// Completions that wait to be polled, on all queues.
    pub fn unpolled(&self) -> usize {
        self.state.borrow().cqs.iter().map(|cq| cq.entries.len()).sum()
    }

    /// Logs what happens from now on; [`QpHandle::take_doorbells`] then does not return it.
    pub fn keep_log(&self) {
        self.state.borrow_mut().log = Some(Vec::new());
    }

    /// What happened since the last call.
    pub fn take_log(&self) -> Vec<Note> {
        self.state.borrow_mut().log.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Commits of sends that were not taken whole so far.
    pub fn refusals(&self) -> u64 {
        self.state.borrow().refusals
    }

    /// Requests that were refused because they are longer than their queue pair carries.
    pub fn invalid(&self) -> u64 {
        self.state.borrow().invalid
    }

    /// Owners of queue pairs and completion queues, handles and this one included.
    pub fn owners(&self) -> usize {
        Rc::strong_count(&self.state)
    }

    fn cq_id(at: usize) -> CqId {
        CqId(1000 + at as u64)
    }
}
