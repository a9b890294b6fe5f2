//! Signals: interrupts, and a limit that becomes an error instead.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag::{register, register_conditional_default};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Returns a flag that SIGINT, SIGTERM and SIGHUP set, so that whatever is under way ends in order.
pub(super) fn interrupts() -> Arc<AtomicBool> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // The second one ends the process at once. Without handlers, as the first one would.
        _ = register_conditional_default(signal, Arc::clone(&flag));
        _ = register(signal, Arc::clone(&flag));
    }
    // Under nohup it must not end. A terminal that goes away may send two.
    if !is_ignored(SIGHUP) {
        _ = register(SIGHUP, Arc::clone(&flag));
    }
    flag
}

/// Makes a write beyond the limit on the length of files (`ulimit -f`) fail, instead of ending the process
/// without any cleanup.
pub(super) fn make_file_limits_errors() {
    // If the signal is handled, the write returns EFBIG. The flag is not used.
    _ = register(SIGXFSZ, Arc::new(AtomicBool::new(false)));
}

/// Whether the process was started with this signal ignored.
fn is_ignored(signal: i32) -> bool {
    // SAFETY: all zeros is a valid value of the structure.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: no action is set, and the current one is written to a structure of ours.
    let asked = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
    asked == 0 && action.sa_sigaction == libc::SIG_IGN
}
