//! Batches: how requests enter a queue.
//!
//! A batch collects its requests in memory that its queue's handle keeps for the next batch; see
//! [`polyrail_nic_parts::staging`]. Committing takes the queue's lock once, checks each request,
//! and copies it with its inline data into its slot.

use crate::ending;
use crate::shared::{DeviceShared, QpShared, SendQueue, SrqShared};
use crate::transmit;
use polyrail_core::hardware::{self, CommitError, ENGINE_WR_ID, Refusal};
use polyrail_core::verbs::{RecvRequest, SendRequest, Sge};
use polyrail_nic_parts::error::errno::EINVAL;
use polyrail_nic_parts::lists::Listed;
use polyrail_nic_parts::staging::{Staging, StagingMemory};
use polyrail_nic_parts::state::QpState;
use polyrail_nic_parts::sync::lock;

/// Refuses a whole batch if its device cannot be used.
fn check(device: &DeviceShared) -> Result<(), CommitError> {
    let refused = |errno| CommitError { accepted: 0, refusal: Refusal::Driver(errno) };
    device.refusal().map_err(refused)
}

/// A batch of send requests for a queue pair.
#[derive(Debug)]
pub struct SendBatch<'q> {
    qp: &'q QpShared,
    staged: Staging<'q, SendRequest>,
}

impl<'q> SendBatch<'q> {
    pub(crate) fn new(qp: &'q QpShared, staged: &'q mut StagingMemory<SendRequest>) -> Self {
        Self { qp, staged: Staging::new(staged) }
    }
}

impl hardware::SendBatch for SendBatch<'_> {
    fn add(&mut self, request: &SendRequest) {
        self.staged.add(Listed::send(*request));
    }

    /// At most [`max_send_sge`](crate::QpCap::max_send_sge) buffers may have a length above 0.
    /// Longer lists, and lists of atomics, are refused (EINVAL).
    fn add_list(&mut self, request: &SendRequest, buffers: &[Sge]) {
        self.staged.add_list(*request, buffers);
    }

    fn commit(self) -> Result<(), CommitError> {
        let qp = self.qp;
        check(&qp.device)?;
        let mut send = lock(&qp.send);
        let (accepted, result) =
            self.staged.commit(|request, list| accept(qp, &mut send, request, list));
        if qp.state.get() == QpState::Err {
            transmit::flush(qp, &mut send);
        } else if accepted > 0 {
            drop(send);
            qp.list_work();
        }
        result
    }
}

/// Appends a request to the send queue.
fn accept(
    qp: &QpShared,
    send: &mut SendQueue,
    request: &Listed<SendRequest>,
    list: &[Sge],
) -> Result<(), Refusal> {
    if matches!(qp.state.get(), QpState::Reset | QpState::Init | QpState::Rtr) {
        return Err(Refusal::Driver(EINVAL));
    }
    send.accept(request, list, &qp.limits, qp.released.sends())
}

/// A batch of receives for a queue pair's own or a shared receive queue.
#[derive(Debug)]
pub struct RecvBatch<'q> {
    queue: Queue<'q>,
    staged: Staging<'q, RecvRequest>,
}

#[derive(Clone, Copy, Debug)]
enum Queue<'q> {
    Own(&'q QpShared),
    Shared(&'q SrqShared),
}

impl<'q> RecvBatch<'q> {
    pub(crate) fn for_qp(qp: &'q QpShared, staged: &'q mut StagingMemory<RecvRequest>) -> Self {
        Self { queue: Queue::Own(qp), staged: Staging::new(staged) }
    }

    pub(crate) fn for_srq(srq: &'q SrqShared, staged: &'q mut StagingMemory<RecvRequest>) -> Self {
        Self { queue: Queue::Shared(srq), staged: Staging::new(staged) }
    }
}

impl hardware::RecvBatch for RecvBatch<'_> {
    fn add(&mut self, request: &RecvRequest) {
        self.staged.add(Listed::recv(*request));
    }

    /// At most [`max_recv_sge`](crate::QpCap::max_recv_sge) buffers (in a shared queue, one) may
    /// have a length above 0. Longer lists are refused (EINVAL).
    fn add_list(&mut self, wr_id: u64, buffers: &[Sge]) {
        self.staged.add_list(RecvRequest { wr_id, sge: Sge::EMPTY }, buffers);
    }

    fn commit(self) -> Result<(), CommitError> {
        let device = match self.queue {
            Queue::Own(qp) => &qp.device,
            Queue::Shared(srq) => &srq.device,
        };
        check(device)?;
        let (was_missed, result) = match self.queue {
            Queue::Own(qp) => post_own(qp, &self.staged),
            Queue::Shared(srq) => post_shared(srq, &self.staged),
        };
        // Only if a sender waits, because all devices share the counter's cache line.
        if was_missed || !device.fabric.threaded {
            device.fabric.note_change();
        }
        result
    }
}

/// Whether a sender was answered "receiver not ready", and the result of the post.
type Posted = (bool, Result<(), CommitError>);

fn post_own(qp: &QpShared, staged: &Staging<'_, RecvRequest>) -> Posted {
    if qp.srq.is_some() && !staged.is_empty() {
        return (false, Err(CommitError { accepted: 0, refusal: Refusal::Driver(EINVAL) }));
    }
    let mut posts = lock(&qp.posts);
    let (_, result) = staged.commit(|request, list| {
        if qp.state.get() == QpState::Reset {
            Err(Refusal::Driver(EINVAL))
        } else if posts.push(request, list, qp.released.recvs()) {
            Ok(())
        } else {
            Err(Refusal::QueueFull)
        }
    });
    let was_missed = posts.take_missed();
    drop(posts);
    // A flush that ran before these receives were added followed the transition to ERR, so ERR is
    // visible here.
    if qp.state.get() == QpState::Err {
        ending::flush(qp, &mut lock(&qp.recv));
    }
    (was_missed, result)
}

fn post_shared(srq: &SrqShared, staged: &Staging<'_, RecvRequest>) -> Posted {
    let take = |request: &Listed<RecvRequest>, list: &[Sge]| {
        if request.wr_id & ENGINE_WR_ID != 0 {
            Err(Refusal::Driver(EINVAL))
        } else if srq.push(request, list) {
            Ok(())
        } else {
            Err(Refusal::QueueFull)
        }
    };
    let (_, result) = staged.commit(take);
    (lock(&srq.inner).ring.take_missed(), result)
}
