//! Memory of the devices.

use std::rc::Rc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Memory that devices reach.
#[derive(Clone)]
pub(crate) enum Block {
    /// Words that are written whole.
    Words(Rc<[AtomicU64]>),
    /// Bytes.
    Bytes(Rc<[AtomicU8]>),
    /// This many bytes at this address without contents: for lengths that no test can hold.
    Phantom(u64, u64),
}

impl Block {
    pub(crate) fn addr(&self) -> u64 {
        match self {
            Self::Words(words) => words.as_ptr().addr() as u64,
            Self::Bytes(bytes) => bytes.as_ptr().addr() as u64,
            Self::Phantom(addr, _) => *addr,
        }
    }

    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Words(words) => words.len() as u64 * 8,
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Phantom(_, len) => *len,
        }
    }

    pub(super) fn read(&self, offset: u64, out: &mut [u8]) {
        for (at, byte) in (offset..).zip(out) {
            *byte = match self {
                Self::Words(words) => {
                    words[at as usize / 8].load(Ordering::Relaxed).to_ne_bytes()[at as usize % 8]
                }
                Self::Bytes(bytes) => bytes[at as usize].load(Ordering::Relaxed),
                Self::Phantom(..) => 0,
            };
        }
    }

    pub(super) fn write(&self, offset: u64, bytes: &[u8]) {
        match self {
            Self::Words(words) => {
                assert!(offset.is_multiple_of(8) && bytes.len().is_multiple_of(8), "whole words");
                for (at, word) in (offset as usize / 8..).zip(bytes.chunks_exact(8)) {
                    let word = u64::from_ne_bytes(word.try_into().expect("8 bytes"));
                    words[at].store(word, Ordering::Release);
                }
            }
            Self::Bytes(all) => {
                for (at, byte) in (offset as usize..).zip(bytes) {
                    all[at].store(*byte, Ordering::Relaxed);
                }
            }
            Self::Phantom(..) => {}
        }
    }
}
