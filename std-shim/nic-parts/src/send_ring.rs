//! The ring of posted send requests, with their inline bytes.

use crate::dma::Span;
use crate::error::errno::{EINVAL, EOPNOTSUPP};
use crate::error::vendor;
use crate::growth::{first_slots, grow, new_slots, next_slots};
use crate::lists::{Listed, Lists};
use crate::local::Local;
use crate::memory::{DomainId, KeyFault, MemoryTable, Range as MemoryRange};
use polyrail_core::hardware::{QpLimits, Refusal};
use polyrail_core::verbs::{AccessFlags, Imm, Opcode, SendFlags, SendRequest, Sge, WcStatus};
use std::ops::Range;
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
/// is free when the completion of its request, or a later one, was polled. The ring gets memory for
/// more slots as they are needed.
#[derive(Debug)]
pub struct SendRing {
    slots: Box<[Listed<SendRequest>]>,
    lists: Lists,
    /// Empty before the first inline request that has bytes. A box must not be moved while something
    /// points to its contents.
    inline: Vec<AtomicU8>,
    /// What was `inline` before the ring grew. A device may still send from it: see
    /// [`inline_span`](Self::inline_span).
    outgrown: Vec<Vec<AtomicU8>>,
    inline_bytes: usize,
    capacity: usize,
    posted: u64,
}

impl SendRing {
    /// Makes a ring of at least `min` requests with `inline_bytes` each, and up to `max_sge`
    /// buffers.
    pub fn new(min: u32, inline_bytes: u32, max_sge: u32) -> Self {
        let capacity = (min as usize).next_power_of_two();
        let slots = first_slots(capacity);
        let inline_bytes = inline_bytes as usize;
        Self {
            slots: vec![Listed::send(EMPTY); slots].into_boxed_slice(),
            lists: Lists::new(slots, max_sge),
            inline: Vec::new(),
            outgrown: Vec::new(),
            inline_bytes,
            capacity,
            posted: 0,
        }
    }

    /// Returns the number of requests that it can hold.
    pub fn capacity(&self) -> u32 {
        self.capacity as u32
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
    /// data, is longer than the limit, or has a [device address](Sge::has_device_address); an
    /// atomic with several buffers. The ring is full.
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
        if self.posted - released >= self.slots.len() as u64 && !self.grow() {
            return Err(Refusal::QueueFull);
        }
        if inline {
            let own = [request.sge];
            let buffers = if list.is_empty() { &own } else { list };
            if buffers.iter().any(Sge::has_device_address) {
                return Err(Refusal::Driver(EINVAL));
            }
            self.copy_inline(buffers);
        }
        let index = self.index(self.posted);
        self.slots[index] = *request;
        self.lists.set(index, list);
        self.posted += 1;
        Ok(())
    }

    /// Gets memory for all slots, their lists and inline bytes.
    pub fn reserve(&mut self) {
        while self.grow() {}
        self.lists.reserve();
        if self.inline.is_empty() {
            self.reserve_inline();
        }
    }

    /// Gets memory for the inline bytes of the slots that there are.
    #[cold]
    fn reserve_inline(&mut self) {
        self.inline =
            new_slots(self.inline_bytes, self.slots.len(), || AtomicU8::new(0)).into_vec();
    }

    /// Gets memory for more slots. Returns whether there may be more.
    #[cold]
    #[inline(never)]
    fn grow(&mut self) -> bool {
        let before = self.slots.len();
        let Some(slots) = next_slots(before, self.capacity) else { return false };
        // All that the memory holds. What is outstanding is among it.
        let positions = self.posted.saturating_sub(before as u64)..self.posted;
        grow(&mut self.slots, 1, positions.clone(), slots, || Listed::send(EMPTY));
        self.grow_inline(before, positions.clone());
        self.lists.grow(positions, slots);
        true
    }

    /// Copies the inline bytes at these positions, of `before` slots, into memory for the slots that
    /// there are.
    fn grow_inline(&mut self, before: usize, positions: Range<u64>) {
        if self.inline.is_empty() {
            return;
        }
        let outgrown = std::mem::take(&mut self.inline);
        self.reserve_inline();
        for position in positions {
            self.inline_span(position).copy_from(self.slot_of(&outgrown, before, position));
        }
        self.outgrown.push(outgrown);
    }

