//! Memory that NICs reach: words that are there, and buffers of which only is known what was
//! written.

use stable_deref_trait::StableDeref;
use std::cell::RefCell;
use std::fmt;
use std::ops::{Deref, Range};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Words at an address that is a multiple of 64.
#[derive(Clone)]
pub(super) struct Words {
    words: Rc<[AtomicU64]>,
    range: Range<usize>,
}

thread_local! {
    /// All words that this thread's worlds have and had.
    static ALL: RefCell<Vec<Rc<[AtomicU64]>>> = const { RefCell::new(Vec::new()) };
}

/// Words of 0. A world that is built again, after the one before it is gone, has them where they
/// were: what is equal looks equal.
fn zeroed(count: usize) -> Rc<[AtomicU64]> {
    ALL.with_borrow_mut(|all| {
        let fits = |words: &&Rc<[AtomicU64]>| words.len() == count && Rc::strong_count(words) == 1;
        if let Some(words) = all.iter().find(fits) {
            words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
            return Rc::clone(words);
        }
        let words: Rc<[AtomicU64]> = (0..count).map(|_| AtomicU64::new(0)).collect();
        all.push(Rc::clone(&words));
        words
    })
}

impl Words {
    pub(super) fn new(count: usize) -> Self {
        let words = zeroed(count + 7);
        let skip = words.as_ptr().addr().wrapping_neg() % 64 / 8;
        Self { words, range: skip..skip + count }
    }

    pub(super) fn addr(&self) -> u64 {
        self.as_ptr().addr() as u64
    }

    pub(super) fn read(&self, first: usize, count: usize) -> Vec<u64> {
        let words = &self[first..first + count];
        words.iter().map(|word| word.load(Ordering::Relaxed)).collect()
    }

    pub(super) fn write(&self, at: usize, word: u64) {
        self[at].store(word, Ordering::Release);
    }
}

impl Deref for Words {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        &self.words[self.range.clone()]
    }
}

// SAFETY: the words do not move when the handle does.
unsafe impl StableDeref for Words {}

impl fmt::Debug for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What there is counts, not where.
        let used = self.iter().enumerate().map(|(at, word)| (at, word.load(Ordering::Relaxed)));
        f.debug_map().entries(used.filter(|(_, word)| *word != 0)).finish()
    }
}

/// Which message a buffer is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    /// The connection, counted with those that were replaced.
    pub(super) connection: u32,
    /// Number of the receive, or of the message.
    pub(super) number: u64,
    /// Which of its buffers.
    pub(super) buffer: u8,
}

/// A buffer that is received into.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) owner: Owner,
    /// What is to land there: all of this source.
    pub(super) source: Option<usize>,
    /// What has landed, as ranges that do not touch each other.
    pub(super) written: Vec<Range<u32>>,
    /// Its caller has the result: done or failed.
    pub(super) is_given_back: bool,
    /// Devices that have read it since it was given back.
    pub(super) flushed: u8,
}

/// A buffer that is sent.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) owner: Owner,
    /// This process can read it, unlike the memory of a GPU.
    pub(super) is_readable: bool,
    pub(super) is_given_back: bool,
}

/// What is at an address.
#[derive(Debug)]
pub(super) enum Kind {
    Words(Words),
    Target(Target),
    Source(Source),
}

/// Memory that is registered with all devices of a host. What buffers hold is a function of their
/// addresses: byte i of a source may only land at byte i of its target, and that is all that is
/// kept of it.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) connection: u32,
    pub(super) host: usize,
    pub(super) addr: u64,
    pub(super) length: u64,
    pub(super) kind: Kind,
}

impl Target {
    pub(super) fn new(owner: Owner) -> Self {
        Self { owner, source: None, written: Vec::new(), is_given_back: false, flushed: 0 }
    }

    /// These bytes were written.
    pub(super) fn write(&mut self, start: u32, length: u32) {
        let mut new = start..start + length;
        self.written.retain(|old| {
            let apart = old.end < new.start || new.end < old.start;
            if !apart {
                new = new.start.min(old.start)..new.end.max(old.end);
            }
            apart
        });
        self.written.push(new);
        self.written.sort_by_key(|range| range.start);
    }

    /// Whether the first `length` bytes were written, and no others.
    pub(super) fn holds(&self, length: u32) -> bool {
        match self.written.as_slice() {
            [] => length == 0,
            [all] => *all == (0..length),
            _ => false,
        }
    }
}

/// All memory of both hosts.
#[derive(Debug, Default)]
pub(super) struct Memory {
    blocks: Vec<Block>,
    next_addr: u64,
}

/// Bits of a key that hold the device.
const DEVICE_BITS: u32 = 4;

impl Memory {
    pub(super) fn words(&mut self, connection: u32, host: usize, words: &Words) -> usize {
        let (addr, length) = (words.addr(), size_of_val(&words[..]) as u64);
        self.add(Block { connection, host, addr, length, kind: Kind::Words(words.clone()) })
    }

    /// A buffer at an address that no other buffer has, or had.
    pub(super) fn buffer(&mut self, host: usize, length: u32, kind: Kind) -> usize {
        // Buffers of the same length are not always alike: neither end need be aligned.
        let addr = (1 << 60) + self.next_addr + self.blocks.len() as u64 % 3;
        self.next_addr += (u64::from(length) | 63) + 65;
        let connection = match &kind {
            Kind::Target(target) => target.owner.connection,
            Kind::Source(source) => source.owner.connection,
            Kind::Words(_) => unreachable!("words have an address of their own"),
        };
        self.add(Block { connection, host, addr, length: length.into(), kind })
    }

    /// This many of the newest buffers were not used.
    pub(super) fn forget(&mut self, count: usize) {
        let rest = self.blocks.len() - count;
        for block in self.blocks.drain(rest..) {
            self.next_addr -= (block.length | 63) + 65;
        }
    }

    fn add(&mut self, block: Block) -> usize {
        self.blocks.push(block);
        self.blocks.len() - 1
    }

    /// The key of a block for a device of its host.
    pub(super) const fn key(block: usize, device: usize) -> u32 {
        ((block + 1) << DEVICE_BITS | device) as u32
    }

    pub(super) fn block(&self, at: usize) -> &Block {
        &self.blocks[at]
    }

    pub(super) fn target(&mut self, at: usize) -> &mut Target {
        match &mut self.blocks[at].kind {
            Kind::Target(target) => target,
            other => panic!("no buffer to receive into: {other:?}"),
        }
    }

    pub(super) fn source(&mut self, at: usize) -> &mut Source {
        match &mut self.blocks[at].kind {
            Kind::Source(source) => source,
            other => panic!("no buffer to send: {other:?}"),
        }
    }

    /// The block that a request means, and where in it; `None` if the key does not fit.
    pub(super) fn find(
        &self,
        (host, device): (usize, usize),
        key: u32,
        addr: u64,
        length: u32,
    ) -> Option<(usize, u32)> {
        let at = ((key >> DEVICE_BITS) as usize).checked_sub(1)?;
        let block = self.blocks.get(at)?;
        let fits_device = block.host == host && key as usize & ((1 << DEVICE_BITS) - 1) == device;
        let offset = addr.checked_sub(block.addr)?;
        let fits = fits_device && offset.checked_add(length.into())? <= block.length;
        fits.then_some((at, offset as u32))
    }
}
