//! Registered memory.

use polyrail_core::verbs::{AccessFlags, LocalBuffer};
use polyrail_ffi::{MemoryRegion, ProtectionDomain};
use polyrail_tests::behaviours::Memory;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

const PAGE_BYTES: usize = 4096;

/// Zeroed pages.
#[derive(Debug)]
struct Pages {
    start: NonNull<u8>,
    layout: Layout,
}

impl Pages {
    fn new(bytes: usize) -> Self {
        let layout = Layout::from_size_align(bytes, PAGE_BYTES).expect("a small buffer");
        assert_ne!(bytes, 0);
        // SAFETY: the layout is not empty.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) });
        Self { start: start.unwrap_or_else(|| handle_alloc_error(layout)), layout }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and freed once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// Memory of one end, registered in a domain of every rail. It is only copied in and out, while no
/// request is outstanding.
#[derive(Debug)]
pub(crate) struct Buffer {
    // Before the pages: deregistered first.
    regions: Vec<MemoryRegion>,
    pages: Pages,
}

impl Buffer {
    pub(crate) fn new(bytes: usize, access: AccessFlags, domains: &[ProtectionDomain]) -> Self {
        let pages = Pages::new(bytes);
        let start = pages.start.as_ptr();
        let register = |domain: &ProtectionDomain| {
            // SAFETY: the pages outlive the region, and there are no references to them.
            unsafe { domain.register(start, bytes, access) }.expect("enough memory may be locked")
        };
        Self { regions: domains.iter().map(register).collect(), pages }
    }

    /// The region on a rail.
    pub(crate) fn region(&self, rail: usize) -> &MemoryRegion {
        &self.regions[rail]
    }

    fn part(&self, offset: usize, length: usize) -> *mut u8 {
        assert!(offset + length <= self.pages.layout.size());
        // SAFETY: within the allocation.
        unsafe { self.pages.start.as_ptr().add(offset) }
    }
}

impl Memory for Buffer {
    fn addr(&self) -> u64 {
        self.regions[0].addr()
    }

    fn lkey(&self, rail: usize) -> u32 {
        self.regions[rail].lkey()
    }

    fn rkey(&self, rail: usize) -> u32 {
        self.regions[rail].rkey()
    }

    fn local(&self, offset: usize, length: u32) -> LocalBuffer {
        let start = self.part(offset, length as usize).expose_provenance() as u64;
        // SAFETY: tests keep the buffer until their requests are complete, and do not touch it
        // meanwhile.
        unsafe { LocalBuffer::new(start, length) }
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        let to = self.part(offset, bytes.len());
        // SAFETY: within the allocation, to which there are no references.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
    }

    fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        let from = self.part(offset, length);
        // SAFETY: within the allocation, to which nothing writes meanwhile.
        unsafe { from.copy_to_nonoverlapping(bytes.as_mut_ptr(), length) }
        bytes
    }
}
