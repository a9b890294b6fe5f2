//! Posts send requests.

use super::service::{Connected, Service, Ud, operation};
use crate::chain::{Chain, filled, refusal};
use crate::error::REFUSED_FORKED;
use crate::path::AddressHandle;
use polyrail_core::hardware::{self, CommitError, Refusal};
use polyrail_core::verbs::{DeviceId, Opcode, SendFlags, SendRequest, Sge};
use rdma_sys::{
    atomic_t, ibv_ah, ibv_qp, ibv_qp_ex, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wr_opcode,
    imm_data_invalidated_rkey_union_t, rdma_t, ud_t, wr_t,
};
use static_assertions::const_assert_eq;
use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{ptr, slice};

// Numbers of opcodes and flags are those of the header.
const_assert_eq!(Opcode::RdmaWrite as u32, ibv_wr_opcode::IBV_WR_RDMA_WRITE);
const_assert_eq!(Opcode::RdmaWriteWithImm as u32, ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM);
const_assert_eq!(Opcode::Send as u32, ibv_wr_opcode::IBV_WR_SEND);
const_assert_eq!(Opcode::SendWithImm as u32, ibv_wr_opcode::IBV_WR_SEND_WITH_IMM);
const_assert_eq!(Opcode::RdmaRead as u32, ibv_wr_opcode::IBV_WR_RDMA_READ);
const_assert_eq!(Opcode::CompareSwap as u32, ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP);
const_assert_eq!(Opcode::FetchAdd as u32, ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD);
const_assert_eq!(Opcode::LocalInv as u32, ibv_wr_opcode::IBV_WR_LOCAL_INV);
const_assert_eq!(Opcode::SendWithInv as u32, ibv_wr_opcode::IBV_WR_SEND_WITH_INV);
const_assert_eq!(SendFlags::FENCE.bits() as u32, ibv_send_flags::IBV_SEND_FENCE.0);
const_assert_eq!(SendFlags::SIGNALED.bits() as u32, ibv_send_flags::IBV_SEND_SIGNALED.0);
const_assert_eq!(SendFlags::SOLICITED.bits() as u32, ibv_send_flags::IBV_SEND_SOLICITED.0);
const_assert_eq!(SendFlags::INLINE.bits() as u32, ibv_send_flags::IBV_SEND_INLINE.0);
const_assert_eq!(SendFlags::IP_CSUM.bits() as u32, ibv_send_flags::IBV_SEND_IP_CSUM.0);

/// The calls and the memory by which a queue pair posts.
#[derive(Debug)]
pub(super) enum Sender {
    /// A list of requests, posted by `ibv_post_send`. A driver may accept a prefix of the list.
    Classic(Chain<ibv_send_wr>),
    /// One call per request, which writes into the driver's queue (`ibv_wr_*`). A batch is accepted
    /// completely or not at all.
    Extended {
        qp: *mut ibv_qp_ex,
        /// The operations that the queue pair was created for.
        operations: u64,
        /// Set from `ibv_wr_start` to `ibv_wr_complete` or `ibv_wr_abort`; the driver may hold a
        /// lock meanwhile.
        building: AtomicBool,
        lists: Lists,
    },
}

/// Memory for the scatter/gather list of one request, which drivers read during the call.
///
/// Inline data is copied together here: `ibv_wr_set_inline_data_list` of rxe's library (rdma-core
/// 44) loses the length, so that the message is empty.
pub(super) struct Lists {
    sges: Box<[ibv_sge]>,
    inline: Box<[u8]>,
    /// The driver's library takes all buffers of a list to have the length of the first.
    miscounts: bool,
}

impl fmt::Debug for Lists {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lists(of {})", self.sges.len())
    }
}

impl Lists {
    /// Allocates lists of up to `max_sge` buffers, and `max_inline_data` bytes of inline data.
    pub(super) fn new(max_sge: u32, max_inline_data: u32, miscounts: bool) -> Self {
        let sge = ibv_sge { addr: 0, length: 0, lkey: 0 };
        let inline = vec![0; max_inline_data as usize].into();
        Self { sges: vec![sge; max_sge as usize].into(), inline, miscounts }
    }

    /// Copies the buffers' bytes together and returns their number.
    ///
    /// # Safety
    ///
    /// The buffers are readable, and their total length is at most `max_inline_data`.
    unsafe fn join(&mut self, buffers: &[Sge]) -> usize {
        let mut length = 0;
        for sge in filled(buffers) {
            let from = ptr::with_exposed_provenance::<c_void>(sge.addr as usize);
            let to = self.inline[length..][..sge.length as usize].as_mut_ptr();
            // SAFETY: readable, as the caller guarantees. The C library copies, as in a driver,
            // since a device may write to the bytes meanwhile.
            unsafe { libc::memcpy(to.cast(), from, sge.length as usize) };
            length += sge.length as usize;
        }
        length
    }
}

