//! All slots. They come in chunks, which are never freed: a handle that is kept too long finds its slot.

use super::handle::INDEX_BITS;
use super::slot::Slot;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Objects that can be open at a time.
pub(super) const MOST: usize = 1 << INDEX_BITS;

const CHUNK: usize = 1 << 10;
const CHUNKS: usize = MOST / CHUNK;

/// The first slot of each chunk.
static TABLE: [AtomicPtr<Slot>; CHUNKS] = [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS];

/// Which slots are free.
static FREE: Mutex<Free> = Mutex::new(Free { indices: Vec::new(), chunks: 0 });

struct Free {
    indices: Vec<u32>,
    chunks: usize,
}

fn lock() -> MutexGuard<'static, Free> {
    // Plain data, which no panic leaves inconsistent.
    FREE.lock().unwrap_or_else(PoisonError::into_inner)
}

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
    let mut free = lock();
    if free.indices.is_empty() {
        free.grow()?;
    }
    let index = free.indices.pop()?;
    Some((index, slot(index)?))
}

/// A slot is free.
pub(super) fn give_back(index: u32) {
    lock().indices.push(index);
}

impl Free {
    fn grow(&mut self) -> Option<()> {
        let place = TABLE.get(self.chunks)?;
        let chunk: Box<[Slot]> = (0..CHUNK).map(|_| Slot::new()).collect();
        let chunk: &'static mut [Slot] = Box::leak(chunk);
        let first = (self.chunks * CHUNK) as u32;
        self.indices.extend((first..first + CHUNK as u32).rev());
        self.chunks += 1;
        place.store(chunk.as_mut_ptr(), Ordering::Release);
        Some(())
    }
}
