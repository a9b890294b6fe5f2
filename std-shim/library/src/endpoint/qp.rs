//! A virtual queue pair and its physical ones: an endpoint without its completion queues. Contains
//! the data path of posts.

use super::address::Address;
use super::place::RAIL_IDS;
use super::rail_log::RailLog;
use super::sizes::{EngineQp, Needs, Shape};
use super::weights::Weights;
use crate::backend::ConnectOptions;
use crate::heal::{Cancels, Healer};
use crate::queue_pair::{Joined, Place};
use polyrail_core::hardware::{CqId, QueuePair};
use polyrail_core::verbs::{DeviceId, LocalPart, RecvWr, SendWr};
use polyrail_core::virtual_qp::{
    PostManyError, PostRecvError, PostSendError, ProtocolError, RailId, RailSet,
};
use polyrail_process::Process;
use polyrail_software_nic as nic;
use std::sync::Arc;
use std::time::Duration;

/// A virtual queue pair that can be connected, posted to, and failed. Its completions are returned
/// by the [`Endpoint`](super::Endpoint) or [`EndpointSet`](super::EndpointSet) that it belongs to.
///
/// The capacities suit nearly every program: 8 rails, 128 requests in flight on each ([`DEPTH`]),
/// 256 unreported virtual requests in each direction ([`WRS`]). [`virtual_qp`](Self::virtual_qp)
/// gives access to the engine.
///
/// [`DEPTH`]: super::DEPTH
/// [`WRS`]: super::WRS
#[derive(Debug)]
pub struct EndpointQp<Q = nic::QueuePair> {
    /// Boxed: it is tens of KiB of state.
    pub(super) qp: Box<EngineQp<Q>>,
    /// A notify queue pair that this end does not use, but that the peer needs to connect.
    pub(super) idle_notify: Option<Q>,
    /// Names of all devices on which it shares completion queues.
    pub(super) names: DeviceNames,
    /// What it needs of the shared completion queues.
    pub(super) needs: Needs,
    /// Its devices, by their places.
    pub(super) devices: Vec<DeviceId>,
    /// The places of the queue pairs: the rails in their order, then the notify queue pair.
    pub(super) places: Vec<Place>,
    /// The places of the original queue pairs.
    pub(super) homes: Vec<Place>,
    /// The peer's devices, by place, with which the queue pairs are connected, if the peer has
    /// another number of devices; otherwise empty.
    pub(super) far_devices: Vec<u8>,
    /// What decides how much each rail carries; `None`: its user's own choice of a rail.
    pub(super) weights: Option<Weights>,
    /// The sizes of its queue pairs.
    pub(super) shape: Shape,
    /// The packet sequence number that all queue pairs start with.
    pub(super) psn: u32,
    /// The options of its connections.
    pub(super) options: ConnectOptions,
    /// The queue pairs that are connected, until enough are; and whether enough are.
    pub(super) joined: Joined<RailId, Address>,
    /// The state of the repair of its rails; `None` if its rails are not re-routed.
    pub(super) healer: Option<Box<Healer<RailId, Q, RAIL_IDS>>>,
    /// The requests that are being taken back.
    pub(super) cancels: Cancels,
    /// Whether this end offers new queue pairs; the other end answers.
    pub(super) offers: bool,
    /// The events of its rails.
    pub(super) log: RailLog,
    /// Whether the reason of its end was [emitted](crate::trace).
    pub(super) is_end_told: bool,
    /// The protocol error that ended it, once it was read from the engine.
    pub(super) protocol_error: Option<ProtocolError>,
    /// Why it gave up on its rails, if it did.
    pub(super) given_up: Option<GivenUp>,
    /// The process that made it.
    pub(super) process: Process,
}

/// The exceeded time limit that made an endpoint give up.
#[derive(Clone, Copy, Debug)]
pub(super) enum GivenUp {
    /// The peer did not report what arrived on a rail.
    NoFence { rail: RailId, waited: Duration, unfenced: RailSet },
    /// Requests wait for rails that did not return.
    NotHealed { out_of_service: RailSet, waited: Duration, unfenced: RailSet },
}

/// Names of devices, for logs and error messages.
pub(super) type DeviceNames = Arc<[(DeviceId, String)]>;

