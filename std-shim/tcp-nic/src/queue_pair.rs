//! Queue pairs: creation, identity, posting, destruction.

use crate::commands::token;
use crate::completion_queue::CompletionQueue;
use crate::device::gid;
use crate::domain::ProtectionDomain;
use crate::ending;
use crate::handover::Handover;
use crate::incoming;
use crate::meeting::Meeting;
use crate::outgoing::Outgoing;
use crate::read_half::ReadHalf;
use crate::receive_queue::SharedReceiveQueue;
use crate::requester::Requester;
use crate::responder::Responder;
use crate::shared::{DeviceShared, QpShared, Queues};
use crate::transmit;
use crate::wire::HEADER;
use polyrail_core::hardware::{self, CommitError, CqId, QpLimits, Refusal};
use polyrail_core::verbs::{
    AccessFlags, Completion, DeviceId, RecvRequest, SendFlags, SendRequest, Sge,
};
use polyrail_nic_parts::address::{Gid, Meeting as MeetingPoint, MeetingKey, RemoteQp};
use polyrail_nic_parts::completions::{Entry, ReleasedSlots};
use polyrail_nic_parts::error::errno::EINVAL;
use polyrail_nic_parts::error::{NicError, errno};
use polyrail_nic_parts::lists::Listed;
use polyrail_nic_parts::memory::DomainId;
use polyrail_nic_parts::options::QpCap;
use polyrail_nic_parts::random::random;
use polyrail_nic_parts::recv_ring::RecvRing;
use polyrail_nic_parts::send_ring::SendRing;
use polyrail_nic_parts::staging::{Staging, StagingMemory};
use polyrail_nic_parts::state::{QpState, StateCell};
use polyrail_nic_parts::sync::{Apart, lock};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, Weak};

/// The options of a new queue pair (`struct ibv_qp_init_attr`).
#[derive(Clone, Copy, Debug)]
pub struct QpInit<'a> {
    /// Where send requests complete.
    pub send_cq: &'a CompletionQueue,
    /// Where receives complete; may be the same queue.
    pub recv_cq: &'a CompletionQueue,
    /// Where receives come from; `None`: the queue pair has its own.
    pub srq: Option<&'a SharedReceiveQueue>,
    /// Its capacities.
    pub cap: QpCap,
    /// Whether every send request has a completion, SIGNALED or not.
    pub sq_sig_all: bool,
}

impl<'a> QpInit<'a> {
    /// Returns options with one completion queue, own receives, and completions only for signaled
    /// requests.
    pub const fn new(cq: &'a CompletionQueue, cap: QpCap) -> Self {
        Self { send_cq: cq, recv_cq: cq, srq: None, cap, sq_sig_all: false }
    }
}

/// A reliable connected queue pair, whose connection is a TCP connection. Dropping it destroys it:
/// outstanding requests are dropped, completions in its queues stay, and peers get no more answers.
#[derive(Debug)]
pub struct QueuePair {
    pub(crate) shared: Arc<QpShared>,
    staged_sends: StagingMemory<SendRequest>,
    staged_recvs: StagingMemory<RecvRequest>,
}

impl ProtectionDomain {
    /// Creates a reliable connected queue pair, in RESET.
    ///
    /// # Errors
    ///
    /// Capacities are 0 or over the device's limits; objects belong to another device; the system
    /// has no random bytes for its key.
    pub fn create_qp(&self, init: &QpInit<'_>) -> Result<QueuePair, NicError> {
        let device = &self.device().0;
        device.process.check()?;
        for cq in [init.send_cq, init.recv_cq] {
            if cq.shared.device.id != device.id {
                return Err(NicError::OtherDevice { what: "completion queue" });
            }
        }
        if init.srq.is_some_and(|srq| srq.shared.device.id != device.id) {
            return Err(NicError::OtherDevice { what: "shared receive queue" });
        }
        init.cap.check(&device.limits, init.srq.is_some())?;
        QueuePair::create(device, self.id, init)
    }
}

