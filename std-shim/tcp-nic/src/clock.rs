//! The clock of timers.

use polyrail_nic_parts::sync::nanos;
use polyrail_process::PerProcess;
use std::time::Instant;

/// Nanoseconds since the first call in this process; never 0.
pub(crate) fn now() -> u64 {
    static START: PerProcess<Instant> = PerProcess::new();
    nanos(START.get_or_make(Instant::now).elapsed()) + 1
}
