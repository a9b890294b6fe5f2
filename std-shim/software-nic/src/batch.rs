//! Batches: how requests enter a queue.
//!
//! A batch gathers its requests in memory of its queue's handle, which was set aside at creation.
//! Committing takes the queue's lock once, checks each request and copies it into its slot; inline
//! data is copied along.

use crate::dma::Span;
use crate::ending;
use crate::error::errno::{EINVAL, ENODEV, EOPNOTSUPP};
use crate::shared::{QpShared, SendQueue, SrqShared};
use crate::state::QpState;
use crate::sync::lock;
use crate::transmit;
use polyrail_core::hardware::{self, CommitError, ENGINE_WR_ID, Refusal};
use polyrail_core::verbs::{Opcode, RecvRequest, SendFlags, SendRequest};

/// Requests gathered so far; more than fit the queue are only remembered as too many.
#[derive(Debug)]
struct Staged<'q, T> {
    requests: &'q mut Vec<T>,
    too_many: bool,
}

impl<'q, T: Copy> Staged<'q, T> {
    fn new(requests: &'q mut Vec<T>) -> Self {
        requests.clear();
        Self { requests, too_many: false }
    }

    fn add(&mut self, request: &T) {
        if self.requests.len() < self.requests.capacity() {
            self.requests.push(*request);
        } else {
            self.too_many = true;
        }
    }

    /// Hands over one request after the other, until one is refused. Returns how many were taken beside
    /// what happened.
    fn commit(
        &self,
        mut take: impl FnMut(&T) -> Result<(), Refusal>,
    ) -> (u32, Result<(), CommitError>) {
        let mut accepted = 0;
        let stop = |accepted, refusal| (accepted, Err(CommitError { accepted, refusal }));
        for request in self.requests.iter() {
            if let Err(refusal) = take(request) {
                return stop(accepted, refusal);
            }
            accepted += 1;
        }
        if self.too_many { stop(accepted, Refusal::QueueFull) } else { (accepted, Ok(())) }
    }
}

const GONE: CommitError = CommitError { accepted: 0, refusal: Refusal::Driver(ENODEV) };

/// Send requests on their way to a queue pair.
#[derive(Debug)]
pub struct SendBatch<'q> {
    qp: &'q QpShared,
    staged: Staged<'q, SendRequest>,
}

impl<'q> SendBatch<'q> {
    pub(crate) fn new(qp: &'q QpShared, staged: &'q mut Vec<SendRequest>) -> Self {
        Self { qp, staged: Staged::new(staged) }
    }
}

impl hardware::SendBatch for SendBatch<'_> {
    fn add(&mut self, request: &SendRequest) {
        self.staged.add(request);
    }

    fn commit(self) -> Result<(), CommitError> {
        let qp = self.qp;
        if qp.device.is_gone() {
            return Err(GONE);
        }
        let mut send = lock(&qp.send);
        let (accepted, result) = self.staged.commit(|request| accept(qp, &mut send, request));
        if qp.state.get() == QpState::Err {
            transmit::flush(qp, &mut send);
        } else if accepted > 0 {
            drop(send);
            qp.list_work();
        }
        result
    }
}

/// Takes one request into the send queue.
fn accept(qp: &QpShared, send: &mut SendQueue, request: &SendRequest) -> Result<(), Refusal> {
    if matches!(qp.state.get(), QpState::Reset | QpState::Init | QpState::Rtr) {
        return Err(Refusal::Driver(EINVAL));
    }
    if matches!(request.opcode, Opcode::LocalInv | Opcode::SendWithInv) {
        return Err(Refusal::Driver(EOPNOTSUPP));
    }
    let inline = request.flags.contains(SendFlags::INLINE);
    let too_long = request.sge.length() > qp.limits.max_inline_data;
    if inline && (request.opcode.is_fetching() || too_long) {
        return Err(Refusal::Driver(EINVAL));
    }
    if send.is_full(qp.released.sends()) {
        return Err(Refusal::QueueFull);
    }
    if inline {
        copy_inline(send, request);
    }
    send.push(request);
    Ok(())
}

/// Copies an inline request's bytes into the slot that comes next.
fn copy_inline(send: &SendQueue, request: &SendRequest) {
    let sge = request.sge;
    let start = std::ptr::with_exposed_provenance_mut::<u8>(sge.addr() as usize);
    // SAFETY: a scatter/gather entry comes from a `LocalBuffer` only. Its creator promised that the
    // bytes are allocated, and not written, until the post returns.
    let source = unsafe { Span::new(start, sge.length() as usize) };
    send.inline_span(send.posted).copy_from(source);
}

/// Receives on their way to a queue pair's own or a shared receive queue.
#[derive(Debug)]
pub struct RecvBatch<'q> {
    queue: Queue<'q>,
    staged: Staged<'q, RecvRequest>,
}

#[derive(Clone, Copy, Debug)]
enum Queue<'q> {
    Own(&'q QpShared),
    Shared(&'q SrqShared),
}

impl<'q> RecvBatch<'q> {
    pub(crate) fn for_qp(qp: &'q QpShared, staged: &'q mut Vec<RecvRequest>) -> Self {
        Self { queue: Queue::Own(qp), staged: Staged::new(staged) }
    }

    pub(crate) fn for_srq(srq: &'q SrqShared, staged: &'q mut Vec<RecvRequest>) -> Self {
        Self { queue: Queue::Shared(srq), staged: Staged::new(staged) }
    }
}

impl hardware::RecvBatch for RecvBatch<'_> {
    fn add(&mut self, request: &RecvRequest) {
        self.staged.add(request);
    }

    fn commit(self) -> Result<(), CommitError> {
        let device = match self.queue {
            Queue::Own(qp) => &qp.device,
            Queue::Shared(srq) => &srq.device,
        };
        if device.is_gone() {
            return Err(GONE);
        }
        let (was_missed, result) = match self.queue {
            Queue::Own(qp) => post_own(qp, &self.staged),
            Queue::Shared(srq) => post_shared(srq, &self.staged),
        };
        // Not each time: all devices would write to one place.
        if was_missed || !device.fabric.threaded {
            device.fabric.note_change();
        }
        result
    }
}

/// Whether a sender was told that there was no receive, and what was taken.
type Posted = (bool, Result<(), CommitError>);

fn post_own(qp: &QpShared, staged: &Staged<'_, RecvRequest>) -> Posted {
    if qp.srq.is_some() && (staged.too_many || !staged.requests.is_empty()) {
        return (false, Err(CommitError { accepted: 0, refusal: Refusal::Driver(EINVAL) }));
    }
    let mut recv = lock(&qp.recv);
    let (_, result) = staged.commit(|request| {
        if qp.state.get() == QpState::Reset {
            Err(Refusal::Driver(EINVAL))
        } else if recv.ring.push(request, qp.released.recvs()) {
            Ok(())
        } else {
            Err(Refusal::QueueFull)
        }
    });
    if qp.state.get() == QpState::Err {
        ending::flush(qp, &mut recv);
    }
    (recv.ring.was_missed(), result)
}

fn post_shared(srq: &SrqShared, staged: &Staged<'_, RecvRequest>) -> Posted {
    let take = |request: &RecvRequest| {
        if request.wr_id & ENGINE_WR_ID != 0 {
            Err(Refusal::Driver(EINVAL))
        } else if srq.push(request) {
            Ok(())
        } else {
            Err(Refusal::QueueFull)
        }
    };
    let (_, result) = staged.commit(take);
    (lock(&srq.inner).ring.was_missed(), result)
}
