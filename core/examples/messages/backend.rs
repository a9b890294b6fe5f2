//! The smallest backend for the p2p protocol: queue pairs of one process, wired to each other in
//! pairs, whose receives come from one shared receive queue for each device. Requests are executed
//! while they are posted.

use polyrail_core::hardware::{
    CommitError, CompletionQueue, CqError, CqId, QpLimits, QueuePair, ReceiveQueue, RecvBatch,
    Refusal, SendBatch, assume_init_slice,
};
use polyrail_core::verbs::{
    Completion, DeviceId, Opcode, RecvRequest, SendFlags, SendRequest, WcFlags, WcOpcode, WcStatus,
};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};

/// Slots of a send queue, and receives of a shared queue.
pub(crate) const DEPTH: usize = 64;

/// What drivers say when they are asked for what they do not do.
const EINVAL: i32 = 22;

/// All devices of the process. They reach memory of words, in whole words.
#[derive(Default)]
pub(crate) struct Loopback<'m> {
    state: RefCell<State<'m>>,
}

#[derive(Default)]
struct State<'m> {
    /// Registered memory; the key of a region is its place, counted from 1.
    regions: Vec<&'m [AtomicU64]>,
    queue_pairs: Vec<QpState>,
    /// Receives in the shared queue of each device, and its completions.
    receives: [VecDeque<u64>; DEVICES],
    completions: [VecDeque<Completion>; DEVICES],
}

const DEVICES: usize = 4;

struct QpState {
    device: DeviceId,
    /// The place of the queue pair at the other end.
    peer: usize,
    has_failed: bool,
}

impl<'m> Loopback<'m> {
    /// Lets all devices reach this memory, by the key that is returned.
    pub(crate) fn register(&self, words: &'m [AtomicU64]) -> u32 {
        let mut state = self.state.borrow_mut();
        state.regions.push(words);
        state.regions.len() as u32
    }

    /// Makes two queue pairs, on these devices, that are connected with each other.
    pub(crate) fn connect(&self, devices: [DeviceId; 2]) -> [LoopbackQp<'_, 'm>; 2] {
        let mut state = self.state.borrow_mut();
        let first = state.queue_pairs.len();
        for (device, peer) in devices.into_iter().zip([first + 1, first]) {
            state.queue_pairs.push(QpState { device, peer, has_failed: false });
        }
        let [left, right] = devices;
        [(first, left), (first + 1, right)].map(|(at, device)| LoopbackQp { all: self, at, device })
    }

    /// A handle of the shared receive queue of a device.
    pub(crate) fn srq(&self, device: DeviceId) -> LoopbackSrq<'_, 'm> {
        LoopbackSrq { all: self, device }
    }

    /// The completion queue of a device.
    pub(crate) fn cq(&self, device: DeviceId) -> LoopbackCq<'_, 'm> {
        LoopbackCq { all: self, device }
    }
}

impl State<'_> {
    fn send(&mut self, at: usize, request: &SendRequest) {
        let QpState { device, peer, has_failed } = self.queue_pairs[at];
        let outcome = if has_failed {
            Err(WcStatus::WR_FLUSH_ERR)
        } else if self.queue_pairs[peer].has_failed {
            Err(WcStatus::RETRY_EXC_ERR)
        } else {
            self.execute(peer, request)
        };
        let qp_num = at as u32 + 1;
        let completion = match outcome {
            Ok(()) if !request.flags.contains(SendFlags::SIGNALED) => return,
            Ok(()) => Completion::success(qp_num, request.wr_id, request.opcode.completion()),
            Err(status) => Completion::failure(qp_num, request.wr_id, status, 0),
        };
        self.queue_pairs[at].has_failed |= outcome.is_err();
        self.completions[device.0 as usize].push_back(completion);
    }

    fn execute(&mut self, peer: usize, request: &SendRequest) -> Result<(), WcStatus> {
        self.copy(request)?;
        if request.opcode == Opcode::RdmaWriteWithImm {
            let device = self.queue_pairs[peer].device.0 as usize;
            let receive = self.receives[device].pop_front();
            let wr_id = receive.ok_or(WcStatus::RNR_RETRY_EXC_ERR)?;
            self.completions[device].push_back(Completion {
                byte_len: request.sge.length(),
                imm: request.imm,
                wc_flags: WcFlags::WITH_IMM,
                ..Completion::success(peer as u32 + 1, wr_id, WcOpcode::RECV_RDMA_WITH_IMM)
            });
        }
        Ok(())
    }

    fn copy(&self, request: &SendRequest) -> Result<(), WcStatus> {
        let length = request.sge.length() as usize;
        if length == 0 {
            return Ok(());
        }
        let local = self.words(request.sge.lkey(), request.sge.addr(), length);
        let remote = self.words(request.rkey, request.remote_addr, length);
        let local = local.ok_or(WcStatus::LOC_PROT_ERR)?;
        let remote = remote.ok_or(WcStatus::REM_ACCESS_ERR)?;
        for (from, to) in local.iter().zip(remote) {
            // Release, for readers that acquire one word and then look at others.
            to.store(from.load(Ordering::Relaxed), Ordering::Release);
        }
        Ok(())
    }

    /// Registered words. A device trusts no address that comes with a request: it may be the
    /// peer's.
    fn words(&self, key: u32, addr: u64, bytes: usize) -> Option<&[AtomicU64]> {
        let region = self.regions.get((key as usize).checked_sub(1)?)?;
        let offset = usize::try_from(addr.checked_sub(region.as_ptr().addr() as u64)?).ok()?;
        let is_whole = offset.is_multiple_of(8) && bytes.is_multiple_of(8);
        region.get(offset / 8..(offset + bytes) / 8).filter(|_| is_whole)
    }
}

