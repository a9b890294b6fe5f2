//! The null device's completion queue.

use super::{Inbox, NullQp};
use crate::random::XorShift;
use polyrail_core::hardware::{CompletionQueue, CqError, CqId, assume_init_slice};
use polyrail_core::verbs::{Completion, DeviceId, Imm, WcFlags, WcOpcode};
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::mem::MaybeUninit;
use std::rc::Rc;

/// The device's record of a finished request until it is polled. The last four fields are in the
/// order of the completion, because the device copies them together.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Note {
    pub(super) wr_id: u64,
    pub(super) opcode: WcOpcode,
    pub(super) wc_flags: WcFlags,
    pub(super) vendor_err: u32,
    pub(super) byte_len: u32,
    pub(super) imm: Imm,
    pub(super) qp_num: u32,
}

impl Note {
    const BLANK: Self = Self {
        wr_id: 0,
        opcode: WcOpcode::SEND,
        qp_num: 0,
        imm: Imm::from_number(0),
        wc_flags: WcFlags::empty(),
        byte_len: 0,
        vendor_err: 0,
    };

    #[inline]
    const fn completion(self) -> Completion {
        Completion {
            imm: self.imm,
            wc_flags: self.wc_flags,
            byte_len: self.byte_len,
            vendor_err: self.vendor_err,
            ..Completion::success(self.qp_num, self.wr_id, self.opcode)
        }
    }
}

/// Notes in the order of their completions, shared by a completion queue and its queue pairs.
#[derive(Debug)]
pub(super) struct Notes {
    pub(super) id: CqId,
    pub(super) device: DeviceId,
    ring: Box<[Cell<Note>]>,
    /// Cursors that count up from 0. Both return to 0 when the ring is empty, so that a deep queue
    /// uses only as much cache as the waiting completions.
    head: Cell<usize>,
    tail: Cell<usize>,
}

impl Notes {
    fn new(id: CqId, device: DeviceId, capacity: u32) -> Self {
        assert!(capacity.is_power_of_two());
        let ring = vec![Cell::new(Note::BLANK); capacity as usize].into_boxed_slice();
        Self { id, device, ring, head: Cell::new(0), tail: Cell::new(0) }
    }

    #[inline]
    fn at(&self, cursor: usize) -> &Cell<Note> {
        &self.ring[cursor & (self.ring.len() - 1)]
    }

    #[inline]
    pub(super) fn push(&self, note: Note) {
        let tail = self.tail.get();
        debug_assert!(tail - self.head.get() < self.ring.len(), "completion queue overrun");
        self.at(tail).set(note);
        self.tail.set(tail + 1);
    }

    /// Turns the oldest notes into completions, as many as there is room for.
    #[inline(never)]
    fn take<'o>(&self, out: &'o mut [MaybeUninit<Completion>]) -> &'o [Completion] {
        let head = self.head.get();
        let taken = out.len().min(self.tail.get() - head);
        for (cursor, record) in (head..).zip(&mut out[..taken]) {
            record.write(self.at(cursor).get().completion());
        }
        self.advance(head + taken);
        // SAFETY: the loop has written the first `taken` records.
        unsafe { assume_init_slice(&out[..taken]) }
    }

    #[inline]
    fn advance(&self, head: usize) {
        if head == self.tail.get() {
            self.tail.set(0);
            self.head.set(0);
        } else {
            self.head.set(head);
        }
    }
}

/// A completion queue of the null device.
#[derive(Debug)]
pub struct NullCq {
    notes: Rc<Notes>,
}

impl NullCq {
    /// A queue of `device` that holds `capacity` completions, a power of two.
    ///
    /// # Panics
    ///
    /// If `capacity` is not a power of two.
    pub fn new(id: CqId, device: DeviceId, capacity: u32) -> Self {
        Self { notes: Rc::new(Notes::new(id, device, capacity)) }
    }

    /// A queue pair that completes here, with room for this many sends and receives.
    pub fn queue_pair(&self, qp_num: u32, max_send_wr: u32, max_recv_wr: u32) -> NullQp {
        NullQp::new(Rc::clone(&self.notes), qp_num, max_send_wr, max_recv_wr)
    }

    /// The far end of the queue pairs that complete here.
    pub fn wire(&self) -> Wire {
        Wire { notes: Rc::clone(&self.notes) }
    }
}

// SAFETY: it touches no memory, and completions come out as they were stored, each once.
unsafe impl CompletionQueue for NullCq {
    fn id(&self) -> CqId {
        self.notes.id
    }

    fn device(&self) -> DeviceId {
        self.notes.device
    }

    fn capacity(&self) -> u32 {
        self.notes.ring.len() as u32
    }

    #[inline]
    fn poll<'o>(
        &mut self,
        out: &'o mut [MaybeUninit<Completion>],
    ) -> Result<&'o [Completion], CqError> {
        Ok(self.notes.take(out))
    }
}

