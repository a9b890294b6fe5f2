//! An allocator that counts, thread by thread, since tests and simulations run side by side, and
//! for all threads together.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

static OF_ALL_THREADS: AtomicU64 = AtomicU64::new(0);

/// The system's allocator, with allocations counted. A program that needs the counts installs it as
/// its `#[global_allocator]`; in others the counts stay 0.
#[derive(Clone, Copy, Debug)]
pub struct CountingAllocator;

// SAFETY: everything is System's, which keeps the contract. (The provided `realloc` and
// `alloc_zeroed` come through `alloc`, so they count too.)
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        OF_ALL_THREADS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// Allocations of this thread so far.
pub fn allocations() -> u64 {
    ALLOCATIONS.get()
}

/// Allocations of all threads so far. Only useful in a program that does nothing else at the time:
/// in a test that is alone in its file.
pub fn allocations_of_all_threads() -> u64 {
    OF_ALL_THREADS.load(Ordering::Relaxed)
}

/// Makes sure that allocations are counted: otherwise a check for none would always pass.
///
/// # Panics
///
/// If [`CountingAllocator`] is not the program's allocator.
pub fn expect_counting() {
    let before = allocations();
    drop(std::hint::black_box(Box::new(7)));
    assert_eq!(allocations() - before, 1, "allocations are counted");
}

/// Calls something that must not allocate.
///
/// # Panics
///
/// If it does.
#[track_caller]
pub fn without_allocating<R>(what: &str, act: impl FnOnce() -> R) -> R {
    let before = allocations();
    let result = act();
    assert_eq!(allocations(), before, "{what} allocates");
    result
}
