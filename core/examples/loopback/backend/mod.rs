//! The smallest backend: queue pairs of one process, wired to each other in pairs.
//!
//! It has what the engine asks of hardware, and the rules that go with it:
//!
//! - [`LoopbackQp`] takes requests in batches: nothing is posted before `commit`, and `commit`
//!   tells how many were taken;
//! - requests complete in the order of posting, unsignaled ones only if they fail; after a failure
//!   everything is flushed;
//! - a send slot is free again when the completion at or behind it was polled;
//! - [`LoopbackCq`] hands completions over once, oldest first.
//!
//! Requests are executed while they are posted: WRITE, WRITE_WITH_IMM and READ, which copy memory.
//! SENDs and atomics are refused. Neither `std` nor an allocator is needed.

mod devices;

pub(crate) use devices::{DEPTH, Region};

use core::cell::RefCell;
use core::mem::MaybeUninit;
use devices::{CQ_ENTRIES, Devices, qp_num};
use heapless::Vec;
use polyrail_core::hardware::{
    CommitError, CompletionQueue, CqError, CqId, QpLimits, QueuePair, ReceiveQueue, RecvBatch,
    Refusal, SendBatch, assume_init_slice,
};
use polyrail_core::verbs::{Completion, DeviceId, RecvRequest, SendRequest};

/// What drivers answer when a completion queue is lost.
const EIO: i32 = 5;
/// What drivers answer when a queue pair is not what a call is for.
const EINVAL: i32 = 22;

/// All devices of the process.
#[derive(Default)]
pub(crate) struct Loopback<'m> {
    devices: RefCell<Devices<'m>>,
}

impl<'m> Loopback<'m> {
    /// Lets all devices reach this memory, by the key that is returned. `None` if there is no room.
    pub(crate) fn register(&self, region: Region<'m>) -> Option<u32> {
        self.devices.borrow_mut().register(region)
    }

    /// Makes two queue pairs, on these devices, that are connected with each other. `None` if there
    /// is no room, or no such device.
    pub(crate) fn connect(&self, devices: [DeviceId; 2]) -> Option<[LoopbackQp<'_, 'm>; 2]> {
        let [here, there] = self.devices.borrow_mut().connect(devices)?;
        let qp = |at, device| LoopbackQp { loopback: self, at, device };
        Some([qp(here, devices[0]), qp(there, devices[1])])
    }

    /// The completion queue of a device.
    pub(crate) fn cq(&self, device: DeviceId) -> LoopbackCq<'_, 'm> {
        LoopbackCq { loopback: self, device }
    }
}

/// A queue pair.
pub(crate) struct LoopbackQp<'l, 'm> {
    loopback: &'l Loopback<'m>,
    at: usize,
    device: DeviceId,
}

impl<'m> LoopbackQp<'_, 'm> {
    fn start<R>(&mut self) -> Batch<'_, 'm, R> {
        Batch { loopback: self.loopback, at: self.at, requests: Vec::new(), is_too_long: false }
    }
}

/// Requests that were added and are not committed. Dropped, they are forgotten.
pub(crate) struct Batch<'q, 'm, R> {
    loopback: &'q Loopback<'m>,
    at: usize,
    requests: Vec<R, DEPTH>,
    is_too_long: bool,
}

impl<R: Copy> Batch<'_, '_, R> {
    fn push(&mut self, request: &R) {
        self.is_too_long |= self.requests.push(*request).is_err();
    }

    /// What is to be returned when everything that the batch holds was taken.
    fn taken(&self) -> Result<(), CommitError> {
        let accepted = self.requests.len() as u32;
        let error = CommitError { accepted, refusal: Refusal::QueueFull };
        if self.is_too_long { Err(error) } else { Ok(()) }
    }
}

impl SendBatch for Batch<'_, '_, SendRequest> {
    fn add(&mut self, request: &SendRequest) {
        self.push(request);
    }

    fn commit(self) -> Result<(), CommitError> {
        self.loopback.devices.borrow_mut().post_sends(self.at, &self.requests)?;
        self.taken()
    }
}

impl RecvBatch for Batch<'_, '_, RecvRequest> {
    fn add(&mut self, request: &RecvRequest) {
        self.push(request);
    }

    fn commit(self) -> Result<(), CommitError> {
        self.loopback.devices.borrow_mut().post_receives(self.at, &self.requests)?;
        self.taken()
    }
}

impl<'m> ReceiveQueue for LoopbackQp<'_, 'm> {
    type RecvBatch<'q>
        = Batch<'q, 'm, RecvRequest>
    where
        Self: 'q;

    fn start_recv(&mut self) -> Self::RecvBatch<'_> {
        self.start()
    }
}

// SAFETY: a request is executed while it is posted, so no buffer is touched afterwards; completions
// are queued in that order, one for each request at most. Numbers are places, which differ and do
// not change. A batch posts in `commit` only, and nothing is executed from the first refusal on.
// Receives are the queue pair's own.
unsafe impl<'m> QueuePair for LoopbackQp<'_, 'm> {
    type SendBatch<'q>
        = Batch<'q, 'm, SendRequest>
    where
        Self: 'q;

    fn qp_num(&self) -> u32 {
        qp_num(self.at)
    }

    fn device(&self) -> DeviceId {
        self.device
    }

    fn cq(&self) -> CqId {
        CqId(u64::from(self.device.0))
    }

    fn limits(&self) -> QpLimits {
        QpLimits {
            max_send_wr: DEPTH as u32,
            max_recv_wr: DEPTH as u32,
            max_inline_data: 0,
            max_msg_size: 1 << 30,
            max_send_sge: 1,
            max_recv_sge: 1,
        }
    }

    fn start_send(&mut self) -> Self::SendBatch<'_> {
        self.start()
    }

    fn enter_error(&self) -> Result<(), Refusal> {
        self.loopback.devices.borrow_mut().fail(self.at);
        Ok(())
    }

    /// Receives are its own.
    fn last_wqe_reached(&mut self) -> Result<bool, Refusal> {
        Err(Refusal::Driver(EINVAL))
    }
}

/// The completion queue of a device.
pub(crate) struct LoopbackCq<'l, 'm> {
    loopback: &'l Loopback<'m>,
    device: DeviceId,
}

// SAFETY: a completion is taken off the device's own queue before it is handed over, so that it
// comes once; the queue's number is its device's, which does not change.
unsafe impl CompletionQueue for LoopbackCq<'_, '_> {
    fn id(&self) -> CqId {
        CqId(u64::from(self.device.0))
    }

    fn device(&self) -> DeviceId {
        self.device
    }

    fn capacity(&self) -> u32 {
        CQ_ENTRIES as u32
    }

    fn poll<'o>(
        &mut self,
        out: &'o mut [MaybeUninit<Completion>],
    ) -> Result<&'o [Completion], CqError> {
        let mut devices = self.loopback.devices.borrow_mut();
        if !devices.can_poll(self.device) {
            return Err(CqError { cq: self.id(), device: self.device, errno: EIO });
        }
        let mut count = 0;
        while count < out.len()
            && let Some(completion) = devices.poll(self.device)
        {
            out[count].write(completion);
            count += 1;
        }
        // SAFETY: the first `count` were written above.
        Ok(unsafe { assume_init_slice(&out[..count]) })
    }
}
