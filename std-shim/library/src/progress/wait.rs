//! How a thread waits for completions and for handles at the same time.

use super::alarm::Alarm;
use super::sleep::HEALING_NAP;
use crate::endpoint::WaitError;
use crate::idle::NAP;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// What a thread waits for, apart from its handles.
pub(super) trait Waits {
    /// Has completion queues tell of what comes from now on, and looks for what is there.
    fn poll_armed(&mut self) -> Result<Found, WaitError>;

    /// Can be read when a completion queue has told something since then.
    fn completion_fd(&self) -> Option<BorrowedFd<'_>>;
}

/// What was there before the thread slept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Nothing: it may sleep.
    Nothing,
    /// Something that it has to do.
    Something,
    /// A completion queue that cannot be polled.
    Broken,
}

/// Waits for completions, for the alarm, or for a nap. If some came before the sleep, there is none. `told`: a completion
/// queue told that it has something, and nothing was found since.
pub(super) fn wait(waits: &mut impl Waits, alarm: &Alarm, nap: Option<Duration>, told: &mut bool) {
    if std::mem::take(told) {
        // A device that has only requests under way tells as soon as it is asked.
        alarm.sleep(None, Some(NAP));
        return;
    }
    match waits.poll_armed() {
        Ok(Found::Nothing) => *told = alarm.sleep(waits.completion_fd(), nap),
        Ok(Found::Something) => {}
        // What cannot be polled fails at once, each time.
        Ok(Found::Broken) => _ = alarm.sleep(None, Some(HEALING_NAP)),
        // What cannot be armed is polled.
        Err(_) => _ = alarm.sleep(None, Some(NAP)),
    }
}
