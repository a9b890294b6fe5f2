//! What crosses between a handle and the thread.

use polyrail_core::verbs::{
    DeviceKeys, LocalBuffer, Opcode, RecvWr, ReportOrder, SendFlags, SendWr,
};
use polyrail_core::virtual_cq::VirtualWc;
use polyrail_core::virtual_qp::PostError;
use std::sync::Arc;

/// Sets of device keys that a handle keeps with the thread.
pub(super) const KEY_SETS: usize = 16;

/// The device keys of a request: a borrowed slice cannot cross threads.
pub(super) type KeySet = Arc<[DeviceKeys]>;

/// From a handle to the thread.
#[derive(Debug)]
pub(super) enum HandleMessage {
    /// Requests that follow refer to these keys by this place.
    Keys { place: u8, keys: KeySet },
    /// A request.
    Post(Request),
}

/// Bytes that cross to the thread for each request.
pub const REQUEST_BYTES: usize = size_of::<HandleMessage>();

const _: () = assert!(REQUEST_BYTES <= 64, "a cache line for each request");

/// From the thread to a handle: how a request ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Report {
    pub(super) slot: u16,
    pub(super) result: Result<VirtualWc, PostError>,
}

/// The two kinds of requests, which do not wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    Send,
    Recv,
}

impl Lane {
    pub(super) const ALL: [Self; 2] = [Self::Send, Self::Recv];
}

/// A request on its way to the thread. Its keys are named by their place among the handle's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) slot: u16,
    pub(super) keys: u8,
    /// `None`: a receive.
    opcode: Option<Opcode>,
    flags: SendFlags,
    imm: u32,
    local: LocalBuffer,
    remote_addr: u64,
    compare_add: u64,
    swap: u64,
    report_order: Option<ReportOrder>,
}

impl Request {
    pub(super) const fn send(slot: u16, keys: u8, wr: &SendWr<'_>) -> Self {
        Self {
            slot,
            keys,
            opcode: Some(wr.opcode),
            flags: wr.flags,
            imm: wr.imm,
            local: wr.local,
            remote_addr: wr.remote_addr,
            compare_add: wr.compare_add,
            swap: wr.swap,
            report_order: wr.report_order,
        }
    }

    pub(super) const fn recv(slot: u16, keys: u8, wr: &RecvWr<'_>) -> Self {
        Self {
            slot,
            keys,
            opcode: None,
            flags: SendFlags::empty(),
            imm: 0,
            local: wr.local,
            remote_addr: 0,
            compare_add: 0,
            swap: 0,
            report_order: None,
        }
    }

    pub(super) const fn lane(&self) -> Lane {
        if self.opcode.is_some() { Lane::Send } else { Lane::Recv }
    }

    /// The request as the engine takes it, under a name of the thread's.
    pub(super) const fn work<'k>(&self, wr_id: u64, keys: &'k [DeviceKeys]) -> Work<'k> {
        let Self { opcode, flags, imm, local, remote_addr, .. } = *self;
        let Self { compare_add, swap, report_order, .. } = *self;
        match opcode {
            Some(opcode) => Work::Send(SendWr {
                wr_id,
                opcode,
                flags,
                imm,
                local,
                remote_addr,
                compare_add,
                swap,
                keys,
                report_order,
            }),
            None => Work::Recv(RecvWr { wr_id, local, keys }),
        }
    }
}

/// A request for the engine.
#[derive(Debug)]
pub(super) enum Work<'k> {
    Send(SendWr<'k>),
    Recv(RecvWr<'k>),
}

/// A handle's view of the key sets that the thread has.
///
/// Requests between the same buffers have the same keys, so few sets serve many requests, and a
/// request carries one byte for them. A new set takes the place of the oldest; the ring keeps order,
/// so requests that were pushed earlier have found theirs by then.
#[derive(Debug, Default)]
pub(super) struct KeySets {
    sets: arrayvec::ArrayVec<KeySet, KEY_SETS>,
    /// The place that a new set takes.
    next: usize,
}

impl KeySets {
    /// The place of a set that the thread has.
    pub(super) fn find(&self, keys: &[DeviceKeys]) -> Option<u8> {
        self.sets.iter().position(|set| **set == *keys).map(|place| place as u8)
    }

    /// The place and the set for the message that announces a new set to the thread. Call
    /// [`add`](Self::add) when the message is on its way.
    pub(super) fn announce(&self, keys: &[DeviceKeys]) -> (u8, KeySet) {
        (self.next as u8, KeySet::from(keys))
    }

    /// The thread will know this set by the next place.
    pub(super) fn add(&mut self, set: KeySet) {
        match self.sets.get_mut(self.next) {
            Some(place) => *place = set,
            None => self.sets.push(set),
        }
        self.next = (self.next + 1) % KEY_SETS;
    }
}
