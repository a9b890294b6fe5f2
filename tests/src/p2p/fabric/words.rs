//! Words that are written, and when they are seen.

use super::{Fabric, Hidden, Sent};
use crate::p2p::memory::Kind;
use polyrail_core::p2p::{ENTRY_BYTES, EntryForm};
use polyrail_core::verbs::Opcode;

impl Fabric {
    /// Copies words: buffers have contents that follow from their addresses.
    pub(super) fn copy_words(
        &mut self,
        local: (usize, u32),
        remote: (usize, u32),
        sent: &Sent,
        is_honest: bool,
    ) -> Option<Vec<u64>> {
        let Kind::Words(target) = &self.memory.block(remote.0).kind else { return None };
        if !matches!(self.memory.block(local.0).kind, Kind::Words(_)) {
            // The address that a peer gives for its buffer.
            assert!(!is_honest, "a buffer is written over words");
            return None;
        }
        let target = target.clone();
        let Sent { request, inline, .. } = sent;
        let (first, count) = (local.1 as usize / 8, request.sge.length() as usize / 8);
        let read = || match &self.memory.block(local.0).kind {
            Kind::Words(words) => words.read(first, count),
            other => unreachable!("no words: {other:?}"),
        };
        let words = inline.clone().unwrap_or_else(read);
        if !is_honest && !remote.1.is_multiple_of(8) {
            return None;
        }
        assert!(
            remote.1.is_multiple_of(8) && request.sge.length().is_multiple_of(8),
            "whole words"
        );
        let first = remote.1 as usize / 8;
        let written = words.iter().step_by(ENTRY_BYTES / 8).copied().collect();
        // Signals complete at the peer with what they brought.
        let is_hidden = self.tears && request.opcode == Opcode::RdmaWrite;
        for (word, value) in (first..).zip(words) {
            let same = |hidden: &Hidden| (hidden.block, hidden.word) == (remote.0, word);
            self.hidden.retain(|hidden| !same(hidden));
            // What is there already is seen at once.
            if is_hidden && target.read(word, 1) != [value] {
                let in_order = false;
                self.hidden.push(Hidden { block: remote.0, word, value, in_order });
            } else {
                target.write(word, value);
            }
        }
        Some(written)
    }

    /// Hidden words of this block are shown in the order that this form needs.
    pub(in crate::p2p) fn order_hidden(&mut self, form: EntryForm) {
        let in_order = form == EntryForm::Plain;
        self.hidden.iter_mut().for_each(|hidden| hidden.in_order |= in_order);
    }

    /// Whether all words of these were shown.
    pub(in crate::p2p) fn shows(&self, block: usize, words: std::ops::Range<usize>) -> bool {
        !self.hidden.iter().any(|hidden| hidden.block == block && words.contains(&hidden.word))
    }

    /// Shows a word; of those that are in order, the first one of its 128 bytes.
    pub(in crate::p2p) fn show(&mut self, which: usize) {
        let Hidden { block, word, in_order, .. } = self.hidden[which];
        let same = |hidden: &Hidden| hidden.block == block && hidden.word / 16 == word / 16;
        let first = self.hidden.iter().position(same).filter(|_| in_order);
        let Hidden { block, word, value, .. } = self.hidden.remove(first.unwrap_or(which));
        self.write_word(block, word, value);
    }

    pub(in crate::p2p) fn write_word(&self, block: usize, word: usize, value: u64) {
        let Kind::Words(words) = &self.memory.block(block).kind else { panic!("no words") };
        words.write(word, value);
    }
}
