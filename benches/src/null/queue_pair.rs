//! The null device's queue pair and its send ring.

use super::RING_SLOTS;
use super::completion_queue::{Note, Notes};
use super::receive_queue::{Inbox, NullRecvBatch};
use crate::workload::BLANK_REQUEST;
use polyrail_core::hardware::{
    CommitError, CqId, QpLimits, QueuePair, ReceiveQueue, Refusal, SendBatch,
};
use polyrail_core::verbs::{DeviceId, Imm, Opcode, SendFlags, SendRequest, Sge, WcFlags};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The error of a driver that does not support the operation.
const EOPNOTSUPP: i32 = 95;

/// A send request as the device holds it: field for field, in the order in which a driver would
/// lay them out.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct SendSlot {
    opcode: Opcode,
    flags: SendFlags,
    imm: Imm,
    wr_id: u64,
    remote_addr: u64,
    rkey: u32,
    sge: Sge,
    compare_add: u64,
    swap: u64,
}

const _: () = assert!(size_of::<SendSlot>() == 64);

impl SendSlot {
    #[inline]
    const fn new(request: &SendRequest) -> Self {
        Self {
            opcode: request.opcode,
            flags: request.flags,
            imm: request.imm,
            wr_id: request.wr_id,
            remote_addr: request.remote_addr,
            rkey: request.rkey,
            sge: request.sge,
            compare_add: request.compare_add,
            swap: request.swap,
        }
    }
}

/// Buffers that a request can have.
pub(crate) const MAX_SGE: usize = 4;

/// A queue pair of the null device; [`NullCq::queue_pair`](super::NullCq::queue_pair) makes one.
#[derive(Debug)]
pub struct NullQp {
    sends: Box<[SendSlot; RING_SLOTS]>,
    /// The buffers of the requests in these slots that have lists.
    lists: Box<[[Sge; MAX_SGE]; RING_SLOTS]>,
    /// Requests posted so far, modulo 2^32: the driver's own cursor.
    posted: u32,
    /// The same, where the device would read it.
    doorbell: AtomicU32,
    qp_num: u32,
    notes: Rc<Notes>,
    inbox: Option<Rc<Inbox>>,
    limits: QpLimits,
}

impl NullQp {
    pub(super) fn new(notes: Rc<Notes>, qp_num: u32, max_send_wr: u32, max_recv_wr: u32) -> Self {
        assert!(max_send_wr.max(max_recv_wr) as usize <= RING_SLOTS);
        let limits = QpLimits {
            max_send_wr,
            max_recv_wr,
            max_inline_data: 0,
            max_msg_size: 1 << 31,
            max_send_sge: MAX_SGE as u32,
            max_recv_sge: 1,
        };
        let inbox = (max_recv_wr > 0).then(|| Rc::new(Inbox::new(qp_num)));
        let sends = Box::new([SendSlot::new(&BLANK_REQUEST); RING_SLOTS]);
        let lists = Box::new([[Sge::EMPTY; MAX_SGE]; RING_SLOTS]);
        Self { sends, lists, posted: 0, doorbell: AtomicU32::new(0), qp_num, notes, inbox, limits }
    }

    /// Where messages for this queue pair arrive; `None` if it was made to take no receives.
    pub fn inbox(&self) -> Option<Rc<Inbox>> {
        self.inbox.clone()
    }

    #[inline]
    fn slot(&mut self, cursor: u32) -> &mut SendSlot {
        &mut self.sends[cursor as usize % RING_SLOTS]
    }

    /// Hands over what was stored up to `end`, of which `signaled` requests will complete, the
    /// last of them under `wr_id`.
    #[inline(never)]
    fn ring_doorbell(&mut self, end: u32, signaled: u32, wr_id: u64, opcode: Opcode) {
        if signaled > 1 {
            return self.ring_for_several(end);
        }
        if signaled == 1 {
            self.note(wr_id, opcode);
        }
        self.publish(end);
    }

    /// Several signaled requests in a batch are rare, so they are searched for, not recorded.
    #[cold]
    #[inline(never)]
    fn ring_for_several(&mut self, end: u32) {
        for ahead in 0..end.wrapping_sub(self.posted) {
            let slot = *self.slot(self.posted.wrapping_add(ahead));
            if slot.flags.contains(SendFlags::SIGNALED) {
                self.note(slot.wr_id, slot.opcode);
            }
        }
        self.publish(end);
    }

    #[inline]
    fn publish(&mut self, end: u32) {
        self.posted = end;
        self.doorbell.store(end, Ordering::Release);
        prefetch(self.slot(end));
    }

    #[inline]
    fn note(&self, wr_id: u64, opcode: Opcode) {
        self.notes.push(Note {
            wr_id,
            opcode: opcode.completion(),
            qp_num: self.qp_num,
            imm: Imm::default(),
            wc_flags: WcFlags::empty(),
            byte_len: 0,
            vendor_err: 0,
        });
    }
}

/// Prefetches the slot that will be written next, as network drivers do. Without this, rows with
/// 4096 queue pairs would measure only their rings, 64 MiB.
#[inline]
fn prefetch(slot: &SendSlot) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        // SAFETY: a prefetch is a hint; it reads and writes nothing.
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(std::ptr::from_ref(slot).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = slot;
}

// SAFETY: it accesses no memory, and completes in posting order; numbers are unique.
unsafe impl QueuePair for NullQp {
    type SendBatch<'q> = NullSendBatch<'q>;

    fn qp_num(&self) -> u32 {
        self.qp_num
    }

