//! Pages of memory that devices may access: page aligned, zeroed, and never a dangling address.

use crate::dma::Span;
use polyrail_core::verbs::LocalBuffer;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Alignment and granularity of buffers, bytes.
pub(crate) const PAGE_BYTES: usize = 4096;

/// The operating system gave no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no memory for {bytes} bytes")]
pub struct OutOfMemory {
    /// How much was asked for.
    pub bytes: usize,
}

/// Owned pages, to be [registered](crate::ProtectionDomain::register_pages) with devices. Devices may
/// write the bytes at any time, so nobody ever gets a reference to them: a [`Span`] copies them in and
/// out.
///
/// # Why a retired address stays reserved
///
/// Safe code can keep a `LocalBuffer` beyond its buffer's life. A key protects most uses of it, the
/// region being gone; but an INLINE request carries no key, its bytes are read by address alone. So
/// once an address has been exposed, dropping the pages returns the memory to the
/// system and keeps the address range reserved, reading as zeros. That costs address space only,
/// of which there are 2^47 bytes.
#[derive(Debug)]
pub struct Pages {
    addr: usize,
    length: usize,
    mapped: usize,
    exposed: AtomicBool,
}

impl Pages {
    /// `length` bytes of zeros, on pages of their own.
    ///
    /// # Errors
    ///
    /// The operating system gives no memory.
    pub fn new(length: usize) -> Result<Self, OutOfMemory> {
        let mapped = length.max(1).checked_next_multiple_of(PAGE_BYTES);
        let mapped = mapped.ok_or(OutOfMemory { bytes: usize::MAX })?;
        let start = system::map(mapped).ok_or(OutOfMemory { bytes: mapped })?;
        let exposed = AtomicBool::new(false);
        Ok(Self { addr: start.expose_provenance(), length, mapped, exposed })
    }

    /// Address of the first byte.
    pub const fn addr(&self) -> u64 {
        self.addr as u64
    }

    /// Usable bytes: what may be given to a device. The rest of the last page is unused.
    #[allow(clippy::len_without_is_empty, reason = "devices refuse empty regions")]
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Describes `length` bytes from `offset` on, for requests; `None` if there are fewer. It may
    /// outlive the pages.
    pub fn local(&self, offset: usize, length: u32) -> Option<LocalBuffer> {
        let end = offset.checked_add(length as usize)?;
        if end > self.length {
            return None;
        }
        // From now on the address may be known without holding the pages.
        self.exposed.store(true, Ordering::Relaxed);
        // SAFETY: devices reach the bytes through the keys of regions that keep the pages alive, or
        // by an address that stays readable (see the type's documentation); nobody holds references to
        // them, and every access goes through the `dma` module, whose users may race.
        Some(unsafe { LocalBuffer::new(self.addr() + offset as u64, length) })
    }

    /// All of them as words, for rings that devices write while this process reads them. Words that are not
    /// whole at the end are left out.
    ///
    /// The copies of the software NIC are byte by byte, in no order that counts: a word may be seen half written.
    /// What is in the words must show whether they are all there.
    pub fn words(&self) -> &[AtomicU64] {
        let start = std::ptr::with_exposed_provenance::<AtomicU64>(self.addr);
        // SAFETY: the pages are mapped, zeroed and aligned as long as `self` lives; they are accessed as atomics
        // are, here and by spans.
        unsafe { std::slice::from_raw_parts(start, self.length / size_of::<AtomicU64>()) }
    }

    /// `length` bytes from `offset` on, or as many of them as there are.
    pub fn span(&self, offset: usize, length: usize) -> Span<'_> {
        let offset = offset.min(self.mapped);
        let start = std::ptr::with_exposed_provenance_mut::<u8>(self.addr + offset);
        // SAFETY: within the pages, which live as long as `self` and are accessed through spans only.
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
            // SAFETY: these pages were mapped by `new`, and nobody knows of them any more.
            unsafe { system::unmap(start, self.mapped) }
        }
    }
}

#[cfg(all(unix, not(miri)))]
mod system {
    use libc::{MAP_ANONYMOUS, MAP_FAILED, MAP_FIXED, MAP_NORESERVE, MAP_PRIVATE};
    use libc::{PROT_READ, PROT_WRITE, mmap, munmap};

    pub(crate) fn map(length: usize) -> Option<*mut u8> {
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

    /// Asks for huge pages under large buffers: copies over hundreds of megabytes miss the TLB
    /// otherwise, and run at two thirds of the speed. Whether it is granted does not matter.
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
    /// `start` and `length` are those of a mapping that nobody uses any more.
    pub(crate) unsafe fn unmap(start: *mut u8, length: usize) {
        // SAFETY: the caller's promise. A failure would leak the mapping, which is harmless.
        unsafe { munmap(start.cast(), length) };
    }

    /// Gives the memory back and keeps the addresses readable.
    ///
    /// # Safety
    ///
    /// `start` and `length` are those of a mapping that nobody writes any more.
    pub(crate) unsafe fn retire(start: *mut u8, length: usize) {
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

    pub(crate) fn map(length: usize) -> Option<*mut u8> {
        // SAFETY: `length` is at least a page.
        let start = unsafe { alloc_zeroed(layout(length)?) };
        (!start.is_null()).then_some(start)
    }

    /// # Safety
    ///
    /// `start` and `length` are those of a mapping that nobody uses any more.
    pub(crate) unsafe fn unmap(start: *mut u8, length: usize) {
        if let Some(layout) = layout(length) {
            // SAFETY: allocated by `map` with this layout.
            unsafe { dealloc(start, layout) }
        }
    }

    /// Without virtual memory at hand, an exposed buffer is leaked.
    ///
    /// # Safety
    ///
    /// None is needed.
    pub(crate) unsafe fn retire(_start: *mut u8, _length: usize) {}
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
        // SAFETY: a retired range stays mapped, which is what this test is about.
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
