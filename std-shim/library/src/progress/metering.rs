//! How the metrics of a thread's set are published: the owner hands a source to the thread, which
//! alone can take snapshots.

use crate::metrics::{ConnectionMetrics, Source};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;

/// A source on its way from the owner to the thread.
#[derive(Debug, Default)]
pub(super) struct Handover {
    /// Whether there is one, so that the thread need not lock.
    is_there: AtomicBool,
    slot: Mutex<Slot>,
}

#[derive(Debug, Default)]
struct Slot {
    source: Option<Source>,
    /// The thread takes no source any more.
    has_ended: bool,
}

impl Handover {
    /// Hands a source over. The caller wakes the thread afterwards. If the thread has ended, the
    /// source ends at once: nothing would publish, and every reader would wait for it.
    pub(super) fn put(&self, source: Source) {
        let mut slot = self.lock();
        // Dropped without the lock.
        let _unused = if slot.has_ended { Some(source) } else { slot.source.replace(source) };
        self.is_there.store(true, Ordering::Release);
        drop(slot);
    }

    fn take(&self) -> Option<Source> {
        if !self.is_there.swap(false, Ordering::Acquire) {
            return None;
        }
        self.lock().source.take()
    }

    fn is_there(&self) -> bool {
        self.is_there.load(Ordering::Relaxed)
    }

    /// Refuses sources from now on. A source that the thread did not take ends.
    pub(super) fn end(&self) {
        let mut slot = self.lock();
        slot.has_ended = true;
        let _unused = slot.source.take();
        drop(slot);
    }

    fn lock(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread's side.
// The thread owns the source, not what it shares with its owner: the metrics have a waker of the
// thread, which keeps the shared state, so the two would keep each other.
#[derive(Debug, Default)]
pub(super) struct Meter {
    source: Option<Source>,
    waker: OnceLock<Waker>,
}

impl Meter {
    /// Sets what wakes the thread.
    pub(super) fn set_waker(&self, waker: &Waker) {
        // Called once.
        _ = self.waker.set(waker.clone());
    }

    /// Takes a source that was handed over, and publishes if a reader asked for it.
    pub(super) fn look(
        &mut self,
        handover: &Handover,
        connections: impl FnOnce() -> Vec<ConnectionMetrics>,
    ) {
        if handover.is_there()
            && let Some(source) = handover.take()
        {
            self.replace(source, connections());
        } else if let Some(source) = &mut self.source {
            source.publish_if_wanted(connections);
        }
    }

    /// Publishes for the last time.
    pub(super) fn end(
        &mut self,
        handover: &Handover,
        connections: impl FnOnce() -> Vec<ConnectionMetrics>,
    ) {
        if let Some(source) = handover.take() {
            self.replace(source, connections());
        } else if let Some(source) = &mut self.source {
            source.publish(connections());
        }
        self.source = None;
    }

    /// Publishes with a new source from now on. The earlier source publishes for the last time, and
    /// the new one does not count that again.
    fn replace(&mut self, mut source: Source, connections: Vec<ConnectionMetrics>) {
        if let Some(mut earlier) = self.source.take() {
            earlier.publish(connections.clone());
            source.after(earlier);
        }
        self.waker.get().into_iter().for_each(|waker| source.set_waker(waker));
        source.publish(connections);
        self.source = Some(source);
    }
}