    fn device(&self) -> DeviceId {
        self.notes.device
    }

    fn cq(&self) -> CqId {
        self.notes.id
    }

    fn limits(&self) -> QpLimits {
        self.limits
    }

    #[inline]
    fn start_send(&mut self) -> NullSendBatch<'_> {
        NullSendBatch {
            next: self.posted,
            signaled: 0,
            wr_id: 0,
            opcode: Opcode::RdmaWrite,
            qp: self,
        }
    }

    /// Nothing fails here.
    fn enter_error(&self) -> Result<(), Refusal> {
        Err(Refusal::Driver(EOPNOTSUPP))
    }

    /// Nothing fails here.
    fn last_wqe_reached(&mut self) -> Result<bool, Refusal> {
        Err(Refusal::Driver(EOPNOTSUPP))
    }
}

impl ReceiveQueue for NullQp {
    type RecvBatch<'q> = NullRecvBatch<'q>;

    #[inline]
    fn start_recv(&mut self) -> NullRecvBatch<'_> {
        NullRecvBatch::new(self.inbox.as_deref())
    }
}

/// Sends on their way into a [`NullQp`].
#[derive(Debug)]
pub struct NullSendBatch<'q> {
    qp: &'q mut NullQp,
    /// Where the next request goes.
    next: u32,
    /// Requests of this batch that will complete.
    signaled: u32,
    /// The `wr_id` of the last of them. Kept here, as slots are for the device to read.
    wr_id: u64,
    opcode: Opcode,
}

impl SendBatch for NullSendBatch<'_> {
    // Always: a compiler that did it for some contenders only would compare itself.
    #[inline(always)]
    fn add(&mut self, request: &SendRequest) {
        *self.qp.slot(self.next) = SendSlot::new(request);
        self.next = self.next.wrapping_add(1);
        if request.flags.contains(SendFlags::SIGNALED) {
            self.signaled += 1;
            (self.wr_id, self.opcode) = (request.wr_id, request.opcode);
        }
    }

    #[inline(always)]
    fn add_list(&mut self, request: &SendRequest, buffers: &[Sge]) {
        assert!(buffers.len() <= MAX_SGE, "as many as it was granted");
        self.qp.lists[self.next as usize % RING_SLOTS][..buffers.len()].copy_from_slice(buffers);
        self.add(request);
    }

    #[inline]
    fn commit(self) -> Result<(), CommitError> {
        self.qp.ring_doorbell(self.next, self.signaled, self.wr_id, self.opcode);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::null::NullCq;
    use polyrail_core::hardware::{CompletionQueue, CqId, QueuePair, SendBatch};
    use polyrail_core::verbs::{DeviceId, SendFlags, SendRequest};
    use std::mem::MaybeUninit;
    use std::sync::atomic::Ordering;

    fn request(wr_id: u64, flags: SendFlags) -> SendRequest {
        SendRequest { wr_id, flags, ..crate::workload::BLANK_REQUEST }
    }

    fn polled(cq: &mut NullCq) -> Vec<(u32, u64)> {
        let mut out = [MaybeUninit::uninit(); 32];
        let completions = cq.poll(&mut out).unwrap();
        completions.iter().map(|completion| (completion.qp_num, completion.wr_id)).collect()
    }

    #[test]
    fn signaled_requests_complete_in_order_wherever_they_stand_in_a_batch() {
        let mut cq = NullCq::new(CqId(0), DeviceId(0), 64);
        let mut qp = cq.queue_pair(7, 256, 0);
        let signaled = SendFlags::SIGNALED;
        let unsignaled = SendFlags::empty();
        for flags in [
            [unsignaled; 3],
            [unsignaled, unsignaled, signaled],
            [signaled, unsignaled, unsignaled],
            [signaled; 3],
        ] {
            let mut batch = qp.start_send();
            (0..3).for_each(|at| batch.add(&request(at, flags[at as usize])));
            batch.commit().unwrap();
            let expected: Vec<_> =
                (0..3).filter(|at| flags[*at as usize] == signaled).map(|at| (7, at)).collect();
            assert_eq!(polled(&mut cq), expected);
        }
        assert_eq!(qp.doorbell.load(Ordering::Acquire), 12);
    }

    #[test]
    fn nothing_shows_before_commit_and_doorbells_order_queue_pairs() {
        let mut cq = NullCq::new(CqId(0), DeviceId(0), 64);
        let mut first = cq.queue_pair(1, 256, 0);
        let mut second = cq.queue_pair(2, 256, 0);
        let mut one = first.start_send();
        let mut two = second.start_send();
        one.add(&request(10, SendFlags::SIGNALED));
        two.add(&request(20, SendFlags::SIGNALED));
        assert!(polled(&mut cq).is_empty());
        two.commit().unwrap();
        one.commit().unwrap();
        first.start_send().add(&request(30, SendFlags::SIGNALED));
        assert_eq!(polled(&mut cq), [(2, 20), (1, 10)]);
    }

    #[test]
    fn requests_are_stored_in_ring_order() {
        let cq = NullCq::new(CqId(0), DeviceId(0), 1024);
        let mut qp = cq.queue_pair(7, 256, 0);
        for wr_id in 0..300 {
            let mut batch = qp.start_send();
            batch.add(&request(wr_id, SendFlags::SIGNALED));
            batch.commit().unwrap();
        }
        let stored = qp.sends.map(|slot| slot.wr_id);
        assert_eq!(stored[..44], (256..300).collect::<Vec<_>>());
        assert_eq!(stored[44..], (44..256).collect::<Vec<_>>());
    }
}
