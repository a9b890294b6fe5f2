//! Registered memory as the data path needs it: a few words that a handle leads to, and keys made
//! of them without allocating.

use crate::code::Code;
use crate::error::{Refusal, refuse};
use crate::pairs::Pairs;
use crate::table::{WORDS, Words};
use crate::types::{POLYRAIL_MAX_DEVICES, POLYRAIL_REMOTE_BYTES};
use arrayvec::ArrayVec;
use polyrail::memory::{ForeignBuffer, RegionKeys, keys_toward};
use polyrail::verbs::{DeviceId, DeviceKeys};

/// Keys of one request, for each two devices that a rail connects.
pub(crate) type Keys = ArrayVec<DeviceKeys, POLYRAIL_MAX_DEVICES>;

/// Memory here.
#[derive(Debug)]
pub(crate) struct Local {
    pub(crate) addr: u64,
    pub(crate) length: u64,
    pub(crate) access: u32,
    pub(crate) is_dma_buf: bool,
    keys: ArrayVec<RegionKeys, POLYRAIL_MAX_DEVICES>,
}

/// Memory at a peer.
#[derive(Debug)]
pub(crate) struct Far {
    pub(crate) addr: u64,
    pub(crate) length: u64,
    rkeys: ArrayVec<u32, POLYRAIL_MAX_DEVICES>,
}

/// Words before the keys: address, length, and the rest.
const FIRST: usize = 3;
const COUNT_SHIFT: u32 = 32;
const DMA_BUF: u64 = 1 << 63;

const _: () = assert!(FIRST + POLYRAIL_MAX_DEVICES + POLYRAIL_MAX_DEVICES / 2 == WORDS);

const fn joined(high: u32, low: u32) -> u64 {
    (high as u64) << 32 | low as u64
}

/// Two keys a word.
fn put_rkeys(words: &mut [u64], rkeys: impl Iterator<Item = u32>) {
    for (at, rkey) in rkeys.enumerate() {
        words[at / 2] |= u64::from(rkey) << (at % 2 * 32);
    }
}

#[inline]
fn rkey(words: &[u64], at: usize) -> u32 {
    (words[at / 2] >> (at % 2 * 32)) as u32
}

impl Local {
    pub(crate) fn of<R>(buffer: &ForeignBuffer<R>, access: u32, is_dma_buf: bool) -> Self {
        let keys = buffer.keys().iter().copied().take(POLYRAIL_MAX_DEVICES).collect();
        Self { addr: buffer.addr(), length: buffer.len() as u64, access, is_dma_buf, keys }
    }

    pub(crate) fn words(&self) -> Words {
        let mut words = [0; WORDS];
        let Self { addr, length, access, is_dma_buf, keys } = self;
        let dma_buf = if *is_dma_buf { DMA_BUF } else { 0 };
        words[0] = *addr;
        words[1] = *length;
        words[2] = u64::from(*access) | (keys.len() as u64) << COUNT_SHIFT | dma_buf;
        let (keyed, rkeys) = words[FIRST..].split_at_mut(POLYRAIL_MAX_DEVICES);
        for (word, key) in keyed.iter_mut().zip(keys) {
            *word = joined(key.device.0, key.lkey);
        }
        put_rkeys(rkeys, keys.iter().map(|key| key.rkey));
        words
    }

    #[inline]
    pub(crate) fn from_words(words: &Words) -> Self {
        let (keyed, rkeys) = words[FIRST..].split_at(POLYRAIL_MAX_DEVICES);
        let count = (words[2] >> COUNT_SHIFT & 0xff) as usize;
        let key = |(at, word): (usize, &u64)| RegionKeys {
            device: DeviceId((word >> 32) as u32),
            lkey: *word as u32,
            rkey: rkey(rkeys, at),
        };
        Self {
            addr: words[0],
            length: words[1],
            access: words[2] as u32,
            is_dma_buf: words[2] & DMA_BUF != 0,
            keys: keyed.iter().take(count).enumerate().map(key).collect(),
        }
    }

    pub(crate) fn for_peers(&self) -> Far {
        let rkeys = self.keys.iter().map(|key| key.rkey).collect();
        Far { addr: self.addr, length: self.length, rkeys }
    }

    /// Keys of requests that touch this memory only.
    #[inline]
    pub(crate) fn keys(&self) -> impl Iterator<Item = DeviceKeys> {
        self.keys.iter().map(|keys| keys.toward(0))
    }