impl QueuePair {
    fn create(
        device: &Arc<DeviceShared>,
        domain: DomainId,
        init: &QpInit<'_>,
    ) -> Result<Self, NicError> {
        let key = random().map_err(|errno| NicError::NoRandom { errno: errno.raw_os_error() })?;
        let shared = QpShared::new(device, domain, MeetingKey(key), init);
        let limits = shared.limits;
        Ok(Self {
            shared,
            staged_sends: StagingMemory::new(limits.max_send_wr, limits.max_send_sge),
            staged_recvs: StagingMemory::new(limits.max_recv_wr, limits.max_recv_sge),
        })
    }

    /// Returns its state. Failures can change it at any time.
    pub fn state(&self) -> QpState {
        self.shared.state.get()
    }

    /// Returns the address at which peers connect to its device.
    pub fn gid(&self) -> Gid {
        gid(self.shared.device.advertised.ip())
    }

    /// Returns where and with which key it accepts its connection, for its peer only: who knows the
    /// key can connect to it.
    pub fn meeting(&self) -> MeetingPoint {
        MeetingPoint { port: self.shared.device.advertised.port(), key: self.shared.key }
    }

    /// Returns the address of this queue pair for its peer.
    pub fn as_remote(&self, psn: u32) -> RemoteQp {
        let meeting = Some(self.meeting());
        RemoteQp { gid: self.gid(), lid: 0, qp_num: self.shared.number, psn, meeting }
    }

    /// Returns the completion queue of its receives.
    pub fn recv_cq(&self) -> CqId {
        self.shared.recv_cq.id
    }

    /// Returns how the peer broke the protocol, if that is why the connection has ended: with
    /// `vendor_err` [`PEER_PROTOCOL`](polyrail_nic_parts::error::vendor::PEER_PROTOCOL).
    pub fn protocol_error(&self) -> Option<&'static str> {
        self.shared.protocol_error.get().copied()
    }

    /// Returns whether its connection is established and not ended. A fork of the process that
    /// opened the device has no connection.
    pub fn is_connected(&self) -> bool {
        let qp = &self.shared;
        // In a fork, a thread that is not there may hold the lock.
        !qp.device.is_forked() && qp.socket.get().is_some() && !lock(&qp.queues).requester.is_lost()
    }
}

impl QpShared {
    fn new(
        device: &Arc<DeviceShared>,
        domain: DomainId,
        key: MeetingKey,
        init: &QpInit<'_>,
    ) -> Arc<Self> {
        let max_inline_data =
            init.cap.max_inline_data.next_multiple_of(16).min(device.limits.max_inline_data);
        let QpCap { max_send_sge, max_recv_sge, .. } = init.cap;
        let ring = SendRing::new(init.cap.max_send_wr, max_inline_data, max_send_sge);
        let max_recv_wr = if init.srq.is_some() { 0 } else { init.cap.max_recv_wr };
        let posts = RecvRing::new(max_recv_wr, max_recv_sge);
        let limits = QpLimits {
            max_send_wr: ring.capacity(),
            max_recv_wr: posts.capacity(),
            max_inline_data,
            max_msg_size: device.limits.max_msg_size,
            max_send_sge,
            max_recv_sge: if init.srq.is_some() { 0 } else { max_recv_sge },
        };
        let most = device.limits.max_qp_rd_atom;
        let queues = Queues {
            requester: Requester::new(ring, most),
            responder: Responder::new(posts, most),
            access: AccessFlags::empty(),
            response_was_last: false,
            gathered: 0,
        };
        let released = Arc::new(ReleasedSlots::default());
        let number = device.next_number();
        let qp = Arc::new_cyclic(|me: &Weak<Self>| Self {
            me: me.clone(),
            number,
            io_token: token(),
            device: Arc::clone(device),
            domain,
            send_owner: init.send_cq.shared.attach(me.clone(), Arc::clone(&released)),
            recv_owner: init.recv_cq.shared.attach(me.clone(), Arc::clone(&released)),
            send_cq: Arc::clone(&init.send_cq.shared),
            recv_cq: Arc::clone(&init.recv_cq.shared),
            srq: init.srq.map(|srq| Arc::clone(&srq.shared)),
            sq_sig_all: init.sq_sig_all,
            limits,
            key,
            state: StateCell::new(),
            released,
            meeting: Mutex::new(Meeting::default()),
            socket: OnceLock::new(),
            read: Apart::new(Mutex::new(ReadHalf::new(limits.max_recv_sge.max(1)))),
            write: Handover::new(Outgoing::new()),
            queues: Apart::new(Mutex::new(queues)),
            holds_acknowledgement: AtomicBool::new(false),
            holds_requests: AtomicBool::new(false),
            is_full: AtomicBool::new(false),
            is_writable: AtomicBool::new(false),
            ends_sending: AtomicBool::new(false),
            protocol_error: OnceLock::new(),
            is_cut: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
            is_watched: AtomicBool::new(false),
        });
        lock(&device.qps).insert(number, Arc::downgrade(&qp));
        qp
    }

