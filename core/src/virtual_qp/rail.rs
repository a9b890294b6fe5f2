//! One physical queue pair of a virtual one, with its credits and what is in flight on it.

use super::error::{RailError, RailId};
use super::slot::SendSlot;
use crate::hardware::{CommitError, QueuePair, RecvBatch, Refusal, SendBatch};
use crate::in_flight::{Batch, InFlight};
use crate::sequence::{SequenceImm, SequenceNumber};
use crate::tag::{Tag, TagKind};
use crate::verbs::{
    Completion, DeviceId, Imm, Opcode, RecvRequest, SendFlags, SendRequest, Sge, WcStatus,
};
use crate::window::SequenceWindow;

/// What a rail has done so far. Wraps around after 2^64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RailCounters {
    /// Payload bytes handed to the device.
    pub bytes: u64,
    /// Send requests handed to the device: fragments, pass-through requests, notifies.
    pub fragments: u64,
    /// Batches of send requests, each one doorbell.
    pub doorbells: u64,
    /// Completions seen, of sends and of receives.
    pub completions: u64,
    /// Failed ones among them.
    pub errors: u64,
}

/// Receives posted on one physical receive queue, oldest first. They are all alike, so a cursor
/// and a count are enough.
#[derive(Clone, Copy, Debug)]
pub(super) struct Receives {
    /// Tag of the receive that completes next.
    front: Tag,
    /// Tag of the receive that is posted next.
    next: Tag,
    /// The low-water mark: so few posted that a quarter is missing.
    low: u32,
    /// Receives that may be outstanding.
    pub(super) limit: u32,
}

impl Receives {
    const fn new(kind: TagKind, rail: u8, limit: u32) -> Self {
        let front = Tag::new(kind, rail, 0).last();
        Self { front, next: front, low: limit - limit.div_ceil(4), limit }
    }

    /// Data receives and notification receives carry different tags.
    pub(super) fn set_kind(&mut self, kind: TagKind) {
        debug_assert!(self.is_empty(), "the kind is chosen before the first receive");
        *self = Self::new(kind, self.front.rail(), self.limit);
    }

    #[inline]
    pub(super) const fn posted(&self) -> u32 {
        self.next.since(self.front) as u32
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.front == self.next
    }

    #[inline]
    pub(super) const fn room(&self) -> u32 {
        self.limit - self.posted()
    }

    /// The tag of the receive that completes next.
    #[inline]
    pub(super) fn expected(&self) -> Option<Tag> {
        (!self.is_empty()).then_some(self.front)
    }

    /// Whether it is time to post receives again.
    #[inline]
    pub(super) const fn is_low(&self) -> bool {
        self.posted() <= self.low
    }

    /// `count` more are posted.
    #[inline]
    fn push(&mut self, count: u32) {
        self.next = self.next.plus(u64::from(count));
    }

    /// The front receive completed.
    #[inline]
    fn pop(&mut self) {
        self.front = self.front.plus(1);
    }

    /// A successful completion with a zero-length receive's tag: if it is the front one's and brings
    /// a new number, takes the receive off and notes the number. Says whether it was and did.
    #[inline]
    pub(super) fn arrived<const RAILS: usize, const DEPTH: usize>(
        &mut self,
        completion: &Completion,
        window: &mut SequenceWindow<RAILS, DEPTH>,
    ) -> bool {
        if completion.wr_id != self.front.wr_id() || self.is_empty() {
            return false;
        }
        let Some(imm) = completion.imm() else { return false };
        let Some(fragment) = SequenceImm::decode(imm) else { return false };
        if !window.insert_simple(fragment) {
            return false;
        }
        self.pop();
        true
    }

    /// Takes the front receive off if it is the one that completed, and says its number.
    #[inline]
    pub(super) fn complete(&mut self, wr_id: u64) -> Option<u64> {
        let front = self.expected().filter(|front| front.wr_id() == wr_id)?;
        self.pop();
        Some(front.sequence())
    }
}

