//! Endpoints: virtual queue pairs with their completion queues, made and connected in a few calls.
//!
//! An [`Endpoint`] is one virtual queue pair with completion queues of its own; an [`EndpointSet`]
//! is many that share theirs; an [`EndpointQp`] is what both have in common. `build` says what one is
//! to be and `make` makes it, on any [backend](crate::backend), `address` is what a peer has to know
//! of it, `connect` brings two together, `health` is about counters and failures, `stall` finds
//! rails that say nothing; `qp` and this file are the data path, which works on any hardware.
//!
//! What is to be chosen for a peer that runs the reference implementation is in [`card`](crate::card).

mod address;
mod build;
mod connect;
mod health;
mod make;
mod qp;
mod set;
mod stall;

pub use address::{Address, RailAddress};
pub use build::{BuildError, EndpointBuilder};
pub use connect::{ConnectError, connect_endpoints};
pub use health::{EndpointError, NamedRailError, RailReport};
pub use qp::EndpointQp;
pub use set::EndpointSet;
pub use stall::StallWatch;

use crate::backend::Connect;
use polyrail_core::hardware::{CompletionQueue, CqError, QueuePair};
use polyrail_core::verbs::{Completion, DeviceId, WcStatus};
use polyrail_core::virtual_cq::{Event, Polled, VirtualCq, VirtualWc};
use polyrail_core::virtual_qp::{MAX_RAILS, PostError, VirtualQp};
use polyrail_software_nic as nic;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

/// Devices, and so completion queues, of one endpoint or one set: no more than rails.
pub const MAX_DEVICES: usize = MAX_RAILS;

/// Places in an endpoint's routing table: three quarters hold the rails and the notify queue pair.
pub const ENDPOINT_ROUTES: usize = 16;

/// A virtual queue pair with the completion queues that belong to it.
///
/// It is an [`EndpointQp`], to be connected, posted to and watched, that can be polled.
#[derive(Debug)]
pub struct Endpoint<
    Q = nic::QueuePair,
    C = nic::CompletionQueue,
    const RAILS: usize = MAX_RAILS,
    const DEPTH: usize = 128,
    const WRS: usize = 256,
> {
    qp: EndpointQp<Q, RAILS, DEPTH, WRS>,
    cq: VirtualCq<C, MAX_DEVICES, ENDPOINT_ROUTES>,
}

impl<Q, C, const RAILS: usize, const DEPTH: usize, const WRS: usize> Deref
    for Endpoint<Q, C, RAILS, DEPTH, WRS>
{
    type Target = EndpointQp<Q, RAILS, DEPTH, WRS>;

    #[inline]
    fn deref(&self) -> &Self::Target {
        &self.qp
    }
}

impl<Q, C, const RAILS: usize, const DEPTH: usize, const WRS: usize> DerefMut
    for Endpoint<Q, C, RAILS, DEPTH, WRS>
{
    #[inline]
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.qp
    }
}

/// What one [`Endpoint::poll`] or [`EndpointSet::poll`] brought.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "a completion queue may have failed"]
pub struct PollBatch {
    /// Completions of requests, in the order they are to be seen.
    pub completions: Vec<VirtualWc>,
    /// Completions of queue pairs that the endpoint does not know.
    pub foreign: Vec<(DeviceId, Completion)>,
    /// The first completion queue that could not be polled; the others were.
    pub error: Option<CqError>,
}

impl PollBatch {
    fn collect(poll: impl FnOnce(&mut dyn FnMut(Event)) -> Polled) -> Self {
        let mut batch = Self::default();
        let polled = poll(&mut |event| match event {
            Event::Completion(wc) => batch.completions.push(wc),
            Event::Foreign { device, completion } => batch.foreign.push((device, completion)),
        });
        batch.error = polled.error;
        batch
    }
}

