//! Messages between two ends: the receiver writes an entry to the sender, which writes the payload
//! with an immediate.
//!
//! The requests follow the engine's protocol bit by bit, with sizes that always fit the immediate.
//! This code does not handle failures, other rails, or lengths that differ from the agreed one.

use super::{Rail, poll, post_one, write};
use crate::message_rig::{MessageRig, RECEIVES, SLOTS};
use crate::workload::{
    BLANK_REQUEST, DEPTH, KEYS, Message, OUTSTANDING, Reported, check, keys, messages,
};
use polyrail_core::hardware::{CompletionQueue, QueuePair, ReceiveQueue, RecvBatch};
use polyrail_core::internals::entry_hash;
use polyrail_core::p2p::{ENTRY_BYTES, RECORD_BYTES};
use polyrail_core::verbs::{
    Completion, DeviceKeys, Imm, LocalBuffer, Opcode, RecvRequest, SendFlags, SendRequest, Sge,
    WcStatus,
};
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

/// Words of an entry.
const WORDS: usize = ENTRY_BYTES / 8;

/// Words in front of the entries in the receiver's memory: the records, which are unused here.
const RECORDS: usize = SLOTS * RECORD_BYTES / 8;

/// The `wr_id` of receives; `wr_id`s of entries are below it.
const RECEIVE: u64 = 1 << 32;

/// Both ends of a connection that carries a burst of messages again and again.
#[derive(Debug)]
pub struct Messages<Q, C, S> {
    receiver: Receiver<Q, C, S>,
    sender: Sender<Q, C>,
}

#[derive(Debug)]
struct Receiver<Q, C, S> {
    rails: Vec<Rail<Q>>,
    cq: C,
    srq: S,
    words: &'static [AtomicU64],
    /// Where the sender's ring begins, and its key.
    ring: (u64, u32),
    /// Receives in the shared queue, and how few may be there.
    posted: u32,
    low_water: u32,
    high_water: u32,
    /// Entries posted since the last signaled one, and their maximum.
    unsignaled: u32,
    quarter: u32,
    slots: Vec<Arriving>,
    /// Messages that have not arrived.
    waiting: u32,
    /// The next message, and the oldest unreported one.
    next: u64,
    oldest: u64,
    targets: Vec<LocalBuffer>,
    keys: Vec<DeviceKeys>,
}

/// An incoming message: its rails, the rails whose shares have arrived, and its bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Arriving {
    mask: u32,
    seen: u32,
    bytes: u32,
}

#[derive(Debug)]
struct Sender<Q, C> {
    rails: Vec<Rail<Q>>,
    cq: C,
    words: &'static [AtomicU64],
    /// Bytes of a message that one rail carries.
    share: u32,
    /// The immediates' fields for the length and the rails of all messages.
    imm: u32,
    /// Shares of each message that are not acknowledged.
    slots: Vec<u32>,
    next: u64,
    oldest: u64,
    messages: Vec<Message>,
    keys: Vec<DeviceKeys>,
}

impl<Q: QueuePair, C: CompletionQueue, S: ReceiveQueue> Messages<Q, C, S> {
    /// Makes an end over all rails of `rig`, for messages of `length` bytes.
    ///
    /// # Panics
    ///
    /// If keys for a device are missing.
    pub fn new(rig: MessageRig<Q, C, S>, length: u32) -> Self {
        let MessageRig { near, near_cq, far, far_cq, srq, far_words, near_words } = rig;
        let rails = |qps: Vec<Q>| qps.into_iter().map(|qp| Rail::new(qp, &keys())).collect();
        let count = near.len() as u32;
        let messages = messages(length);
        let targets = messages.iter().map(Message::target).collect();
        let depth = black_box(DEPTH as u32);
        let receives = black_box(RECEIVES);
        let receiver = Receiver {
            rails: rails(far),
            cq: far_cq,
            srq,
            words: far_words,
            ring: (near_words.as_ptr().addr() as u64, KEYS.rkey),
            posted: 0,
            low_water: receives / 8,
            high_water: receives,
            unsignaled: 0,
            quarter: depth / 4,
            slots: vec![Arriving::default(); SLOTS],
            waiting: 0,
            next: 0,
            oldest: 0,
            targets,
            keys: keys(),
        };
        let (mask, units) = ((1 << count) - 1, length.div_ceil(128));
        let sender = Sender {
            rails: rails(near),
            cq: near_cq,
            words: near_words,
            share: length / count,
            imm: mask << 8 | units << (8 + count),
            slots: vec![0; SLOTS],
            next: 0,
            oldest: 0,
            messages,
            keys: keys(),
        };
        Self { receiver, sender }
    }

