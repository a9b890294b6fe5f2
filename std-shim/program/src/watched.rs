//! Work with a watcher.

use std::sync::mpsc;
use std::time::Duration;

/// Does the work in a thread, and calls `watch` ten times a second meanwhile.
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
