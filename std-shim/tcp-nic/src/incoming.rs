//! The read half of a connection: takes frames from the socket, places their payload, and lets the
//! queues act on them.
//!
//! Small frames go through a buffer. When a frame's payload is not in the buffer whole, one system
//! call reads its rest into its place in registered memory, and what follows into the buffer.

use crate::arrival;
use crate::outgoing::Buffers;
use crate::read_half::{BUFFER, Current, Mode, ReadHalf, Stop, Target};
use crate::requester::Acked;
use crate::shared::QpShared;
use crate::socket::Moved;
use crate::transmit;
use crate::wire::{HEADER, Header, Kind, Malformed};
use polyrail_nic_parts::dma::Span;
use polyrail_nic_parts::error::vendor;
use polyrail_nic_parts::memory::MemoryTable;
use polyrail_nic_parts::sync::{lock, read};
use std::sync::atomic::{AtomicU64, Ordering};

/// Payload of a frame in bytes from which on the frames after it are expected to be long, too.
const LONG: u32 = 16 << 10;

/// Bytes of the buffer that are used while long frames come: the next header and little of its
/// payload, whose rest goes to its place without a copy.
const AHEAD: usize = 512;

/// Bytes that one call of [`run`] reads, so that other connections get their turn.
const TURN: usize = 4 << 20;

/// Counts turns in which payload was placed. A poll reads it, so that the bytes which another
/// thread placed are visible to the owner of the completions that follow them: the peer sends a
/// notification over one connection after data over another one was acknowledged.
static PLACED: AtomicU64 = AtomicU64::new(0);

/// Makes visible what all threads have placed before.
pub(crate) fn observe_placed() {
    PLACED.load(Ordering::Acquire);
}

/// Bytes that are discarded after a refusal, before the connection is reset: more than a peer
/// has in its socket buffer (`net.ipv4.tcp_wmem`: 4 MiB).
const MOST_DISCARDED: usize = 16 << 20;

impl ReadHalf {
    /// Takes frames from the buffer until it holds none whole, apart from payload.
    fn take_frames(&mut self, qp: &QpShared, memory: &MemoryTable) -> Result<(), Stop> {
        loop {
            if let Some(current) = self.current {
                let count = self.buffered().min(current.rest() as usize);
                self.place(qp, memory, current, count)?;
                if self.current.is_some() {
                    return Ok(());
                }
            }
            let Some(bytes) = self.buffer[self.start..self.end].first_chunk::<HEADER>() else {
                return Ok(());
            };
            let header = Header::decode(bytes)?;
            let target = {
                let mut queues = lock(&qp.queues);
                if queues.requester.on_acked(header.acked)? == Acked::Ahead {
                    return Err(Stop::Ahead);
                }
                qp.complete_done(&mut queues);
                self.start += HEADER;
                arrival::begin(qp, self, &mut queues, &header, memory)?
            };
            self.current = Some(Current { header, target, placed: 0 });
            if header.kind.carries_data() || header.kind == Kind::ReadResponse {
                self.expects_long = header.length >= LONG;
            }
            if header.length == 0 {
                self.finish(qp, memory)?;
            }
        }
    }

