//! Batches: how requests enter a queue.
//!
//! A batch collects its requests in memory that its queue's handle allocated at creation.
//! Committing takes the queue's lock once, checks each request, and copies it with its inline data
//! into its slot.

use crate::dma::Span;
use crate::ending;
use crate::error::errno::{EINVAL, EOPNOTSUPP};
use crate::lists::{Listed, NamesBuffer};
use crate::shared::{DeviceShared, QpShared, SendQueue, SrqShared};
use crate::state::QpState;
use crate::sync::lock;
use crate::transmit;
use polyrail_core::hardware::{self, CommitError, ENGINE_WR_ID, Refusal};
use polyrail_core::verbs::{Opcode, RecvRequest, SendFlags, SendRequest, Sge};

/// The memory in which a queue's handle collects requests.
#[derive(Debug)]
pub(crate) struct Memory<R> {
    requests: Vec<Staged<R>>,
    /// The lists of requests that have one, concatenated.
    sges: Vec<Sge>,
    /// Maximum number of buffers in a list.
    most: usize,
}

impl<R> Memory<R> {
    /// Allocates memory for `capacity` requests of up to `max_sge` buffers.
    pub(crate) fn new(capacity: u32, max_sge: u32) -> Self {
        let capacity = capacity as usize;
        let lists = if max_sge > 1 { capacity * max_sge as usize } else { 0 };
        let sges = Vec::with_capacity(lists);
        Self { requests: Vec::with_capacity(capacity), sges, most: max_sge.max(1) as usize }
    }
}

#[derive(Clone, Copy, Debug)]
enum Staged<R> {
    Request(Listed<R>),
    /// The list is longer than the queue permits.
    TooLong,
}

/// The collected requests. Requests beyond the queue's size are only counted as too many.
#[derive(Debug)]
struct Staging<'q, R> {
    memory: &'q mut Memory<R>,
    too_many: bool,
}

impl<'q, R: Copy + NamesBuffer> Staging<'q, R> {
    fn new(memory: &'q mut Memory<R>) -> Self {
        memory.requests.clear();
        memory.sges.clear();
        Self { memory, too_many: false }
    }

    fn is_empty(&self) -> bool {
        !self.too_many && self.memory.requests.is_empty()
    }

    /// Returns whether there is room for another request.
    fn has_room(&mut self) -> bool {
        self.too_many |= self.memory.requests.len() == self.memory.requests.capacity();
        !self.too_many
    }

    fn add(&mut self, request: Listed<R>) {
        if self.has_room() {
            self.memory.requests.push(Staged::Request(request));
        }
    }

    fn add_list(&mut self, request: R, buffers: &[Sge]) {
        if !self.has_room() {
            return;
        }
        let Memory { requests, sges, most } = &mut *self.memory;
        requests.push(match Listed::with(request, buffers, *most) {
            Some((listed, filled)) => {
                sges.extend(filled);
                Staged::Request(listed)
            }
            None => Staged::TooLong,
        });
    }

    /// Passes the requests with their lists to the queue until one is refused. Returns how many
    /// were accepted, and the result.
    fn commit(
        &self,
        mut take: impl FnMut(&Listed<R>, &[Sge]) -> Result<(), Refusal>,
    ) -> (u32, Result<(), CommitError>) {
        let mut accepted = 0;
        let mut sges = &self.memory.sges[..];
        let stop = |accepted, refusal| (accepted, Err(CommitError { accepted, refusal }));
        for request in &self.memory.requests {
            let Staged::Request(request) = request else {
                return stop(accepted, Refusal::Driver(EINVAL));
            };
            let (list, behind) = sges.split_at(request.buffers as usize);
            sges = behind;
            if let Err(refusal) = take(request, list) {
                return stop(accepted, refusal);
            }
            accepted += 1;
        }
        if self.too_many { stop(accepted, Refusal::QueueFull) } else { (accepted, Ok(())) }
    }
}

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
    pub(crate) fn new(qp: &'q QpShared, staged: &'q mut Memory<SendRequest>) -> Self {
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
    if matches!(request.opcode, Opcode::LocalInv | Opcode::SendWithInv) {
        return Err(Refusal::Driver(EOPNOTSUPP));
    }
    let inline = request.flags.contains(SendFlags::INLINE);
    let too_long = request.length > qp.limits.max_inline_data;
    let is_atomic = request.opcode.is_fetching() && request.opcode != Opcode::RdmaRead;
    if (inline && (request.opcode.is_fetching() || too_long)) || (is_atomic && list.len() > 1) {
        return Err(Refusal::Driver(EINVAL));
    }
    if send.is_full(qp.released.sends()) {
        return Err(Refusal::QueueFull);
    }
    if inline {
        let own = [request.sge];
        copy_inline(send, if list.is_empty() { &own } else { list });
    }
    send.push(request, list);
    Ok(())
}

/// Copies an inline request's bytes into the next slot.
fn copy_inline(send: &SendQueue, buffers: &[Sge]) {
    let mut target = send.inline_span(send.posted);
    for sge in buffers {
        let length = sge.length() as usize;
        let start = std::ptr::with_exposed_provenance_mut::<u8>(sge.addr() as usize);
        // SAFETY: a scatter/gather entry is always made from a `LocalBuffer`, whose creator
        // guarantees that the bytes are allocated, and not written, until the post returns.
        let source = unsafe { Span::new(start, length) };
        target.copy_from(source);
        target = target.skip(length);
    }
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
    pub(crate) fn for_qp(qp: &'q QpShared, staged: &'q mut Memory<RecvRequest>) -> Self {
        Self { queue: Queue::Own(qp), staged: Staging::new(staged) }
    }

    pub(crate) fn for_srq(srq: &'q SrqShared, staged: &'q mut Memory<RecvRequest>) -> Self {
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
    let was_missed = posts.was_missed();
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
    (lock(&srq.inner).ring.was_missed(), result)
}
