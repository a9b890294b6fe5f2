//! What a cache holds, and what it gives up: all decisions, and no call to a device.

use super::limits::{CacheCounters, CacheLimits, StillRegistered};
use crate::memory::foreign::ForeignBuffer;
use polyrail_core::verbs::AccessFlags;
use std::collections::BTreeMap;
use std::ops::{Range, RangeBounds};

/// Registrations of one cache. Each is in one place: answering, leaving, closing or kept.
#[derive(Debug)]
pub(super) struct State<R> {
    limits: CacheLimits,
    /// What is answered with, by access and first byte. Of one access none contains another, so what begins
    /// last at or before a byte also ends last.
    answering: BTreeMap<(u32, u64), Entry<R>>,
    /// What is not answered with any more; deregistered once nobody uses it.
    leaving: Vec<ForeignBuffer<R>>,
    /// What a thread is deregistering.
    closing: Vec<Range<u64>>,
    /// What a device did not deregister.
    kept: Vec<Range<u64>>,
    /// Counts what was handed out.
    clock: u64,
    counters: CacheCounters,
}

/// A registration, and when it was handed out last.
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

    /// The range as a part of a registration with this access.
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
        // Devices refuse empty ranges, wherever they are.
        if range.is_empty() || entry.buffer.range().end < range.end {
            return None;
        }
        self.clock += 1;
        entry.used = self.clock;
        Some(entry.buffer.part(range))
    }

    /// Takes a new registration in; the same range as a part of it, or of one that came before it.
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

    /// Answers no more with what overlaps a range.
    pub(super) fn forget(&mut self, range: &Range<u64>) {
        self.retire(.., |entry| overlap(&entry.buffer.range(), range));
    }

    /// Answers no more with what nobody uses; whether there was any.
    pub(super) fn forget_idle(&mut self) -> bool {
        let before = self.answering.len();
        self.retire(.., |entry| !entry.buffer.is_shared());
        self.answering.len() < before
    }

    /// From now on nothing stays that nobody uses.
    pub(super) const fn shut(&mut self) {
        self.limits = CacheLimits { max_registrations: 0, max_bytes: 0 };
    }

    /// Answers no more with those of these keys that are to go.
    fn retire(&mut self, keys: impl RangeBounds<(u32, u64)>, goes: impl Fn(&Entry<R>) -> bool) {
        let going = self.answering.extract_if(keys, |_, entry| goes(entry));
        for (_, Entry { buffer, .. }) in going {
            self.counters.registrations -= 1;
            self.counters.bytes -= buffer.len() as u64;
            self.leaving.push(buffer);
        }
    }

    /// What has to be deregistered now, by the caller, who then says that it is [`closed`](Self::closed).
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

    /// Retires what was handed out longest ago of what nobody uses; whether there was any.
    fn retire_oldest(&mut self) -> bool {
        let idle = self.answering.iter().filter(|(_, entry)| !entry.buffer.is_shared());
        let Some((&oldest, _)) = idle.min_by_key(|(_, entry)| entry.used) else { return false };
        self.retire(oldest..=oldest, |_| true);
        true
    }

    /// Notes that a range is deregistered, or that a device did not do it.
    pub(super) fn closed(&mut self, range: Range<u64>, is_kept: bool) {
        if let Some(place) = self.closing.iter().position(|closing| *closing == range) {
            self.closing.swap_remove(place);
        }
        if is_kept {
            self.keep(range);
        }
    }

    /// Notes that a device may access a range for good.
    pub(super) fn keep(&mut self, range: Range<u64>) {
        self.kept.push(range);
    }

    /// Whether a thread is deregistering some of the range.
    pub(super) fn is_closing(&self, range: &Range<u64>) -> bool {
        self.closing.iter().any(|closing| overlap(closing, range))
    }

    /// Checks that no device may access anything of a range that was forgotten.
    pub(super) fn check_gone(&self, range: &Range<u64>) -> Result<(), StillRegistered> {
        let used = self.leaving.iter().filter(|buffer| overlap(&buffer.range(), range)).count();
        let kept = self.kept.iter().filter(|kept| overlap(kept, range)).count();
        if used + kept == 0 { Ok(()) } else { Err(StillRegistered { used, kept }) }
    }
}

const fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}