impl Sender {
    /// Whether lists of buffers with different lengths are refused.
    pub(super) const fn miscounts_lists(&self) -> bool {
        matches!(self, Self::Extended { lists, .. } if lists.miscounts)
    }

    /// Aborts a batch in progress that was dropped or forgotten. The caller has exclusive access to
    /// the queue pair, or holds its transition lock.
    #[inline]
    pub(super) fn abort(&self) {
        if let Self::Extended { qp, building, .. } = self
            && building.load(Ordering::Relaxed)
        {
            building.store(false, Ordering::Relaxed);
            // SAFETY: the queue pair is alive as long as `self`, which is a part of it, and a batch
            // is in progress.
            unsafe { rdma_sys::ibv_wr_abort(*qp) };
        }
    }
}

// SAFETY: the pointer is the queue pair, whose owner may move between threads.
unsafe impl Send for Sender {}
// SAFETY: a shared reference only allows to abort a batch, by one caller at a time.
unsafe impl Sync for Sender {}

/// The destination of a datagram.
#[derive(Clone, Copy, Debug)]
struct Datagram {
    ah: *mut ibv_ah,
    qp_num: u32,
    qkey: u32,
}

/// A batch of send requests for one queue pair. A batch that is dropped without a commit posts
/// nothing.
#[derive(Debug)]
pub struct SendBatch<'q, S: Service> {
    qp: *mut ibv_qp,
    sender: &'q mut Sender,
    max_inline_data: u32,
    /// The reason why extended posting refuses further requests.
    refused: Option<Refusal>,
    service: PhantomData<S>,
}

impl<'q, S: Service> SendBatch<'q, S> {
    /// # Safety
    ///
    /// The queue pair stays alive while `sender` is borrowed, or it is not `ready` and has no batch
    /// in progress. No other batch posts to it meanwhile.
    #[inline]
    pub(super) unsafe fn new(
        qp: *mut ibv_qp,
        sender: &'q mut Sender,
        max_inline_data: u32,
        ready: Result<(), Refusal>,
    ) -> Self {
        let mut batch = Self { qp, sender, max_inline_data, refused: None, service: PhantomData };
        if ready != Err(REFUSED_FORKED) {
            batch.sender.abort();
        }
        match &mut *batch.sender {
            Sender::Classic(chain) => chain.clear(),
            Sender::Extended { qp, building, .. } if ready.is_ok() => {
                // SAFETY: the queue pair is alive and was created for extended posting.
                unsafe { rdma_sys::ibv_wr_start(*qp) };
                *building.get_mut() = true;
            }
            Sender::Extended { .. } => {}
        }
        if let Err(refusal) = ready {
            batch.stop(refusal);
        }
        batch
    }

    fn stop(&mut self, refusal: Refusal) {
        match self.sender {
            Sender::Classic(chain) => chain.stop(refusal),
            Sender::Extended { .. } => _ = self.refused.get_or_insert(refusal),
        }
    }

    /// Refuses requests that drivers treat differently: some report them as a full queue, others
    /// read out of bounds.
    #[inline]
    fn check(&self, request: &SendRequest, buffers: &[Sge]) -> Result<(), Refusal> {
        let (offered, fits) = match &*self.sender {
            // The chain checks the number of buffers.
            Sender::Classic(_) => (S::supports(request.opcode), true),
            Sender::Extended { operations, lists, .. } => (
                *operations & operation(request.opcode) != 0,
                // Count nonempty buffers only if the list is longer than the limit.
                buffers.len() <= lists.sges.len() || filled(buffers).count() <= lists.sges.len(),
            ),
        };
        let inline = request.flags.contains(SendFlags::INLINE);
        let miscounted = buffers.len() > 1
            && !inline
            && self.sender.miscounts_lists()
            && !filled(buffers).map(|sge| sge.length).is_sorted_by(|one, next| one == next);
        if !offered || miscounted {
            return Err(Refusal::Driver(libc::EOPNOTSUPP));
        }
        let length = || buffers.iter().map(|sge| u64::from(sge.length())).sum::<u64>();
        // The driver copies inline data by its address, where only the device finds memory.
        let is_unreadable = || buffers.iter().any(Sge::has_device_address);
        let is_bad = inline
            && (request.opcode.is_fetching()
                || length() > u64::from(self.max_inline_data)
                || is_unreadable());
        if is_bad || !fits {
            return Err(Refusal::Driver(libc::EINVAL));
        }
        Ok(())
    }

