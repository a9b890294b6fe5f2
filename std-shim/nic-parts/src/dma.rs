//! The only place where registered memory is read and written.
//!
//! A NIC writes memory while the memory's owner may read it. With plain accesses, that is a data
//! race in Rust. Therefore both sides, the executing thread and the owner of the memory, access it
//! through this module:
//!
//! - on x86-64 an `asm!` block with `rep movsb`. An assembly block may do what relaxed atomics may,
//!   byte by byte, so a race can only tear data, and the microcode is as fast as memcpy;
//! - elsewhere, and under Miri, relaxed atomic bytes.
//!
//! These accesses have no ordering. Completions provide it, through the lock of their queue.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Bytes that may be read and written, in races with other users of this module.
#[derive(Clone, Copy, Debug)]
pub struct Span<'m> {
    start: *mut u8,
    length: usize,
    memory: PhantomData<&'m [AtomicU8]>,
}

impl<'m> Span<'m> {
    /// No bytes.
    pub const EMPTY: Self =
        Self { start: std::ptr::dangling_mut(), length: 0, memory: PhantomData };

    /// Makes a span of `length` bytes from `start`.
    ///
    /// # Safety
    ///
    /// For `'m`, the bytes stay allocated, and all accesses go through this module or do not race
    /// with it. No writing method is used on memory that must not be written.
    #[inline]
    pub const unsafe fn new(start: *mut u8, length: usize) -> Self {
        Self { start, length, memory: PhantomData }
    }

    /// Makes a span of atomic bytes.
    #[inline]
    pub fn of(bytes: &'m [AtomicU8]) -> Self {
        Self { start: bytes.as_ptr().cast_mut().cast(), length: bytes.len(), memory: PhantomData }
    }

    /// Returns the number of bytes.
    #[inline]
    pub const fn len(self) -> usize {
        self.length
    }

