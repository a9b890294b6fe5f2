//! Queue pairs over which requests are spread.

use super::{Rail, commit, poll, write};
use crate::rig::Rig;
use crate::workload::{
    BLANK_REQUEST, BUFFERS, FRAGMENT, FRAGMENTS, Message, POLL, RAILS, Reported, check, keys,
    messages,
};
use heapless::Vec as Fixed;
use polyrail_core::hardware::{CompletionQueue, QueuePair, SendBatch};
use polyrail_core::internals::{SequenceImm, SequenceNumber};
use polyrail_core::verbs::{Completion, DeviceKeys, Imm, Opcode, SendFlags, SendRequest};
use std::hint::black_box;

/// A message, and its batches that are not acknowledged.
#[derive(Debug)]
struct Request {
    message: Message,
    unacknowledged: u32,
}

impl Request {
    /// Takes an acknowledgement into account. Returns whether it was the last one.
    #[inline]
    fn acknowledge(&mut self) -> bool {
        self.unacknowledged -= 1;
        self.unacknowledged == 0
    }
}

/// How requests are split.
#[derive(Clone, Copy, Debug)]
struct Split {
    /// Bytes of a fragment.
    fragment: u32,
    /// Bytes that go to one rail in one batch.
    batch: u32,
}

/// Rails that take turns.
#[derive(Debug)]
struct Rails<Q> {
    rails: Vec<Rail<Q>>,
    next: usize,
}

impl<Q> Rails<Q> {
    #[inline]
    fn next(&mut self) -> &mut Rail<Q> {
        let at = self.next;
        self.next = if at + 1 == self.rails.len() { 0 } else { at + 1 };
        &mut self.rails[at]
    }
}

/// Marks the `wr_id` of a batch of notifies; below it is how many requests they are for.
const NOTIFIES: u64 = 1 << 63;

/// Queue pairs over which requests are spread.
#[derive(Debug)]
pub struct Striped<Q, C> {
    rails: Rails<Q>,
    notify: Option<Rail<Q>>,
    cq: C,
    requests: Vec<Request>,
    keys: Vec<DeviceKeys>,
    split: Split,
    /// The next fragment's.
    number: SequenceNumber,
}

impl<Q: QueuePair, C: CompletionQueue> Striped<Q, C> {
    /// Requests of `length` bytes on the queue pairs of `rig`.
    pub fn new(rig: Rig<Q, C>, length: u32) -> Self {
        let keys = keys();
        let rail = |qp| Rail::new(qp, &keys);
        let request = |message| Request { message, unacknowledged: 0 };
        let batch = FRAGMENTS / RAILS as u32 * FRAGMENT;
        Self {
            rails: Rails { rails: rig.rails.into_iter().map(rail).collect(), next: 0 },
            notify: rig.notify.map(rail),
            cq: rig.cq,
            requests: messages(length).into_iter().map(request).collect(),
            keys,
            split: black_box(Split { fragment: FRAGMENT, batch }),
            number: SequenceNumber::ZERO,
        }
    }

    /// WRITEs, post to report.
    #[inline(never)]
    pub fn write(&mut self) -> Reported {
        self.post_writes();
        self.acknowledged()
    }

    /// WRITEs, each followed by a notify once it is acknowledged: the notifies of all requests that
    /// one poll has finished are one batch.
    ///
    /// # Panics
    ///
    /// If there is no notify queue pair.
    #[inline(never)]
    pub fn write_and_notify(&mut self) -> Reported {
        self.post_writes();
        let notify = self.notify.as_mut().expect("a rig with a notify queue pair");
        let mut reported = Reported::default();
        let mut notified = 0;
        while notified < self.requests.len() {
            let mut finished = Fixed::<_, POLL>::new();
            poll(&mut self.cq, |completion| {
                if completion.wr_id & NOTIFIES != 0 {
                    check(completion.wr_id, completion.status);
                    notified += (completion.wr_id & !NOTIFIES) as usize;
                } else if let Some(message) = acknowledge(&mut self.requests, completion) {
                    reported.note(message.wr_id, completion.status);
                    finished.push(*message).expect("one for each completion");
                }
            });
            post_notifies(notify, &finished, &self.keys);
        }
        reported
    }

    /// WRITEs with a sequence number on every fragment, post to report.
    #[inline(never)]
    pub fn write_numbered(&mut self) -> Reported {
        let mut number = self.number;
        self.post(|write, ends| {
            let imm = SequenceImm { number, last: ends }.encode();
            number = number.next();
            SendRequest { opcode: Opcode::RdmaWriteWithImm, imm, ..write }
        });
        self.number = number;
        self.acknowledged()
    }

