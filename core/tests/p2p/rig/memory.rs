//! Memory of the ends: words of the protocol, and buffers of messages.

use crate::device::Block;
use polyrail_core::verbs::{DeviceKeys, LocalBuffer};
use std::ops::{Deref, Range};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Words, aligned to 64 bytes.
pub(crate) struct Aligned {
    words: Rc<[AtomicU64]>,
    range: Range<usize>,
}

impl Aligned {
    pub(super) fn new(count: usize) -> Self {
        let words: Rc<[AtomicU64]> = (0..count + 7).map(|_| AtomicU64::new(0)).collect();
        let skip = words.as_ptr().addr().wrapping_neg() % 64 / 8;
        Self { words, range: skip..skip + count }
    }

    pub(super) fn block(&self) -> Block {
        Block::Words(Rc::clone(&self.words))
    }
}

impl Deref for Aligned {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        &self.words[self.range.clone()]
    }
}

// SAFETY: the words do not move when the handle does.
unsafe impl stable_deref_trait::StableDeref for Aligned {}

/// Memory with the keys of one end's devices.
#[derive(Clone)]
pub(crate) struct Memory {
    pub(crate) block: Block,
    pub(crate) keys: Vec<DeviceKeys>,
}

impl Memory {
    pub(crate) fn local(&self, offset: u32, length: u32) -> LocalBuffer {
        // SAFETY: the fabric keeps the memory, of atomics.
        unsafe { LocalBuffer::new(self.block.addr() + u64::from(offset), length) }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let Block::Bytes(bytes) = &self.block else { panic!("no bytes") };
        bytes.iter().map(|byte| byte.load(Ordering::Relaxed)).collect()
    }

    pub(crate) fn fill(&self, byte: impl Fn(usize) -> u8) {
        let Block::Bytes(bytes) = &self.block else { panic!("no bytes") };
        bytes.iter().enumerate().for_each(|(at, place)| place.store(byte(at), Ordering::Relaxed));
    }
}
