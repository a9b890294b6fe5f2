//! Where the threads of a measurement stay.

use core_affinity::CoreId;
use std::sync::LazyLock;
use std::time::Duration;

/// The two processors. Found out once: a thread that is bound to one sees only that one.
static PROCESSORS: LazyLock<[Option<CoreId>; 2]> = LazyLock::new(|| {
    let processors = core_affinity::get_core_ids().unwrap_or_default();
    [0, 1].map(|at| processors.get(at).copied())
});

/// Long enough for a progress thread that has nothing to do to fall asleep.
pub(crate) const GO_IDLE: Duration = Duration::from_millis(4);

/// Binds the calling thread, and those that it spawns, to the first processor or to the second.
fn stay_on(at: usize) {
    if let Some(processor) = PROCESSORS[at] {
        // Where this is not permitted, the system decides.
        _ = core_affinity::set_for_current(processor);
    }
}

/// Runs what spawns a thread, which stays on the second processor; the caller stays on the first.
pub(crate) fn elsewhere<T>(spawn: impl FnOnce() -> T) -> T {
    stay_on(1);
    let spawned = spawn();
    stay_on(0);
    spawned
}
