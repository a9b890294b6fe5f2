//! Random traffic over one connection, checked byte by byte and size by size.

use crate::random::Random;
use crate::ranks::{Memory, Pair, until};
use crate::table::Pointer;
use std::collections::VecDeque;
use std::ffi::c_int;

/// Bytes of the longest message.
const LONGEST: usize = 300_000;

/// Bytes on either side: a buffer for each of this many receives of eight.
const UNDER_WAY: usize = 32;

/// What one rank sends to the buffers of one receive of the other.
struct Message {
    /// Of each buffer: tag, bytes that it holds, bytes that are sent.
    parts: Vec<(c_int, usize, usize)>,
    /// In which order the buffers are sent.
    order: Vec<usize>,
    /// Where it is on either side.
    place: usize,
    sends: Vec<Pointer>,
    receive: Option<Pointer>,
}

/// What happens between calls.
pub(crate) trait Meanwhile {
    /// So many messages are done.
    fn done(&mut self, messages: usize);
}

impl Meanwhile for () {
    fn done(&mut self, _: usize) {}
}

fn size(random: &mut Random) -> usize {
    match random.below(8) {
        0 => 0,
        1 => random.below(64),
        2 => 128 * random.below(200),
        3 => LONGEST - random.below(1000),
        _ => random.below(20_000),
    }
}

fn message(random: &mut Random, place: usize) -> Message {
    let count = if random.below(2) == 0 { 1 } else { 1 + random.below(8) };
    let mut parts = Vec::new();
    for _ in 0..count {
        let sent = size(random);
        let tag = 100 + parts.len() as c_int;
        let holds = (sent + random.below(2) * random.below(5000)).min(LONGEST);
        parts.push((tag, holds, sent));
    }
    let mut order: Vec<usize> = (0..count).collect();
    random.shuffle(&mut order);
    Message { parts, order, place, sends: Vec::new(), receive: None }
}

/// Sends this many messages, and checks all of them.
pub(crate) fn run(pair: &Pair, messages: usize, seed: u64, meanwhile: &mut dyn Meanwhile) {
    let mut random = Random(seed);
    let stride = 8 * LONGEST;
    let [mut from, mut to] = pair.memories(UNDER_WAY * stride);
    random.fill(&mut from.bytes);
    let mut made = 0;
    let mut done = 0;
    // Receives that are offered, of which the first `sending` have sends.
    let mut offered: VecDeque<Message> = VecDeque::new();
    let mut waiting: Option<Message> = None;
    while done < messages {
        until("one more step", || {
            let before =
                (made, done, offered.iter().map(|message| message.sends.len()).sum::<usize>());
            if waiting.is_none() && made < messages && offered.len() < UNDER_WAY {
                waiting = Some(message(&mut random, made % UNDER_WAY));
                made += 1;
            }
            if let Some(message) = &mut waiting {
                let buffers = buffers(message, &mut to, stride);
                message.receive = pair.irecv(&buffers);
                if message.receive.is_some() {
                    offered.extend(waiting.take());
                }
            }
            send(pair, &mut offered, &mut from, stride, &mut random);
            while let Some(message) = offered.front_mut() {
                if !is_done(pair, message, &from, &to, stride) {
                    break;
                }
                offered.pop_front();
                done += 1;
                meanwhile.done(done);
            }
            let after =
                (made, done, offered.iter().map(|message| message.sends.len()).sum::<usize>());
            (before != after || done == messages).then_some(())
        });
    }
    assert_eq!(pair.table.dereg_mr(pair.send, from.handle), 0);
    assert_eq!(pair.table.dereg_mr(pair.recv, to.handle), 0);
}

fn at(message: &Message, part: usize, stride: usize) -> usize {
    message.place * stride + part * LONGEST
}

fn buffers(
    message: &Message,
    to: &mut Memory,
    stride: usize,
) -> Vec<(Pointer, usize, c_int, Pointer)> {
    let mut buffers = Vec::new();
    for (part, &(tag, holds, _)) in message.parts.iter().enumerate() {
        let offset = at(message, part, stride);
        to.bytes[offset..offset + holds].fill(0x5a);
        buffers.push((to.at(offset), holds, tag, to.handle));
    }
    buffers
}

/// Sends what can be sent now: all buffers of one receive before those of the next.
fn send(
    pair: &Pair,
    offered: &mut VecDeque<Message>,
    from: &mut Memory,
    stride: usize,
    random: &mut Random,
) {
    for message in offered.iter_mut() {
        while message.sends.len() < message.parts.len() {
            let part = message.order[message.sends.len()];
            let (tag, _, bytes) = message.parts[part];
            // Nobody offers a buffer of this tag: not now, and nothing else.
            if random.below(16) == 0 {
                let nobodys = pair.isend((from.at(0), 0), 99, from.handle);
                assert_eq!(nobodys, None, "a tag that nobody offers");
            }
            let offset = at(message, part, stride);
            match pair.isend((from.at(offset), bytes), tag, from.handle) {
                Some(request) => message.sends.push(request),
                None => return,
            }
        }
    }
}

/// Whether all of it has arrived: then it is checked.
fn is_done(pair: &Pair, message: &mut Message, from: &Memory, to: &Memory, stride: usize) -> bool {
    if message.sends.len() < message.parts.len() {
        return false;
    }
    // Each call tests all of them, as the two proxies of NCCL would: software NICs send only while
    // the sending end is polled, and a test that finds its request done may not poll.
    let mut are_sent = true;
    let parts = message.order.clone();
    for (request, part) in message.sends.iter_mut().zip(parts) {
        if !request.is_null() {
            match pair.test(*request) {
                Some(sizes) => {
                    assert_eq!(sizes[0], message.parts[part].2 as c_int);
                    *request = Pointer::default();
                }
                None => are_sent = false,
            }
        }
    }
    if let Some(receive) = message.receive {
        let Some(sizes) = pair.test(receive) else { return false };
        message.receive = None;
        for (part, &(_, holds, sent)) in message.parts.iter().enumerate() {
            let offset = at(message, part, stride);
            assert_eq!(sizes[part], sent as c_int, "part {part} of {}", message.parts.len());
            assert!(from.bytes[offset..offset + sent] == to.bytes[offset..offset + sent]);
            let behind = &to.bytes[offset + sent..offset + holds];
            assert!(behind.iter().all(|byte| *byte == 0x5a), "nothing is written behind a message");
        }
    }
    are_sent
}
