//! The hardware interface: the traits that the engine requires of queue pairs and completion
//! queues.
//!
//! The interface follows the extended verbs API (`ibv_wr_start` .. `ibv_wr_complete`): a queue pair
//! starts a batch, requests are added to the batch one by one, and [`commit`](SendBatch::commit)
//! rings the doorbell once. The verbs binding, the software NIC and null devices implement it; the
//! smallest implementation is `examples/loopback`.
//!
//! The two traits that buffer ownership depends on are unsafe to implement; using them is safe.

use crate::verbs::{Completion, DeviceId, RecvRequest, SendRequest, Sge};
use core::mem::MaybeUninit;
use core::ptr;

/// The bit that is set in the `wr_id` of all requests that the engine posts to a queue pair of
/// several rails. Shared receive queues refuse a `wr_id` with this bit: a failed completion does
/// not say which queue it belongs to, so only this bit distinguishes the engine's requests from the
/// caller's receives.
pub const ENGINE_WR_ID: u64 = 1 << 63;

/// Maximum scatter/gather entries per request that the engine uses, even if a queue pair supports
/// more: rxe's limit (`RXE_MAX_SGE` of Linux 6.1), which is typical of NICs, too.
pub const MAX_SGE: usize = 32;

/// The reason why a driver did not accept a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The queue is full (`ENOMEM`). This is backpressure, not a failure: a completion makes room.
    #[error("the queue is full")]
    QueueFull,
    /// The driver's error code, an `errno` value.
    #[error("the driver refused with errno {0}")]
    Driver(i32),
}

impl Refusal {
    /// Returns the driver's error code; `None` if the queue was only full.
    pub const fn errno(self) -> Option<i32> {
        match self {
            Self::QueueFull => None,
            Self::Driver(errno) => Some(errno),
        }
    }

    /// Returns the driver's error code; ENOMEM for a full queue.
    pub(crate) fn errno_or_full(self) -> i32 {
        // As in `asm-generic/errno-base.h`; this crate has no dependency on libc.
        const ENOMEM: i32 = 12;
        self.errno().unwrap_or(ENOMEM)
    }
}

/// A batch that was not accepted completely.
///
/// `ibv_post_send` can stop half-way (`bad_wr`): the device has the first `accepted` requests and
/// completes them, and never received the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the driver accepted {accepted} requests of the batch, then refused one: {refusal}")]
pub struct CommitError {
    /// Number of requests that the device accepted, from the first of the batch. (If a driver
    /// accepts all requests and still returns an error, all count as accepted.)
    pub accepted: u32,
    /// The reason why the next request was refused.
    pub refusal: Refusal,
}

/// The result of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    /// Number of accepted requests, from the first of the batch.
    pub(crate) count: u32,
    /// Why the rest was refused, or the error of a driver that accepted all requests.
    pub(crate) refusal: Option<Refusal>,
}

impl Taken {
    /// Converts the result of a batch of `offered` requests. The number of accepted requests is
    /// limited to `offered`, and a full queue is ignored if all were accepted.
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

    /// Converts the result of a single request. If the driver accepted the request but returned an
    /// error, the error is in `Ok`.
    #[inline]
    pub(crate) fn single(self) -> Result<Option<Refusal>, Refusal> {
        match self.refusal {
            Some(refusal) if self.count == 0 => Err(refusal),
            complaint => Ok(complaint),
        }
    }
}

/// One number for a queue pair of any device of the process.
#[inline]
pub(crate) const fn address(device: DeviceId, qp_num: u32) -> u64 {
    (device.0 as u64) << 32 | qp_num as u64
}

/// A batch of send requests for one queue pair. A batch that is dropped without a commit posts
/// nothing.
pub trait SendBatch {
    /// Appends a request. Errors are reported by [`commit`](Self::commit): EINVAL, among others,
    /// for an INLINE request with a [device address](crate::verbs::DEVICE_ADDRESSES), whose bytes
    /// the CPU cannot copy.
    fn add(&mut self, request: &SendRequest);

    /// Appends a request that gathers several buffers, in this order, instead of
    /// [`SendRequest::sge`]. The engine passes no empty buffers, and at most
    /// [`max_send_sge`](QpLimits::max_send_sge) of them. The default implementation is for queue
    /// pairs that support one.
    fn add_list(&mut self, request: &SendRequest, buffers: &[Sge]) {
        debug_assert!(buffers.len() <= 1, "override add_list if max_send_sge is above 1");
        let sge = buffers.first().copied().unwrap_or(Sge::EMPTY);
        self.add(&SendRequest { sge, ..*request });
    }

