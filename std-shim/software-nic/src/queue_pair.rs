//! Queue pairs: creation, identity, destruction. [`crate::modify`] changes their states,
//! [`crate::batch`] posts requests, and [`crate::execute`] executes them.

use crate::batch::{RecvBatch, SendBatch};
use crate::domain::ProtectionDomain;
use crate::ending;
use crate::poll::CompletionQueue;
use crate::posts::Posts;
use crate::receive_queue::SharedReceiveQueue;
use crate::receives::{Ending, Responder};
use crate::shared::{DeviceShared, QpShared, SendQueue};
use polyrail_core::hardware::{self, CqId, QpLimits, Refusal};
use polyrail_core::verbs::{DeviceId, RecvRequest, SendRequest};
use polyrail_nic_parts::address::Gid;
use polyrail_nic_parts::completions::ReleasedSlots;
use polyrail_nic_parts::error::NicError;
use polyrail_nic_parts::memory::DomainId;
use polyrail_nic_parts::options::QpCap;
use polyrail_nic_parts::recv_ring::RecvRing;
use polyrail_nic_parts::staging::StagingMemory;
use polyrail_nic_parts::state::{QpState, StateCell};
use polyrail_nic_parts::sync::{Apart, lock};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, Weak};

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

impl QpShared {
    fn new(
        device: &Arc<DeviceShared>,
        domain: DomainId,
        number: u32,
        init: &QpInit<'_>,
    ) -> Arc<Self> {
        let max_inline_data =
            init.cap.max_inline_data.next_multiple_of(16).min(device.limits.max_inline_data);
        let QpCap { max_send_sge, max_recv_sge, .. } = init.cap;
        let mut send = SendQueue::new(init.cap.max_send_wr, max_inline_data, max_send_sge);
        let max_recv_wr = if init.srq.is_some() { 0 } else { init.cap.max_recv_wr };
        let mut recv = Responder::new(max_recv_sge);
        let mut posts = Posts::new(RecvRing::new(max_recv_wr, max_recv_sge));
        if device.full_queues {
            send.reserve();
            recv.reserve();
            posts.reserve();
        }
        let limits = QpLimits {
            max_send_wr: send.capacity(),
            max_recv_wr: posts.capacity(),
            max_inline_data,
            max_msg_size: device.limits.max_msg_size,
            max_send_sge,
            max_recv_sge: if init.srq.is_some() { 0 } else { max_recv_sge },
        };
        let send_cq = &init.send_cq.shared;
        let recv_cq = &init.recv_cq.shared;
        let released = Arc::new(ReleasedSlots::default());
        Arc::new_cyclic(|me: &Weak<Self>| Self {
            me: me.clone(),
            number,
            device: Arc::clone(device),
            domain,
            send_owner: send_cq.attach(me.clone(), Arc::clone(&released), true),
            recv_owner: recv_cq.attach(me.clone(), Arc::clone(&released), false),
            send_cq: Arc::clone(send_cq),
            recv_cq: Arc::clone(recv_cq),
            srq: init.srq.map(|srq| Arc::clone(&srq.shared)),
            sq_sig_all: init.sq_sig_all,
            limits,
            state: StateCell::new(),
            port: AtomicU8::new(0),
            send: Apart::new(Mutex::new(send)),
            recv: Apart::new(Mutex::new(recv)),
            posts: Apart::new(Mutex::new(posts)),
            released,
            listed: Apart::new(AtomicBool::new(false)),
        })
    }

    /// Drops all outstanding requests, without completions.
    pub(crate) fn clear(&self, send: &mut SendQueue, recv: &mut Responder) {
        send.clear();
        self.hand_over(recv);
        recv.clear();
        recv.ending = Ending::NotBegun;
        let mut posts = lock(&self.posts);
        posts.clear();
        self.released.release(false, send.posted());
        self.released.release(true, posts.posted());
    }
}

/// A reliable connected queue pair. Dropping it destroys it: outstanding requests are dropped,
/// completions in its queues stay, and peers get no more answers.
#[derive(Debug)]
pub struct QueuePair {
    pub(crate) shared: Arc<QpShared>,
    staged_sends: StagingMemory<SendRequest>,
    staged_recvs: StagingMemory<RecvRequest>,
}

/// Queue pair numbers have 24 bits.
const MAX_QP_NUM: u32 = (1 << 24) - 1;

impl ProtectionDomain {
    /// Creates a reliable connected queue pair, in RESET.
    ///
    /// # Errors
    ///
    /// Capacities are 0 or over the device's limits; objects belong to another device; the device
    /// is gone.
    pub fn create_qp(&self, init: &QpInit<'_>) -> Result<QueuePair, NicError> {
        let device = &self.device().0;
        device.check_alive()?;
        self.check_device(init.send_cq)?;
        self.check_device(init.recv_cq)?;
        let srq_device = init.srq.map(|srq| srq.shared.device.id);
        if srq_device.is_some_and(|id| id != device.id) {
            return Err(NicError::OtherDevice { what: "shared receive queue" });
        }
        init.cap.check(&device.limits, init.srq.is_some())?;
        QueuePair::create(device, self.id, init)
    }

    fn check_device(&self, cq: &CompletionQueue) -> Result<(), NicError> {
        if cq.shared.device.id == self.device().id() {
            Ok(())
        } else {
            Err(NicError::OtherDevice { what: "completion queue" })
        }
    }
}

