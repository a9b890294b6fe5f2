//! Limits and counters of a cache, and its error.

/// How much a cache keeps. Registrations in use always stay; within the remaining limits, the most
/// recently used ones stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLimits {
    /// Maximum number of registrations.
    pub max_registrations: usize,
    /// Maximum total length in bytes. Overlapping bytes count twice.
    pub max_bytes: u64,
}

impl Default for CacheLimits {
    /// 1024 registrations of any length. If the limit of locked memory is too low for them, unused
    /// registrations are dropped on demand.
    fn default() -> Self {
        Self { max_registrations: 1024, max_bytes: u64::MAX }
    }
}

/// Counters of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounters {
    /// Requests for a range that was registered already.
    pub hits: u64,
    /// Requests for a range that was not.
    pub misses: u64,
    /// Present registrations.
    pub registrations: usize,
    /// Their total length in bytes. Overlapping bytes count twice.
    pub bytes: u64,
}

/// Memory to be invalidated is still registered, so devices may access it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "memory is still registered: {used} registrations are in use, {kept} could not be deregistered"
)]
pub struct StillRegistered {
    /// Registrations in use, which end when their buffers are dropped.
    pub used: usize,
    /// Registrations that a device failed to deregister. They stay until the process ends.
    pub kept: usize,
}
