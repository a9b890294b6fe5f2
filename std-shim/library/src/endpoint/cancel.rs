//! Requests that are taken back.

use super::place::rail_ids;
use super::qp::EndpointQp;
use crate::backend::Connect;
use polyrail_core::hardware::QueuePair;
use polyrail_core::virtual_qp::{CancelError, QpState, RailId, RailState};
use std::time::Instant;

impl<Q: QueuePair> EndpointQp<Q> {
    /// Takes a WRITE or READ back; see
    /// [`VirtualQp::cancel`](polyrail_core::virtual_qp::VirtualQp::cancel), and [the page about
    /// it](crate::cancel) for what its caller may do with the memory, and when.
    ///
    /// Its report comes out of a later poll, one completion like any other. Polls fence the rails
    /// that carry it once [`cancel_grace`](super::EndpointBuilder::cancel_grace) has passed, and
    /// give them new queue pairs. Poll on until the report: without polls nothing is fenced.
    ///
    /// ```
    /// use polyrail::endpoint::{Endpoint, EndpointBuilder, connect_endpoints};
    /// use polyrail::memory::RegisteredBuffer;
    /// use polyrail::nic::{DeviceConfig, Fabric};
    /// use polyrail::verbs::{AccessFlags, SendWr, WcStatus};
    /// use polyrail::virtual_qp::{CancelError, RailFailure};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let fabric = Fabric::threaded();
    /// # let here = fabric.create_device(DeviceConfig::named("here")).alloc_pd()?;
    /// # let there = fabric.create_device(DeviceConfig::named("there")).alloc_pd()?;
    /// let builder = EndpointBuilder::new().rail_failure(RailFailure::Reroute);
    /// let mut sender: Endpoint = builder.build(&[&here])?;
    /// let mut receiver: Endpoint = builder.build(&[&there])?;
    /// connect_endpoints(&mut sender, &mut receiver)?;
    /// # let from = RegisteredBuffer::new(1 << 20, AccessFlags::LOCAL_WRITE, &[&here])?;
    /// # let writable = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    /// # let to = RegisteredBuffer::new(1 << 20, writable, &[&there])?;
    /// # let keys = from.toward(&to.remote())?;
    /// sender.post_send(&SendWr::write(7, from.local(0, 1 << 20)?, to.addr(), &keys))?;
    /// match sender.cancel(7) {
    ///     // It is done, and its report is in a later poll, or already was.
    ///     Ok(()) | Err(CancelError::TooLate | CancelError::Unknown { .. }) => {}
    ///     Err(error) => return Err(error.into()),
    /// }
    /// let report = loop {
    ///     // The peer polls as well.
    ///     receiver.poll(16).check()?;
    ///     if let Some(report) = sender.poll(16).completions.pop() {
    ///         break report;
    ///     }
    /// };
    /// match report.status {
    ///     WcStatus::SUCCESS => println!("it was delivered"),
    ///     WcStatus::CANCELLED => println!("{} bytes may be written", report.byte_len),
    ///     status => println!("the endpoint failed: {}", sender.explain(status)),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// See [`CancelError`]; nothing changed.
    #[cold]
    pub fn cancel(&mut self, wr_id: u64) -> Result<(), CancelError> {
        self.qp.cancel(wr_id)?;
        self.begin_cancel();
        Ok(())
    }

    /// Takes all WRITEs and READs with this `wr_id` back that can be taken back, and returns their
    /// number: for callers that post the parts of a transfer with one `wr_id`. Otherwise as
    /// [`cancel`](Self::cancel).
    ///
    /// # Errors
    ///
    /// No request can be taken back, whatever it is; see
    /// [`VirtualQp::cancel_all`](polyrail_core::virtual_qp::VirtualQp::cancel_all). Nothing changed.
    #[cold]
    pub fn cancel_all(&mut self, wr_id: u64) -> Result<usize, CancelError> {
        let count = self.qp.cancel_all(wr_id)?;
        if count > 0 {
            self.begin_cancel();
        }
        Ok(count)
    }

    fn begin_cancel(&mut self) {
        self.cancels.begin();
        if self.cancels.grace.is_zero() {
            self.qp.fence_cancelled();
        }
    }

    /// Whether requests are being taken back, so that polls have something to do that no completion
    /// announces.
    pub(crate) const fn is_taking_back(&self) -> bool {
        self.cancels.is_busy
    }

    /// Returns when the rails of requests that are being taken back are fenced, if that is to come.
    pub(super) const fn fences_at(&self) -> Option<Instant> {
        self.cancels.fence_at
    }
}

impl<Q: Connect> EndpointQp<Q> {
    /// Has the rails fenced that carry requests whose grace is over.
    pub(super) fn fence_cancelled(&mut self, now: Instant) {
        let Self { qp, cancels, .. } = self;
        if !cancels.is_busy {
            return;
        }
        if qp.being_taken_back() == 0 {
            cancels.fence_at = None;
        }
        let is_out = |rail| qp.is_out_on_purpose(rail);
        let is_any_out = !qp.rails_asked_for().is_empty() || rail_ids().any(is_out);
        if cancels.is_due(now, is_any_out) {
            qp.fence_cancelled();
        }
        // Behind it, since a request of which nothing is in flight needs no fence.
        let is_awaited = qp.being_taken_back() > 0 || !qp.rails_asked_for().is_empty();
        cancels.is_busy = is_awaited && qp.state() != QpState::Error;
    }

    /// Whether the peer's part of a fence on purpose is awaited.
    pub(super) fn awaits_fence_on_purpose(&self, rail: RailId) -> bool {
        let is_out = || self.qp.is_out_on_purpose(rail);
        let state = self.qp.rail_state(rail);
        self.qp.rails_asked_for().contains(rail) || (state.is_some_and(awaits_fence) && is_out())
    }
}

/// Whether what arrived of what was in flight on a rail is not known yet.
pub(super) const fn awaits_fence(state: RailState) -> bool {
    matches!(state, RailState::Draining | RailState::Fenced)
}
