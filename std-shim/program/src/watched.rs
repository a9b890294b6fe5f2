//! Work in a thread, with a function that watches it.

use std::sync::mpsc;
use std::time::Duration;

/// Runs `work` in a thread, and calls `watch` ten times a second until it is done.
pub(crate) fn watched<T: Send>(work: impl FnOnce() -> T + Send, mut watch: impl FnMut()) -> T {
    std::thread::scope(|scope| {
        let (done, finished) = mpsc::channel::<()>();
        let worker = scope.spawn(move || {
            let _done = done;
            work()
        });
        while finished.recv_timeout(Duration::from_millis(100))
            == Err(mpsc::RecvTimeoutError::Timeout)
        {
            watch();
        }
        worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
