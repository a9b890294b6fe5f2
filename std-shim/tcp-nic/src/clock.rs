//! The clock of timers.

use polyrail_nic_parts::sync::nanos;
use std::sync::OnceLock;
use std::time::Instant;

/// Nanoseconds since the first call in this process; never 0.
pub(crate) fn now() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    nanos(START.get_or_init(Instant::now).elapsed()) + 1
}
