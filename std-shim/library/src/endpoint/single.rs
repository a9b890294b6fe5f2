//! A virtual queue pair with its own completion queues.

use super::build_error::BuildError;
use super::builder::EndpointBuilder;
use super::channels::Channels;
use super::devices::Devices;
use super::health::EndpointError;
use super::make::{Common, EndpointPlan, Made, make};
use super::qp::EndpointQp;
use super::repair::Owner;
use super::sizes::{ENDPOINT_ROUTES, EngineQp, MAX_DEVICES};
use crate::backend::{Connect, Domain, DomainRef, listed};
use crate::heal::{HEAL_EVERY, Polls};
use polyrail_core::hardware::{CompletionQueue, CqError};
use polyrail_core::verbs::{Completion, DeviceId, WcStatus};
use polyrail_core::virtual_cq::{Event, Polled, VirtualCq, VirtualWc};
use polyrail_core::virtual_qp::PostError;
use polyrail_software_nic as nic;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

/// A virtual queue pair with its completion queues: an [`EndpointQp`] that can be polled.
#[derive(Debug)]
pub struct Endpoint<Q = nic::QueuePair, C = nic::CompletionQueue> {
    pub(super) qp: EndpointQp<Q>,
    pub(super) cq: VirtualCq<C, MAX_DEVICES, ENDPOINT_ROUTES>,
    pub(super) devices: Devices<Q, C>,
    pub(super) channels: Channels,
    pub(super) polls: Polls,
}

impl<Q, C> Deref for Endpoint<Q, C> {
    type Target = EndpointQp<Q>;

    #[inline]
    fn deref(&self) -> &Self::Target {
        &self.qp
    }
}

impl<Q, C> DerefMut for Endpoint<Q, C> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.qp
    }
}

impl EndpointBuilder {
    /// Builds the endpoint: a completion queue on each device, deep enough for everything that can
    /// be in flight; rails on the devices in turn, and on the ports of each device in turn; the
    /// notify queue pair on the first device; all queue pairs in INIT, with the receives posted
    /// that DQPLB needs.
    ///
    /// With more devices than rails, the last devices are not used.
    ///
    /// # Errors
    ///
    /// A device or the engine refuses.
    pub fn build<'d, D: Domain>(
        &self,
        domains: impl IntoIterator<Item: DomainRef<'d, D>>,
    ) -> Result<Endpoint<D::Qp, D::Cq>, BuildError> {
        let domains = listed(domains);
        let Made { mut qps, common } = make(&[EndpointPlan::new(*self, &domains)?])?;
        let qp = qps.pop().expect("as many as are planned");
        let Common { cq, devices, channels } = common;
        Ok(Endpoint { qp, cq: *cq, devices, channels, polls: Polls::default() })
    }
}

impl<Q, C> Endpoint<Q, C>
where
    Q: Connect,
    C: CompletionQueue,
{
    /// Passes at most `budget` events to `sink`, and drives everything that waits for completions.
    /// If rails are re-routed, some polls also [repair](crate::heal::Healing) them. Allocates only
    /// for new queue pairs.
    #[inline]
    pub fn poll_with(&mut self, budget: usize, sink: impl FnMut(Event)) -> Polled {
        let polled = self.cq.poll(&mut *self.qp.qp, budget, sink);
        self.heal_sometimes();
        polled
    }

    #[inline]
    fn heal_sometimes(&mut self) {
        if self.qp.healer.is_some() && self.polls.is_turn(HEAL_EVERY) {
            self.heal();
        }
    }

    /// Runs the [repair](crate::heal::Healing) step of polls immediately, if the endpoint repairs
    /// its rails. For owners that poll seldom, or by [parts](Self::parts_mut).
    #[cold]
    pub fn heal(&mut self) {
        let owner = Owner { cq: &mut self.cq, index: 0, devices: &self.devices };
        self.qp.heal(owner, Instant::now());
    }

    /// Like [`poll_with`](Self::poll_with), with the results in vectors.
    pub fn poll(&mut self, budget: usize) -> PollBatch {
        PollBatch::collect(|sink| self.poll_with(budget, sink))
    }

    /// Returns the failure that caused a post to be refused, if there is one. With a single rail
    /// only the device knows of the failure, so completions are polled for up to a second, and
    /// dropped.
    pub fn explain_refusal(&mut self, refusal: PostError) -> Option<EndpointError> {
        /// How long the completions of a queue pair that failed may take to show.
        const TIMEOUT: Duration = Duration::from_secs(1);
        const BUDGET: usize = 64;
        if !refusal.is_in_error_state() && refusal.driver_refusal().is_none() {
            return None;
        }
        let begin = Instant::now();
        let mut failed = refusal.is_in_error_state() || self.qp.virtual_qp().failure().is_some();
        while !failed {
            // Looked at before the poll, so that a thread that had to wait does poll once more.
            let late = begin.elapsed() >= TIMEOUT;
            let polled = self.poll_with(BUDGET, |event| {
                failed |= event.completion().is_some_and(|wc| wc.status != WcStatus::SUCCESS);
            });
            if let Some(error) = polled.error {
                return Some(self.qp.queue_error(error));
            }
            if late {
                break;
            }
        }
        failed.then(|| self.qp.explain(WcStatus::WR_FLUSH_ERR))
    }

    /// Returns the completion queues, one per device.
    pub fn virtual_cq(&self) -> &VirtualCq<C, MAX_DEVICES, ENDPOINT_ROUTES> {
        &self.cq
    }

    /// Returns both parts, for operations that this type does not have.
    pub fn parts_mut(
        &mut self,
    ) -> (&mut EngineQp<Q>, &mut VirtualCq<C, MAX_DEVICES, ENDPOINT_ROUTES>) {
        (&mut self.qp.qp, &mut self.cq)
    }

    /// Calls [`fail`](EndpointQp::fail), then polls until no request is left on the
    /// devices, or `timeout` has passed. Completions are dropped. If the endpoint
    /// [repairs](crate::heal::Healing) its rails, its last messages for the peer are in its
    /// [link](EndpointQp::healing_link) afterwards.
    pub fn give_up(&mut self, timeout: Duration) {
        const BUDGET: usize = 64;
        self.fail();
        self.heal();
        let begin = Instant::now();
        loop {
            let polled = self.poll_with(BUDGET, |_| ());
            let busy = polled.events > 0 || self.unreported() > 0;
            if !busy || polled.error.is_some() || begin.elapsed() > timeout {
                return;
            }
        }
    }
}

/// Results of one [`Endpoint::poll`](super::Endpoint::poll) or
/// [`EndpointSet::poll`](super::EndpointSet::poll).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "a completion queue may have failed"]
pub struct PollBatch {
    /// Completions of requests, in the order in which they are reported.
    pub completions: Vec<VirtualWc>,
    /// Completions of unknown queue pairs.
    pub foreign: Vec<(DeviceId, Completion)>,
    /// The error of the first completion queue that could not be polled; the others were polled.
    pub error: Option<CqError>,
}

impl PollBatch {
    /// Returns the error as a result, for callers that stop at it.
    ///
    /// # Errors
    ///
    /// A completion queue could not be polled.
    pub fn check(&self) -> Result<(), CqError> {
        self.error.map_or(Ok(()), Err)
    }

    pub(super) fn collect(poll: impl FnOnce(&mut dyn FnMut(Event)) -> Polled) -> Self {
        let mut batch = Self::default();
        let polled = poll(&mut |event| match event {
            Event::Completion(wc) => batch.completions.push(wc),
            Event::Foreign { device, completion } => batch.foreign.push((device, completion)),
        });
        batch.error = polled.error;
        batch
    }
}
