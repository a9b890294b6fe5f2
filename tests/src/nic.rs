//! Core's hardware traits over any NICs whose state a test keeps.
//!
//! Each world has its own state of devices, because each asks for other freedom: when requests are
//! executed, what fails, what a driver refuses. The engine sees all of them in the same way, so the
//! handles that it owns are here: [`Qp`], [`Srq`] and [`Cq`] name places in a [`Devices`].

#![allow(unreachable_pub, reason = "a module of a test program, too")]

use polyrail_core::hardware::{
    self, CommitError, CompletionQueue, CqError, CqId, QpLimits, QueuePair, ReceiveQueue, Refusal,
    assume_init_slice,
};
use polyrail_core::verbs::{Completion, DeviceId, LocalBuffer, RecvRequest, SendRequest, Sge};
use std::cell::RefCell;
use std::fmt;
use std::mem::MaybeUninit;
use std::rc::Rc;

/// The driver's code for a device that is gone.
pub const EIO: i32 = 5;

/// The driver's code for a request or a call that a queue pair does not support.
pub const EINVAL: i32 = 22;

/// The state of all devices of a world. Clones of the `Rc` are the same devices.
pub type Shared<D> = Rc<RefCell<D>>;

/// Requests of a batch that have several buffers: their `wr_id` and these buffers, which the
/// batch's request shows as one buffer of their total length.
pub type Lists = Vec<(u64, Vec<Sge>)>;

/// What never changes about a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QpInfo {
    /// Its number.
    pub qp_num: u32,
    /// Its device.
    pub device: DeviceId,
    /// The completion queue of both its queues.
    pub cq: CqId,
    /// What it was granted.
    pub limits: QpLimits,
}

/// What never changes about a completion queue.
#[derive(Clone, Copy, Debug)]
pub struct CqInfo {
    /// Its identity.
    pub id: CqId,
    /// Its device.
    pub device: DeviceId,
    /// Completions that it can hold.
    pub capacity: u32,
}

/// The state of devices as their handles use it. Queue pairs, completion queues and shared receive
/// queues are named by their places.
///
/// # Safety
///
/// What [`QueuePair`] and [`CompletionQueue`] require of [`Qp`] and [`Cq`]. A test may break these
/// promises on purpose if no buffer of the test is memory.
pub unsafe trait Devices {
    /// Returns what never changes about a queue pair.
    fn qp(&self, at: usize) -> QpInfo;

    /// Returns what never changes about a completion queue.
    fn cq(&self, at: usize) -> CqInfo;

    /// Posts requests, at least one.
    ///
    /// # Errors
    ///
    /// As [`hardware::SendBatch::commit`].
    fn post_sends(
        &mut self,
        at: usize,
        requests: &[SendRequest],
        lists: &mut Lists,
    ) -> Result<(), CommitError>;

    /// Posts receives, at least one, to a queue pair's own queue.
    ///
    /// # Errors
    ///
    /// As [`hardware::RecvBatch::commit`].
    fn post_recvs(
        &mut self,
        _at: usize,
        _requests: &[RecvRequest],
        _lists: &mut Lists,
    ) -> Result<(), CommitError> {
        unreachable!("its receives are shared")
    }

    /// Posts receives, at least one, to a shared receive queue.
    ///
    /// # Errors
    ///
    /// As [`hardware::RecvBatch::commit`].
    fn post_shared(&mut self, _srq: usize, _requests: &[RecvRequest]) -> Result<(), CommitError> {
        unreachable!("each queue pair has its own receives")
    }

    /// Moves a queue pair to the error state.
    ///
    /// # Errors
    ///
    /// As [`QueuePair::enter_error`].
    fn enter_error(&mut self, at: usize) -> Result<(), Refusal>;

    /// Returns whether a queue pair took its last shared receive.
    ///
    /// # Errors
    ///
    /// As [`QueuePair::last_wqe_reached`]: `EINVAL` by default, for receives that are not shared.
    fn last_wqe_reached(&mut self, _at: usize) -> Result<bool, Refusal> {
        Err(Refusal::Driver(EINVAL))
    }

    /// Destroys a queue pair, whose owner dropped it.
    fn destroy(&mut self, _at: usize) {}

    /// Returns how many completions a poll for up to `most` finds.
    ///
    /// # Errors
    ///
    /// The driver's code, if the completion queue is broken.
    fn find(&mut self, cq: usize, most: usize) -> Result<usize, i32>;

    /// Takes the oldest completion of those that were found.
    fn take(&mut self, cq: usize) -> Option<Completion>;
}

