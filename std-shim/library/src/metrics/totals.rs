//! Adds snapshots up, so that a total never shrinks: not when a connection ends, and not when a
//! rail moves to another device.

use super::snapshot::{ConnectionMetrics, RailMetrics, Traffic};
use crate::heal::RailTimes;
use crate::memory::CacheCounters;
use polyrail_core::virtual_qp::RailCounters;
use std::collections::BTreeMap;
use std::time::Duration;

/// What totals of rails are kept for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RailKey {
    pub(super) name: String,
    pub(super) traffic: Traffic,
    pub(super) device: String,
    pub(super) rail: String,
}

/// The totals of all rails with one key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RailTotals {
    pub(super) counters: RailCounters,
    /// By the names of the reasons.
    pub(super) failures: BTreeMap<&'static str, u64>,
    pub(super) fences: u64,
    pub(super) arrived: u64,
    pub(super) posted_again: u64,
    pub(super) times: RailTimes,
}

impl RailTotals {
    /// Adds what a rail has counted since an earlier snapshot of it.
    fn add(&mut self, rail: &RailMetrics, earlier: Option<&RailMetrics>) {
        // Another connection has its place, if a count is smaller than it was.
        let earlier = earlier.filter(|earlier| !has_begun_again(rail, earlier));
        let since = |count: fn(&RailMetrics) -> u64| count(rail) - earlier.map_or(0, count);
        let RailCounters { bytes, send_requests, doorbells, completions, errors } =
            &mut self.counters;
        *bytes += since(|rail| rail.counters.bytes);
        *send_requests += since(|rail| rail.counters.send_requests);
        *doorbells += since(|rail| rail.counters.doorbells);
        *completions += since(|rail| rail.counters.completions);
        *errors += since(|rail| rail.counters.errors);
        self.fences += since(|rail| rail.fences);
        self.arrived += since(|rail| rail.arrived);
        self.posted_again += since(|rail| rail.posted_again);
        for (reason, count) in rail.failures.iter() {
            let known = earlier.map_or(0, |earlier| earlier.failures.of(reason));
            *self.failures.entry(reason.name()).or_default() += count.saturating_sub(known);
        }
        let time = |time: fn(&RailTimes) -> Duration| {
            let known = earlier.map_or(Duration::ZERO, |earlier| time(&earlier.times));
            time(&rail.times).saturating_sub(known)
        };
        self.times.in_service += time(|times| times.in_service);
        self.times.draining += time(|times| times.draining);
        self.times.down += time(|times| times.down);
    }
}

fn has_begun_again(rail: &RailMetrics, earlier: &RailMetrics) -> bool {
    let counts = |rail: &RailMetrics| {
        let RailCounters { bytes, send_requests, doorbells, completions, errors } = rail.counters;
        let of_failures = [rail.failures.total(), rail.fences, rail.arrived, rail.posted_again];
        ([bytes, send_requests, doorbells, completions, errors], of_failures)
    };
    let ((now, now_of_failures), (before, before_of_failures)) = (counts(rail), counts(earlier));
    let shrank = |(now, before): (&u64, &u64)| now < before;
    now.iter().zip(&before).any(shrank)
        || now_of_failures.iter().zip(&before_of_failures).any(shrank)
}

/// All totals.
#[derive(Debug, Default)]
pub(super) struct Totals {
    pub(super) rails: BTreeMap<RailKey, RailTotals>,
    /// Hits and misses of registration caches, by name.
    pub(super) caches: BTreeMap<String, [u64; 2]>,
}

impl Totals {
    /// Adds what a connection has counted since an earlier snapshot of it.
    pub(super) fn add(
        &mut self,
        name: &str,
        connection: &ConnectionMetrics,
        earlier: Option<&ConnectionMetrics>,
    ) {
        for (place, rail) in connection.rails.iter().enumerate() {
            let earlier = earlier.and_then(|earlier| earlier.rails.get(place));
            let RailMetrics { traffic, device, rail: number, .. } = rail;
            let key = RailKey {
                name: name.to_owned(),
                traffic: *traffic,
                device: device.clone(),
                rail: number.clone(),
            };
            self.rails.entry(key).or_default().add(rail, earlier);
        }
    }

    /// Adds what a cache has counted since it had counted `earlier`.
    pub(super) fn add_cache(&mut self, name: &str, now: CacheCounters, earlier: CacheCounters) {
        let [hits, misses] = self.caches.entry(name.to_owned()).or_default();
        *hits += now.hits.saturating_sub(earlier.hits);
        *misses += now.misses.saturating_sub(earlier.misses);
    }
}