    /// Returns the memory of a position's slot, among that of `slots` slots.
    fn slot_of<'m>(&self, inline: &'m [AtomicU8], slots: usize, position: u64) -> Span<'m> {
        let start = (position as usize & (slots - 1)) * self.inline_bytes;
        Span::of(&inline[start..start + self.inline_bytes])
    }

    /// Copies an inline request's bytes into the next slot.
    fn copy_inline(&mut self, buffers: &[Sge]) {
        if self.inline.is_empty() {
            self.reserve_inline();
        }
        let mut target = self.inline_span(self.posted);
        for sge in buffers {
            let length = sge.length() as usize;
            let start = std::ptr::with_exposed_provenance_mut::<u8>(sge.addr() as usize);
            // SAFETY: a scatter/gather entry is always made from a `LocalBuffer`, whose creator
            // guarantees that the bytes are allocated, and not written, until the post returns,
            // unless it has a device address, which `accept` refused.
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
    ///
    /// It keeps them until the slot is used again, and is freed with the ring only, although the
    /// ring grows: one thread may send from there without the lock under which another one posts.
    #[inline]
    pub fn inline_span(&self, position: u64) -> Span<'_> {
        self.slot_of(&self.inline, self.slots.len(), position)
    }

    /// Returns the request at `position`.
    #[inline]
    pub fn get(&self, position: u64) -> &Listed<SendRequest> {
        &self.slots[self.index(position)]
    }

    /// Returns the local bytes of the request at `position`, with the checks that a device makes
    /// before it sends. `max_rd_atomic` is the number of READs and atomics that may be outstanding.
    ///
    /// # Errors
    ///
    /// The status and `vendor_err` with which the request fails.
    pub fn local<'m>(
        &'m self,
        position: u64,
        (max_msg_size, max_rd_atomic): (u32, u8),
        domain: DomainId,
        memory: &'m MemoryTable,
    ) -> Result<Local<'m>, (WcStatus, u32)> {
        let request = self.get(position);
        let length = request.length;
        if length > max_msg_size {
            return Err((WcStatus::LOC_LEN_ERR, vendor::MESSAGE_TOO_LONG));
        }
        if request.opcode.is_fetching() && max_rd_atomic == 0 {
            return Err((WcStatus::LOC_QP_OP_ERR, vendor::NO_READ_RESOURCES));
        }
        let is_atomic = request.opcode.is_fetching() && request.opcode != Opcode::RdmaRead;
        if is_atomic && length < 8 {
            return Err((WcStatus::LOC_LEN_ERR, vendor::ATOMIC_TOO_SHORT));
        }
        let access = match request.opcode.is_fetching() {
            true => AccessFlags::LOCAL_WRITE,
            false => AccessFlags::empty(),
        };
        let opened = self.open(position, domain, memory, access);
        opened.map_err(|fault| (WcStatus::LOC_PROT_ERR, fault.vendor()))
    }

    /// Returns the local bytes of the request at `position`, if its keys permit `access`.
    ///
    /// # Errors
    ///
    /// Why a key does not.
    pub fn open<'m>(
        &'m self,
        position: u64,
        domain: DomainId,
        memory: &'m MemoryTable,
        access: AccessFlags,
    ) -> Result<Local<'m>, KeyFault> {
        let request = self.get(position);
        let length = request.length;
        if request.flags.contains(SendFlags::INLINE) {
            return Ok(self.inline_span(position).prefix(length as usize).into());
        }
        if length == 0 {
            return Ok(Local::EMPTY);
        }
        if request.buffers == 0 {
            let sge = request.sge;
            let range = MemoryRange { key: sge.lkey(), addr: sge.addr(), length };
            return memory.local(domain, range, access).map(Local::One);
        }
        Local::open(memory, domain, self.list(position), access)
    }

    #[inline]
    fn index(&self, position: u64) -> usize {
        position as usize & (self.slots.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::Pages;
    use polyrail_core::verbs::{DEVICE_ADDRESSES, LocalBuffer};

    const LIMITS: QpLimits = QpLimits {
        max_send_wr: 2,
        max_recv_wr: 0,
        max_inline_data: 16,
        max_msg_size: 1 << 20,
        max_send_sge: 2,
        max_recv_sge: 0,
    };

    fn request(wr_id: u64) -> SendRequest {
        SendRequest { wr_id, ..EMPTY }
    }

    #[test]
    fn a_slot_is_free_when_it_is_released() {
        let mut ring = SendRing::new(2, 16, 2);
        for wr_id in 0..2 {
            assert_eq!(ring.accept(&Listed::send(request(wr_id)), &[], &LIMITS, 0), Ok(()));
        }
        let third = Listed::send(request(2));
        assert_eq!(ring.accept(&third, &[], &LIMITS, 0), Err(Refusal::QueueFull));
        assert_eq!(ring.accept(&third, &[], &LIMITS, 1), Ok(()));
        assert_eq!(ring.posted(), 3);
        assert_eq!([1, 2].map(|position| ring.get(position).wr_id), [1, 2]);
    }

    #[test]
    fn a_ring_grows_around_what_is_outstanding() {
        const CAPACITY: u64 = 256;
        let pages = Pages::new(64).unwrap();
        let inline = |wr_id: u64| SendRequest { flags: SendFlags::INLINE, ..request(wr_id) };
        let mut ring = SendRing::new(CAPACITY as u32, 16, 2);
        assert_eq!(ring.capacity(), CAPACITY as u32);
        let mut post = |wr_id: u64, released| {
            pages.span(0, 64).write(&wr_id.to_le_bytes());
            let buffers = [(0, 1), (1, 1)].map(|(at, length)| pages.local(at, length).unwrap());
            let buffers = buffers.map(|local| local.sge(wr_id as u32));
            let (listed, list) = Listed::with(inline(wr_id), &buffers, 2).unwrap();
            let posted = ring.accept(&listed, &list.collect::<Vec<_>>(), &LIMITS, released);
            for position in released..ring.posted() {
                assert_eq!(ring.get(position).wr_id, position);
                assert!(ring.list(position).iter().all(|sge| sge.lkey() == position as u32));
                let mut bytes = [0; 2];
                ring.inline_span(position).prefix(2).read(&mut bytes);
                assert_eq!(u16::from_le_bytes(bytes), position as u16);
            }
            posted
        };
        // The first five are free when the ring grows, so what is outstanding begins in its middle.
        (0..10).for_each(|wr_id| post(wr_id, 0).unwrap());
        (10..CAPACITY + 5).for_each(|wr_id| post(wr_id, 5).unwrap());
        assert_eq!(post(CAPACITY + 5, 5), Err(Refusal::QueueFull));
    }

    #[test]
    fn inline_bytes_are_copied_when_the_request_is_accepted() {
        let pages = Pages::new(64).unwrap();
        pages.span(0, 64).write(b"abcdef");
        let buffers = [(0, 2), (4, 2)].map(|(at, length)| pages.local(at, length).unwrap().sge(1));
        let inline = SendRequest { flags: SendFlags::INLINE, ..request(7) };
        let (listed, list) = Listed::with(inline, &buffers, 2).unwrap();
        let list: Vec<_> = list.collect();
        let mut ring = SendRing::new(2, 16, 2);
        assert_eq!(ring.accept(&listed, &list, &LIMITS, 0), Ok(()));
        pages.span(0, 64).fill(0);
        let mut bytes = [0; 4];
        ring.inline_span(0).read(&mut bytes);
        assert_eq!(&bytes, b"abef");
        assert_eq!(ring.list(0), buffers);
    }

    /// A thread sends them meanwhile, without the lock under which another one posts.
    #[test]
    fn inline_bytes_stay_where_they_are_sent_from_while_the_ring_grows() {
        const BYTES: u32 = 16;
        let pages = Pages::new(BYTES as usize).unwrap();
        let mut ring = SendRing::new(256, BYTES, 2);
        let mut sent_from = Vec::new();
        for wr_id in 0..256 {
            pages.span(0, BYTES as usize).fill(wr_id as u8);
            let sge = pages.local(0, BYTES).unwrap().sge(1);
            let inline = SendRequest { flags: SendFlags::INLINE, sge, ..request(wr_id) };
            ring.accept(&Listed::send(inline), &[], &LIMITS, 0).unwrap();
            sent_from.push(ring.inline_span(wr_id).as_ptr());
            for (byte, start) in sent_from.iter().enumerate() {
                // SAFETY: the ring frees no inline bytes while it lives.
                let span = unsafe { Span::new(*start, BYTES as usize) };
                let mut bytes = [0; BYTES as usize];
                span.read(&mut bytes);
                assert_eq!(bytes, [byte as u8; BYTES as usize]);
            }
        }
    }

    #[test]
    fn requests_that_no_device_executes_are_refused() {
        let pages = Pages::new(64).unwrap();
        let buffer = |length| pages.local(0, length).unwrap().sge(1);
        let refusal = |request, list: &[Sge]| {
            let result = SendRing::new(2, 16, 2).accept(&Listed::send(request), list, &LIMITS, 0);
            result.unwrap_err()
        };
        let invalidating = SendRequest { opcode: Opcode::LocalInv, ..request(0) };
        assert_eq!(refusal(invalidating, &[]), Refusal::Driver(EOPNOTSUPP));
        let inline = SendRequest { flags: SendFlags::INLINE, ..request(0) };
        let too_long = SendRequest { sge: buffer(17), ..inline };
        assert_eq!(refusal(too_long, &[]), Refusal::Driver(EINVAL));
        let read = SendRequest { opcode: Opcode::RdmaRead, sge: buffer(8), ..inline };
        assert_eq!(refusal(read, &[]), Refusal::Driver(EINVAL));
        // SAFETY: nothing is registered there.
        let elsewhere = unsafe { LocalBuffer::new(DEVICE_ADDRESSES, 8) }.sge(1);
        let unreadable = SendRequest { sge: elsewhere, ..inline };
        assert_eq!(refusal(unreadable, &[]), Refusal::Driver(EINVAL));
        assert_eq!(refusal(inline, &[buffer(8), elsewhere]), Refusal::Driver(EINVAL));
        let atomic = SendRequest { opcode: Opcode::FetchAdd, ..request(0) };
        assert_eq!(refusal(atomic, &[buffer(4), buffer(4)]), Refusal::Driver(EINVAL));
    }
}
