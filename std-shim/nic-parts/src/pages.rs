//! Pages of memory for devices: page aligned and zeroed, with addresses that never dangle.

use crate::dma::Span;
use polyrail_core::verbs::LocalBuffer;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Alignment and granularity of buffers in bytes.
pub const PAGE_BYTES: usize = 4096;

/// The operating system has no memory left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot allocate {bytes} bytes")]
pub struct OutOfMemory {
    /// Number of requested bytes.
    pub bytes: usize,
}

/// Owned pages, to be registered with protection domains of devices. Devices may
/// write the bytes at any time, so there are never references to them; a [`Span`] copies bytes in
/// and out.
///
/// # Why a retired address stays reserved
///
/// Safe code can keep a [`LocalBuffer`] longer than its buffer lives. Most uses then fail because the
/// key is invalid. But an INLINE request has no key: its bytes are read by address alone.
/// Therefore, once an address has been exposed, dropping the pages returns the memory to the system
/// but keeps the address range reserved, and reads of it return zeros. This costs only address
/// space, of which there are 2^47 bytes.
#[derive(Debug)]
pub struct Pages {
    addr: usize,
    length: usize,
    mapped: usize,
    exposed: AtomicBool,
}

impl Pages {
    /// Allocates `length` zero bytes on separate pages.
    ///
    /// # Errors
    ///
    /// The operating system has no memory left.
    pub fn new(length: usize) -> Result<Self, OutOfMemory> {
        let mapped = length.max(1).checked_next_multiple_of(PAGE_BYTES);
        let mapped = mapped.ok_or(OutOfMemory { bytes: usize::MAX })?;
        let start = system::map(mapped).ok_or(OutOfMemory { bytes: mapped })?;
        let exposed = AtomicBool::new(false);
        Ok(Self { addr: start.expose_provenance(), length, mapped, exposed })
    }

    /// Returns the address of the first byte.
    pub const fn addr(&self) -> u64 {
        self.addr as u64
    }

    /// Returns the number of usable bytes. The rest of the last page is unused.
    #[allow(clippy::len_without_is_empty, reason = "devices refuse empty regions")]
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Describes `length` bytes from `offset`, for requests; `None` if there are fewer. The
    /// description may outlive the pages.
    pub fn local(&self, offset: usize, length: u32) -> Option<LocalBuffer> {
        let end = offset.checked_add(length as usize)?;
        if end > self.length {
            return None;
        }
        // From now on, the address may be used without holding the pages.
        self.exposed.store(true, Ordering::Relaxed);
        // SAFETY: devices access the bytes through the keys of regions that keep the pages alive,
        // or by an address that stays readable (see the type's documentation). There are no
        // references to the bytes, and every access goes through the `dma` module, whose users may
        // race.
        Some(unsafe { LocalBuffer::new(self.addr() + offset as u64, length) })
    }

    /// Returns all bytes as words, for rings that devices write while this process reads them. A
    /// partial word at the end is left out.
    ///
    /// The software NIC copies byte by byte in any order, so a word may be read half written. Its
    /// contents must show whether it is complete.
    pub fn words(&self) -> &[AtomicU64] {
        let start = std::ptr::with_exposed_provenance::<AtomicU64>(self.addr);
        // SAFETY: the pages are mapped, zeroed and aligned as long as `self` lives; they are
        // accessed as atomics are, here and by spans.
        unsafe { std::slice::from_raw_parts(start, self.length / size_of::<AtomicU64>()) }
    }

    /// Returns `length` bytes from `offset`, or fewer if the pages end before.
    pub fn span(&self, offset: usize, length: usize) -> Span<'_> {
        let offset = offset.min(self.mapped);
        let start = std::ptr::with_exposed_provenance_mut::<u8>(self.addr + offset);
        // SAFETY: within the pages, which live as long as `self` and are accessed through spans
        // only.
        unsafe { Span::new(start, length.min(self.mapped - offset)) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let start = std::ptr::with_exposed_provenance_mut::<u8>(self.addr);
        if *self.exposed.get_mut() {
            // SAFETY: these pages were mapped by `new` and nothing writes them.
            unsafe { system::retire(start, self.mapped) }
        } else {
            // SAFETY: these pages were mapped by `new`, and their address was never exposed.
            unsafe { system::unmap(start, self.mapped) }
        }
    }
}

#[cfg(all(unix, not(miri)))]
mod system {
    use libc::{MAP_ANONYMOUS, MAP_FAILED, MAP_FIXED, MAP_NORESERVE, MAP_PRIVATE};
    use libc::{PROT_READ, PROT_WRITE, mmap, munmap};