/// Requests that a batch can have before it allocates: zero-allocation tests post fewer.
const ROOM: usize = 512;

/// The requests of a batch. A queue keeps their memory for its next batch.
#[derive(Debug)]
struct Staged<R> {
    requests: Vec<R>,
    lists: Lists,
}

impl<R> Staged<R> {
    fn new() -> Self {
        Self { requests: Vec::with_capacity(ROOM), lists: Lists::new() }
    }

    fn start(&mut self) -> &mut Self {
        self.requests.clear();
        self.lists.clear();
        self
    }

    /// Notes the buffers of a request. Returns one that stands for them: their total length from
    /// the first address on.
    ///
    /// # Panics
    ///
    /// If the list is not what the engine promises: two buffers or more, as many as the queue pair
    /// takes at most, none of them empty.
    fn note(&mut self, wr_id: u64, buffers: &[Sge], max_sge: u32) -> Sge {
        let count = buffers.len();
        assert!((2..=max_sge as usize).contains(&count), "{count} buffers of {max_sge}");
        assert!(buffers.iter().all(|sge| sge.length() > 0), "an empty buffer in {buffers:?}");
        self.lists.push((wr_id, buffers.to_vec()));
        let length = buffers.iter().map(Sge::length).sum();
        // SAFETY: the devices read and write what the buffers of the list cover, or nothing.
        unsafe { LocalBuffer::new(buffers[0].addr(), length) }.sge(buffers[0].lkey())
    }

    /// # Panics
    ///
    /// If the batch is empty: the engine rings no doorbell without a request.
    fn check(&self) {
        assert!(!self.requests.is_empty(), "no doorbell without a request");
    }
}

/// A queue pair as the engine or an owner has it. It is destroyed when it is dropped.
pub struct Qp<D: Devices> {
    devices: Shared<D>,
    /// Its place.
    pub at: usize,
    sends: Staged<SendRequest>,
    recvs: Staged<RecvRequest>,
}

impl<D: Devices> Qp<D> {
    /// The handle of the queue pair in this place.
    pub fn new(devices: &Shared<D>, at: usize) -> Self {
        Self { devices: Rc::clone(devices), at, sends: Staged::new(), recvs: Staged::new() }
    }
}

impl<D: Devices> fmt::Debug for Qp<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Qp({})", self.at)
    }
}

impl<D: Devices> Drop for Qp<D> {
    fn drop(&mut self) {
        self.devices.borrow_mut().destroy(self.at);
    }
}

// SAFETY: what `Devices` promises.
unsafe impl<D: Devices> QueuePair for Qp<D> {
    type SendBatch<'q>
        = SendBatch<'q, D>
    where
        D: 'q;

    fn qp_num(&self) -> u32 {
        self.devices.borrow().qp(self.at).qp_num
    }

    fn device(&self) -> DeviceId {
        self.devices.borrow().qp(self.at).device
    }

    fn cq(&self) -> CqId {
        self.devices.borrow().qp(self.at).cq
    }

    fn limits(&self) -> QpLimits {
        self.devices.borrow().qp(self.at).limits
    }

    fn start_send(&mut self) -> SendBatch<'_, D> {
        SendBatch { devices: &self.devices, at: self.at, staged: self.sends.start() }
    }

    fn enter_error(&self) -> Result<(), Refusal> {
        self.devices.borrow_mut().enter_error(self.at)
    }

    fn last_wqe_reached(&mut self) -> Result<bool, Refusal> {
        self.devices.borrow_mut().last_wqe_reached(self.at)
    }
}

impl<D: Devices> ReceiveQueue for Qp<D> {
    type RecvBatch<'q>
        = RecvBatch<'q, D>
    where
        D: 'q;

    fn start_recv(&mut self) -> RecvBatch<'_, D> {
        let queue = RecvOf::Qp(self.at);
        RecvBatch { devices: &self.devices, queue, staged: self.recvs.start() }
    }
}

/// Sends on their way to a [`Qp`].
#[derive(Debug)]
pub struct SendBatch<'q, D: Devices> {
    devices: &'q Shared<D>,
    at: usize,
    staged: &'q mut Staged<SendRequest>,
}

impl<D: Devices> hardware::SendBatch for SendBatch<'_, D> {
    fn add(&mut self, request: &SendRequest) {
        self.staged.requests.push(*request);
    }

    fn add_list(&mut self, request: &SendRequest, buffers: &[Sge]) {
        let max_sge = self.devices.borrow().qp(self.at).limits.max_send_sge;
        let sge = self.staged.note(request.wr_id, buffers, max_sge);
        self.staged.requests.push(SendRequest { sge, ..*request });
    }

    fn commit(self) -> Result<(), CommitError> {
        self.staged.check();
        let Staged { requests, lists } = self.staged;
        self.devices.borrow_mut().post_sends(self.at, requests, lists)
    }
}