    /// Appends a request with `buffers` instead of the request's buffer.
    #[inline]
    fn add_to(&mut self, request: &SendRequest, buffers: &[Sge], to: Option<Datagram>) {
        if let Err(refusal) = self.check(request, buffers) {
            return self.stop(refusal);
        }
        match self.sender {
            Sender::Classic(chain) => chain.push(buffers, |raw| fill(raw, request, to)),
            // SAFETY: the queue pair is alive, a batch is in progress, the queue pair was created
            // for the opcode, and the buffers fit.
            Sender::Extended { qp, lists, .. } if self.refused.is_none() => unsafe {
                build(*qp, request, buffers, lists, to);
            },
            Sender::Extended { .. } => {}
        }
    }

    #[inline]
    fn post(self) -> Result<(), CommitError> {
        let qp = self.qp;
        match &mut *self.sender {
            Sender::Classic(chain) => chain.post(|first, bad| {
                // SAFETY: the queue pair is alive by the constructor's contract, and the chain is a
                // list of requests that the driver copies during the call.
                unsafe { rdma_sys::ibv_post_send(qp, first, bad) }
            }),
            Sender::Extended { .. } if self.refused.is_some() => Ok(()),
            Sender::Extended { qp, building, .. } => {
                *building.get_mut() = false;
                // SAFETY: the queue pair is alive, and the batch is in progress.
                match unsafe { rdma_sys::ibv_wr_complete(*qp) } {
                    0 => Ok(()),
                    code => Err(refuse_all(refusal(crate::sys::errno_of(code)))),
                }
            }
        }?;
        match self.refused {
            None => Ok(()),
            Some(refusal) => Err(refuse_all(refusal)),
        }
    }
}

const fn refuse_all(refusal: Refusal) -> CommitError {
    CommitError { accepted: 0, refusal }
}

impl<S: Service> Drop for SendBatch<'_, S> {
    #[inline]
    fn drop(&mut self) {
        self.sender.abort();
    }
}

impl<S: Connected> hardware::SendBatch for SendBatch<'_, S> {
    #[inline]
    fn add(&mut self, request: &SendRequest) {
        self.add_to(request, slice::from_ref(&request.sge), None);
    }

    /// At most [`max_send_sge`](crate::QpCap::max_send_sge) nonempty buffers. A longer list is
    /// refused with EINVAL when the batch is committed.
    #[inline]
    fn add_list(&mut self, request: &SendRequest, buffers: &[Sge]) {
        self.add_to(request, buffers, None);
    }

    #[inline]
    fn commit(self) -> Result<(), CommitError> {
        self.post()
    }
}

/// A batch of datagrams for one queue pair. A batch that is dropped without a commit posts nothing.
///
/// It borrows the address handles, since the driver reads them when the batch is committed.
///
/// ```compile_fail,E0505
/// use polyrail_core::verbs::SendRequest;
/// use polyrail_ffi::{AddressHandle, QueuePair, Ud};
///
/// fn too_early(qp: &mut QueuePair<Ud>, request: &SendRequest, to: AddressHandle) {
///     let mut batch = qp.start_datagrams();
///     batch.add(request, &to, 17, 0);
///     drop(to);
///     batch.commit().unwrap();
/// }
/// ```
#[derive(Debug)]
pub struct DatagramBatch<'q> {
    pub(super) batch: SendBatch<'q, Ud>,
    pub(super) device: DeviceId,
}

impl<'q> DatagramBatch<'q> {
    /// Appends a SEND to queue pair `qp_num` at the end of a path. The receiver drops it unless
    /// `qkey` is the receiver's Q_Key. Its receive buffer must be at least 40 bytes longer than the
    /// message, for the GRH.
    ///
    /// An address handle of another device is refused with EINVAL when the batch is committed,
    /// since the driver would take it for a handle of its own device.
    pub fn add(&mut self, request: &SendRequest, to: &'q AddressHandle, qp_num: u32, qkey: u32) {
        self.add_list(request, slice::from_ref(&request.sge), to, qp_num, qkey);
    }

    /// Like [`add`](Self::add), with a message from several buffers instead of the request's
    /// buffer; see [`add_list`](hardware::SendBatch::add_list).
    pub fn add_list(
        &mut self,
        request: &SendRequest,
        buffers: &[Sge],
        to: &'q AddressHandle,
        qp_num: u32,
        qkey: u32,
    ) {
        if to.pd().context().id() == self.device {
            let to = Datagram { ah: to.as_ptr(), qp_num, qkey };
            self.batch.add_to(request, buffers, Some(to));
        } else {
            self.batch.stop(Refusal::Driver(libc::EINVAL));
        }
    }

    /// Posts the batch, with one doorbell.
    ///
    /// # Errors
    ///
    /// The error reports how many requests, from the first, the device accepted; they stay posted.
    pub fn commit(self) -> Result<(), CommitError> {
        self.batch.post()
    }
}