impl<Q, C, const RAILS: usize, const DEPTH: usize, const WRS: usize>
    Endpoint<Q, C, RAILS, DEPTH, WRS>
where
    Q: QueuePair,
    C: CompletionQueue,
{
    /// Hands at most `budget` events to `sink`, and drives everything that waits for completions.
    /// Allocates nothing.
    #[inline]
    pub fn poll_with(&mut self, budget: usize, sink: impl FnMut(Event)) -> Polled {
        self.cq.poll(&mut *self.qp.qp, budget, sink)
    }

    /// [`poll_with`](Self::poll_with) into vectors.
    pub fn poll(&mut self, budget: usize) -> PollBatch {
        PollBatch::collect(|sink| self.poll_with(budget, sink))
    }

    /// Why a post was refused, if something failed before it: then the refusal only follows from that.
    /// Over a single rail the device alone knows of the failure, so its completions are polled for a
    /// moment, and dropped.
    pub fn explain_refusal(&mut self, refusal: PostError) -> Option<EndpointError> {
        /// How long the completions of a queue pair that failed may take to show.
        const PATIENCE: Duration = Duration::from_secs(1);
        const BUDGET: usize = 64;
        if !refusal.is_in_error_state() && refusal.driver_refusal().is_none() {
            return None;
        }
        let begin = Instant::now();
        let mut failed = refusal.is_in_error_state() || self.qp.first_error().is_some();
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

    /// Both halves, for the ways to poll that this type does not offer: one event, one device's
    /// queue before the others, completions that somebody else has polled, arming.
    ///
    /// ```
    /// use polyrail::endpoint::{Endpoint, EndpointBuilder, connect_endpoints};
    /// use polyrail::nic::{DeviceConfig, Fabric};
    /// use polyrail::verbs::{LocalBuffer, SendWr};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let fabric = Fabric::threaded();
    /// # let device = |name| fabric.create_device(DeviceConfig::named(name)).alloc_pd();
    /// # let (here, there) = (device("here")?, device("there")?);
    /// # let mut sender: Endpoint = EndpointBuilder::new().rails(1).build(&[&here])?;
    /// # let mut receiver: Endpoint = EndpointBuilder::new().rails(1).build(&[&there])?;
    /// # connect_endpoints(&mut sender, &mut receiver)?;
    /// # receiver.post_recv(&polyrail::verbs::RecvWr::data(1, LocalBuffer::EMPTY, &[]))?;
    /// sender.post_send(&SendWr::send(7, LocalBuffer::EMPTY, &[]))?;
    /// let (qp, cq) = sender.parts_mut();
    /// let event = loop {
    ///     if let (Some(event), _) = cq.poll_one(qp) {
    ///         break event;
    ///     }
    /// };
    /// assert_eq!(event.completion().map(|wc| wc.wr_id), Some(7));
    /// # Ok(())
    /// # }
    /// ```
    pub fn parts_mut(
        &mut self,
    ) -> (&mut VirtualQp<Q, RAILS, DEPTH, WRS>, &mut VirtualCq<C, MAX_DEVICES, ENDPOINT_ROUTES>)
    {
        (&mut self.qp.qp, &mut self.cq)
    }
}

impl<Q, C, const RAILS: usize, const DEPTH: usize, const WRS: usize>
    Endpoint<Q, C, RAILS, DEPTH, WRS>
where
    Q: Connect,
    C: CompletionQueue,
{
    /// [`fail_all`](EndpointQp::fail_all), and then polls until no request is left with the devices, or
    /// patience ends. What comes back is dropped.
    pub fn flush(&mut self, patience: Duration) {
        const BUDGET: usize = 64;
        self.fail_all();
        let begin = Instant::now();
        loop {
            let polled = self.poll_with(BUDGET, |_| ());
            let busy = polled.events > 0 || self.outstanding() > 0;
            if !busy || polled.error.is_some() || begin.elapsed() > patience {
                return;
            }
        }
    }
}
