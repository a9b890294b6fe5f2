//! Endpoints: a virtual queue pair with its completion queues, made and connected in a few calls.
//!
//! `build` makes one on any [backend](crate::backend), `address` is what a peer has to know of it, `connect`
//! brings two together, `health` is about counters and failures, `stall` finds rails that say
//! nothing; this file is the data path, which works on any hardware.

mod address;
mod build;
mod connect;
mod health;
mod stall;

pub use address::{Address, RailAddress};
pub use build::{BuildError, EndpointBuilder};
pub use connect::{ConnectError, connect_endpoints};
pub use health::{EndpointError, NamedRailError, RailReport};
pub use stall::StallWatch;

use crate::backend::{ConnectOptions, Port};
use crate::nic;
use polyrail_core::hardware::{CompletionQueue, CqError, QueuePair};
use polyrail_core::verbs::{Completion, DeviceId, RecvWr, SendWr};
use polyrail_core::virtual_cq::{Event, Polled, VirtualCq, VirtualWc};
use polyrail_core::virtual_qp::{MAX_RAILS, PostError, VirtualQp};

/// Devices, and so completion queues, of one endpoint: no more than rails.
pub const MAX_DEVICES: usize = MAX_RAILS;

/// Places in the routing table: three quarters hold the rails and the notify queue pair.
const ROUTES: usize = 16;

/// A virtual queue pair with the completion queues that belong to it.
///
/// The capacities serve nearly everybody: 8 rails, 128 requests in flight on each, 256 unreported
/// virtual requests each way. [`virtual_qp`](Self::virtual_qp) gives access to the engine.
#[derive(Debug)]
pub struct Endpoint<
    Q = nic::QueuePair,
    C = nic::CompletionQueue,
    const RAILS: usize = MAX_RAILS,
    const DEPTH: usize = 128,
    const WRS: usize = 256,
> {
    /// Boxed: it is tens of KiB of state.
    qp: Box<VirtualQp<Q, RAILS, DEPTH, WRS>>,
    cq: VirtualCq<C, MAX_DEVICES, ROUTES>,
    /// Names of the devices, in their order.
    devices: Vec<(DeviceId, String)>,
    /// Where the queue pairs are: the rails in their order, then the notify queue pair.
    places: Vec<Place>,
    /// The packet sequence number that all queue pairs start with.
    psn: u32,
    /// What connections are made with.
    options: ConnectOptions,
}

/// Where a queue pair is.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// Place of its device in the list of devices.
    device: usize,
    port: Port,
}

/// What one [`Endpoint::poll`] brought.
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

impl<Q, C, const RAILS: usize, const DEPTH: usize, const WRS: usize>
    Endpoint<Q, C, RAILS, DEPTH, WRS>
where
    Q: QueuePair,
    C: CompletionQueue,
{
    /// Posts a send request; see [`VirtualQp::post_send`].
    ///
    /// # Errors
    ///
    /// The request is refused and forgotten. [`PostError::Full`] and [`PostError::QueueFull`] ask
    /// for a poll, the others for another request.
    #[inline]
    pub fn post_send(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.qp.post_send(wr)
    }

    /// Posts a receive; see [`VirtualQp::post_recv`].
    ///
    /// # Errors
    ///
    /// As [`post_send`](Self::post_send).
    #[inline]
    pub fn post_recv(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.qp.post_recv(wr)
    }

    /// Hands at most `budget` events to `sink`, and drives everything that waits for completions.
    /// Allocates nothing.
    #[inline]
    pub fn poll_with(&mut self, budget: usize, sink: impl FnMut(Event)) -> Polled {
        self.cq.poll(&mut *self.qp, budget, sink)
    }

    /// [`poll_with`](Self::poll_with) into vectors.
    pub fn poll(&mut self, budget: usize) -> PollBatch {
        let mut batch = PollBatch::default();
        let polled = self.cq.poll(&mut *self.qp, budget, |event| match event {
            Event::Completion(wc) => batch.completions.push(wc),
            Event::Foreign { device, completion } => batch.foreign.push((device, completion)),
        });
        batch.error = polled.error;
        batch
    }

    /// The virtual queue pair.
    pub fn virtual_qp(&self) -> &VirtualQp<Q, RAILS, DEPTH, WRS> {
        &self.qp
    }

    /// The virtual queue pair, for what this type does not offer. Completions keep coming here.
    pub fn virtual_qp_mut(&mut self) -> &mut VirtualQp<Q, RAILS, DEPTH, WRS> {
        &mut self.qp
    }

    /// The completion queues, one for each device.
    pub fn virtual_cq(&self) -> &VirtualCq<C, MAX_DEVICES, ROUTES> {
        &self.cq
    }
}
