//! The floor: the same physical work, done raw.
//!
//! Somebody who knows in advance what the row asks for has written it out by hand: no tracking, no
//! routing, no bookkeeping beyond what tells when the burst is over. What the engine puts on the
//! device, the floor puts there too: the same requests in the same batches, one doorbell a batch,
//! polls with the same room. It reads `wr_id` and `status` of every completion, and of arriving
//! messages the immediate. The tests compare the two with [`crate::counted`].

use crate::arrivals::ARRIVALS;
use crate::rig::Rig;
use crate::workload::{
    BLANK_REQUEST, DEPTH, FRAGMENTS, KEYS, Message, OUTSTANDING, POLL, RAILS, Reported, SMALL,
    messages,
};
use polyrail_core::hardware::{CompletionQueue, QueuePair, RecvBatch, SendBatch};
use polyrail_core::internals::{SequenceImm, SequenceNumber};
use polyrail_core::verbs::{
    Completion, Imm, LocalBuffer, Opcode, RecvRequest, SendFlags, SendRequest, Sge,
};
use std::mem::MaybeUninit;

/// Fragments of a large request that go to one rail, in one batch.
const SHARE: u32 = FRAGMENTS / RAILS as u32;

#[inline]
fn write(message: &Message, local: LocalBuffer, flags: SendFlags) -> SendRequest {
    SendRequest {
        wr_id: message.wr_id,
        flags,
        sge: local.sge(KEYS.lkey),
        remote_addr: message.remote_addr + (local.addr() - message.local.addr()),
        rkey: KEYS.rkey,
        ..BLANK_REQUEST
    }
}

/// Polls once, with the usual room, and hands over what there was.
#[inline]
fn poll(cq: &mut impl CompletionQueue, mut each: impl FnMut(&Completion)) {
    let mut records = [const { MaybeUninit::uninit() }; POLL];
    cq.poll(&mut records).expect("the null device does not fail").iter().for_each(&mut each);
}

#[inline]
fn commit(batch: impl SendBatch) {
    batch.commit().expect("the null device takes everything");
}

/// One queue pair, one request a batch.
#[derive(Debug)]
pub struct Single<Q, C> {
    qp: Q,
    cq: C,
    messages: [Message; OUTSTANDING],
}

impl<Q: QueuePair, C: CompletionQueue> Single<Q, C> {
    /// On the first rail of `rig`.
    pub fn new(rig: Rig<Q, C>) -> Self {
        let qp = rig.rails.into_iter().next().expect("a rig has a rail");
        Self { qp, cq: rig.cq, messages: messages(SMALL) }
    }

    /// Posts `OUTSTANDING` small writes.
    #[inline(never)]
    pub fn post(&mut self) {
        for message in &self.messages {
            let mut batch = self.qp.start_send();
            batch.add(&write(message, message.local, SendFlags::SIGNALED));
            commit(batch);
        }
    }

    /// Polls until `OUTSTANDING` completions have come.
    #[inline(never)]
    pub fn poll(&mut self) -> Reported {
        let mut reported = Reported::default();
        while reported.count < OUTSTANDING {
            poll(&mut self.cq, |completion| reported.note(completion.wr_id, completion.status));
        }
        reported
    }
}

/// What a batch's last request is called: data, or notifies for so many requests.
const NOTIFIES: u64 = 1 << 63;

/// `RAILS` queue pairs over which requests are spread.
#[derive(Debug)]
pub struct Striped<Q, C> {
    rails: [Q; RAILS],
    notify: Option<Q>,
    cq: C,
    messages: [Message; OUTSTANDING],
    number: SequenceNumber,
}

impl<Q: QueuePair, C: CompletionQueue> Striped<Q, C> {
    /// Requests of `length` bytes on the queue pairs of `rig`.
    ///
    /// # Panics
    ///
    /// If the rig does not have `RAILS` rails.
    pub fn new(rig: Rig<Q, C>, length: u32) -> Self {
        let Ok(rails) = rig.rails.try_into() else { panic!("{RAILS} rails") };
        let (number, messages) = (SequenceNumber::ZERO, messages(length));
        Self { rails, notify: rig.notify, cq: rig.cq, messages, number }
    }

    /// Writes of one fragment, to each rail in turn.
    #[inline(never)]
    pub fn multi1(&mut self) -> Reported {
        for messages in self.messages.as_chunks::<RAILS>().0 {
            for (message, rail) in messages.iter().zip(&mut self.rails) {
                let mut batch = rail.start_send();
                batch.add(&write(message, message.local, SendFlags::SIGNALED));
                commit(batch);
            }
        }
        self.acknowledged(OUTSTANDING)
    }

    /// Writes of `FRAGMENTS` fragments, one batch to each rail.
    #[inline(never)]
    pub fn multi16(&mut self) -> Reported {
        self.post_writes();
        self.acknowledged(OUTSTANDING * RAILS)
    }

    #[inline]
    fn post_writes(&mut self) {
        for message in &self.messages {
            for (rail, first) in self.rails.iter_mut().zip((0..).step_by(SHARE as usize)) {
                let mut batch = rail.start_send();
                for number in first..first + SHARE - 1 {
                    batch.add(&write(message, message.fragment(number), SendFlags::empty()));
                }
                let last = message.fragment(first + SHARE - 1);
                batch.add(&write(message, last, SendFlags::SIGNALED));
                commit(batch);
            }
        }
    }