/// A queue pair.
pub(crate) struct LoopbackQp<'l, 'm> {
    all: &'l Loopback<'m>,
    at: usize,
    device: DeviceId,
}

/// Requests that were added and are not committed. Dropped, they are forgotten.
pub(crate) struct Batch<'q, 'm, R> {
    all: &'q Loopback<'m>,
    at: usize,
    requests: Vec<R>,
}

impl SendBatch for Batch<'_, '_, SendRequest> {
    fn add(&mut self, request: &SendRequest) {
        self.requests.push(*request);
    }

    fn commit(self) -> Result<(), CommitError> {
        let mut state = self.all.state.borrow_mut();
        self.requests.iter().for_each(|request| state.send(self.at, request));
        Ok(())
    }
}

impl RecvBatch for Batch<'_, '_, RecvRequest> {
    fn add(&mut self, request: &RecvRequest) {
        self.requests.push(*request);
    }

    fn commit(self) -> Result<(), CommitError> {
        let receives = &mut self.all.state.borrow_mut().receives[self.at];
        let room = DEPTH.saturating_sub(receives.len());
        receives.extend(self.requests.iter().take(room).map(|request| request.wr_id));
        let error = CommitError { accepted: room as u32, refusal: Refusal::QueueFull };
        if self.requests.len() > room { Err(error) } else { Ok(()) }
    }
}

impl<'m> ReceiveQueue for LoopbackQp<'_, 'm> {
    type RecvBatch<'q>
        = Batch<'q, 'm, RecvRequest>
    where
        Self: 'q;

    fn start_recv(&mut self) -> Self::RecvBatch<'_> {
        Batch { all: self.all, at: self.device.0 as usize, requests: Vec::new() }
    }
}

// SAFETY: a request is executed while it is posted, so nothing is touched afterwards, and
// completions are queued in that order. Numbers are places, which do not change. What was not
// posted is not executed.
unsafe impl<'m> QueuePair for LoopbackQp<'_, 'm> {
    type SendBatch<'q>
        = Batch<'q, 'm, SendRequest>
    where
        Self: 'q;

    fn qp_num(&self) -> u32 {
        self.at as u32 + 1
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
            max_recv_wr: 0,
            max_inline_data: 0,
            max_msg_size: 1 << 30,
            max_send_sge: 1,
            max_recv_sge: 1,
        }
    }

    fn start_send(&mut self) -> Self::SendBatch<'_> {
        Batch { all: self.all, at: self.at, requests: Vec::new() }
    }

    fn enter_error(&self) -> Result<(), Refusal> {
        self.all.state.borrow_mut().queue_pairs[self.at].has_failed = true;
        Ok(())
    }

    fn last_wqe_reached(&mut self) -> Result<bool, Refusal> {
        let has_failed = self.all.state.borrow().queue_pairs[self.at].has_failed;
        if has_failed { Ok(true) } else { Err(Refusal::Driver(EINVAL)) }
    }
}

/// A handle of a shared receive queue.
pub(crate) struct LoopbackSrq<'l, 'm> {
    all: &'l Loopback<'m>,
    device: DeviceId,
}

impl<'m> ReceiveQueue for LoopbackSrq<'_, 'm> {
    type RecvBatch<'q>
        = Batch<'q, 'm, RecvRequest>
    where
        Self: 'q;

    fn start_recv(&mut self) -> Self::RecvBatch<'_> {
        Batch { all: self.all, at: self.device.0 as usize, requests: Vec::new() }
    }
}

/// The completion queue of a device.
pub(crate) struct LoopbackCq<'l, 'm> {
    all: &'l Loopback<'m>,
    device: DeviceId,
}

// SAFETY: a completion is taken off the device's own queue before it is handed over, so that it
// comes once.
unsafe impl CompletionQueue for LoopbackCq<'_, '_> {
    fn id(&self) -> CqId {
        CqId(u64::from(self.device.0))
    }

    fn device(&self) -> DeviceId {
        self.device
    }

    fn capacity(&self) -> u32 {
        16 * DEPTH as u32
    }

    fn poll<'o>(
        &mut self,
        out: &'o mut [MaybeUninit<Completion>],
    ) -> Result<&'o [Completion], CqError> {
        let entries = &mut self.all.state.borrow_mut().completions[self.device.0 as usize];
        let count = out.len().min(entries.len());
        for (place, completion) in out.iter_mut().zip(entries.drain(..count)) {
            place.write(completion);
        }
        // SAFETY: the first `count` were written above.
        Ok(unsafe { assume_init_slice(&out[..count]) })
    }
}