    /// Posts the batch, with one doorbell.
    ///
    /// # Errors
    ///
    /// The error reports how many requests, from the first, the device accepted; they stay posted.
    fn commit(self) -> Result<(), CommitError>;
}

/// Appends a request with these buffers. None of them is empty, and the queue pair supports their
/// number.
#[inline]
pub(crate) fn add_gathered<B: SendBatch>(batch: &mut B, request: SendRequest, buffers: &[Sge]) {
    match *buffers {
        [] => batch.add(&SendRequest { sge: Sge::EMPTY, ..request }),
        [sge] => batch.add(&SendRequest { sge, ..request }),
        _ => batch.add_list(&request, buffers),
    }
}

/// A batch of receives for one queue. A batch that is dropped without a commit posts nothing.
pub trait RecvBatch {
    /// Appends a receive. Errors are reported by [`commit`](Self::commit).
    fn add(&mut self, request: &RecvRequest);

    /// Appends a receive that fills several buffers, in this order. The engine passes no empty
    /// buffers, and at most [`max_recv_sge`](QpLimits::max_recv_sge) of them. The default
    /// implementation is for queues that support one.
    fn add_list(&mut self, wr_id: u64, buffers: &[Sge]) {
        debug_assert!(buffers.len() <= 1, "override add_list if max_recv_sge is above 1");
        let sge = buffers.first().copied().unwrap_or(Sge::EMPTY);
        self.add(&RecvRequest { wr_id, sge });
    }

    /// Posts the batch.
    ///
    /// # Errors
    ///
    /// The error reports how many receives, from the first, the device accepted; they stay posted.
    fn commit(self) -> Result<(), CommitError>;
}

/// Like [`add_gathered`], for a receive.
#[inline]
pub(crate) fn add_scattered<B: RecvBatch>(batch: &mut B, wr_id: u64, buffers: &[Sge]) {
    match *buffers {
        [] => batch.add(&RecvRequest { wr_id, sge: Sge::EMPTY }),
        [sge] => batch.add(&RecvRequest { wr_id, sge }),
        _ => batch.add_list(wr_id, buffers),
    }
}

/// A queue of receives: the receive queue of a queue pair, or a shared receive queue.
pub trait ReceiveQueue {
    /// The batch builder, which borrows the queue.
    type RecvBatch<'q>: RecvBatch
    where
        Self: 'q;

    /// Starts a batch of receives.
    fn start_recv(&mut self) -> Self::RecvBatch<'_>;
}

/// Capacities of a queue pair that were granted at its creation (`struct ibv_qp_cap`), and its
/// device's message limit. They never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpLimits {
    /// Maximum outstanding send requests.
    pub max_send_wr: u32,
    /// Maximum outstanding receives; 0 if receives come from a shared receive queue.
    pub max_recv_wr: u32,
    /// Maximum length of an inline request in bytes.
    pub max_inline_data: u32,
    /// Longest message in bytes.
    pub max_msg_size: u32,
    /// Maximum scatter/gather entries per send request. The engine treats 0 as 1, and uses at most
    /// [`MAX_SGE`].
    pub max_send_sge: u32,
    /// Maximum scatter/gather entries per receive, treated in the same way.
    pub max_recv_sge: u32,
}

/// Identifies a completion queue, by a number that is unique in the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CqId(pub u64);

/// A reliable connected queue pair.
///
/// # Safety
///
/// The engine returns a buffer to its owner when the request is reported, and reports what
/// completions say. An implementation therefore guarantees that
///
/// - requests of one queue complete in posting order, including failed and flushed ones, each at
///   most once; after a completion with the `wr_id` and [`qp_num`](Self::qp_num) of a request, the
///   device no longer accesses its buffer, nor the buffers of earlier requests on its queue;
/// - [`qp_num`](Self::qp_num), [`device`](Self::device), [`cq`](Self::cq) and
///   [`limits`](Self::limits) never change, and no other queue pair of the process has the same
///   device and number while completions of this one may still be polled;
/// - its batches post nothing before [`commit`](SendBatch::commit), and requests that `commit`
///   reports as not accepted are not executed;
/// - once [`enter_error`](Self::enter_error) returned `Ok`, the device executes no further request
///   that the peer posted on this connection, even if it is already in transit; if receives come
///   from a shared receive queue, this holds once [`last_wqe_reached`](Self::last_wqe_reached)
///   returned `Ok(true)`;
/// - once `last_wqe_reached` returned `Ok(true)`, no further receive of this queue pair completes:
///   the next polls return those that completed but were not polled, and a poll that returns fewer
///   completions than requested leaves none;
/// - if its receives come from a shared receive queue, that queue refuses every `wr_id` that has
///   [`ENGINE_WR_ID`] set, because a failed completion does not say which queue it belongs to.
#[allow(unsafe_code, reason = "a contract for implementations")]
pub unsafe trait QueuePair: ReceiveQueue {
    /// The batch builder, which borrows the queue pair.
    type SendBatch<'q>: SendBatch
    where
        Self: 'q;

