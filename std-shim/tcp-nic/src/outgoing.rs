//! Frames on their way to the socket.
//!
//! A frame is made from what the queues know, and from then on it is sent whole, unless it was not
//! begun. Its payload stays in registered memory: for each system call, the keys are checked again
//! and the addresses are collected.

use crate::requester::Requester;
use crate::wire::{HEADER, Header, OPERANDS};
use libc::iovec;
use polyrail_core::hardware::assume_init_slice;
use polyrail_core::verbs::AccessFlags;
use polyrail_nic_parts::dma::Span;
use polyrail_nic_parts::memory::{DomainId, MemoryTable, Range};
use std::collections::VecDeque;
use std::mem::MaybeUninit;

/// Frames that are made at once.
pub(crate) const MOST_FRAMES: usize = 64;

/// Buffers of one system call, far below the system's limit (`UIO_MAXIOV`, 1024): a header and one
/// buffer for each frame, or lists of buffers in a few frames.
pub(crate) const MOST_BUFFERS: usize = 256;

/// Where the payload of a frame comes from.
#[derive(Debug)]
pub(crate) enum Source {
    /// There is none.
    Nothing,
    /// The buffers of the request at this position, from this offset.
    Request { position: u64, offset: u32 },
    /// Memory that the peer reads.
    Remote { addr: u64, rkey: u32 },
    /// The operands or the old value of an atomic.
    Operands([u8; OPERANDS as usize]),
    /// A copy of the rest of a frame whose request has failed.
    Copied(Box<[u8]>),
}

#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) header: [u8; HEADER],
    pub(crate) length: u32,
    pub(crate) source: Source,
    /// The request, if it is the last frame of one.
    pub(crate) last_of: Option<u64>,
    /// The epoch of the requests, if it is a frame of a request.
    pub(crate) epoch: Option<u32>,
}

impl Frame {
    /// Makes a frame without payload.
    pub(crate) fn bare(header: &Header) -> Self {
        Self {
            header: header.encode(),
            length: header.length,
            source: Source::Nothing,
            last_of: None,
            epoch: None,
        }
    }

    fn bytes(&self) -> usize {
        HEADER + self.length as usize
    }
}

/// A frame cannot be sent, because its memory is not registered any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Vanished {
    /// The request whose buffer it is; `None`: the peer reads the memory.
    pub(crate) position: Option<u64>,
    /// `vendor_err`.
    pub(crate) vendor: u32,
}

/// The buffers of one system call.
pub(crate) struct Buffers {
    /// The first `count` are initialized: to initialize all takes as long as a system call that
    /// finds nothing.
    list: [MaybeUninit<iovec>; MOST_BUFFERS],
    count: usize,
}

impl Buffers {
    pub(crate) const fn new() -> Self {
        Self { list: [const { MaybeUninit::uninit() }; MOST_BUFFERS], count: 0 }
    }

    pub(crate) fn as_slice(&self) -> &[iovec] {
        // SAFETY: `push` initializes an element before it counts it.
        unsafe { assume_init_slice(&self.list[..self.count]) }
    }

    fn has_room(&self, buffers: usize) -> bool {
        self.count + buffers <= MOST_BUFFERS
    }

    pub(crate) fn push(&mut self, start: *mut u8, length: usize) {
        if length > 0 && self.count < MOST_BUFFERS {
            self.list[self.count].write(iovec { iov_base: start.cast(), iov_len: length });
            self.count += 1;
        }
    }
}

/// The frames, oldest first, and how much of the first one was sent.
#[derive(Debug)]
pub(crate) struct Outgoing {
    frames: VecDeque<Frame>,
    sent: usize,
}