/// Which queue receives go to.
#[derive(Clone, Copy, Debug)]
enum RecvOf {
    Qp(usize),
    Srq(usize),
}

/// Receives on their way to a [`Qp`] or an [`Srq`].
#[derive(Debug)]
pub struct RecvBatch<'q, D: Devices> {
    devices: &'q Shared<D>,
    queue: RecvOf,
    staged: &'q mut Staged<RecvRequest>,
}

impl<D: Devices> hardware::RecvBatch for RecvBatch<'_, D> {
    fn add(&mut self, request: &RecvRequest) {
        self.staged.requests.push(*request);
    }

    fn add_list(&mut self, wr_id: u64, buffers: &[Sge]) {
        let max_sge = match self.queue {
            RecvOf::Qp(at) => self.devices.borrow().qp(at).limits.max_recv_sge,
            RecvOf::Srq(_) => 1,
        };
        let sge = self.staged.note(wr_id, buffers, max_sge);
        self.staged.requests.push(RecvRequest { wr_id, sge });
    }

    fn commit(self) -> Result<(), CommitError> {
        self.staged.check();
        let Staged { requests, lists } = self.staged;
        let mut devices = self.devices.borrow_mut();
        match self.queue {
            RecvOf::Qp(at) => devices.post_recvs(at, requests, lists),
            RecvOf::Srq(at) => devices.post_shared(at, requests),
        }
    }
}

/// A handle of a shared receive queue, whose receives have one buffer. Clones are the same queue.
pub struct Srq<D: Devices> {
    devices: Shared<D>,
    /// Its place.
    pub at: usize,
    recvs: Staged<RecvRequest>,
}

impl<D: Devices> Srq<D> {
    /// A handle of the queue in this place.
    pub fn new(devices: &Shared<D>, at: usize) -> Self {
        Self { devices: Rc::clone(devices), at, recvs: Staged::new() }
    }
}

impl<D: Devices> Clone for Srq<D> {
    fn clone(&self) -> Self {
        Self::new(&self.devices, self.at)
    }
}

impl<D: Devices> fmt::Debug for Srq<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Srq({})", self.at)
    }
}

impl<D: Devices> ReceiveQueue for Srq<D> {
    type RecvBatch<'q>
        = RecvBatch<'q, D>
    where
        D: 'q;

    fn start_recv(&mut self) -> RecvBatch<'_, D> {
        let queue = RecvOf::Srq(self.at);
        RecvBatch { devices: &self.devices, queue, staged: self.recvs.start() }
    }
}

/// A completion queue as the engine has it. Clones are the same queue.
pub struct Cq<D: Devices> {
    devices: Shared<D>,
    /// Its place.
    pub at: usize,
}

impl<D: Devices> Cq<D> {
    /// A handle of the completion queue in this place.
    pub fn new(devices: &Shared<D>, at: usize) -> Self {
        Self { devices: Rc::clone(devices), at }
    }

    fn info(&self) -> CqInfo {
        self.devices.borrow().cq(self.at)
    }
}

impl<D: Devices> Clone for Cq<D> {
    fn clone(&self) -> Self {
        Self::new(&self.devices, self.at)
    }
}

impl<D: Devices> fmt::Debug for Cq<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cq({})", self.at)
    }
}

// SAFETY: what `Devices` promises.
unsafe impl<D: Devices> CompletionQueue for Cq<D> {
    fn id(&self) -> CqId {
        self.info().id
    }

    fn device(&self) -> DeviceId {
        self.info().device
    }

    fn capacity(&self) -> u32 {
        self.info().capacity
    }

    fn poll<'o>(
        &mut self,
        out: &'o mut [MaybeUninit<Completion>],
    ) -> Result<&'o [Completion], CqError> {
        let mut devices = self.devices.borrow_mut();
        let count = devices.find(self.at, out.len()).map_err(|errno| {
            let CqInfo { id: cq, device, .. } = devices.cq(self.at);
            CqError { cq, device, errno }
        })?;
        for place in &mut out[..count] {
            place.write(devices.take(self.at).expect("as many as were found"));
        }
        // SAFETY: the loop above initialised the first `count` places.
        Ok(unsafe { assume_init_slice(&out[..count]) })
    }
}