    /// Polls until the receives of the burst before are done, and offers the buffers again.
    #[inline(never)]
    pub fn receive(&mut self) -> Reported {
        let reported = self.receiver.take_all();
        self.receiver.offer_all();
        reported
    }

    /// Polls until the sends of the burst before are done, and sends to the buffers that are
    /// offered.
    #[inline(never)]
    pub fn send(&mut self) -> Reported {
        let reported = self.sender.take_all();
        self.sender.send_all();
        reported
    }
}

impl<Q: QueuePair, C: CompletionQueue, S: ReceiveQueue> Receiver<Q, C, S> {
    #[inline]
    fn take_all(&mut self) -> Reported {
        let mut reported = Reported::default();
        while self.oldest < self.next {
            self.poll();
            while self.oldest < self.next {
                let slot = self.slots[self.oldest as usize % SLOTS];
                if slot.mask == 0 || slot.seen != slot.mask {
                    break;
                }
                self.oldest += 1;
                reported.note(self.oldest + u64::from(slot.bytes), WcStatus::SUCCESS);
            }
        }
        reported
    }

    #[inline]
    fn poll(&mut self) {
        let Self { cq, rails, slots, posted, waiting, .. } = self;
        poll(cq, |completion| {
            check(completion.wr_id, completion.status);
            // An entry that was written makes room in the queue, of which there is enough.
            if completion.wr_id == RECEIVE {
                *posted -= 1;
                *waiting -= u32::from(arrive(rails, slots, completion));
            }
        });
        self.refill();
    }

    /// Receives for every message under way, a batch at a time.
    #[inline]
    fn refill(&mut self) {
        let wanted = self.waiting * self.rails.len() as u32;
        if self.posted >= wanted.max(self.low_water) {
            return;
        }
        let mut batch = self.srq.start_recv();
        for _ in self.posted..self.high_water {
            batch.add(&RecvRequest { wr_id: RECEIVE, sge: Sge::EMPTY });
        }
        batch.commit().expect("the null device takes everything");
        self.posted = self.high_water;
    }

    /// Writes the first entry, which the sender may wait for, then all others with one request.
    #[inline]
    fn offer_all(&mut self) {
        self.offer(self.targets[0]);
        self.write(1);
        for at in 1..self.targets.len() {
            self.offer(self.targets[at]);
        }
        self.poll();
        self.write(self.targets.len() - 1);
    }

    /// Makes the entry for a buffer.
    #[inline]
    fn offer(&mut self, target: LocalBuffer) {
        let slot = self.next as usize % SLOTS;
        self.next += 1;
        self.waiting += 1;
        self.refill();
        self.slots[slot] = Arriving::default();
        let entry = slot * WORDS;
        let place: &[_; WORDS] = self.words[RECORDS + entry..].first_chunk().expect("a ring");
        let keys = self.keys[self.rails[0].keys_at];
        let length = u64::from(target.length());
        let mut words = [target.addr(), length, u64::from(keys.rkey), 0, 0, 0, 1, 0];
        words[WORDS - 1] = self.next.wrapping_add(entry_hash(&words));
        for (place, word) in place.iter().zip(words) {
            place.store(word.to_le(), Ordering::Relaxed);
        }
    }