/// A queue pair, wherever in the process it is.
#[inline]
pub(super) const fn address(device: DeviceId, qp_num: u32) -> u64 {
    (device.0 as u64) << 32 | qp_num as u64
}

/// The address of no queue pair: numbers have 24 bits.
const CLOSED: u64 = u64::MAX;

/// A rail, or the notify queue pair.
///
/// Laid out as written: what every post and completion of a single rail touches stands together,
/// up to the beginning of `sends`, since with thousands of queue pairs each line is a miss.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Rail<Q, const DEPTH: usize> {
    pub(super) qp: Q,
    pub(super) device: DeviceId,
    /// What completions of this rail carry.
    pub(super) qp_num: u32,
    /// Its address while it is in service and its driver owes nothing, else [`CLOSED`].
    open_as: u64,
    pub(super) completions: u64,
    pub(super) id: RailId,
    /// Place of the device's keys in a slot.
    pub(super) keys_at: u8,
    /// The rail's bit in the round robin.
    pub(super) turn_bit: u8,
    /// In service: may be given fragments.
    pub(super) up: bool,
    pub(super) sends: InFlight<DEPTH>,
    pub(super) recvs: Receives,
    pub(super) errors: u64,
    /// Doorbells beyond one for each batch.
    pub(super) more_doorbells: u64,
    /// The front batch at the last stall check.
    stall_mark: Option<u64>,
}

impl<Q: QueuePair, const DEPTH: usize> Rail<Q, DEPTH> {
    pub(super) fn new(qp: Q, id: RailId, max_msgs: u32) -> Self {
        let number = match id {
            RailId::Data(rail) => rail,
            RailId::Notify => Tag::NOTIFY_RAIL,
        };
        let limits = qp.limits();
        let bound = max_msgs.min(DEPTH as u32);
        Self {
            id,
            device: qp.device(),
            qp_num: qp.qp_num(),
            keys_at: 0,
            turn_bit: 0,
            up: true,
            open_as: address(qp.device(), qp.qp_num()),
            completions: 0,
            errors: 0,
            more_doorbells: 0,
            recvs: Receives::new(TagKind::NotifyRecv, number, bound.min(limits.max_recv_wr)),
            stall_mark: None,
            sends: InFlight::new(number, bound.min(limits.max_send_wr)),
            qp,
        }
    }

    /// Opens or closes the rail: closed, it gets no fragments, and its completions are looked at
    /// one by one.
    pub(super) fn set_open(&mut self, open: bool) {
        self.open_as = if open { address(self.device, self.qp_num) } else { CLOSED };
    }

    /// Whether it may be given fragments, credits aside.
    #[inline]
    pub(super) const fn is_open(&self) -> bool {
        self.open_as != CLOSED
    }

    /// Whether it is open and completions with this address are its own.
    #[inline]
    pub(super) const fn is_open_as(&self, address: u64) -> bool {
        self.open_as == address
    }

    /// Whether completions of this queue pair of this device are its own.
    #[inline]
    pub(super) fn is_at(&self, device: DeviceId, qp_num: u32) -> bool {
        self.device == device && self.qp_num == qp_num
    }

    /// What it has done so far.
    pub(super) fn counters(&self) -> RailCounters {
        RailCounters {
            bytes: self.sends.bytes_posted(),
            fragments: self.sends.requests_posted(),
            doorbells: self.sends.batches_posted() + self.more_doorbells,
            completions: self.completions,
            errors: self.errors,
        }
    }