    /// Returns the number that completions of this queue pair carry, 24 bits; unique on its device.
    fn qp_num(&self) -> u32;

    /// Returns the device of the queue pair.
    fn device(&self) -> DeviceId;

    /// Returns the completion queue of both its send and its receive queue. The engine polls this
    /// one only.
    fn cq(&self) -> CqId;

    /// Returns the capacities granted at creation.
    fn limits(&self) -> QpLimits;

    /// Starts a batch of send requests.
    fn start_send(&mut self) -> Self::SendBatch<'_>;

    /// Moves the queue pair to the error state: all requests posted before or later complete,
    /// flushed unless they completed earlier, and the queue pair no longer responds to its peer.
    /// Does nothing if it is in the error state already.
    ///
    /// A virtual queue pair calls it after a rail has failed, and only with
    /// [`RailFailure::Reroute`](crate::virtual_qp::RailFailure). A message endpoint calls it whenever a
    /// queue pair or the connection fails, because a buffer is returned only when no message can
    /// still arrive in it.
    ///
    /// # Errors
    ///
    /// Errors of the driver, for example because its device was removed.
    fn enter_error(&self) -> Result<(), Refusal>;

    /// Whether the last receive that this queue pair will ever take from its shared receive queue
    /// has completed. A queue pair with a shared receive queue flushes no receives in the error
    /// state, and one more message may still complete there; this call reports when that is
    /// impossible. Completions of the queue pair must still be polled, until a poll returns fewer
    /// than requested.
    ///
    /// Called after [`enter_error`](Self::enter_error) returned `Ok` and all send requests of the
    /// queue pair have completed, then repeatedly until it returns true; it does not block.
    /// Afterwards it stays true, and nothing may be posted: a driver may have destroyed the queue
    /// pair to find out. It is not called for a queue pair without a shared receive queue, whose
    /// receives all complete.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the queue pair is not in the error state, or has no shared receive queue. Errors
    /// of the driver, for example because its device was removed; then it may never become true.
    fn last_wqe_reached(&mut self) -> Result<bool, Refusal>;
}

/// A completion queue that cannot be polled, for good or for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("polling completion queue {} of device {} failed with errno {errno}", cq.0, device.0)]
pub struct CqError {
    /// The queue.
    pub cq: CqId,
    /// Its device.
    pub device: DeviceId,
    /// The driver's error code.
    pub errno: i32,
}

/// A completion queue.
///
/// # Safety
///
/// [`poll`](Self::poll) returns completions of queue pairs of [`device`](Self::device), each once
/// and under the guarantees of [`QueuePair`]; [`id`](Self::id) and `device` never change.
#[allow(unsafe_code, reason = "a contract for implementations")]
pub unsafe trait CompletionQueue {
    /// Returns its identity, which is [`QueuePair::cq`] of the queue pairs that complete here.
    fn id(&self) -> CqId;

    /// Returns its device.
    fn device(&self) -> DeviceId;

    /// Returns the number of completions that it can hold; one more is an overrun, which is fatal.
    /// [`VirtualQp::cq_entries`](crate::virtual_qp::VirtualQp::cq_entries) are enough for the queue
    /// pairs of one virtual queue pair, and
    /// [`AttachError::CqTooSmall`](crate::virtual_cq::AttachError::CqTooSmall) has the exact
    /// number.
    fn capacity(&self) -> u32;

    /// Moves completions, oldest first, into the caller's memory: all that are queued, up to the
    /// length of `out`. Returns the initialised front of `out`.
    ///
    /// # Errors
    ///
    /// The queue is broken (an overrun, or a removed device). No completion was taken.
    fn poll<'o>(
        &mut self,
        out: &'o mut [MaybeUninit<Completion>],
    ) -> Result<&'o [Completion], CqError>;
}

/// Returns the elements of `slots`. The standard library's `assume_init_ref` of slices does the
/// same, but needs Rust 1.93. Implementations of [`CompletionQueue::poll`] return the front of
/// `out` with it.
///
/// # Safety
///
/// All elements of `slots` are initialised.
#[inline(always)]
#[allow(unsafe_code, reason = "a cast, for implementations")]
pub const unsafe fn assume_init_slice<T>(slots: &[MaybeUninit<T>]) -> &[T] {
    // SAFETY: `MaybeUninit<T>` has the layout of `T`, and the caller promises initialised elements.
    unsafe { &*(ptr::from_ref(slots) as *const [T]) }
}
