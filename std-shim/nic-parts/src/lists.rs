//! Storage in queues for requests with several local buffers.

use crate::growth;
use polyrail_core::verbs::{RecvRequest, SendRequest, Sge};
use std::ops::{Deref, Range};

/// A request, whose list of buffers is stored separately.
#[derive(Clone, Copy, Debug)]
pub struct Listed<R> {
    request: R,
    /// Total length of its buffers in bytes.
    pub length: u32,
    /// Number of buffers in its list; 0: no list, only the buffer in the request.
    pub buffers: u32,
}

impl<R> Deref for Listed<R> {
    type Target = R;

    #[inline]
    fn deref(&self) -> &R {
        &self.request
    }
}

impl Listed<SendRequest> {
    /// Makes a send request with the one buffer that it names.
    #[inline]
    pub const fn send(request: SendRequest) -> Self {
        Self { request, length: request.sge.length(), buffers: 0 }
    }
}

impl Listed<RecvRequest> {
    /// Makes a receive with the one buffer that it names.
    #[inline]
    pub const fn recv(request: RecvRequest) -> Self {
        Self { request, length: request.sge.length(), buffers: 0 }
    }
}

/// A request that names one buffer.
pub trait NamesBuffer {
    /// Returns that buffer.
    fn buffer(&mut self) -> &mut Sge;
}

impl NamesBuffer for SendRequest {
    #[inline]
    fn buffer(&mut self) -> &mut Sge {
        &mut self.sge
    }
}

impl NamesBuffer for RecvRequest {
    #[inline]
    fn buffer(&mut self) -> &mut Sge {
        &mut self.sge
    }
}

impl<R: NamesBuffer> Listed<R> {
    /// Returns the request with the buffers of a list, and the non-empty buffers that form its
    /// list. `None` if there are more than `most` of them, or their total length is too long. A
    /// single buffer becomes the buffer that the request names, because a queue may have no room
    /// for lists.
    pub fn with(
        mut request: R,
        buffers: &[Sge],
        most: usize,
    ) -> Option<(Self, impl Iterator<Item = Sge>)> {
        let mut filled = buffers.iter().copied().filter(|sge| sge.length() > 0);
        let count = filled.clone().count();
        let bytes = filled.clone().map(|sge| u64::from(sge.length())).sum::<u64>();
        let length = u32::try_from(bytes).ok().filter(|_| count <= most)?;
        let buffers = if count > 1 { count } else { 0 };
        if buffers == 0 {
            *request.buffer() = filled.next().unwrap_or(Sge::EMPTY);
        }
        Some((Self { request, length, buffers: buffers as u32 }, filled.take(buffers)))
    }
}

/// The lists of a ring's requests, each in its request's slot. Has no memory before the first list.
#[derive(Debug)]
pub struct Lists {
    sges: Box<[Sge]>,
    slots: usize,
    most: usize,
}

impl Lists {
    /// Makes storage for lists of up to `most` buffers in each of `slots` slots, without memory;
    /// for none if `most` is 1.
    pub fn new(slots: usize, most: u32) -> Self {
        let most = if most > 1 { most as usize } else { 0 };
        Self { sges: Box::default(), slots, most }
    }

    /// Moves the lists at these positions into memory of `slots` slots.
    pub(crate) fn grow(&mut self, positions: Range<u64>, slots: usize) {
        growth::grow(&mut self.sges, self.most, positions, slots, || Sge::EMPTY);
        self.slots = slots;
    }

    /// Gets memory for the lists of all slots, if there is none.
    pub(crate) fn reserve(&mut self) {
        if self.sges.is_empty() {
            self.sges = growth::new_slots(self.most, self.slots, || Sge::EMPTY);
        }
    }

    /// Stores a list in this slot.
    #[inline]
    pub fn set(&mut self, slot: usize, list: &[Sge]) {
        if list.is_empty() {
            return;
        }
        self.reserve();
        let start = slot * self.most;
        self.sges[start..start + list.len()].copy_from_slice(list);
    }

    /// Returns the list of this many buffers in this slot.
    #[inline]
    pub fn get(&self, slot: usize, buffers: u32) -> &[Sge] {
        if buffers == 0 {
            return &[];
        }
        let start = slot * self.most;
        &self.sges[start..start + buffers as usize]
    }
}
