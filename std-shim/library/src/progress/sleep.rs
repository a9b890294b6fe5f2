//! How the thread sleeps.

use crate::idle::NAP;

/// Sleeps: until woken if devices have no requests of ours, otherwise for a nap.
pub(super) fn sleep(devices_are_busy: bool) {
    if devices_are_busy {
        std::thread::park_timeout(NAP);
    } else {
        std::thread::park();
    }
}
