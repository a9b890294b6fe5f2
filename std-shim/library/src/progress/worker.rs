//! A thread that owns something, and gives it back in the end.

use super::error::ThreadPanicked;
use super::shared::Shared;
use crate::sync::{JoinHandle, new_thread};
use std::io;
use std::sync::Arc;

/// A thread that makes progress on a `T`. Dropping it shuts it down, and waits for that.
#[derive(Debug)]
pub(super) struct Worker<P, X, T> {
    pub(super) shared: Arc<Shared<P, X>>,
    /// `None` when it was joined.
    thread: Option<JoinHandle<T>>,
}

impl<P, X, T> Worker<P, X, T> {
    /// Starts it. `run` ends soon after it was told to [close](Shared::close).
    pub(super) fn start(
        shared: Arc<Shared<P, X>>,
        run: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<Self>
    where
        T: Send + 'static,
    {
        let builder = new_thread().name("polyrail-progress".to_owned());
        let thread = Some(builder.spawn(run)?);
        Ok(Self { shared, thread })
    }

    /// Ends the thread and gives back what it owned.
    pub(super) fn shutdown(mut self) -> Result<T, ThreadPanicked> {
        let thread = self.close().expect("only this and drop join the thread");
        thread.join().map_err(|_| ThreadPanicked)
    }

    /// Tells the thread to shut down; returns what is to be joined, if it was not joined yet.
    fn close(&mut self) -> Option<JoinHandle<T>> {
        self.shared.close();
        self.thread.take()
    }
}

impl<P, X, T> Drop for Worker<P, X, T> {
    fn drop(&mut self) {
        // A panic was printed, and handles see that the thread is gone.
        _ = self.close().map(JoinHandle::join);
    }
}
