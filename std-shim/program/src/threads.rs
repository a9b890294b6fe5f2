//! Threads that end before the call that starts them. If the system cannot start one, for example
//! because a container has reached its limit (`pids.max`), only that call fails.

use crate::session::SessionError;
use std::sync::mpsc;
use std::thread::{Builder, Scope, ScopedJoinHandle, scope};
use std::time::Duration;

/// Starts a thread that does `work`. `task` completes the sentence "cannot start a thread that
/// ...".
///
/// # Errors
///
/// The system cannot start a thread, usually because of a limit.
pub(crate) fn start<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    task: &'static str,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>, SessionError> {
    let started = Builder::new().spawn_scoped(scope, work);
    started.map_err(|source| SessionError::Thread { task, source })
}

/// Waits for the end of a thread, and returns its result or resumes its panic.
pub(crate) fn join<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Does `work` in a thread, and calls `watch` ten times a second until it is done. `task` is as for
/// [`start`].
///
/// # Errors
///
/// As [`start`].
pub(crate) fn watched<T: Send>(
    task: &'static str,
    work: impl FnOnce() -> T + Send,
    mut watch: impl FnMut(),
) -> Result<T, SessionError> {
    scope(|scope| {
        let (done, finished) = mpsc::channel::<()>();
        let worker = start(scope, task, move || {
            let _done = done;
            work()
        })?;
        while finished.recv_timeout(Duration::from_millis(100))
            == Err(mpsc::RecvTimeoutError::Timeout)
        {
            watch();
        }
        Ok(join(worker))
    })
}
