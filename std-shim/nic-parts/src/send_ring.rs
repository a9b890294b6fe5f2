//! The ring of posted send requests, with their inline bytes.

use crate::dma::Span;
use crate::error::errno::{EINVAL, EOPNOTSUPP};
use crate::lists::{Listed, Lists};
use polyrail_core::hardware::{QpLimits, Refusal};
use polyrail_core::verbs::{Imm, Opcode, SendFlags, SendRequest, Sge};
use std::sync::atomic::AtomicU8;

/// The contents of an unused slot.
const EMPTY: SendRequest = SendRequest {
    wr_id: 0,
    opcode: Opcode::RdmaWrite,
    flags: SendFlags::empty(),
    imm: Imm::from_number(0),
    sge: Sge::EMPTY,
    remote_addr: 0,
    rkey: 0,
    compare_add: 0,
    swap: 0,
};

/// Send requests, oldest first. Positions count from the queue's beginning and never repeat. A slot
/// is free when the completion of its request, or a later one, was polled.
#[derive(Debug)]
pub struct SendRing {
    slots: Box<[Listed<SendRequest>]>,
    lists: Lists,
    inline: Box<[AtomicU8]>,
    inline_bytes: usize,
    posted: u64,
}

impl SendRing {
    /// Makes a ring of at least `min` requests with `inline_bytes` each, and up to `max_sge`
    /// buffers.
    pub fn new(min: u32, inline_bytes: u32, max_sge: u32) -> Self {
        let size = (min as usize).next_power_of_two();
        let inline_bytes = inline_bytes as usize;
        Self {
            slots: vec![Listed::send(EMPTY); size].into_boxed_slice(),
            lists: Lists::new(size, max_sge),
            inline: (0..size * inline_bytes).map(|_| AtomicU8::new(0)).collect(),
            inline_bytes,
            posted: 0,
        }
    }

    /// Returns the number of slots.
    pub fn capacity(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Returns the number of requests posted since the beginning.
    #[inline]
    pub fn posted(&self) -> u64 {
        self.posted
    }

    /// Adds a request with its list, and copies its bytes if it is INLINE. Slots below `released`
    /// are free.
    ///
    /// # Errors
    ///
    /// EOPNOTSUPP: the opcode invalidates a memory window. EINVAL: an INLINE request that fetches
    /// data or is longer than the limit; an atomic with several buffers. The ring is full.
    #[inline]
    pub fn accept(
        &mut self,
        request: &Listed<SendRequest>,
        list: &[Sge],
        limits: &QpLimits,
        released: u64,
    ) -> Result<(), Refusal> {
        if matches!(request.opcode, Opcode::LocalInv | Opcode::SendWithInv) {
            return Err(Refusal::Driver(EOPNOTSUPP));
        }
        let inline = request.flags.contains(SendFlags::INLINE);
        let too_long = request.length > limits.max_inline_data;
        let is_atomic = request.opcode.is_fetching() && request.opcode != Opcode::RdmaRead;
        if (inline && (request.opcode.is_fetching() || too_long)) || (is_atomic && list.len() > 1) {
            return Err(Refusal::Driver(EINVAL));
        }
        if self.posted - released >= self.slots.len() as u64 {
            return Err(Refusal::QueueFull);
        }
        if inline {
            let own = [request.sge];
            self.copy_inline(if list.is_empty() { &own } else { list });
        }
        let index = self.index(self.posted);
        self.slots[index] = *request;
        self.lists.set(index, list);
        self.posted += 1;
        Ok(())
    }

    /// Copies an inline request's bytes into the next slot.
    fn copy_inline(&self, buffers: &[Sge]) {
        let mut target = self.inline_span(self.posted);
        for sge in buffers {
            let length = sge.length() as usize;
            let start = std::ptr::with_exposed_provenance_mut::<u8>(sge.addr() as usize);
            // SAFETY: a scatter/gather entry is always made from a `LocalBuffer`, whose creator
            // guarantees that the bytes are allocated, and not written, until the post returns.
            let source = unsafe { Span::new(start, length) };
            target.copy_from(source);
            target = target.skip(length);
        }
    }

    /// Returns the list of the request at `position`, if it has one.
    #[inline]
    pub fn list(&self, position: u64) -> &[Sge] {
        let index = self.index(position);
        self.lists.get(index, self.slots[index].buffers)
    }

    /// Returns the memory of the inline bytes of the request at `position`.
    #[inline]
    pub fn inline_span(&self, position: u64) -> Span<'_> {
        let start = self.index(position) * self.inline_bytes;
        Span::of(&self.inline[start..start + self.inline_bytes])
    }

    /// Returns the request at `position`.
    #[inline]
    pub fn get(&self, position: u64) -> &Listed<SendRequest> {
        &self.slots[self.index(position)]
    }

    #[inline]
    fn index(&self, position: u64) -> usize {
        position as usize & (self.slots.len() - 1)
    }
}
