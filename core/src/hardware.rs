//! The boundary to hardware: what the engine asks of queue pairs and completion queues.
//!
//! The shape is that of the extended verbs API (`ibv_wr_start` .. `ibv_wr_complete`): a queue pair
//! starts a batch, the batch takes requests one by one, and [`commit`](SendBatch::commit) rings the
//! doorbell once. Implemented by the verbs binding, by the software NIC and by null devices; the
//! smallest implementation is `examples/loopback`.
//!
//! The two traits on which the ownership of buffers rests are unsafe to implement; using them is not.

use crate::verbs::{Completion, DeviceId, RecvRequest, SendRequest, Sge};
use core::mem::MaybeUninit;

/// The bit that is set in the `wr_id` of everything that the engine posts to a queue pair of several,
/// and that shared receive queues refuse: a failed completion does not say which queue it is of, so
/// this bit alone tells the engine's requests from the caller's receives.
pub const ENGINE_WR_ID: u64 = 1 << 63;

/// Buffers that the engine gives a request at most, whatever its queue pair takes: what devices have.
pub const MAX_SGE: usize = 32;

/// Why a driver did not take a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The queue is full (`ENOMEM`): back-pressure, not an error; a completion makes room.
    #[error("the queue is full")]
    QueueFull,
    /// The driver's own code, an `errno` value.
    #[error("the driver refused with errno {0}")]
    Driver(i32),
}

impl Refusal {
    /// The driver's code of a refusal for good; `None` if there only was no room.
    pub const fn errno(self) -> Option<i32> {
        match self {
            Self::QueueFull => None,
            Self::Driver(errno) => Some(errno),
        }
    }

    /// The driver's code, ENOMEM for a full queue.
    pub(crate) fn errno_or_full(self) -> i32 {
        const ENOMEM: i32 = 12;
        self.errno().unwrap_or(ENOMEM)
    }
}

/// A batch that was not taken whole.
///
/// Plain `ibv_post_send` can stop half-way (`bad_wr`): the first `accepted` requests are with the
/// device and will complete, the rest never were.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{refusal}, after {accepted} requests of the batch")]
pub struct CommitError {
    /// Requests that the device took, counted from the batch's first: fewer than there are. (Of a
    /// driver that took them all and complains, all count as taken.)
    pub accepted: u32,
    /// Why the next one was refused.
    pub refusal: Refusal,
}

/// What a driver took of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    /// Requests, counted from the batch's first.
    pub(crate) count: u32,
    /// Why it did not take the rest, or its complaint though it took all of them.
    pub(crate) refusal: Option<Refusal>,
}

impl Taken {
    /// What became of a batch of `offered` requests: a driver never took more than there are, and one
    /// that took all of them had room.
    #[inline]
    pub(crate) fn of(offered: u32, committed: Result<(), CommitError>) -> Self {
        let all = Self { count: offered, refusal: None };
        committed.map_or_else(|error| Self::in_part(offered, error), |()| all)
    }

    #[cold]
    fn in_part(offered: u32, CommitError { accepted, refusal }: CommitError) -> Self {
        let had_room = accepted >= offered && refusal == Refusal::QueueFull;
        Self { count: accepted.min(offered), refusal: (!had_room).then_some(refusal) }
    }

    /// The outcome of a single request: a complaint of a driver that took it is in `Ok`.
    #[inline]
    pub(crate) fn single(self) -> Result<Option<Refusal>, Refusal> {
        match self.refusal {
            Some(refusal) if self.count == 0 => Err(refusal),
            complaint => Ok(complaint),
        }
    }
}

/// Send requests on their way to one queue pair. Dropped without commit, it posts nothing.
pub trait SendBatch {
    /// Appends a request. Whatever is wrong with it shows at [`commit`](Self::commit).
    fn add(&mut self, request: &SendRequest);

    /// Appends a request whose local bytes are those of several buffers, one behind the other, in place of
    /// [`SendRequest::sge`]. The engine gives it no empty ones, and at most
    /// [`max_send_sge`](QpLimits::max_send_sge). Provided for queue pairs that take one.
    fn add_list(&mut self, request: &SendRequest, buffers: &[Sge]) {
        debug_assert!(buffers.len() <= 1, "of queue pairs that take more, it is not provided");
        let sge = buffers.first().copied().unwrap_or(Sge::EMPTY);
        self.add(&SendRequest { sge, ..*request });
    }

