//! Storage in queues for requests with several local buffers.

use polyrail_core::verbs::{RecvRequest, SendRequest, Sge};
use std::ops::Deref;

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

/// The lists of a ring's requests, each in its request's slot.
#[derive(Debug)]
pub struct Lists {
    sges: Box<[Sge]>,
    most: usize,
}

impl Lists {
    /// Makes room for lists of up to `most` buffers in each of `slots` slots; no room if `most` is
    /// 1.
    pub fn new(slots: usize, most: u32) -> Self {
        let most = if most > 1 { most as usize } else { 0 };
        Self { sges: vec![Sge::EMPTY; slots * most].into_boxed_slice(), most }
    }

    /// Stores a list in this slot.
    #[inline]
    pub fn set(&mut self, slot: usize, list: &[Sge]) {
        let start = slot * self.most;
        self.sges[start..start + list.len()].copy_from_slice(list);
    }

    /// Returns the list of this many buffers in this slot.
    #[inline]
    pub fn get(&self, slot: usize, buffers: u32) -> &[Sge] {
        let start = slot * self.most;
        &self.sges[start..start + buffers as usize]
    }
}
