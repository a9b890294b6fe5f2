//! How much a cache keeps, what it counts, and what it cannot promise.

/// How much a cache keeps. What is in use stays, however much it is; where that leaves room, the cache keeps
/// what was handed out last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLimits {
    /// Registrations.
    pub max_registrations: usize,
    /// Their bytes. What overlaps counts twice.
    pub max_bytes: u64,
}

impl Default for CacheLimits {
    /// 1024 registrations of any length: where too little memory may be locked for them, what nobody uses makes
    /// room.
    fn default() -> Self {
        Self { max_registrations: 1024, max_bytes: u64::MAX }
    }
}

/// What a cache has done, and what it keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounters {
    /// Ranges that were registered already.
    pub hits: u64,
    /// Ranges that were not.
    pub misses: u64,
    /// Registrations that it answers with now.
    pub registrations: usize,
    /// Their bytes. What overlaps counts twice.
    pub bytes: u64,
}

/// Memory that was to be forgotten is still registered: devices may access it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("memory is still registered: {used} registrations are in use, {kept} could not be undone")]
pub struct StillRegistered {
    /// Registrations that are in use, which end with that.
    pub used: usize,
    /// Registrations that a device did not undo, for good.
    pub kept: usize,
}