    /// Returns whether the span is empty.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.length == 0
    }

    /// Returns the first `length` bytes, or all bytes if there are fewer.
    #[inline]
    pub fn prefix(self, length: usize) -> Self {
        Self { length: length.min(self.length), ..self }
    }

    /// Returns the bytes behind the first `length` bytes.
    #[inline]
    pub fn skip(self, length: usize) -> Self {
        let length = length.min(self.length);
        Self { start: self.start.wrapping_add(length), length: self.length - length, ..self }
    }

    /// Copies as many bytes as both have.
    #[inline]
    pub fn copy_from(self, source: Span<'_>) {
        let length = self.length.min(source.length);
        // SAFETY: both spans have `length` bytes, shared only with users of this module.
        unsafe { raw::copy(source.start, self.start, length) }
    }

    /// Copies as many bytes as both have.
    #[inline]
    pub fn write(self, bytes: &[u8]) {
        let length = self.length.min(bytes.len());
        // SAFETY: as in `copy_from`; the source is borrowed, so it does not change.
        unsafe { raw::store(bytes.as_ptr(), self.start, length) }
    }

    /// Copies as many bytes as both have.
    #[inline]
    pub fn read(self, bytes: &mut [u8]) {
        let length = self.length.min(bytes.len());
        // SAFETY: as in `copy_from`; the destination is borrowed exclusively.
        unsafe { raw::load(self.start, bytes.as_mut_ptr(), length) }
    }

    /// Sets every byte.
    #[inline]
    pub fn fill(self, byte: u8) {
        // SAFETY: the span has that many bytes, shared only with users of this module.
        unsafe { raw::fill(self.start, byte, self.length) }
    }

    /// Returns the address of the bytes, for system calls that read or write them.
    #[inline]
    pub const fn as_ptr(self) -> *mut u8 {
        self.start
    }

    /// Adds to the first 8 bytes, which must be aligned. Returns their old value.
    #[inline]
    pub fn fetch_add(self, add: u64) -> Option<u64> {
        Some(self.atomic()?.fetch_add(add, Ordering::AcqRel))
    }

    /// Replaces the first 8 bytes, which must be aligned, with `swap` if they equal `compare`.
    /// Returns their old value.
    #[inline]
    pub fn compare_swap(self, compare: u64, swap: u64) -> Option<u64> {
        let word = self.atomic()?;
        let old = word.compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire);
        Some(old.unwrap_or_else(|old| old))
    }

    #[inline]
    fn atomic(self) -> Option<&'m AtomicU64> {
        let word = self.start.cast::<u64>();
        if self.length < 8 || !word.is_aligned() {
            return None;
        }
        // SAFETY: 8 aligned bytes that live for `'m`, and racing users of this module access them
        // as atomics do.
        Some(unsafe { AtomicU64::from_ptr(word) })
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod raw {
    use std::arch::asm;

    /// # Safety
    ///
    /// Both ranges are allocated; only users of this module race with it on either.
    #[inline]
    pub(super) unsafe fn copy(source: *const u8, target: *mut u8, length: usize) {
        // SAFETY: copies `length` bytes upwards; the ABI keeps the direction flag clear.
        unsafe {
            asm!(
                "rep movsb",
                inout("rcx") length => _,
                inout("rsi") source => _,
                inout("rdi") target => _,
                options(nostack, preserves_flags),
            );
        }
    }

    /// # Safety
    ///
    /// As [`copy`]; the source is not written meanwhile.
    #[inline]
    pub(super) unsafe fn store(source: *const u8, target: *mut u8, length: usize) {
        // SAFETY: the caller guarantees what `copy` requires.
        unsafe { copy(source, target, length) }
    }

    /// # Safety
    ///
    /// As [`copy`]; the target is not used otherwise meanwhile.
    #[inline]
    pub(super) unsafe fn load(source: *const u8, target: *mut u8, length: usize) {
        // SAFETY: the caller guarantees what `copy` requires.
        unsafe { copy(source, target, length) }
    }

    /// # Safety
    ///
    /// The range is allocated; only users of this module race with it.
    #[inline]
    pub(super) unsafe fn fill(target: *mut u8, byte: u8, length: usize) {
        // SAFETY: stores `length` bytes upwards; the ABI keeps the direction flag clear.
        unsafe {
            asm!(
                "rep stosb",
                inout("rcx") length => _,
                inout("rdi") target => _,
                in("al") byte,
                options(nostack, preserves_flags),
            );
        }
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod raw {
    use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

    /// # Safety
    ///
    /// `at` is allocated; only users of this module race with it.
    unsafe fn cell<'c>(at: *mut u8) -> &'c AtomicU8 {
        // SAFETY: one allocated byte, which is always aligned; the caller vouches for the rest.
        unsafe { AtomicU8::from_ptr(at) }
    }

    /// # Safety
    ///
    /// Both ranges are allocated; only users of this module race with it on either.
    pub(super) unsafe fn copy(source: *const u8, target: *mut u8, length: usize) {
        for i in 0..length {
            // SAFETY: `i` is within both ranges.
            unsafe {
                cell(target.add(i)).store(cell(source.cast_mut().add(i)).load(Relaxed), Relaxed)
            }
        }
    }

    /// # Safety
    ///
    /// As [`copy`]; the source is not written meanwhile.
    pub(super) unsafe fn store(source: *const u8, target: *mut u8, length: usize) {
        for i in 0..length {
            // SAFETY: `i` is within both ranges, and the source is plain memory.
            unsafe { cell(target.add(i)).store(source.add(i).read(), Relaxed) }
        }
    }

    /// # Safety
    ///
    /// As [`copy`]; the target is not used otherwise meanwhile.
    pub(super) unsafe fn load(source: *const u8, target: *mut u8, length: usize) {
        for i in 0..length {
            // SAFETY: `i` is within both ranges, and the target is plain memory that is ours.
            unsafe { target.add(i).write(cell(source.cast_mut().add(i)).load(Relaxed)) }
        }
    }

    /// # Safety
    ///
    /// The range is allocated; only users of this module race with it.
    pub(super) unsafe fn fill(target: *mut u8, byte: u8, length: usize) {
        for i in 0..length {
            // SAFETY: `i` is within the range.
            unsafe { cell(target.add(i)).store(byte, Relaxed) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(length: usize) -> Vec<AtomicU8> {
        (0..length).map(|i| AtomicU8::new(i as u8)).collect()
    }

    #[test]
    fn bytes_arrive_unchanged_at_every_length() {
        for length in (0..70).chain([255, 256, 4096]) {
            let from = cells(length);
            let to = cells(length);
            Span::of(&to).fill(0xee);
            Span::of(&to).copy_from(Span::of(&from));
            let mut out = vec![0; length];
            Span::of(&to).read(&mut out);
            assert!(out.iter().enumerate().all(|(i, &b)| b == i as u8), "length {length}");
        }
    }

    #[test]
    fn the_shorter_side_bounds_every_copy() {
        let short = cells(3);
        let long = cells(9);
        Span::of(&long).fill(0xee);
        Span::of(&long).copy_from(Span::of(&short));
        Span::of(&short).write(&[9; 9]);
        let mut out = [0; 4];
        Span::of(&long).read(&mut out);
        assert_eq!(out, [0, 1, 2, 0xee]);
        assert_eq!(Span::of(&long).prefix(99).len(), 9);
    }

    #[test]
    fn atomics_need_eight_aligned_bytes() {
        let word = AtomicU64::new(40);
        // SAFETY: 8 bytes that live as long as `word`, used through the span only.
        let span = unsafe { Span::new(word.as_ptr().cast(), 8) };
        assert_eq!(span.fetch_add(2), Some(40));
        assert_eq!(span.compare_swap(42, 7), Some(42));
        assert_eq!(span.compare_swap(42, 8), Some(7));
        assert_eq!(word.load(Ordering::Relaxed), 7);
        assert_eq!(span.prefix(7).fetch_add(1), None);
    }
}
