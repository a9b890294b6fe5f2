//! The send queue of one queue pair: its ring, its inline bytes, and the progress of its front. `P`
//! is the queue pair to which its requests go.

use crate::address::{Gid, Mtu};
use crate::dma::Span;
use crate::lists::{Listed, Lists};
use polyrail_core::verbs::{Imm, Opcode, SendFlags, SendRequest, Sge};
use std::sync::Weak;
use std::sync::atomic::AtomicU8;

/// Send requests, oldest first. Positions count from the queue's beginning and never repeat:
///
/// ```text
/// released <= settled <= next <= posted
/// ```
///
/// Slots below `released` (stored in [`crate::completions::ReleasedSlots`]) are free: their
/// completion, or a later one, was polled. Requests below `settled` are complete. Requests from
/// `settled` to `next` were executed, or started, behind a deferred READ or atomic. The request at
/// `next` is the front.
#[derive(Debug)]
pub(crate) struct SendQueue<P> {
    slots: Box<[Listed<SendRequest>]>,
    lists: Lists,
    inline: Box<[AtomicU8]>,
    inline_bytes: usize,
    pub(crate) posted: u64,
    pub(crate) next: u64,
    /// A READ or atomic that the peer has accepted, and whose data is not here yet.
    pub(crate) deferred: Option<Deferred>,
    pub(crate) front: Front,
    pub(crate) path: Path<P>,
    pub(crate) timers: Timers,
    pub(crate) psn: u32,
    pub(crate) own_qp_num: u32,
    /// Requests may have completed receives of the peer that are not in their queue yet.
    pub(crate) completes_receives: bool,
}

/// The progress of the request at the front.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Front {
    pub(crate) rnr_tries: u8,
    pub(crate) timeouts: u8,
    /// Do not retry before this time.
    pub(crate) until: Option<u64>,
    /// Do not retry before the fabric's count of changes exceeds this.
    pub(crate) blocked: Option<u64>,
    /// The data of a WRITE_WITH_IMM arrived; only its receive is missing.
    pub(crate) data_done: bool,
    /// The peer executed the request; only its acknowledgement is missing.
    pub(crate) delivered: bool,
    /// An attempt was made.
    pub(crate) started: bool,
    /// The device's line is sending it.
    pub(crate) on_line: bool,
}

/// A READ or atomic that the peer has accepted, and whose data is not here yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deferred {
    pub(crate) position: u64,
    pub(crate) front: Front,
}

/// Where the requests go.
#[derive(Debug)]
pub(crate) struct Path<P> {
    /// The local port and its address.
    pub(crate) port: u8,
    pub(crate) own_gid: Gid,
    pub(crate) gid: Gid,
    pub(crate) dest_qp_num: u32,
    pub(crate) mtu: Mtu,
    /// The peer that was found last.
    pub(crate) peer: Weak<P>,
}

impl<P> Default for Path<P> {
    fn default() -> Self {
        Self {
            port: 0,
            own_gid: Gid::default(),
            gid: Gid::default(),
            dest_qp_num: 0,
            mtu: Mtu::default(),
            peer: Weak::new(),
        }
    }
}

/// The sender's timeouts and retries.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Timers {
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) max_rd_atomic: u8,
}

/// Packet sequence numbers have 24 bits.
pub(crate) const PSN_MASK: u32 = (1 << 24) - 1;

/// The contents of an unused slot.
const EMPTY: SendRequest = SendRequest {
    wr_id: 0,
    opcode: Opcode::RdmaWrite,
    flags: SendFlags::empty(),
    imm: Imm::from_number(0),
    sge: Sge::EMPTY,
    remote_addr: 0,
    rkey: 0,
    compare_add: 0,
    swap: 0,
};

impl<P> SendQueue<P> {
    /// Makes a ring of at least `min` requests with `inline_bytes` each, and up to `max_sge`
    /// buffers.
    pub(crate) fn new(min: u32, inline_bytes: u32, max_sge: u32) -> Self {
        let size = (min as usize).next_power_of_two();
        let inline_bytes = inline_bytes as usize;
        Self {
            slots: vec![Listed::send(EMPTY); size].into_boxed_slice(),
            lists: Lists::new(size, max_sge),
            inline: (0..size * inline_bytes).map(|_| AtomicU8::new(0)).collect(),
            inline_bytes,
            posted: 0,
            next: 0,
            deferred: None,
            front: Front::default(),
            path: Path::default(),
            timers: Timers::default(),
            psn: 0,
            own_qp_num: 0,
            completes_receives: false,
        }
    }

    pub(crate) fn capacity(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Returns whether every slot is taken. Slots below `released` are free.
    pub(crate) fn is_full(&self, released: u64) -> bool {
        self.posted - released >= self.slots.len() as u64
    }

    /// Adds a request with its list. The queue must not be full.
    pub(crate) fn push(&mut self, request: &Listed<SendRequest>, list: &[Sge]) {
        let index = self.index(self.posted);
        self.slots[index] = *request;
        self.lists.set(index, list);
        self.posted += 1;
    }

    /// Returns the list of the request at `position`, if it has one.
    pub(crate) fn list(&self, position: u64) -> &[Sge] {
        let index = self.index(position);
        self.lists.get(index, self.slots[index].buffers)
    }

    /// Returns the memory of the inline bytes of the request at `position`.
    pub(crate) fn inline_span(&self, position: u64) -> Span<'_> {
        let start = self.index(position) * self.inline_bytes;
        Span::of(&self.inline[start..start + self.inline_bytes])
    }

    pub(crate) fn get(&self, position: u64) -> &Listed<SendRequest> {
        &self.slots[self.index(position)]
    }

    /// Returns the position of the first request that has not completed.
    pub(crate) fn settled(&self) -> u64 {
        self.deferred.map_or(self.next, |deferred| deferred.position)
    }

    /// Returns whether a request waits to be executed or to complete.
    pub(crate) fn has_work(&self) -> bool {
        self.settled() < self.posted
    }

    /// Returns whether a started request has not ended, which SQD waits for.
    pub(crate) fn is_underway(&self) -> bool {
        self.deferred.is_some() || (self.next < self.posted && self.front.started)
    }

    /// Makes the next request the front, after the front was executed or deferred.
    pub(crate) fn step_past(&mut self, packets: u32) {
        self.psn = self.psn.wrapping_add(packets) & PSN_MASK;
        self.next += 1;
        self.front = Front::default();
    }

    /// Drops all requests.
    pub(crate) fn clear(&mut self) {
        self.next = self.posted;
        self.deferred = None;
        self.front = Front::default();
    }

    fn index(&self, position: u64) -> usize {
        position as usize & (self.slots.len() - 1)
    }
}
