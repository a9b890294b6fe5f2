//! The registrations of a cache, and the decisions about them, without calls to devices.

use super::limits::{CacheCounters, CacheLimits, StillRegistered};
use crate::memory::foreign::ForeignBuffer;
use polyrail_core::verbs::AccessFlags;
use std::collections::BTreeMap;
use std::ops::{Range, RangeBounds};

/// Registrations of one cache. Each is in one of the four collections.
#[derive(Debug)]
pub(super) struct State<R> {
    limits: CacheLimits,
    /// Registrations that look-ups find, by access and first byte. None contains another with the
    /// same access, so of those that begin at or before a byte, the last to begin is also the last
    /// to end.
    answering: BTreeMap<(u32, u64), Entry<R>>,
    /// Registrations that look-ups do not find. Deregistered once they are unused.
    leaving: Vec<ForeignBuffer<R>>,
    /// Ranges that a thread is deregistering.
    closing: Vec<Range<u64>>,
    /// Ranges that a device failed to deregister.
    kept: Vec<Range<u64>>,
    /// Counts look-ups, to order the registrations by their last use.
    clock: u64,
    counters: CacheCounters,
}

/// A registration, and the time of its last use.
#[derive(Debug)]
struct Entry<R> {
    buffer: ForeignBuffer<R>,
    used: u64,
}

impl<R> State<R> {
    pub(super) fn new(limits: CacheLimits) -> Self {
        Self {
            limits,
            answering: BTreeMap::new(),
            leaving: Vec::new(),
            closing: Vec::new(),
            kept: Vec::new(),
            clock: 0,
            counters: CacheCounters::default(),
        }
    }

    pub(super) const fn counters(&self) -> CacheCounters {
        self.counters
    }

    /// Looks up a registration with this access that contains the range; returns the range as a
    /// part of it.
    pub(super) fn find(
        &mut self,
        access: AccessFlags,
        range: &Range<u64>,
    ) -> Option<ForeignBuffer<R>> {
        let found = self.part(access, range);
        let count =
            if found.is_some() { &mut self.counters.hits } else { &mut self.counters.misses };
        *count += 1;
        found
    }

    fn part(&mut self, access: AccessFlags, range: &Range<u64>) -> Option<ForeignBuffer<R>> {
        let access = access.bits();
        let before = (access, 0)..=(access, range.start);
        let (_, entry) = self.answering.range_mut(before).next_back()?;
        // Empty ranges never match, since devices refuse them.
        if range.is_empty() || entry.buffer.range().end < range.end {
            return None;
        }
        self.clock += 1;
        entry.used = self.clock;
        Some(entry.buffer.part(range))
    }

    /// Adds a new registration; returns the range as a part of it, or of one that was added
    /// concurrently.
    pub(super) fn insert(
        &mut self,
        access: AccessFlags,
        buffer: ForeignBuffer<R>,
    ) -> ForeignBuffer<R> {
        let range = buffer.range();
        if let Some(found) = self.part(access, &range) {
            self.leaving.push(buffer);
            return found;
        }
        let within = (access.bits(), range.start)..(access.bits(), range.end);
        self.retire(within, |entry| entry.buffer.range().end <= range.end);
        self.clock += 1;
        let used = self.clock;
        let part = buffer.part(&range);
        self.counters.registrations += 1;
        self.counters.bytes += buffer.len() as u64;
        self.answering.insert((access.bits(), range.start), Entry { buffer, used });
        part
    }

    /// Removes the registrations that overlap a range from look-ups.
    pub(super) fn forget(&mut self, range: &Range<u64>) {
        self.retire(.., |entry| overlap(&entry.buffer.range(), range));
    }

    /// Removes all unused registrations from look-ups; returns whether there were any.
    pub(super) fn forget_idle(&mut self) -> bool {
        let before = self.answering.len();
        self.retire(.., |entry| !entry.buffer.is_shared());
        self.answering.len() < before
    }

    /// Makes every registration surplus once it is unused.
    pub(super) const fn shut(&mut self) {
        self.limits = CacheLimits { max_registrations: 0, max_bytes: 0 };
    }

    /// Removes registrations with these keys from look-ups, if `goes` returns true.
    fn retire(&mut self, keys: impl RangeBounds<(u32, u64)>, goes: impl Fn(&Entry<R>) -> bool) {
        // `BTreeMap::extract_if` needs Rust 1.91.
        let going = self.answering.range(keys).filter(|(_, entry)| goes(entry));
        let going: Vec<_> = going.map(|(key, _)| *key).collect();
        for Entry { buffer, .. } in going.iter().filter_map(|key| self.answering.remove(key)) {
            self.counters.registrations -= 1;
            self.counters.bytes -= buffer.len() as u64;
            self.leaving.push(buffer);
        }
    }

    /// Returns the registrations that the caller must now deregister, and report as
    /// [`closed`](Self::closed).
    pub(super) fn surplus(&mut self) -> Vec<ForeignBuffer<R>> {
        while self.is_over() && self.retire_oldest() {}
        let (used, surplus): (Vec<_>, Vec<_>) =
            self.leaving.drain(..).partition(|buffer| buffer.is_shared());
        self.leaving = used;
        self.closing.extend(surplus.iter().map(|buffer| buffer.range()));
        surplus
    }

    const fn is_over(&self) -> bool {
        let CacheCounters { registrations, bytes, .. } = self.counters;
        registrations > self.limits.max_registrations || bytes > self.limits.max_bytes
    }

    /// Removes the least recently used of the unused registrations from look-ups; returns whether
    /// there was one.
    fn retire_oldest(&mut self) -> bool {
        let idle = self.answering.iter().filter(|(_, entry)| !entry.buffer.is_shared());
        let Some((&oldest, _)) = idle.min_by_key(|(_, entry)| entry.used) else { return false };
        self.retire(oldest..=oldest, |_| true);
        true
    }

    /// Records that a range was deregistered, or that a device failed to do so.
    pub(super) fn closed(&mut self, range: Range<u64>, is_kept: bool) {
        if let Some(place) = self.closing.iter().position(|closing| *closing == range) {
            self.closing.swap_remove(place);
        }
        if is_kept {
            self.keep(range);
        }
    }

    /// Records that a device may access a range until the process ends.
    pub(super) fn keep(&mut self, range: Range<u64>) {
        self.kept.push(range);
    }

    /// Whether a thread is deregistering some of the range.
    pub(super) fn is_closing(&self, range: &Range<u64>) -> bool {
        self.closing.iter().any(|closing| overlap(closing, range))
    }

    /// Checks that no device can access any part of a range after its invalidation.
    pub(super) fn check_gone(&self, range: &Range<u64>) -> Result<(), StillRegistered> {
        let used = self.leaving.iter().filter(|buffer| overlap(&buffer.range(), range)).count();
        let kept = self.kept.iter().filter(|kept| overlap(kept, range)).count();
        if used + kept == 0 { Ok(()) } else { Err(StillRegistered { used, kept }) }
    }
}

const fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}
