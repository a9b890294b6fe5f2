//! Requests whose local bytes are in several buffers: how queues remember them.

use polyrail_core::verbs::{RecvRequest, SendRequest, Sge};
use std::ops::Deref;

/// A request with its list, which is kept beside it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listed<R> {
    request: R,
    /// Bytes of all its buffers.
    pub(crate) length: u32,
    /// Buffers of its list; 0: it has none, but the one buffer that is in the request.
    pub(crate) buffers: u32,
}

impl<R> Deref for Listed<R> {
    type Target = R;

    fn deref(&self) -> &R {
        &self.request
    }
}

impl Listed<SendRequest> {
    /// A request with the one buffer that it names.
    pub(crate) const fn send(request: SendRequest) -> Self {
        Self { request, length: request.sge.length(), buffers: 0 }
    }
}

impl Listed<RecvRequest> {
    /// A receive with the one buffer that it names.
    pub(crate) const fn recv(request: RecvRequest) -> Self {
        Self { request, length: request.sge.length(), buffers: 0 }
    }
}

/// A request that names one buffer.
pub(crate) trait NamesBuffer {
    fn buffer(&mut self) -> &mut Sge;
}

impl NamesBuffer for SendRequest {
    fn buffer(&mut self) -> &mut Sge {
        &mut self.sge
    }
}

impl NamesBuffer for RecvRequest {
    fn buffer(&mut self) -> &mut Sge {
        &mut self.sge
    }
}

impl<R: NamesBuffer> Listed<R> {
    /// What the buffers of a list make of a request, and those of them that are its list; `None` if those that
    /// have bytes are more than `most`, or together too long. One alone is the buffer that the request names: a
    /// queue may have no room for lists.
    pub(crate) fn with(
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

/// The lists of a ring's requests, each in the place of its request.
#[derive(Debug)]
pub(crate) struct Lists {
    sges: Box<[Sge]>,
    most: usize,
}

impl Lists {
    /// Room for lists of up to `most` buffers in each of `slots` places; for none if one is all that there is.
    pub(crate) fn new(slots: usize, most: u32) -> Self {
        let most = if most > 1 { most as usize } else { 0 };
        Self { sges: vec![Sge::EMPTY; slots * most].into_boxed_slice(), most }
    }

    /// Keeps a list in this place.
    pub(crate) fn set(&mut self, slot: usize, list: &[Sge]) {
        let start = slot * self.most;
        self.sges[start..start + list.len()].copy_from_slice(list);
    }

    /// The list of so many buffers in this place.
    pub(crate) fn get(&self, slot: usize, buffers: u32) -> &[Sge] {
        let start = slot * self.most;
        &self.sges[start..start + buffers as usize]
    }
}