    /// Returns its own keys, for messages.
    #[inline]
    pub(crate) fn own_keys(&self) -> impl Iterator<Item = DeviceKeys> {
        self.keys.iter().map(|keys| keys.toward(keys.rkey))
    }

    /// Adds the keys of requests that move data between this memory and the peer's, over rails that
    /// join these pairs of devices.
    #[inline]
    pub(crate) fn add_keys(&self, far: &Far, pairs: &Pairs, keys: &mut Keys) {
        if pairs.are_plain() {
            keys.extend(keys_toward(&self.keys, &far.rkeys));
        } else {
            self.add_paired_keys(far, pairs, keys);
        }
    }

    #[cold]
    fn add_paired_keys(&self, far: &Far, Pairs { own, far: order }: &Pairs, keys: &mut Keys) {
        let own: ArrayVec<_, POLYRAIL_MAX_DEVICES> = own.of(&self.keys).copied().collect();
        let rkeys: ArrayVec<_, POLYRAIL_MAX_DEVICES> = order.of(&far.rkeys).copied().collect();
        keys.extend(keys_toward(&own, &rkeys));
    }

    /// Returns the address of a part.
    #[inline]
    pub(crate) fn at(&self, offset: u64, length: u32) -> Result<u64, Refusal> {
        at((self.addr, self.length), offset, length, "the region")
    }
}

/// The first bytes of an export: its format and version.
const MAGIC: [u8; 4] = *b"PLK1";
const HEAD: usize = 21;
const _: () = assert!(HEAD + 4 * POLYRAIL_MAX_DEVICES <= POLYRAIL_REMOTE_BYTES);

impl Far {
    pub(crate) fn words(&self) -> Words {
        let mut words = [0; WORDS];
        words[0] = self.addr;
        words[1] = self.length;
        words[2] = (self.rkeys.len() as u64) << COUNT_SHIFT;
        put_rkeys(&mut words[FIRST..], self.rkeys.iter().copied());
        words
    }

    #[inline]
    pub(crate) fn from_words(words: &Words) -> Self {
        let count = (words[2] >> COUNT_SHIFT & 0xff) as usize;
        let rkeys = (0..count.min(POLYRAIL_MAX_DEVICES)).map(|at| rkey(&words[FIRST..], at));
        Self { addr: words[0], length: words[1], rkeys: rkeys.collect() }
    }

    /// Returns the encoded form: magic bytes, number of keys, address, length, keys; all big
    /// endian.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(POLYRAIL_REMOTE_BYTES);
        bytes.extend(MAGIC);
        bytes.push(self.rkeys.len() as u8);
        bytes.extend(self.addr.to_be_bytes());
        bytes.extend(self.length.to_be_bytes());
        self.rkeys.iter().for_each(|rkey| bytes.extend(rkey.to_be_bytes()));
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Refusal> {
        let read = || {
            let (head, keys) = bytes.split_at_checked(HEAD)?;
            let number = |at: usize| head[at..].first_chunk().map(|n| u64::from_be_bytes(*n));
            let rkeys = keys.chunks_exact(4);
            let is_whole = head.starts_with(&MAGIC)
                && rkeys.remainder().is_empty()
                && rkeys.len() == usize::from(head[4])
                && (1..=POLYRAIL_MAX_DEVICES).contains(&rkeys.len());
            let (addr, length) = (number(5)?, number(13)?);
            // It does not wrap around the end of the address space.
            let is_somewhere = length > 0 && addr.checked_add(length).is_some();
            let rkeys = rkeys.filter_map(|key| Some(u32::from_be_bytes(*key.first_chunk()?)));
            (is_whole && is_somewhere).then(|| Self { addr, length, rkeys: rkeys.collect() })
        };
        match read() {
            Some(far) => Ok(far),
            None => {
                let words = format!("{} bytes are not an exported region", bytes.len());
                refuse(Code::Protocol, words)
            }
        }
    }

    /// Returns the address of a part.
    #[inline]
    pub(crate) fn at(&self, offset: u64, length: u32) -> Result<u64, Refusal> {
        at((self.addr, self.length), offset, length, "the peer's memory")
    }
}

#[inline]
fn at((addr, size): (u64, u64), offset: u64, length: u32, whose: &str) -> Result<u64, Refusal> {
    match offset.checked_add(length.into()) {
        Some(end) if end <= size => Ok(addr.wrapping_add(offset)),
        _ => {
            let words = format!(
                "{length} bytes from offset {offset} do not lie within {whose} of {size} bytes"
            );
            refuse(Code::Range, words)
        }
    }
}