    /// Posts what was added, with one doorbell.
    ///
    /// # Errors
    ///
    /// Tells how many requests, from the first on, the device took; they stay posted.
    fn commit(self) -> Result<(), CommitError>;
}

/// Appends a request of these buffers, none of them empty, as many as the queue pair takes.
#[inline]
pub(crate) fn add_gathered<B: SendBatch>(batch: &mut B, request: SendRequest, buffers: &[Sge]) {
    match *buffers {
        [] => batch.add(&SendRequest { sge: Sge::EMPTY, ..request }),
        [sge] => batch.add(&SendRequest { sge, ..request }),
        _ => batch.add_list(&request, buffers),
    }
}

/// Receives on their way to one queue. Dropped without commit, it posts nothing.
pub trait RecvBatch {
    /// Appends a receive. Whatever is wrong with it shows at [`commit`](Self::commit).
    fn add(&mut self, request: &RecvRequest);

    /// Appends a receive that fills several buffers, one behind the other. The engine gives it no empty ones,
    /// and at most [`max_recv_sge`](QpLimits::max_recv_sge). Provided for queues that take one.
    fn add_list(&mut self, wr_id: u64, buffers: &[Sge]) {
        debug_assert!(buffers.len() <= 1, "of queues that take more, it is not provided");
        let sge = buffers.first().copied().unwrap_or(Sge::EMPTY);
        self.add(&RecvRequest { wr_id, sge });
    }

    /// Posts what was added.
    ///
    /// # Errors
    ///
    /// Tells how many receives, from the first on, the device took; they stay posted.
    fn commit(self) -> Result<(), CommitError>;
}

/// [`add_gathered`], of a receive.
#[inline]
pub(crate) fn add_scattered<B: RecvBatch>(batch: &mut B, wr_id: u64, buffers: &[Sge]) {
    match *buffers {
        [] => batch.add(&RecvRequest { wr_id, sge: Sge::EMPTY }),
        [sge] => batch.add(&RecvRequest { wr_id, sge }),
        _ => batch.add_list(wr_id, buffers),
    }
}

/// A queue that takes receives: a queue pair's own, or a shared receive queue.
pub trait ReceiveQueue {
    /// The batch builder, which borrows the queue.
    type RecvBatch<'q>: RecvBatch
    where
        Self: 'q;

    /// Starts a batch of receives.
    fn start_recv(&mut self) -> Self::RecvBatch<'_>;
}

/// What a queue pair was granted when it was created (`struct ibv_qp_cap`), plus its device's
/// message limit. All of it is fixed for the life of the queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpLimits {
    /// Send requests that may be outstanding.
    pub max_send_wr: u32,
    /// Receives that may be outstanding; 0 if receives come from a shared receive queue.
    pub max_recv_wr: u32,
    /// Bytes that fit an inline request.
    pub max_inline_data: u32,
    /// Bytes of the longest message.
    pub max_msg_size: u32,
    /// Buffers that a send request can have. The engine takes 0 for 1, and makes use of [`MAX_SGE`] at most.
    pub max_send_sge: u32,
    /// Buffers that a receive can have, in the same way.
    pub max_recv_sge: u32,
}

/// Which completion queue, in the numbering of its maker. Unique within a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CqId(pub u64);

