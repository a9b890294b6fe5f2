//! Endpoints: virtual queue pairs with their completion queues, made and connected in a few calls.
//!
//! An [`Endpoint`] is one virtual queue pair with completion queues of its own; an [`EndpointSet`]
//! is many that share theirs; an [`EndpointQp`] is what both have in common. `build` says what one is
//! to be and `make` makes it, on any [backend](crate::backend), `address` is what a peer has to know
//! of it, `connect` brings two together, `health` is about counters and failures, `stall` finds
//! rails that say nothing; `qp` and this file are the data path, which works on any hardware.

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

use crate::nic;
use polyrail_core::hardware::{CompletionQueue, CqError, QueuePair};
use polyrail_core::verbs::{Completion, DeviceId};
use polyrail_core::virtual_cq::{Event, Polled, VirtualCq, VirtualWc};
use polyrail_core::virtual_qp::MAX_RAILS;
use std::ops::{Deref, DerefMut};

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

    /// The completion queues, one for each device.
    pub fn virtual_cq(&self) -> &VirtualCq<C, MAX_DEVICES, ENDPOINT_ROUTES> {
        &self.cq
    }
}