impl QueuePair {
    fn create(
        device: &Arc<DeviceShared>,
        domain: DomainId,
        init: &QpInit<'_>,
    ) -> Result<Self, NicError> {
        let number = device.next_qp_num.fetch_add(1, Ordering::Relaxed);
        if number > MAX_QP_NUM {
            let asked = number.into();
            let limit = MAX_QP_NUM.into();
            return Err(NicError::Limit { what: "the queue pair number", asked, limit });
        }
        let shared = QpShared::new(device, domain, number, init);
        device.fabric.add_qp(&shared);
        let limits = shared.limits;
        let mut staged_sends = StagingMemory::new(limits.max_send_wr, limits.max_send_sge);
        let mut staged_recvs = StagingMemory::new(limits.max_recv_wr, limits.max_recv_sge);
        if device.full_queues {
            staged_sends.reserve_all();
            staged_recvs.reserve_all();
        }
        Ok(Self { shared, staged_sends, staged_recvs })
    }

    /// Returns its state. Failures can change it at any time.
    pub fn state(&self) -> QpState {
        self.shared.state.get()
    }

    /// Returns whether its device was unplugged. If so, no data moves through it any more.
    pub fn device_is_gone(&self) -> bool {
        let device = &self.shared.device;
        let is_gone = device.is_gone();
        if is_gone {
            device.fabric.quiesce();
        }
        is_gone
    }

    /// Returns the address of its port; of port 1 before INIT.
    pub fn gid(&self) -> Gid {
        let port = self.shared.port.load(Ordering::Relaxed).max(1);
        self.shared.device.gid(port).unwrap_or_default()
    }

    /// Returns the completion queue of its send requests.
    pub fn send_cq(&self) -> CqId {
        self.shared.send_cq.id
    }

    /// Returns the completion queue of its receives.
    pub fn recv_cq(&self) -> CqId {
        self.shared.recv_cq.id
    }

    /// Returns the number of send requests that occupy a slot: posted requests of which neither
    /// they nor a later signaled one were polled.
    pub fn outstanding_sends(&self) -> u32 {
        if self.shared.device.is_forked() {
            return 0;
        }
        (lock(&self.shared.send).posted() - self.shared.released.sends()) as u32
    }

    /// Returns its number on its device.
    pub fn number(&self) -> u32 {
        self.shared.number
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        let qp = &self.shared;
        if qp.device.is_forked() {
            return;
        }
        let fabric = &qp.device.fabric;
        fabric.remove_qp(&qp.device, qp.number);
        {
            let mut send = lock(&qp.send);
            let mut recv = lock(&qp.recv);
            qp.state.set(QpState::Reset);
            qp.clear(&mut send, &mut recv);
        }
        qp.send_cq.detach(qp.send_owner);
        qp.recv_cq.detach(qp.recv_owner);
        fabric.quiesce();
        fabric.note_change();
    }
}

impl hardware::ReceiveQueue for QueuePair {
    type RecvBatch<'q> = RecvBatch<'q>;

    fn start_recv(&mut self) -> RecvBatch<'_> {
        RecvBatch::for_qp(&self.shared, &mut self.staged_recvs)
    }
}

// SAFETY: requests of one queue are executed and completed in posting order; a device never gives a
// number twice; refused requests are in no queue; the responder accepts no requests after the last
// receive was reached; a shared receive queue refuses marked `wr_id`s.
unsafe impl hardware::QueuePair for QueuePair {
    type SendBatch<'q> = SendBatch<'q>;

    fn qp_num(&self) -> u32 {
        self.shared.number
    }

    fn device(&self) -> DeviceId {
        self.shared.device.id
    }

    /// Returns the completion queue of its send requests; see [`recv_cq`](Self::recv_cq) for
    /// receives.
    fn cq(&self) -> CqId {
        self.shared.send_cq.id
    }

    fn limits(&self) -> QpLimits {
        self.shared.limits
    }

    fn start_send(&mut self) -> SendBatch<'_> {
        SendBatch::new(&self.shared, &mut self.staged_sends)
    }

    fn enter_error(&self) -> Result<(), Refusal> {
        self.to_error().map_err(|error| Refusal::Driver(error.errno()))
    }

    /// Also returns `EINVAL` while its send requests have not completed.
    fn last_wqe_reached(&mut self) -> Result<bool, Refusal> {
        ending::last_wqe_reached(&self.shared).map_err(Refusal::Driver)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DeviceConfig, Fabric};
    use hardware::{ReceiveQueue as _, RecvBatch as _};
    use polyrail_core::verbs::Sge;

    /// Otherwise, a thread that executes a request of the peer would delay the owner, and vice
    /// versa.
    #[test]
    fn posting_a_receive_does_not_take_the_responders_lock() {
        let device = Fabric::threaded().create_device(DeviceConfig::named("nic"));
        let cq = device.create_cq(8).unwrap();
        let pd = device.alloc_pd().unwrap();
        let mut qp = pd.create_qp(&QpInit::new(&cq, QpCap::default())).unwrap();
        qp.to_init(&crate::ConnectOptions::default()).unwrap();
        let shared = Arc::clone(&qp.shared);
        let held = lock(&shared.recv);
        let mut batch = qp.start_recv();
        batch.add(&RecvRequest { wr_id: 1, sge: Sge::EMPTY });
        // With a shared lock, this would wait forever.
        assert_eq!(batch.commit(), Ok(()));
        // Destroying the queue pair takes the lock.
        drop(held);
    }
}