    /// Places `count` bytes from the buffer.
    fn place(
        &mut self,
        qp: &QpShared,
        memory: &MemoryTable,
        current: Current,
        count: usize,
    ) -> Result<(), Stop> {
        let mut from = self.start;
        let part = (current.placed, count as u32);
        if current.target == Target::Operands {
            let at = current.placed as usize;
            self.operands[at..at + count].copy_from_slice(&self.buffer[from..from + count]);
        } else {
            let buffer = &self.buffer;
            let mut place = |span: Span<'_>| {
                span.write(&buffer[from..from + span.len()]);
                from += span.len();
            };
            self.pieces(qp, memory, &current, part, &mut place)?;
        }
        self.start += count;
        self.placed(qp, memory, count as u32)
    }

    /// Passes the places of a part of the current frame's payload. Discarded payload has none.
    fn pieces(
        &self,
        qp: &QpShared,
        memory: &MemoryTable,
        current: &Current,
        (skip, length): (u32, u32),
        pass: &mut dyn FnMut(Span<'_>),
    ) -> Result<(), Stop> {
        arrival::pieces(qp, self, memory, &current.header, current.target, (skip, length), pass)
            .map_err(Stop::Vanished)
    }

    /// Records that this many bytes of the current frame are in place.
    fn placed(&mut self, qp: &QpShared, memory: &MemoryTable, count: u32) -> Result<(), Stop> {
        let Some(current) = &mut self.current else { return Ok(()) };
        current.placed += count;
        if current.rest() == 0 { self.finish(qp, memory) } else { Ok(()) }
    }

    /// Acts on the current frame, whose payload is in place.
    fn finish(&mut self, qp: &QpShared, memory: &MemoryTable) -> Result<(), Stop> {
        let Some(Current { header, target, .. }) = self.current.take() else { return Ok(()) };
        if target == Target::Discard {
            return Ok(());
        }
        let mut queues = lock(&qp.queues);
        arrival::finish(qp, self, &mut queues, &header, target, memory)?;
        qp.complete_done(&mut queues);
        Ok(())
    }

    /// Takes frames from the buffer, and reads more if it may.
    fn step(&mut self, qp: &QpShared, may_read: bool) -> Result<Moved, Stop> {
        let memory = read(&qp.device.memory);
        self.take_frames(qp, &memory)?;
        if may_read { self.read_once(qp, &memory) } else { Ok(Moved::Nothing) }
    }

    /// Reads once: the rest of the current frame into its place, and what follows into the buffer.
    fn read_once(&mut self, qp: &QpShared, memory: &MemoryTable) -> Result<Moved, Stop> {
        let Some(socket) = qp.socket.get() else { return Ok(Moved::Nothing) };
        self.make_room();
        let mut buffers = Buffers::new();
        let mut direct = 0;
        if let Some(current) = self.current.filter(|current| current.target.is_memory()) {
            direct = current.rest() as usize;
            let part = (current.placed, current.rest());
            let mut push = |span: Span<'_>| buffers.push(span.as_ptr(), span.len());
            self.pieces(qp, memory, &current, part, &mut push)?;
        }
        let is_placed = self.current.is_none_or(|current| current.target.is_memory());
        let ahead = if self.expects_long && is_placed { self.end + AHEAD } else { BUFFER };
        let room = &mut self.buffer[self.end..ahead.min(BUFFER)];
        let most = direct + room.len();
        buffers.push(room.as_mut_ptr(), room.len());
        // SAFETY: the places are in regions that stay registered while the table is locked, or are
        // the buffer, which is borrowed; peers and programs access regions in races only.
        let moved = unsafe { socket.receive(buffers.as_slice()) };
        if moved == Moved::Fault {
            return Err(Stop::Vanished(vendor::MEMORY_FAULT));
        }
        if let Moved::Bytes(bytes) = moved {
            let in_place = bytes.min(direct);
            self.end += bytes - in_place;
            self.may_be_more = bytes == most;
            if in_place > 0 {
                self.placed(qp, memory, in_place as u32)?;
            }
        }
        Ok(moved)
    }

    fn make_room(&mut self) {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
    }

    /// Discards what has come. Returns false when the connection has ended, or is ended because too
    /// much came.
    fn discard_some(&mut self, qp: &QpShared) -> bool {
        let Some(socket) = qp.socket.get() else { return false };
        let mut buffers = Buffers::new();
        buffers.push(self.buffer.as_mut_ptr(), self.buffer.len());
        for _ in 0..TURN / BUFFER {
            // SAFETY: the buffer is borrowed exclusively.
            match unsafe { socket.receive(buffers.as_slice()) } {
                Moved::Bytes(bytes) => self.discarded += bytes,
                Moved::Nothing => return true,
                Moved::Ended | Moved::Fault => return false,
            }
            if self.discarded > MOST_DISCARDED {
                socket.reset();
                return false;
            }
        }
        true
    }
}

/// Takes what has come, if no other thread does so. Returns whether anything has. Must be called
/// without locks.
pub(crate) fn run(qp: &QpShared) -> bool {
    if !qp.device.carries() {
        return false;
    }
    let Ok(mut half) = qp.read.try_lock() else { return false };
    match half.mode {
        Mode::Ended => return false,
        Mode::Discarding => {
            if !half.discard_some(qp) {
                half.end();
                qp.close();
            }
            return true;
        }
        Mode::Working => {}
    }
    if !qp.state.get().receives() {
        return false;
    }
    let mut total = 0;
    let mut has_ended = false;
    let mut may_read = true;
    let stopped = loop {
        match half.step(qp, may_read) {
            Ok(Moved::Bytes(bytes)) => {
                total += bytes;
                may_read = half.may_be_more && total < TURN;
            }
            Ok(Moved::Nothing) => break None,
            Ok(Moved::Ended | Moved::Fault) => {
                half.end();
                qp.lose(vendor::PEER_GONE);
                has_ended = true;
                break None;
            }
            Err(Stop::Ahead) if half.is_ahead(qp) => {
                break Some(Stop::Malformed(Malformed("what was not sent is acknowledged")));
            }
            Err(Stop::Ahead) => {}
            Err(stop) => break Some(stop),
        }
    };
    if total > 0 {
        PLACED.fetch_add(1, Ordering::Release);
    }
    let has_come = total > 0 || has_ended || stopped.is_some();
    match stopped {
        None => {}
        Some(Stop::Refused) => half.discard(),
        Some(Stop::Vanished(vendor)) if arrival::refuse_vanished(qp, &mut half, vendor) => {
            half.discard();
        }
        Some(stop) => {
            half.end();
            let vendor = match stop {
                Stop::Vanished(vendor) => vendor,
                Stop::Malformed(Malformed(why)) => {
                    qp.protocol_error.get_or_init(|| why);
                    vendor::PEER_PROTOCOL
                }
                Stop::Refused | Stop::Ahead => vendor::PEER_PROTOCOL,
            };
            qp.lose(vendor);
        }
    }
    has_come
}

impl ReadHalf {
    /// Waits for a thread that transmits, and returns whether the next frame still acknowledges
    /// more than was transmitted.
    fn is_ahead(&self, qp: &QpShared) -> bool {
        transmit::wait_for_sender(qp);
        let Some(bytes) = self.buffer[self.start..self.end].first_chunk::<HEADER>() else {
            return false;
        };
        let Ok(header) = Header::decode(bytes) else { return true };
        lock(&qp.queues).requester.on_acked(header.acked) != Ok(Acked::Taken)
    }
}