impl Outgoing {
    pub(crate) fn new() -> Self {
        Self { frames: VecDeque::with_capacity(MOST_FRAMES), sent: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    pub(crate) fn has_room(&self) -> bool {
        self.frames.len() < MOST_FRAMES
    }

    /// Bytes that wait.
    pub(crate) fn bytes(&self) -> usize {
        self.frames.iter().map(Frame::bytes).sum::<usize>() - self.sent
    }

    pub(crate) fn push(&mut self, frame: Frame) {
        self.frames.push_back(frame);
    }

    pub(crate) fn is_begun(&self) -> bool {
        self.sent > 0
    }

    /// Drops frames of requests that were taken back, unless they were begun. Returns whether there
    /// were any.
    pub(crate) fn drop_stale(&mut self, requester: &Requester) -> bool {
        let begun = usize::from(self.is_begun());
        let before = self.frames.len();
        let mut index = 0;
        self.frames.retain(|frame| {
            index += 1;
            index <= begun || frame.epoch.is_none_or(|epoch| requester.is_current(epoch))
        });
        self.frames.len() < before
    }

    /// Returns the oldest request of which a frame waits with its bytes.
    pub(crate) fn first_request(&self) -> Option<u64> {
        self.frames.iter().find_map(|frame| match frame.source {
            Source::Request { position, .. } => Some(position),
            _ => None,
        })
    }

    pub(crate) fn clear(&mut self) {
        self.frames.clear();
        self.sent = 0;
    }

    /// Drops all frames but responses. A frame that was begun is kept with a copy of its rest, so
    /// that frames can follow it. Returns false if its memory is not registered any more.
    pub(crate) fn keep_responses(
        &mut self,
        requester: &Requester,
        domain: DomainId,
        memory: &MemoryTable,
    ) -> bool {
        if self.is_begun()
            && let Some(first) = self.frames.front_mut()
            && first.epoch.is_some()
        {
            let skip = self.sent.saturating_sub(HEADER);
            let mut rest = vec![0; first.length as usize];
            let mut at = 0;
            let mut copy = |span: Span<'_>| {
                span.read(&mut rest[at..at + span.len()]);
                at += span.len();
            };
            let payload = (skip, first.length as usize - skip);
            if pieces(first, payload, requester, domain, memory, &mut copy).is_err() {
                return false;
            }
            // The bytes before `skip` are sent and never read again.
            rest.rotate_right(skip);
            first.source = Source::Copied(rest.into_boxed_slice());
            (first.last_of, first.epoch) = (None, None);
        }
        self.frames.retain(|frame| frame.epoch.is_none());
        true
    }

    /// Collects the bytes to send.
    ///
    /// # Errors
    ///
    /// The memory of the first frame is not registered any more. If it is that of a later frame,
    /// the frames before it are collected.
    pub(crate) fn collect(
        &self,
        buffers: &mut Buffers,
        requester: &Requester,
        domain: DomainId,
        memory: &MemoryTable,
    ) -> Result<(), Vanished> {
        let mut skip = self.sent;
        for (index, frame) in self.frames.iter().enumerate() {
            let most = match frame.source {
                Source::Request { position, .. } => requester.ring.list(position).len().max(1),
                _ => 1,
            };
            if !buffers.has_room(most + 1) {
                return Ok(());
            }
            let header = &frame.header[skip.min(HEADER)..];
            buffers.push(header.as_ptr().cast_mut(), header.len());
            let skipped = skip.saturating_sub(HEADER);
            skip = 0;
            let count = buffers.count;
            let payload = (skipped, frame.length as usize - skipped);
            let mut push = |span: Span<'_>| buffers.push(span.as_ptr(), span.len());
            if let Err(vanished) = pieces(frame, payload, requester, domain, memory, &mut push) {
                if index == 0 {
                    return Err(vanished);
                }
                // Without the header of the frame that cannot be sent.
                buffers.count = count - 1;
                return Ok(());
            }
        }
        Ok(())
    }

    /// Records that this many bytes were sent, and calls `transmitted` with each request whose last
    /// frame is among them, and its epoch.
    pub(crate) fn advance(&mut self, bytes: usize, mut transmitted: impl FnMut(u64, u32)) {
        self.sent += bytes;
        while let Some(first) = self.frames.front() {
            let length = first.bytes();
            if self.sent < length {
                break;
            }
            if let (Some(position), Some(epoch)) = (first.last_of, first.epoch) {
                transmitted(position, epoch);
            }
            self.sent -= length;
            self.frames.pop_front();
        }
    }
}

/// Passes the parts of the memory of a frame's payload, `length` bytes after the first `skip`.
fn pieces(
    frame: &Frame,
    (skip, length): (usize, usize),
    requester: &Requester,
    domain: DomainId,
    memory: &MemoryTable,
    pass: &mut impl FnMut(Span<'_>),
) -> Result<(), Vanished> {
    if length == 0 {
        return Ok(());
    }
    match &frame.source {
        Source::Nothing => {}
        Source::Operands(bytes) => pass(span_of(&bytes[skip..skip + length])),
        Source::Copied(bytes) => pass(span_of(&bytes[skip..skip + length])),
        &Source::Remote { addr, rkey } => {
            let range = Range { key: rkey, addr, length: frame.length };
            let opened = memory.remote(domain, range, AccessFlags::REMOTE_READ);
            let fault = |fault: polyrail_nic_parts::memory::KeyFault| Vanished {
                position: None,
                vendor: fault.vendor(),
            };
            pass(opened.map_err(fault)?.skip(skip).prefix(length));
        }
        &Source::Request { position, offset } => {
            let local = requester.ring.open(position, domain, memory, AccessFlags::empty());
            let fault = |fault: polyrail_nic_parts::memory::KeyFault| Vanished {
                position: Some(position),
                vendor: fault.vendor(),
            };
            local.map_err(fault)?.part(offset as usize + skip, length).for_each(pass);
        }
    }
    Ok(())
}

/// Bytes of a frame, for a system call that reads them.
fn span_of(bytes: &[u8]) -> Span<'_> {
    // SAFETY: the bytes are borrowed, so they stay allocated and are not written; the span is only
    // read.
    unsafe { Span::new(bytes.as_ptr().cast_mut(), bytes.len()) }
}
