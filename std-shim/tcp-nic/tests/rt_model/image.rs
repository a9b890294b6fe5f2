//! The model: what memory contains after requests were executed one after the other.

use super::traffic::{Effect, World};

pub(crate) const SOURCE_BYTES: usize = 1 << 20;
pub(crate) const TARGET_BYTES: usize = (1 << 20) + 5000;
pub(crate) const FETCH_BYTES: usize = 3 << 20;
pub(crate) const WORDS: usize = 16;

/// What the requests of one end write: the peer's target and words, and where they fetch to.
pub(crate) struct Image {
    pub(crate) target: Vec<u8>,
    pub(crate) words: Vec<u64>,
    pub(crate) fetched: Vec<u8>,
}

impl Image {
    pub(crate) fn new() -> Self {
        Self { target: vec![0; TARGET_BYTES], words: vec![0; WORDS], fetched: vec![0; FETCH_BYTES] }
    }

    /// After the first `executed` requests of an end.
    pub(crate) fn after(world: &World, end: usize, executed: usize) -> Self {
        let mut image = Self::new();
        for request in &world.ends[end].sent[..executed] {
            image.execute(&request.effect, &world.ends[end].source);
        }
        image
    }

    pub(crate) fn execute(&mut self, effect: &Effect, source: &[u8]) {
        match effect {
            Effect::Write { at, pieces } => {
                let mut at = *at;
                for &(from, length) in pieces {
                    self.target[at..at + length].copy_from_slice(&source[from..from + length]);
                    at += length;
                }
            }
            Effect::Read { from, pieces } => {
                let mut from = *from;
                for &(to, length) in pieces {
                    let bytes = &self.target[from..from + length];
                    self.fetched[to..to + length].copy_from_slice(bytes);
                    from += length;
                }
            }
            &Effect::Add { word, add, to } => {
                let old = self.words[word];
                self.words[word] = old.wrapping_add(add);
                self.fetched[to..to + 8].copy_from_slice(&old.to_ne_bytes());
            }
            &Effect::Swap { word, compare, swap, to } => {
                let old = self.words[word];
                if old == compare {
                    self.words[word] = swap;
                }
                self.fetched[to..to + 8].copy_from_slice(&old.to_ne_bytes());
            }
            Effect::Send { .. } => {}
        }
    }
}