    /// Posts the fragments of `batch` from `index` on, the first of them under `tag`.
    ///
    /// `NUMBERED` fragments carry DQPLB's sequence numbers.
    #[inline(always)]
    pub(super) fn post_fragments<const NUMBERED: bool, const RAILS: usize>(
        &mut self,
        slot: &SendSlot<RAILS>,
        batch: &Batch,
        size: u32,
        mut tag: Tag,
        index: u32,
    ) -> Result<(), CommitError> {
        let keys = slot.keys[self.keys_at as usize];
        let mut offset = batch.offset + index * size;
        let mut number = SequenceNumber::new(batch.number).unwrap_or_default();
        if NUMBERED {
            number = number.advance(index);
        }
        let opcode = if NUMBERED { Opcode::RdmaWriteWithImm } else { slot.fragment_opcode };
        // Any numbered fragment can be the one whose arrival completes the request.
        let inner = if NUMBERED {
            slot.last_flags.intersection(SendFlags::SOLICITED)
        } else {
            SendFlags::empty()
        };
        let request = |tag: Tag, flags, offset, length, number, last| SendRequest {
            wr_id: tag.wr_id(),
            opcode,
            flags,
            imm: if NUMBERED { SequenceImm { number, last }.encode() } else { Imm::default() },
            sge: slot.local.part(offset, length).sge(keys.lkey),
            remote_addr: slot.remote_addr + u64::from(offset),
            rkey: keys.rkey,
            compare_add: 0,
            swap: 0,
        };
        let mut sends = self.qp.start_send();
        for _ in index + 1..u32::from(batch.count) {
            sends.add(&request(tag, inner, offset, size, number, false));
            tag = tag.plus(1);
            offset += size;
            if NUMBERED {
                number = number.next();
            }
        }
        let end = batch.offset + batch.length;
        let ends_request = end == slot.local.length();
        let ending = if ends_request { slot.last_flags } else { inner };
        let flags = ending.union(SendFlags::SIGNALED);
        sends.add(&request(tag.last(), flags, offset, end - offset, number, ends_request));
        sends.commit()
    }

    /// Posts one pass-through request, `batch` on its own.
    pub(super) fn post_one(
        &mut self,
        mut request: SendRequest,
        batch: Batch,
    ) -> Result<(), Refusal> {
        request.wr_id = self.sends.push(batch).last().wr_id();
        request.flags |= SendFlags::SIGNALED;
        let mut sends = self.qp.start_send();
        sends.add(&request);
        sends.commit().map_err(|error| {
            self.sends.cut(1, 0);
            error.refusal
        })
    }

    /// Posts `count` zero-length receives and says how many the driver took, and why not more.
    pub(super) fn post_notify_recvs(&mut self, count: u32) -> (u32, Option<CommitError>) {
        debug_assert!(count <= self.recvs.room());
        let mut batch = self.qp.start_recv();
        let mut tag = self.recvs.next;
        for _ in 0..count {
            batch.add(&RecvRequest { wr_id: tag.wr_id(), sge: Sge::EMPTY });
            tag = tag.plus(1);
        }
        let error = batch.commit().err();
        let accepted = error.map_or(count, |error| error.accepted.min(count));
        self.recvs.push(accepted);
        (accepted, error)
    }

    /// Posts one receive with a buffer and says its number.
    pub(super) fn post_data_recv(&mut self, sge: Sge) -> Result<u64, CommitError> {
        let tag = self.recvs.next;
        let mut batch = self.qp.start_recv();
        batch.add(&RecvRequest { wr_id: tag.wr_id(), sge });
        batch.commit()?;
        self.recvs.push(1);
        Ok(tag.sequence())
    }

    /// Whether the front batch is the one that it was at the previous call.
    pub(super) fn check_stalled(&mut self) -> bool {
        let front = self.sends.front_number();
        let stalled = front.is_some() && front == self.stall_mark;
        self.stall_mark = front;
        stalled
    }

    /// The record of a failed completion.
    pub(super) fn completion_error(&self, completion: &Completion, offset: u32) -> RailError {
        RailError {
            rail: self.id,
            device: self.device,
            qp_num: completion.qp_num,
            status: completion.status,
            vendor_err: completion.vendor_err,
            errno: None,
            offset,
        }
    }

    /// The record of a post that the driver refused.
    pub(super) fn refusal_error(&self, errno: i32, offset: u32) -> RailError {
        RailError {
            rail: self.id,
            device: self.device,
            qp_num: self.qp_num,
            status: WcStatus::GENERAL_ERR,
            vendor_err: 0,
            errno: Some(errno),
            offset,
        }
    }
}