impl<Q> EndpointQp<Q>
where
    Q: QueuePair,
{
    /// Posts a send request; see
    /// [`VirtualQp::post_send`](polyrail_core::virtual_qp::VirtualQp::post_send).
    ///
    /// # Errors
    ///
    /// The request is refused. After [`PostSendError::Full`] and [`PostSendError::QueueFull`], poll
    /// and try again; other errors are in the request. [`post_error`](Self::post_error) explains
    /// them with device names.
    #[inline]
    pub fn post_send(&mut self, wr: &SendWr<'_>) -> Result<(), PostSendError> {
        self.qp.post_send(wr)
    }

    /// Posts requests with one call and the fewest doorbells; see
    /// [`VirtualQp::post_many`](polyrail_core::virtual_qp::VirtualQp::post_many).
    ///
    /// ```
    /// use polyrail::endpoint::{Endpoint, EndpointBuilder, connect_endpoints};
    /// use polyrail::memory::RegisteredBuffer;
    /// use polyrail::nic::{DeviceConfig, Fabric};
    /// use polyrail::verbs::{AccessFlags, SendWr};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let fabric = Fabric::threaded();
    /// # let here = fabric.create_device(DeviceConfig::named("here")).alloc_pd()?;
    /// # let there = fabric.create_device(DeviceConfig::named("there")).alloc_pd()?;
    /// # let mut sender: Endpoint = EndpointBuilder::new().build(&[&here])?;
    /// # let mut receiver: Endpoint = EndpointBuilder::new().build(&[&there])?;
    /// # connect_endpoints(&mut sender, &mut receiver)?;
    /// let pages = RegisteredBuffer::new(16 << 12, AccessFlags::LOCAL_WRITE, &[&here])?;
    /// let writable = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    /// let target = RegisteredBuffer::new(16 << 12, writable, &[&there])?;
    /// let keys = pages.toward(&target.remote())?;
    /// let mut wrs = Vec::new();
    /// for page in 0..16 {
    ///     let local = pages.local(page << 12, 1 << 12)?;
    ///     wrs.push(SendWr::write(page as u64, local, target.addr() + (page << 12) as u64, &keys));
    /// }
    /// sender.post_many(&wrs)?;
    /// let qp = sender.virtual_qp();
    /// let rung = |rail| qp.counters(polyrail::virtual_qp::RailId::Data(rail)).map(|c| c.doorbells);
    /// assert_eq!([0, 1, 2, 3].map(rung), [Some(1); 4]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The first refused request and those behind it are not posted, as with
    /// [`post_send`](Self::post_send); the error contains the number of requests posted before it.
    #[inline]
    pub fn post_many(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostManyError> {
        self.qp.post_many(wrs)
    }

    /// Posts a request whose local bytes are a list of buffers; see
    /// [`VirtualQp::post_list`](polyrail_core::virtual_qp::VirtualQp::post_list).
    ///
    /// ```
    /// use polyrail::endpoint::{Endpoint, EndpointBuilder, connect_endpoints};
    /// use polyrail::memory::RegisteredBuffer;
    /// use polyrail::nic::{DeviceConfig, Fabric};
    /// use polyrail::verbs::{AccessFlags, LocalBuffer, LocalPart, SendWr};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let fabric = Fabric::threaded();
    /// # let here = fabric.create_device(DeviceConfig::named("here")).alloc_pd()?;
    /// # let there = fabric.create_device(DeviceConfig::named("there")).alloc_pd()?;
    /// # let mut sender: Endpoint = EndpointBuilder::new().build(&[&here])?;
    /// # let mut receiver: Endpoint = EndpointBuilder::new().build(&[&there])?;
    /// # connect_endpoints(&mut sender, &mut receiver)?;
    /// let header = RegisteredBuffer::new(64, AccessFlags::LOCAL_WRITE, &[&here])?;
    /// let body = RegisteredBuffer::new(4096, AccessFlags::LOCAL_WRITE, &[&here])?;
    /// let writable = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    /// let target = RegisteredBuffer::new(8192, writable, &[&there])?;
    /// // The request has the target's keys, and each buffer has its own.
    /// let keys = body.toward(&target.remote())?;
    /// let (header_keys, body_keys) = (header.local_keys(), body.local_keys());
    /// let parts = [
    ///     LocalPart { local: header.local(0, 64)?, keys: &header_keys },
    ///     LocalPart { local: body.local(1024, 2048)?, keys: &body_keys },
    /// ];
    /// let wr = SendWr::write(7, LocalBuffer::EMPTY, target.addr(), &keys);
    /// sender.post_list(&wr, &parts)?;
    /// let report = loop {
    ///     if let Some(report) = sender.poll(1).completions.pop() {
    ///         break report;
    ///     }
    /// };
    /// assert_eq!((report.wr_id, report.byte_len), (7, 64 + 2048));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`post_send`](Self::post_send); or the list is invalid: no buffers, too many buffers, or
    /// a buffer that is not registered with all devices.
    pub fn post_list(
        &mut self,
        wr: &SendWr<'_>,
        buffers: &[LocalPart<'_>],
    ) -> Result<(), PostSendError> {
        self.qp.post_list(wr, buffers)
    }

    /// Posts a receive; see
    /// [`VirtualQp::post_recv`](polyrail_core::virtual_qp::VirtualQp::post_recv).
    ///
    /// # Errors
    ///
    /// As [`post_send`](Self::post_send).
    #[inline]
    pub fn post_recv(&mut self, wr: &RecvWr<'_>) -> Result<(), PostRecvError> {
        self.qp.post_recv(wr)
    }

    /// Posts a receive that is scattered over the buffers of a list; see
    /// [`VirtualQp::post_recv_list`](polyrail_core::virtual_qp::VirtualQp::post_recv_list).
    ///
    /// # Errors
    ///
    /// As [`post_recv`](Self::post_recv), and for lists as [`post_list`](Self::post_list).
    pub fn post_recv_list(
        &mut self,
        wr_id: u64,
        buffers: &[LocalPart<'_>],
    ) -> Result<(), PostRecvError> {
        self.qp.post_recv_list(wr_id, buffers)
    }

    /// Returns the virtual queue pair.
    pub fn virtual_qp(&self) -> &EngineQp<Q> {
        &self.qp
    }

    /// Returns the virtual queue pair, for operations that this type does not have. Completions are
    /// still returned by the endpoint or set.
    pub fn virtual_qp_mut(&mut self) -> &mut EngineQp<Q> {
        &mut self.qp
    }

    /// Returns the notify queue pair, used or not.
    pub(super) fn notify_qp(&self) -> Option<&Q> {
        self.qp.notify_qp().or(self.idle_notify.as_ref())
    }

    /// Returns a physical queue pair, to connect or fail it.
    pub(super) fn physical(&self, rail: RailId) -> Option<&Q> {
        let idle = self.idle_notify.as_ref().filter(|_| rail == RailId::Notify);
        self.qp.physical(rail).or(idle)
    }

    /// Whether any of its physical queue pairs completes on this completion queue.
    pub fn completes_on(&self, cq: CqId) -> bool {
        self.qp.rails().chain(self.qp.notify_qp()).any(|qp| qp.cq() == cq)
    }
}
