//! A progress thread as its owner holds it.

use super::error::ThreadPanicked;
use super::run::ProgressLoop;
use super::set::ProgressSet;
use super::shared::{Alarm, Shared};
use crate::sync::{JoinHandle, new_thread};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// A thread that drives a set and gives back a `T`. Dropping it shuts the thread down, and waits for its end.
#[derive(Debug)]
pub(super) struct Worker<P, X, T> {
    pub(super) shared: Arc<Shared<P, X>>,
    /// `None` once it was joined.
    thread: Option<JoinHandle<T>>,
}

impl<P, X, T> Worker<P, X, T> {
    /// Starts a thread for a set.
    pub(super) fn spawn<S>(set: S, mailbox: X, drain_timeout: Duration) -> io::Result<Self>
    where
        S: ProgressSet<Port = P, Mailbox = X, Set = T> + Send + 'static,
        P: Send + 'static,
        X: Send + Sync + 'static,
        T: Send + 'static,
    {
        let alarm = set.completion_fd().map(|_| Alarm::new()).transpose()?;
        let shared = Arc::new(Shared::new(mailbox, alarm));
        let progress = ProgressLoop::new(set, Arc::clone(&shared), drain_timeout);
        let builder = new_thread().name("polyrail-progress".to_owned());
        let thread = Some(builder.spawn(move || progress.run())?);
        Ok(Self { shared, thread })
    }

    /// Ends the thread and gives back what it owned.
    pub(super) fn shutdown(mut self) -> Result<T, ThreadPanicked> {
        let thread = self.close().expect("only this and drop join the thread");
        thread.join().map_err(|_| ThreadPanicked)
    }

    /// Has the thread shut down. Returns what is left to be joined.
    fn close(&mut self) -> Option<JoinHandle<T>> {
        self.shared.close();
        self.thread.take()
    }
}

impl<P, X, T> Drop for Worker<P, X, T> {
    fn drop(&mut self) {
        // The panic was printed, and handles see that the thread is gone.
        _ = self.close().map(JoinHandle::join);
    }
}