/// Puts a null device into the state that a row starts from, outside the timed part.
#[derive(Clone, Debug)]
pub struct Wire {
    notes: Rc<Notes>,
}

impl Wire {
    /// A WRITE_WITH_IMM arrives: the oldest receive of `inbox` completes with `imm`.
    #[inline]
    pub fn deliver(&self, inbox: &Inbox, imm: Imm) {
        self.deliver_to(inbox.qp_num(), inbox, imm, 0);
    }

    /// Completes a receive of `byte_len` bytes for a queue pair whose receives come from `inbox`,
    /// shared or not.
    #[inline]
    pub fn deliver_to(&self, qp_num: u32, inbox: &Inbox, imm: Imm, byte_len: u32) {
        self.notes.push(Note {
            wr_id: inbox.consume(),
            opcode: WcOpcode::RECV_RDMA_WITH_IMM,
            qp_num,
            imm,
            wc_flags: WcFlags::WITH_IMM,
            byte_len,
            vendor_err: 0,
        });
    }

    /// Reorders completions of different queue pairs at random. Completions of one queue pair stay
    /// in order.
    pub fn shuffle(&self, random: &mut XorShift) {
        let cursors = self.notes.head.get()..self.notes.tail.get();
        let mut queues = BTreeMap::<u32, VecDeque<Note>>::new();
        for cursor in cursors.clone() {
            let note = self.notes.at(cursor).get();
            queues.entry(note.qp_num).or_default().push_back(note);
        }
        for cursor in cursors {
            let at = random.below(queues.len());
            let qp_num = *queues.keys().nth(at).expect("an index below their number");
            let queue = queues.get_mut(&qp_num).expect("a key that is there");
            self.notes.at(cursor).set(queue.pop_front().expect("empty queues are removed"));
            if queue.is_empty() {
                queues.remove(&qp_num);
            }
        }
    }

    /// Discards what has not been polled. Two stores.
    #[inline]
    pub fn forget(&self) {
        self.notes.advance(self.notes.tail.get());
    }

    /// Brings back the first `count` completions since the queue was last empty, all of which have
    /// been polled. Two stores.
    #[inline]
    pub fn replay(&self, count: usize) {
        debug_assert_eq!(self.notes.head.get(), self.notes.tail.get());
        self.notes.head.set(0);
        self.notes.tail.set(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyrail_core::verbs::WcStatus;

    fn note(wr_id: u64) -> Note {
        Note { wr_id, ..Note::BLANK }
    }

    fn polled(cq: &mut NullCq, room: usize) -> Vec<u64> {
        let mut out = [MaybeUninit::uninit(); 32];
        let completions = cq.poll(&mut out[..room]).unwrap();
        assert!(completions.iter().all(|completion| completion.status == WcStatus::SUCCESS));
        completions.iter().map(|completion| completion.wr_id).collect()
    }

    #[test]
    fn completions_come_in_order_and_as_many_as_there_is_room_for() {
        let mut cq = NullCq::new(CqId(0), DeviceId(0), 8);
        // Three below the capacity and back, time and again, so that the ring wraps unemptied.
        (0..5).for_each(|wr_id| cq.notes.push(note(wr_id)));
        for wr_id in 5..50 {
            assert_eq!(polled(&mut cq, 1), [wr_id - 5]);
            cq.notes.push(note(wr_id));
        }
        assert_eq!(polled(&mut cq, 32), [45, 46, 47, 48, 49]);
        assert!(polled(&mut cq, 32).is_empty());
    }

    #[test]
    fn shuffling_keeps_each_queue_pair_in_order() {
        let mut cq = NullCq::new(CqId(0), DeviceId(0), 64);
        for wr_id in 0..32 {
            cq.notes.push(Note { qp_num: wr_id as u32 % 4, ..note(wr_id) });
        }
        cq.wire().shuffle(&mut XorShift::new());
        let order = polled(&mut cq, 32);
        assert!(!order.is_sorted());
        for qp_num in 0..4 {
            let own: Vec<_> = order.iter().filter(|wr_id| **wr_id % 4 == qp_num).collect();
            assert!(own.len() == 8 && own.is_sorted());
        }
    }

    #[test]
    fn what_was_forgotten_is_gone_and_what_is_replayed_comes_again() {
        let mut cq = NullCq::new(CqId(0), DeviceId(0), 8);
        (0..3).for_each(|wr_id| cq.notes.push(note(wr_id)));
        cq.wire().forget();
        assert!(polled(&mut cq, 32).is_empty());
        (3..6).for_each(|wr_id| cq.notes.push(note(wr_id)));
        assert_eq!(polled(&mut cq, 32), [3, 4, 5]);
        cq.wire().replay(3);
        assert_eq!(polled(&mut cq, 32), [3, 4, 5]);
    }
}