/// Writes all fields except the list links and the buffers.
#[inline]
fn fill(raw: &mut ibv_send_wr, request: &SendRequest, to: Option<Datagram>) {
    let SendRequest { remote_addr, rkey, .. } = *request;
    raw.wr_id = request.wr_id;
    raw.opcode = request.opcode as u32;
    raw.send_flags = request.flags.bits().into();
    raw.imm_data_invalidated_rkey_union = match request.opcode {
        Opcode::LocalInv | Opcode::SendWithInv => {
            imm_data_invalidated_rkey_union_t { invalidated_rkey: rkey }
        }
        _ => imm_data_invalidated_rkey_union_t { imm_data: imm(request) },
    };
    raw.wr = match (request.opcode, to) {
        (_, Some(Datagram { ah, qp_num, qkey })) => {
            wr_t { ud: ud_t { ah, remote_qpn: qp_num, remote_qkey: qkey } }
        }
        (Opcode::CompareSwap | Opcode::FetchAdd, None) => {
            let SendRequest { compare_add, swap, .. } = *request;
            wr_t { atomic: atomic_t { remote_addr, compare_add, swap, rkey } }
        }
        (_, None) => wr_t { rdma: rdma_t { remote_addr, rkey } },
    };
}

/// Returns the immediate in the byte order of the C structs.
#[inline]
fn imm(request: &SendRequest) -> u32 {
    u32::from_ne_bytes(request.imm.wire())
}

/// Adds a request to the batch in progress.
///
/// # Safety
///
/// The queue pair is alive, was created for the opcode, and `ibv_wr_start` was called. `lists` has
/// room for the nonempty buffers and for the inline data.
#[inline]
unsafe fn build(
    qp: *mut ibv_qp_ex,
    request: &SendRequest,
    buffers: &[Sge],
    lists: &mut Lists,
    to: Option<Datagram>,
) {
    let SendRequest { remote_addr, rkey, compare_add, swap, .. } = *request;
    // SAFETY: guaranteed by the caller.
    unsafe {
        (*qp).wr_id = request.wr_id;
        (*qp).wr_flags = request.flags.bits().into();
        match request.opcode {
            Opcode::RdmaWrite => rdma_sys::ibv_wr_rdma_write(qp, rkey, remote_addr),
            Opcode::RdmaWriteWithImm => {
                rdma_sys::ibv_wr_rdma_write_imm(qp, rkey, remote_addr, imm(request));
            }
            Opcode::Send => rdma_sys::ibv_wr_send(qp),
            Opcode::SendWithImm => rdma_sys::ibv_wr_send_imm(qp, imm(request)),
            Opcode::RdmaRead => rdma_sys::ibv_wr_rdma_read(qp, rkey, remote_addr),
            Opcode::CompareSwap => {
                rdma_sys::ibv_wr_atomic_cmp_swp(qp, rkey, remote_addr, compare_add, swap);
            }
            Opcode::FetchAdd => {
                rdma_sys::ibv_wr_atomic_fetch_add(qp, rkey, remote_addr, compare_add);
            }
            // This request has no buffers, and no call to set them.
            Opcode::LocalInv => return rdma_sys::ibv_wr_local_inv(qp, rkey),
            Opcode::SendWithInv => rdma_sys::ibv_wr_send_inv(qp, rkey),
        }
        if let Some(Datagram { ah, qp_num, qkey }) = to {
            rdma_sys::ibv_wr_set_ud_addr(qp, ah, qp_num, qkey);
        }
        set_data(qp, request.flags, buffers, lists);
    }
}

/// # Safety
///
/// A request that has buffers was just added to the batch in progress, within the limits of
/// [`build`].
#[inline]
unsafe fn set_data(qp: *mut ibv_qp_ex, flags: SendFlags, buffers: &[Sge], lists: &mut Lists) {
    let is_inline = flags.contains(SendFlags::INLINE);
    // SAFETY: guaranteed by the caller. Inline data is copied now; the buffers are readable until
    // the post returns, as their constructor required, since `check` refused device addresses.
    unsafe {
        match *buffers {
            [sge] if sge.length() == 0 => rdma_sys::ibv_wr_set_sge_list(qp, 0, ptr::null()),
            [sge] if is_inline => {
                let data = ptr::with_exposed_provenance_mut(sge.addr() as usize);
                rdma_sys::ibv_wr_set_inline_data(qp, data, sge.length() as usize);
            }
            [sge] => rdma_sys::ibv_wr_set_sge(qp, sge.lkey(), sge.addr(), sge.length()),
            _ if is_inline => {
                let length = lists.join(buffers);
                rdma_sys::ibv_wr_set_inline_data(qp, lists.inline.as_mut_ptr().cast(), length);
            }
            _ => {
                let mut count = 0;
                for (to, sge) in lists.sges.iter_mut().zip(filled(buffers)) {
                    *to = sge;
                    count += 1;
                }
                rdma_sys::ibv_wr_set_sge_list(qp, count, lists.sges.as_ptr());
            }
        }
    }
}