    pub(super) fn map(length: usize) -> Option<*mut u8> {
        let flags = MAP_PRIVATE | MAP_ANONYMOUS;
        // SAFETY: a new anonymous mapping touches nothing that exists.
        let start =
            unsafe { mmap(std::ptr::null_mut(), length, PROT_READ | PROT_WRITE, flags, -1, 0) };
        if start == MAP_FAILED {
            return None;
        }
        advise_huge(start.cast(), length);
        Some(start.cast())
    }

    /// Requests huge pages for large buffers. Without them, copies over hundreds of megabytes miss
    /// the TLB, and run at two thirds of the speed. A refusal does not matter.
    fn advise_huge(start: *mut u8, length: usize) {
        const HUGE_PAGE_BYTES: usize = 2 << 20;
        #[cfg(target_os = "linux")]
        if length >= HUGE_PAGE_BYTES {
            // SAFETY: advice about a mapping of our own; it changes no contents.
            unsafe { libc::madvise(start.cast(), length, libc::MADV_HUGEPAGE) };
        }
        #[cfg(not(target_os = "linux"))]
        let _ = (start, length, HUGE_PAGE_BYTES);
    }

    /// # Safety
    ///
    /// `start` and `length` are those of a mapping that is not used any more.
    pub(super) unsafe fn unmap(start: *mut u8, length: usize) {
        // SAFETY: guaranteed by the caller. A failure would leak the mapping, which is harmless.
        unsafe { munmap(start.cast(), length) };
    }

    /// Gives the memory back and keeps the addresses readable.
    ///
    /// # Safety
    ///
    /// `start` and `length` are those of a mapping that is not written any more.
    pub(super) unsafe fn retire(start: *mut u8, length: usize) {
        let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE;
        // SAFETY: replaces a mapping of our own by one that reads as zeros. A failure would leave
        // the old mapping, which is harmless.
        unsafe { mmap(start.cast(), length, PROT_READ, flags, -1, 0) };
    }
}

#[cfg(not(all(unix, not(miri))))]
mod system {
    use std::alloc::{Layout, alloc_zeroed, dealloc};

    fn layout(length: usize) -> Option<Layout> {
        Layout::from_size_align(length, super::PAGE_BYTES).ok()
    }

    pub(super) fn map(length: usize) -> Option<*mut u8> {
        // SAFETY: `length` is at least a page.
        let start = unsafe { alloc_zeroed(layout(length)?) };
        (!start.is_null()).then_some(start)
    }

    /// # Safety
    ///
    /// `start` and `length` are those of a mapping that is not used any more.
    pub(super) unsafe fn unmap(start: *mut u8, length: usize) {
        if let Some(layout) = layout(length) {
            // SAFETY: allocated by `map` with this layout.
            unsafe { dealloc(start, layout) }
        }
    }

    /// Without system calls for virtual memory, an exposed buffer is leaked.
    ///
    /// # Safety
    ///
    /// None is needed.
    pub(super) unsafe fn retire(_start: *mut u8, _length: usize) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_aligned_and_zero() {
        let pages = Pages::new(5000).unwrap();
        assert_eq!(pages.addr() % PAGE_BYTES as u64, 0);
        let mut bytes = [1; 5000];
        pages.span(0, 5000).read(&mut bytes);
        assert_eq!(bytes, [0; 5000]);
    }

    #[test]
    fn spans_end_where_the_pages_end() {
        let pages = Pages::new(1).unwrap();
        assert_eq!(pages.span(4000, 4096).len(), 96);
        assert_eq!(pages.span(9000, 1).len(), 0);
    }

    #[test]
    #[cfg(all(unix, not(miri)))]
    fn an_exposed_address_stays_readable_after_its_pages_are_gone() {
        let pages = Pages::new(PAGE_BYTES).unwrap();
        pages.span(0, 3).write(b"abc");
        assert!(pages.local(0, 3).is_some());
        let addr = pages.addr() as usize;
        drop(pages);
        // SAFETY: a retired range stays mapped, which this test checks.
        let span = unsafe { Span::new(std::ptr::with_exposed_provenance_mut(addr), 3) };
        let mut bytes = [1; 3];
        span.read(&mut bytes);
        assert_eq!(bytes, [0; 3]);
    }

    #[test]
    fn absurd_sizes_are_an_error() {
        assert!(matches!(Pages::new(usize::MAX), Err(OutOfMemory { .. })));
        assert!(matches!(Pages::new(usize::MAX / 2), Err(OutOfMemory { .. })));
    }
}