    /// WRITEs of one fragment whose bytes are in several buffers, post to report.
    #[inline(never)]
    pub fn write_lists(&mut self, buffers: u32) -> Reported {
        for (wr_id, request) in (0..).zip(&mut self.requests) {
            let message = &request.message;
            let length = message.local.length();
            let rail = self.rails.next();
            let keys = self.keys[rail.keys_at];
            let mut list = Fixed::<_, { BUFFERS as usize }>::new();
            for at in 0..buffers {
                let part = message.part(at * (length / buffers), length / buffers);
                list.push(part.sge(keys.lkey)).expect("no more than the device takes");
            }
            let whole = (message, 0, length);
            let mut batch = rail.qp.start_send();
            batch.add_list(&write(whole, wr_id, keys, SendFlags::SIGNALED), &list);
            commit(batch);
            request.unacknowledged = 1;
        }
        self.acknowledged()
    }

    /// WRITEs of one fragment, `together` at a time with one doorbell for each rail, post to
    /// report.
    #[inline(never)]
    pub fn write_together(&mut self, together: usize) -> Reported {
        let share = together.div_ceil(self.rails.rails.len());
        let mut wr_id = 0;
        for requests in self.requests.chunks_mut(together) {
            for requests in requests.chunks_mut(share) {
                let rail = self.rails.next();
                let keys = self.keys[rail.keys_at];
                let mut batch = rail.qp.start_send();
                for request in requests {
                    let whole = (&request.message, 0, request.message.local.length());
                    batch.add(&write(whole, wr_id, keys, SendFlags::SIGNALED));
                    request.unacknowledged = 1;
                    wr_id += 1;
                }
                commit(batch);
            }
        }
        self.acknowledged()
    }

    #[inline]
    fn post_writes(&mut self) {
        self.post(|write, _| write);
    }

    /// Posts the burst: of every request a batch to each rail in turn, until it is all posted.
    /// `shape` is given each fragment as a WRITE, and whether its request ends with it.
    #[inline]
    fn post(&mut self, mut shape: impl FnMut(SendRequest, bool) -> SendRequest) {
        for (wr_id, request) in (0..).zip(&mut self.requests) {
            let message = &request.message;
            let length = message.local.length();
            let mut offset = 0;
            let mut batches = 0;
            while offset < length {
                let end = offset + self.split.batch.min(length - offset);
                let rail = self.rails.next();
                let keys = self.keys[rail.keys_at];
                let mut batch = rail.qp.start_send();
                while end - offset > self.split.fragment {
                    let part = (message, offset, self.split.fragment);
                    batch.add(&shape(write(part, wr_id, keys, SendFlags::empty()), false));
                    offset += self.split.fragment;
                }
                let part = (message, offset, end - offset);
                batch.add(&shape(write(part, wr_id, keys, SendFlags::SIGNALED), end == length));
                commit(batch);
                offset = end;
                batches += 1;
            }
            request.unacknowledged = batches;
        }
    }

    /// Polls until every request is acknowledged.
    #[inline]
    fn acknowledged(&mut self) -> Reported {
        let mut reported = Reported::default();
        while reported.count() < self.requests.len() {
            poll(&mut self.cq, |completion| {
                if let Some(message) = acknowledge(&mut self.requests, completion) {
                    reported.note(message.wr_id, completion.status);
                }
            });
        }
        reported
    }
}

/// Notes the completion of a batch with the request that it is of. Returns that request's message
/// if it is finished.
#[inline]
fn acknowledge<'r>(requests: &'r mut [Request], completion: &Completion) -> Option<&'r Message> {
    check(completion.wr_id, completion.status);
    let request = &mut requests[completion.wr_id as usize];
    request.acknowledge().then_some(&request.message)
}

/// Posts a notify for each of `finished`, if there are any, as one batch.
#[inline]
fn post_notifies<Q: QueuePair>(notify: &mut Rail<Q>, finished: &[Message], keys: &[DeviceKeys]) {
    let Some((last, others)) = finished.split_last() else { return };
    let wr_id = NOTIFIES | finished.len() as u64;
    let rkey = keys[notify.keys_at].rkey;
    let mut batch = notify.qp.start_send();
    for message in others {
        batch.add(&notification(message, wr_id, rkey, SendFlags::empty()));
    }
    batch.add(&notification(last, wr_id, rkey, SendFlags::SIGNALED));
    commit(batch);
}

#[inline]
fn notification(message: &Message, wr_id: u64, rkey: u32, flags: SendFlags) -> SendRequest {
    SendRequest {
        wr_id,
        flags,
        opcode: Opcode::RdmaWriteWithImm,
        imm: Imm::from_number(message.imm()),
        remote_addr: message.remote_addr,
        rkey,
        ..BLANK_REQUEST
    }
}