    #[inline]
    fn acknowledged(&mut self, batches: usize) -> Reported {
        let mut reported = Reported::default();
        while reported.count < batches {
            poll(&mut self.cq, |completion| reported.note(completion.wr_id, completion.status));
        }
        reported
    }

    /// [`multi16`](Self::multi16), each request followed by a notify once it is acknowledged: the
    /// notifies of all requests that one poll has finished are one batch.
    ///
    /// # Panics
    ///
    /// If there is no notify queue pair.
    #[inline(never)]
    pub fn spray_imm16(&mut self) -> Reported {
        self.post_writes();
        let notify = self.notify.as_mut().expect("a rig with a notify queue pair");
        let mut reported = Reported::default();
        let (mut acknowledged, mut notifying, mut notified) = (0, 0, 0);
        while notified < OUTSTANDING {
            poll(&mut self.cq, |completion| {
                reported.note(completion.wr_id, completion.status);
                if completion.wr_id & NOTIFIES == 0 {
                    acknowledged += 1;
                } else {
                    notified += (completion.wr_id & !NOTIFIES) as usize;
                }
            });
            let ready = acknowledged / RAILS;
            if ready > notifying {
                let mut batch = notify.start_send();
                let wr_id = NOTIFIES | (ready - notifying) as u64;
                for message in &self.messages[notifying..ready - 1] {
                    batch.add(&notification(message, wr_id, SendFlags::empty()));
                }
                batch.add(&notification(&self.messages[ready - 1], wr_id, SendFlags::SIGNALED));
                commit(batch);
                notifying = ready;
            }
        }
        reported
    }

    /// [`multi16`](Self::multi16) with a sequence number on every fragment.
    #[inline(never)]
    pub fn dqplb_imm16(&mut self) -> Reported {
        for message in &self.messages {
            for (rail, first) in self.rails.iter_mut().zip((0..).step_by(SHARE as usize)) {
                let mut batch = rail.start_send();
                for at in first..first + SHARE - 1 {
                    let flags = SendFlags::empty();
                    batch.add(&numbered(message, at, &mut self.number, flags, false));
                }
                let (at, ends) = (first + SHARE - 1, first + SHARE == FRAGMENTS);
                let flags = SendFlags::SIGNALED;
                batch.add(&numbered(message, at, &mut self.number, flags, ends));
                commit(batch);
            }
        }
        self.acknowledged(OUTSTANDING * RAILS)
    }
}

#[inline]
fn notification(message: &Message, wr_id: u64, flags: SendFlags) -> SendRequest {
    SendRequest {
        wr_id,
        flags,
        opcode: Opcode::RdmaWriteWithImm,
        imm: Imm::from_number(message.imm()),
        remote_addr: message.remote_addr,
        rkey: KEYS.rkey,
        ..BLANK_REQUEST
    }
}

#[inline]
fn numbered(
    message: &Message,
    at: u32,
    number: &mut SequenceNumber,
    flags: SendFlags,
    last: bool,
) -> SendRequest {
    let imm = SequenceImm { number: *number, last }.encode();
    *number = number.next();
    let opcode = Opcode::RdmaWriteWithImm;
    SendRequest { opcode, imm, ..write(message, message.fragment(at), flags) }
}

/// `RAILS` queue pairs on which numbered fragments arrive.
#[derive(Debug)]
pub struct Receiver<Q, C> {
    rails: [Q; RAILS],
    cq: C,
    /// Receives that have completed and are not posted again.
    missing: [u32; RAILS],
}

impl<Q: QueuePair, C: CompletionQueue> Receiver<Q, C> {
    /// With `DEPTH` receives posted on each queue pair of `rig`.
    ///
    /// # Panics
    ///
    /// If the rig does not have `RAILS` rails.
    pub fn new(rig: Rig<Q, C>) -> Self {
        let Ok(rails) = rig.rails.try_into() else { panic!("{RAILS} rails") };
        let mut receiver = Self { rails, cq: rig.cq, missing: [DEPTH as u32; RAILS] };
        receiver.refill();
        receiver
    }

    /// Polls `ARRIVALS` completions and posts their receives again, a quarter of a queue pair's at
    /// a time. Gives back the immediates, mixed, beside the rest.
    #[inline(never)]
    pub fn receive(&mut self) -> (Reported, u32) {
        let (mut reported, mut imms) = (Reported::default(), 0);
        while reported.count < ARRIVALS {
            let missing = &mut self.missing;
            poll(&mut self.cq, |completion| {
                reported.note(completion.wr_id, completion.status);
                imms ^= completion.imm.number();
                missing[completion.wr_id as usize % RAILS] += 1;
            });
            self.refill();
        }
        (reported, imms)
    }

    #[inline]
    fn refill(&mut self) {
        for (wr_id, (rail, missing)) in self.rails.iter_mut().zip(&mut self.missing).enumerate() {
            if *missing >= DEPTH as u32 / 4 {
                let mut batch = rail.start_recv();
                for _ in 0..std::mem::take(missing) {
                    batch.add(&RecvRequest { wr_id: wr_id as u64, sge: Sge::EMPTY });
                }
                batch.commit().expect("the null device takes everything");
            }
        }
    }
}
