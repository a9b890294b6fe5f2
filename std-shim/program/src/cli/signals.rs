//! Signals: interrupts set a flag, and the limit on the length of files becomes an error.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag::{register, register_conditional_default};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Returns a flag that SIGINT, SIGTERM and SIGHUP set, so that commands can end in order.
pub(super) fn interrupts() -> Arc<AtomicBool> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // A second signal ends the process at once. If a handler cannot be registered, the first
        // one does.
        _ = register_conditional_default(signal, Arc::clone(&flag));
        _ = register(signal, Arc::clone(&flag));
    }
    // Under nohup, SIGHUP is ignored and must not end the process. A terminal that closes may send
    // two of them, so the second one does not end the process at once.
    if !is_ignored(SIGHUP) {
        _ = register(SIGHUP, Arc::clone(&flag));
    }
    flag
}

/// Makes a write beyond the limit on the length of files (`ulimit -f`) return an error. By default
/// the signal ends the process without any cleanup.
pub(super) fn make_file_limits_errors() {
    // With any handler for the signal, the write returns EFBIG. The flag is not used.
    _ = register(SIGXFSZ, Arc::new(AtomicBool::new(false)));
}

/// Returns whether the process was started with this signal ignored.
fn is_ignored(signal: i32) -> bool {
    // SAFETY: all zeros is a valid value of the structure.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: a null pointer sets no action, and `action` is valid for the write of the current
    // one.
    let asked = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
    asked == 0 && action.sa_sigaction == libc::SIG_IGN
}
