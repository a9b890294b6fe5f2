//! A virtual queue pair with completion queues of its own.

use super::build_error::BuildError;
use super::builder::EndpointBuilder;
use super::channels::Channels;
use super::devices::Devices;
use super::healing::{HEAL_EVERY, Owner};
use super::health::EndpointError;
use super::make::{Common, EndpointPlan, Made, make};
use super::poll_batch::PollBatch;
use super::qp::EndpointQp;
use super::sizes::{ENDPOINT_ROUTES, EngineQp, MAX_DEVICES};
use crate::backend::{Connect, Domain};
use crate::heal::Polls;
use polyrail_core::hardware::CompletionQueue;
use polyrail_core::verbs::WcStatus;
use polyrail_core::virtual_cq::{Event, Polled, VirtualCq};
use polyrail_core::virtual_qp::PostError;
use polyrail_software_nic as nic;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

/// A virtual queue pair with the completion queues that belong to it.
///
/// It is an [`EndpointQp`], to be connected, posted to and watched, that can be polled.
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
    /// Makes the endpoint: one completion queue for each device, deep enough for all that can be
    /// in flight; rails on the devices in turn, and on the ports of a device in turn; the notify
    /// queue pair on the first; all queue pairs in INIT, with the receives posted that DQPLB needs.
    ///
    /// With more devices than rails, the last devices stay idle.
    ///
    /// # Errors
    ///
    /// What the devices or the engine refuse.
    pub fn build<D: Domain>(&self, domains: &[&D]) -> Result<Endpoint<D::Qp, D::Cq>, BuildError> {
        let Made { mut qps, common } = make(&[EndpointPlan::new(*self, domains)?])?;
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
    /// Hands at most `budget` events to `sink`, and drives everything that waits for completions.
    /// Some polls [heal](super::Healing) the endpoint too, if its rails are re-routed. Apart from new queue pairs,
    /// allocates nothing.
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

    /// Does at once what some of the polls do, if it [heals](super::Healing) by itself. For owners that poll seldom,
    /// or by [parts](Self::parts_mut).
    #[cold]
    pub fn heal(&mut self) {
        let owner = Owner { cq: &mut self.cq, index: 0, devices: &self.devices };
        self.qp.heal(owner, Instant::now());
    }

    /// [`poll_with`](Self::poll_with) into vectors.
    pub fn poll(&mut self, budget: usize) -> PollBatch {
        PollBatch::collect(|sink| self.poll_with(budget, sink))
    }

    /// Why a post was refused, if something failed before it: then the refusal only follows from that.
    /// Over a single rail only the device knows of the failure, so its completions are polled for a
    /// moment, and dropped.
    pub fn explain_refusal(&mut self, refusal: PostError) -> Option<EndpointError> {
        /// How long the completions of a queue pair that failed may take to show.
        const PATIENCE: Duration = Duration::from_secs(1);
        const BUDGET: usize = 64;
        if !refusal.is_in_error_state() && refusal.driver_refusal().is_none() {
            return None;
        }
        let begin = Instant::now();
        let mut failed = refusal.is_in_error_state() || self.qp.virtual_qp().failure().is_some();
        while !failed {
            // Looked at before the poll, so that a thread that had to wait does poll once more.
            let late = begin.elapsed() >= PATIENCE;
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

    /// The completion queues, one for each device.
    pub fn virtual_cq(&self) -> &VirtualCq<C, MAX_DEVICES, ENDPOINT_ROUTES> {
        &self.cq
    }

    /// Both halves, for what this type does not offer.
    pub fn parts_mut(
        &mut self,
    ) -> (&mut EngineQp<Q>, &mut VirtualCq<C, MAX_DEVICES, ENDPOINT_ROUTES>) {
        (&mut self.qp.qp, &mut self.cq)
    }

    /// [`fail_all`](EndpointQp::fail_all), and then polls until no request is left with the devices, or
    /// patience ends. What comes back is dropped. If the endpoint [heals](super::Healing) by itself, what the
    /// peer is to be told of that is in its [link](EndpointQp::healing_link) afterwards.
    pub fn flush(&mut self, patience: Duration) {
        const BUDGET: usize = 64;
        self.fail_all();
        self.heal();
        let begin = Instant::now();
        loop {
            let polled = self.poll_with(BUDGET, |_| ());
            let busy = polled.events > 0 || self.unreported() > 0;
            if !busy || polled.error.is_some() || begin.elapsed() > patience {
                return;
            }
        }
    }
}