    /// Writes the newest entries, which are neighbours: the number of slots is a multiple of a
    /// burst.
    #[inline]
    fn write(&mut self, count: usize) {
        let entry = (self.next as usize - count) % SLOTS * WORDS;
        let place = &self.words[RECORDS + entry];
        let rail = &mut self.rails[0];
        let keys = self.keys[rail.keys_at];
        self.unsignaled += 1;
        let is_due = self.unsignaled == self.quarter;
        if is_due {
            self.unsignaled = 0;
        }
        let (ring, rkey) = self.ring;
        // SAFETY: the null device, on which alone this is posted, does not follow addresses.
        let local =
            unsafe { LocalBuffer::new(place.as_ptr().addr() as u64, (count * ENTRY_BYTES) as u32) };
        let request = SendRequest {
            wr_id: self.next,
            flags: if is_due { SendFlags::SIGNALED } else { SendFlags::empty() },
            sge: local.sge(keys.lkey),
            remote_addr: ring + (entry * 8) as u64,
            rkey,
            ..BLANK_REQUEST
        };
        post_one(&mut rail.qp, &request);
    }
}

/// A share arrived. Returns whether all of its message has.
#[inline]
fn arrive<Q: QueuePair>(
    rails: &[Rail<Q>],
    slots: &mut [Arriving],
    completion: &Completion,
) -> bool {
    let rail = rails.iter().position(|rail| rail.qp.qp_num() == completion.qp_num);
    let rail = rail.expect("one of ours");
    let imm = completion.imm.number();
    let slot = &mut slots[imm as usize % SLOTS];
    slot.mask = imm >> 8 & ((1 << rails.len()) - 1);
    slot.seen |= 1 << rail;
    slot.bytes += completion.byte_len;
    slot.seen == slot.mask
}

impl<Q: QueuePair, C: CompletionQueue> Sender<Q, C> {
    #[inline]
    fn take_all(&mut self) -> Reported {
        let mut reported = Reported::default();
        while self.oldest < self.next {
            let Self { cq, slots, .. } = self;
            poll(cq, |completion| {
                check(completion.wr_id, completion.status);
                slots[completion.wr_id as usize] -= 1;
            });
            while self.oldest < self.next && self.slots[self.oldest as usize % SLOTS] == 0 {
                self.oldest += 1;
                reported.note(self.oldest, WcStatus::SUCCESS);
            }
        }
        reported
    }

    #[inline]
    fn send_all(&mut self) {
        for at in 0..OUTSTANDING.min(self.messages.len()) {
            self.send(at);
        }
    }

    /// Sends a message, in even shares, to the buffer that is next.
    #[inline]
    fn send(&mut self, at: usize) {
        let slot = self.next as usize % SLOTS;
        let entry = load(&self.words[slot * WORDS..], self.next + 1).expect("it is offered");
        self.next += 1;
        self.slots[slot] = self.rails.len() as u32;
        let message = Message { remote_addr: entry[0], ..self.messages[at] };
        let mut offset = 0;
        for rail in &mut self.rails {
            let keys = DeviceKeys { rkey: entry[2] as u32, ..self.keys[rail.keys_at] };
            let share = (&message, offset, self.share);
            let request = SendRequest {
                opcode: Opcode::RdmaWriteWithImm,
                imm: Imm::from_number(self.imm | slot as u32),
                ..write(share, slot as u64, keys, SendFlags::SIGNALED)
            };
            post_one(&mut rail.qp, &request);
            offset += self.share;
        }
    }
}

/// Copies an entry, if it is there.
#[inline]
fn load(words: &[AtomicU64], number: u64) -> Option<[u64; WORDS]> {
    let place: &[_; WORDS] = words.first_chunk()?;
    let last = u64::from_le(place[WORDS - 1].load(Ordering::Acquire));
    let mut entry = [0; WORDS];
    for (word, place) in entry.iter_mut().zip(&place[..WORDS - 1]) {
        *word = u64::from_le(place.load(Ordering::Relaxed));
    }
    (last.wrapping_sub(entry_hash(&entry)) == number).then_some(entry)
}
