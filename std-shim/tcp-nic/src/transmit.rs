//! The write half of a connection: makes frames, and gives them to the socket.

use crate::outgoing::{Buffers, Frame, Outgoing, Source, Vanished};
use crate::responder::Answer;
use crate::shared::{QpShared, Queues};
use crate::socket::Moved;
use crate::wire::{HEADER, Header, Kind, LAST};
use polyrail_core::verbs::WcStatus;
use polyrail_nic_parts::error::vendor;
use polyrail_nic_parts::memory::MemoryTable;
use polyrail_nic_parts::state::QpState;
use polyrail_nic_parts::sync::{lock, read};
use std::sync::atomic::Ordering;

/// Bytes that one call sends before it leaves the rest to the I/O thread, so that a post takes a
/// bounded time.
const TURN: usize = 8 << 20;

/// Bytes of frames that wait, when no more are made. More than a socket buffer usually takes would
/// only make later acknowledgements wait.
const BATCH: usize = 1 << 20;

/// Sends what has to be sent, unless another thread does so, which then looks again. Must be called
/// without locks but that of the read half.
pub(crate) fn run(qp: &QpShared) {
    qp.write.run(|half| send(qp, half));
}

/// Waits until a thread that sends has counted what it sent. Must be called without locks but that
/// of the read half.
pub(crate) fn wait_for_sender(qp: &QpShared) {
    drop(qp.write.lock());
}

/// Sends until there is nothing to send or the socket is full.
pub(crate) fn send(qp: &QpShared, half: &mut Outgoing) {
    let Some(socket) = qp.socket.get() else { return };
    if !qp.device.carries() {
        return;
    }
    if qp.is_full.load(Ordering::Relaxed) {
        if !qp.is_writable.swap(false, Ordering::Acquire) {
            return;
        }
        qp.set_full(false);
    }
    let mut total = 0;
    loop {
        let mut buffers = Buffers::new();
        let memory = read(&qp.device.memory);
        {
            let mut queues = lock(&qp.queues);
            if !make_frames(qp, &mut queues, half, &memory) {
                return;
            }
            let collected = half.collect(&mut buffers, &queues.requester, qp.domain, &memory);
            if let Err(vanished) = collected {
                give_up(qp, &mut queues, half, vanished);
                continue;
            }
        }
        // SAFETY: the buffers are headers in `half`, inline bytes of the queue pair, or in regions
        // that stay registered while the table is locked.
        let moved = unsafe { socket.send(buffers.as_slice()) };
        drop(memory);
        match moved {
            Moved::Bytes(bytes) => {
                total += bytes;
                let mut queues = lock(&qp.queues);
                half.advance(bytes, |position, epoch| {
                    queues.requester.transmitted(position, epoch);
                });
                drop(queues);
                if half.is_empty() && qp.ends_sending.swap(false, Ordering::AcqRel) {
                    socket.end_sending();
                }
                if total >= TURN {
                    qp.set_full(true);
                    return;
                }
            }
            Moved::Nothing => {
                qp.set_full(true);
                return;
            }
            Moved::Fault => {
                // Which frame's memory it is, the system does not say.
                let position = half.first_request();
                half.clear();
                let mut queues = lock(&qp.queues);
                give_up(qp, &mut queues, half, Vanished { position, vendor: vendor::MEMORY_FAULT });
                queues.requester.lose(vendor::MEMORY_FAULT);
                qp.close();
                return;
            }
            Moved::Ended => {
                // Frames that the peer sent before may still be unread, so the reader reports the
                // end of the connection.
                half.clear();
                qp.is_full.store(true, Ordering::Relaxed);
                return;
            }
        }
    }
}

/// Makes as many frames as fit. Returns false if there is nothing to send.
fn make_frames(
    qp: &QpShared,
    queues: &mut Queues,
    half: &mut Outgoing,
    memory: &MemoryTable,
) -> bool {
    queues.gathered = 0;
    if half.drop_stale(&queues.requester) {
        queues.responder.drop_acknowledgement();
    }
    let mut bytes = half.bytes();
    while half.has_room() && bytes < BATCH {
        let Some(frame) = next_frame(qp, queues, memory) else { break };
        bytes += HEADER + frame.length as usize;
        half.push(frame);
    }
    let holds_acknowledgement = qp.holds_acknowledgement.load(Ordering::SeqCst);
    if half.is_empty() && queues.responder.owes_acknowledgement() && !holds_acknowledgement {
        half.push(Frame::bare(&acknowledging(queues, Header::new(Kind::Ack, 0))));
    }
    !half.is_empty()
}

fn acknowledging(queues: &mut Queues, header: Header) -> Header {
    Header { acked: queues.responder.acknowledge(), ..header }
}

/// Makes the next frame: a control message, or in turn a response and a request.
fn next_frame(qp: &QpShared, queues: &mut Queues, memory: &MemoryTable) -> Option<Frame> {
    if let Some(control) = queues.responder.next_control() {
        return Some(Frame::bare(&acknowledging(queues, control)));
    }
    let response_first = !std::mem::take(&mut queues.response_was_last);
    if response_first && let Some(frame) = next_response(queues) {
        return Some(frame);
    }
    if let Some(frame) = next_request(qp, queues, memory) {
        return Some(frame);
    }
    if !response_first && let Some(frame) = next_response(queues) {
        return Some(frame);
    }
    let refusal = queues.responder.next_refusal()?;
    qp.ends_sending.store(true, Ordering::Release);
    Some(Frame::bare(&acknowledging(queues, refusal)))
}

fn next_response(queues: &mut Queues) -> Option<Frame> {
    let (header, answer) = queues.responder.next_response()?;
    queues.response_was_last = true;
    let header = acknowledging(queues, header);
    let source = match answer {
        Answer::Nothing => Source::Nothing,
        Answer::Remote { addr, rkey } => Source::Remote { addr, rkey },
        Answer::Word(old) => {
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&old.to_le_bytes());
            Source::Operands(bytes)
        }
    };
    Some(Frame { source, ..Frame::bare(&header) })
}

fn next_request(qp: &QpShared, queues: &mut Queues, memory: &MemoryTable) -> Option<Frame> {
    if qp.state.get() != QpState::Rts {
        return None;
    }
    let made = queues.requester.next_frame(&qp.limits, qp.domain, memory);
    let Some(made) = made else {
        if queues.requester.due_failure().is_some() {
            qp.note_failure();
        }
        return None;
    };
    let request = queues.requester.ring.get(made.position);
    let source = if made.header.kind.is_atomic() {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&request.compare_add.to_le_bytes());
        bytes[8..].copy_from_slice(&request.swap.to_le_bytes());
        Source::Operands(bytes)
    } else if made.header.length > 0 {
        Source::Request { position: made.position, offset: made.header.offset }
    } else {
        Source::Nothing
    };
    let is_last = made.header.has(LAST);
    let header = acknowledging(queues, made.header);
    Some(Frame {
        source,
        last_of: is_last.then_some(made.position),
        epoch: Some(made.epoch),
        ..Frame::bare(&header)
    })
}

/// Acts on a frame whose memory is not registered any more. A frame that was begun cannot be
/// finished, so the connection ends.
fn give_up(qp: &QpShared, queues: &mut Queues, half: &mut Outgoing, vanished: Vanished) {
    if let Some(position) = vanished.position {
        queues.requester.fail_at(position, WcStatus::LOC_PROT_ERR, vanished.vendor);
        queues.requester.take_back(position);
    }
    if half.is_begun() || vanished.position.is_none() {
        half.clear();
        queues.requester.lose(vanished.vendor);
        qp.close();
    }
    qp.note_failure();
}
