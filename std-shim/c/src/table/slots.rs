//! All slots. They come in chunks, which are never freed: a handle that is kept too long finds its
//! slot.
//!
//! The free slots are a stack without a lock, because a lock that another thread holds during a
//! fork would never be released in the child.

use super::handle::INDEX_BITS;
use super::slot::Slot;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

/// Objects that can be open at a time.
pub(super) const MOST: usize = 1 << INDEX_BITS;

const CHUNK: usize = 1 << 10;
const CHUNKS: usize = MOST / CHUNK;

/// The first slot of each chunk.
static TABLE: [AtomicPtr<Slot>; CHUNKS] = [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS];

/// Number of chunks that were made, or are being made.
static MADE: AtomicUsize = AtomicUsize::new(0);

/// The top of the stack of free slots: the number of changes so far, modulo 2^32, and the slot's
/// number plus 1, or 0 if there is none. Because of the changes, a thread that stopped between
/// reading the top and replacing it does not replace an equal later top.
static FREE: AtomicU64 = AtomicU64::new(0);

/// Returns the slot of this number, if it was ever used.
#[inline]
pub(super) fn slot(index: u32) -> Option<&'static Slot> {
    let index = index as usize;
    let chunk = TABLE.get(index / CHUNK)?.load(Ordering::Acquire);
    if chunk.is_null() {
        return None;
    }
    // SAFETY: a chunk has this many slots, and is never freed.
    Some(unsafe { &*chunk.add(index % CHUNK) })
}

/// Takes a free slot for the caller.
pub(super) fn take() -> Option<(u32, &'static Slot)> {
    loop {
        if let Some(taken) = pop() {
            return Some(taken);
        }
        grow()?;
    }
}

/// A slot is free.
pub(super) fn give_back(index: u32) {
    if let Some(slot) = slot(index) {
        push(index, slot);
    }
}

/// Returns the top after `old` with this number.
const fn replaced(old: u64, number: u32) -> u64 {
    ((old >> 32).wrapping_add(1) << 32) | number as u64
}

fn pop() -> Option<(u32, &'static Slot)> {
    let mut top = FREE.load(Ordering::Acquire);
    loop {
        let index = (top as u32).checked_sub(1)?;
        let slot = slot(index)?;
        // If another thread takes the slot meanwhile, this may be any number, and is not used.
        let next = slot.next.load(Ordering::Relaxed);
        let (acquire, new) = (Ordering::Acquire, replaced(top, next));
        match FREE.compare_exchange_weak(top, new, acquire, acquire) {
            Ok(_) => return Some((index, slot)),
            Err(changed) => top = changed,
        }
    }
}

/// Pushes slots that are linked from `first` to `last`.
fn push(first: u32, last: &Slot) {
    let mut top = FREE.load(Ordering::Relaxed);
    loop {
        last.next.store(top as u32, Ordering::Relaxed);
        let (release, new) = (Ordering::Release, replaced(top, first + 1));
        match FREE.compare_exchange_weak(top, new, release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(changed) => top = changed,
        }
    }
}

/// Adds a chunk. Two threads may add one each.
fn grow() -> Option<()> {
    let more = |made| (made < CHUNKS).then_some(made + 1);
    let made = MADE.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
    let first = (made * CHUNK) as u32;
    let chunk: Box<[Slot]> = (0..CHUNK).map(|_| Slot::new()).collect();
    let chunk: &'static mut [Slot] = Box::leak(chunk);
    for (index, slot) in (first..).zip(&*chunk) {
        // The number plus 1 of the slot after this one.
        slot.next.store(index + 2, Ordering::Relaxed);
    }
    let start = chunk.as_mut_ptr();
    TABLE[made].store(start, Ordering::Release);
    // SAFETY: the chunk has this many slots, and is never freed.
    push(first, unsafe { &*start.add(CHUNK - 1) });
    Some(())
}