    /// Completes the requests that are done.
    pub(crate) fn complete_done(&self, queues: &mut Queues) {
        while let Some(position) = queues.requester.take_done() {
            let request = queues.requester.ring.get(position);
            if !self.sq_sig_all && !request.flags.contains(SendFlags::SIGNALED) {
                continue;
            }
            let opcode = request.opcode;
            let byte_len = if opcode.is_fetching() { request.length } else { 0 };
            let done = Completion::success(self.number, request.wr_id, opcode.completion());
            self.complete(position, Completion { byte_len, ..done });
        }
    }

    pub(crate) fn complete(&self, position: u64, completion: Completion) {
        self.send_cq.push(Entry {
            completion,
            releases: position + 1,
            owner: self.send_owner,
            is_recv: false,
            solicited: false,
        });
    }

    /// Reads and sends what there is, and lets failures take effect. Must be called without locks.
    pub(crate) fn service(&self) {
        incoming::run(self);
        self.send();
    }

    /// Sends what there is, and lets failures take effect. Must be called without locks.
    pub(crate) fn send(&self) {
        transmit::run(self);
        ending::run(self);
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        let qp = &self.shared;
        if qp.device.is_forked() {
            return;
        }
        lock(&qp.device.qps).remove(&qp.number);
        qp.send_held();
        ending::destroy(qp);
        qp.send_cq.detach(qp.send_owner);
        qp.recv_cq.detach(qp.recv_owner);
    }
}

impl hardware::ReceiveQueue for QueuePair {
    type RecvBatch<'q> = RecvBatch<'q>;

    fn start_recv(&mut self) -> RecvBatch<'_> {
        RecvBatch { qp: &self.shared, staged: Staging::new(&mut self.staged_recvs) }
    }
}

// SAFETY:
// - `ending` completes requests in posting order, and only after both halves were locked, so that
//   no thread moves their bytes; a request completes successfully when its peer has acknowledged
//   it, which counts only if all its bytes were given to the system; responses are placed before
//   their requests complete, and so are requests before their receives;
// - the number is drawn from those that no other queue pair of the device has, and the other three
//   values never change;
// - a batch is posted by `commit`, which adds no request that it reports as refused;
// - `to_error` locks the read half and ends it, after which nothing of the peer is placed; receives
//   that were taken are flushed before it returns, so no shared receive completes later;
// - shared receive queues refuse the bit of `ENGINE_WR_ID`.
unsafe impl hardware::QueuePair for QueuePair {
    type SendBatch<'q> = SendBatch<'q>;

    fn qp_num(&self) -> u32 {
        self.shared.number
    }

    fn device(&self) -> DeviceId {
        self.shared.device.id
    }

    fn cq(&self) -> CqId {
        self.shared.send_cq.id
    }

    fn limits(&self) -> QpLimits {
        self.shared.limits
    }

