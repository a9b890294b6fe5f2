//! Processor time.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Returns the processor time that all threads of this process have used, in user space and in the
/// kernel.
pub(super) fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    // Neither is negative for this clock.
    Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec.max(0) as u32)
}

/// Returns processor time in percent of the time in which it was used.
pub(super) fn cpu_percent(cpu: Duration, time: Duration) -> f64 {
    100.0 * cpu.as_secs_f64() / time.as_secs_f64().max(1e-9)
}