/// A reliable connected queue pair.
///
/// # Safety
///
/// A buffer is its owner's again when its request is reported, and the engine reports what
/// completions say. So an implementation promises that
///
/// - requests of one queue complete in posting order, failed and flushed ones included, each at most
///   once; a completion with the `wr_id` and [`qp_num`](Self::qp_num) of a request says that the
///   device touches neither its buffer nor those of the requests before it on its queue any more;
/// - [`qp_num`](Self::qp_num), [`device`](Self::device), [`cq`](Self::cq) and
///   [`limits`](Self::limits) never change, and no other queue pair of the process has this device
///   and number for as long as completions of this one may be polled;
/// - its batches post nothing before [`commit`](SendBatch::commit), and what `commit` says was not
///   taken is not executed;
/// - once [`enter_error`](Self::enter_error) returned `Ok`, the device carries out nothing more of what the
///   peer posted on this connection, whatever is on its way; if receives come from a shared receive queue,
///   once [`last_wqe_reached`](Self::last_wqe_reached) returned `Ok(true)`;
/// - once `last_wqe_reached` returned `Ok(true)`, no receive of this queue pair completes any more: those
///   that did and were not polled yet are what the next polls return, and a poll that returns fewer than it
///   was asked for leaves none;
/// - if its receives come from a shared receive queue, that queue takes none whose `wr_id` has
///   [`ENGINE_WR_ID`] set: a failed completion does not say which queue it is of.
#[allow(unsafe_code, reason = "a contract for implementations")]
pub unsafe trait QueuePair: ReceiveQueue {
    /// The batch builder, which borrows the queue pair.
    type SendBatch<'q>: SendBatch
    where
        Self: 'q;

    /// The number that completions of this queue pair carry, of 24 bits; unique on its device.
    fn qp_num(&self) -> u32;

    /// The device that the queue pair lives on.
    fn device(&self) -> DeviceId;

    /// The completion queue of both its send and its receive queue: on another one, completions
    /// would never be polled.
    fn cq(&self) -> CqId;

    /// What was granted at creation.
    fn limits(&self) -> QpLimits;

    /// Starts a batch of send requests.
    fn start_send(&mut self) -> Self::SendBatch<'_>;

    /// Moves the queue pair to the error state: what is posted to it, then or later, completes, flushed
    /// if it did not before, and it answers its peer no more. In the error state already, it stays there.
    ///
    /// Asked for with [`RailFailure::Reroute`](crate::virtual_qp::RailFailure) only, when a rail has failed.
    ///
    /// # Errors
    ///
    /// What the driver says: its device is gone, say.
    fn enter_error(&self) -> Result<(), Refusal>;

    /// Whether the last receive that this queue pair will ever take from its shared receive queue has
    /// completed. Such a queue flushes nothing to a queue pair in the error state, and one more message may
    /// still complete there; this is how its owner knows that none will. What the completion queue holds of
    /// it is to be polled still, until a poll returns fewer than it was asked for.
    ///
    /// Asked for once [`enter_error`](Self::enter_error) returned `Ok` and every send request of the queue
    /// pair has completed, then again and again until it is true; it does not wait. From then on it is true,
    /// and nothing is posted any more: a driver may have destroyed the queue pair to know.
    /// A queue pair with receives of its own is not asked: each of them completes.
    ///
    /// # Errors
    ///
    /// `EINVAL`: it is not in the error state, or its receives are its own. What the driver says: its device
    /// is gone, say. Then it may never become true.
    fn last_wqe_reached(&mut self) -> Result<bool, Refusal>;
}

/// A completion queue that cannot be polled any more, or not now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("polling completion queue {} of device {} failed with errno {errno}", cq.0, device.0)]
pub struct CqError {
    /// The queue.
    pub cq: CqId,
    /// Its device.
    pub device: DeviceId,
    /// The driver's code.
    pub errno: i32,
}

/// A completion queue.
///
/// # Safety
///
/// [`poll`](Self::poll) returns completions of queue pairs that live on [`device`](Self::device), each
/// once and as [`QueuePair`] says; [`id`](Self::id) and `device` never change.
#[allow(unsafe_code, reason = "a contract for implementations")]
pub unsafe trait CompletionQueue {
    /// Its identity; [`QueuePair::cq`] of the queue pairs that complete here.
    fn id(&self) -> CqId;

    /// The device it lives on.
    fn device(&self) -> DeviceId;

    /// Completions it can hold; one more is an overrun, which is fatal.
    fn capacity(&self) -> u32;

    /// Moves completions, oldest first, into the caller's memory: as many as there are, up to the
    /// length of `out`. The initialised front of `out` is returned.
    ///
    /// # Errors
    ///
    /// The queue is broken (an overrun, a device that went away). No completion was taken.
    fn poll<'o>(
        &mut self,
        out: &'o mut [MaybeUninit<Completion>],
    ) -> Result<&'o [Completion], CqError>;
}