    fn start_send(&mut self) -> SendBatch<'_> {
        SendBatch { qp: &self.shared, staged: Staging::new(&mut self.staged_sends) }
    }

    fn enter_error(&self) -> Result<(), Refusal> {
        self.to_error().map_err(|error| Refusal::Driver(error.errno()))
    }

    fn last_wqe_reached(&mut self) -> Result<bool, Refusal> {
        let qp = &self.shared;
        qp.device.check_process()?;
        if qp.srq.is_none() || qp.state.get() != QpState::Err {
            return Err(Refusal::Driver(errno::EINVAL));
        }
        // If its failure has not taken effect, it does now.
        ending::take_effect(qp);
        Ok(!lock(&qp.queues).requester.has_outstanding())
    }
}

/// A batch of send requests for a queue pair.
#[derive(Debug)]
pub struct SendBatch<'q> {
    qp: &'q QpShared,
    staged: Staging<'q, SendRequest>,
}

impl hardware::SendBatch for SendBatch<'_> {
    fn add(&mut self, request: &SendRequest) {
        self.staged.add(Listed::send(*request));
    }

    /// At most [`max_send_sge`](polyrail_nic_parts::options::QpCap::max_send_sge) buffers may have
    /// a length above 0. Longer lists, and lists of atomics, are refused (EINVAL).
    fn add_list(&mut self, request: &SendRequest, buffers: &[Sge]) {
        self.staged.add_list(*request, buffers);
    }

    /// Sends the requests from this thread, as far as the socket takes them, or lets them wait for
    /// the next poll: see [Who moves the data](crate#who-moves-the-data).
    fn commit(self) -> Result<(), CommitError> {
        let qp = self.qp;
        qp.device.check_batch()?;
        let (accepted, result, gathers) = {
            let mut queues = lock(&qp.queues);
            let state = qp.state.get();
            let may_post = matches!(state, QpState::Rts | QpState::Err);
            let mut bytes = 0_usize;
            let (accepted, result) = self.staged.commit(|request, list| {
                if !may_post {
                    return Err(Refusal::Driver(EINVAL));
                }
                bytes = bytes.saturating_add(HEADER + request.length as usize);
                let ring = &mut queues.requester.ring;
                ring.accept(request, list, &qp.limits, qp.released.sends())
            });
            let has_failed = state == QpState::Err || queues.requester.due_failure().is_some();
            if has_failed {
                qp.note_failure();
            }
            (accepted, result, !has_failed && qp.gathers(&mut queues, bytes))
        };
        if accepted > 0 {
            qp.watch();
            if gathers {
                qp.send_cq.hold_requests(qp);
            } else {
                transmit::run(qp);
                ending::run(qp);
            }
        }
        result
    }
}

/// A batch of receives for a queue pair.
#[derive(Debug)]
pub struct RecvBatch<'q> {
    qp: &'q QpShared,
    staged: Staging<'q, RecvRequest>,
}

impl hardware::RecvBatch for RecvBatch<'_> {
    fn add(&mut self, request: &RecvRequest) {
        self.staged.add(Listed::recv(*request));
    }

    /// At most [`max_recv_sge`](polyrail_nic_parts::options::QpCap::max_recv_sge) buffers may have
    /// a length above 0. Longer lists are refused (EINVAL).
    fn add_list(&mut self, wr_id: u64, buffers: &[Sge]) {
        self.staged.add_list(RecvRequest { wr_id, sge: Sge::EMPTY }, buffers);
    }

    fn commit(self) -> Result<(), CommitError> {
        let qp = self.qp;
        qp.device.check_batch()?;
        if qp.srq.is_some() && !self.staged.is_empty() {
            return Err(CommitError { accepted: 0, refusal: Refusal::Driver(EINVAL) });
        }
        let (result, is_awaited) = {
            let mut queues = lock(&qp.queues);
            let state = qp.state.get();
            let (accepted, result) = self.staged.commit(|request, list| {
                if state == QpState::Reset {
                    Err(Refusal::Driver(EINVAL))
                } else if queues.responder.posts.push(request, list, qp.released.recvs()) {
                    Ok(())
                } else {
                    Err(Refusal::QueueFull)
                }
            });
            if state == QpState::Err {
                qp.note_failure();
            }
            (result, accepted > 0 && queues.responder.receive_posted())
        };
        if is_awaited {
            transmit::run(qp);
        }
        ending::run(qp);
        result
    }
}
