//! Work that whoever holds a lock does for all threads that find the lock taken.
//!
//! Under `--cfg polyrail_loom`, loom's models take the place of the lock and the flag:
//! `tests/gate.sh loom`.

#[cfg(polyrail_loom)]
use loom::sync::atomic::{AtomicBool, Ordering, fence};
#[cfg(polyrail_loom)]
use model::{Mutex, MutexGuard};
use polyrail_nic_parts::sync::Apart;
#[cfg(not(polyrail_loom))]
use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, Ordering, fence},
};
use std::sync::{PoisonError, TryLockError};

/// The lock of the standard library, as far as its orderings go. Loom's has none but those of its
/// order of locking, and no other thread can run just before it is unlocked.
#[cfg(polyrail_loom)]
mod model {
    use super::{AtomicBool, Ordering};
    use std::ops::{Deref, DerefMut};
    use std::sync::{LockResult, TryLockError, TryLockResult};

    #[derive(Debug)]
    pub(crate) struct Mutex<T> {
        is_taken: AtomicBool,
        value: std::sync::Mutex<T>,
    }

    #[derive(Debug)]
    pub(crate) struct MutexGuard<'m, T> {
        is_taken: &'m AtomicBool,
        /// Given back before the flag.
        value: Option<std::sync::MutexGuard<'m, T>>,
    }

    impl<T> Drop for MutexGuard<'_, T> {
        fn drop(&mut self) {
            self.value = None;
            self.is_taken.store(false, Ordering::Release);
        }
    }

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self { is_taken: AtomicBool::new(false), value: std::sync::Mutex::new(value) }
        }

        pub(crate) fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
            let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
            match self.is_taken.compare_exchange(false, true, acquire, relaxed) {
                Ok(_) => {
                    let value = Some(self.value.lock().unwrap());
                    Ok(MutexGuard { is_taken: &self.is_taken, value })
                }
                Err(_) => Err(TryLockError::WouldBlock),
            }
        }

        pub(crate) fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
            loop {
                match self.try_lock() {
                    Ok(guard) => return Ok(guard),
                    Err(_) => loom::thread::yield_now(),
                }
            }
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.value.as_ref().unwrap()
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.value.as_mut().unwrap()
        }
    }
}

/// A value, and whether there is work for its holder.
#[derive(Debug)]
pub(crate) struct Handover<T> {
    is_wanted: Apart<AtomicBool>,
    value: Apart<Mutex<T>>,
}

impl<T> Handover<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { is_wanted: Apart::new(AtomicBool::new(false)), value: Apart::new(Mutex::new(value)) }
    }

    /// Waits for the value, poisoned or not: a device continues after a thread of the user
    /// panicked.
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the work done that there is now: by this thread, or by the holder, which looks again
    /// before and after it unlocks. Never waits.
    pub(crate) fn run(&self, mut work: impl FnMut(&mut T)) {
        loop {
            // Before the attempt: a holder that has not unlocked yet will see it. Locking and
            // unlocking do not order the flag against the lock, so fences do. An exchange, because
            // loom knows no order of a store and the holder's exchange. Release: the holder sees
            // what this thread wrote before, with a lock or without.
            self.is_wanted.swap(true, Ordering::Release);
            fence(Ordering::SeqCst);
            let mut held = match self.value.try_lock() {
                Ok(held) => held,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            while self.is_wanted.swap(false, Ordering::Acquire) {
                work(&mut held);
            }
            drop(held);
            fence(Ordering::SeqCst);
            if !self.is_wanted.load(Ordering::Relaxed) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(polyrail_loom)]
    use loom::{
        sync::{Arc, atomic::AtomicU32},
        thread,
    };
    #[cfg(not(polyrail_loom))]
    use std::{
        sync::{Arc, atomic::AtomicU32},
        thread,
    };

    /// Runs a scenario in every interleaving in which threads are taken from the processor at most
    /// four times although they could go on.
    #[cfg(polyrail_loom)]
    fn model(scenario: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = builder.preemption_bound.or(Some(4));
        builder.check(scenario);
    }

    /// Runs a scenario many times.
    #[cfg(not(polyrail_loom))]
    fn model(scenario: impl Fn() + Sync + Send + 'static) {
        (0..1000).for_each(|_| scenario());
    }

    /// Threads that post and find the lock taken leave their work to the holder, which sees what
    /// they wrote without a lock.
    fn everything_is_done(posters: u32) {
        model(move || {
            let posted = Arc::new(AtomicU32::new(0));
            let done = Arc::new(Handover::new(0));
            let post = |posted: &AtomicU32, done: &Handover<u32>| {
                posted.fetch_add(1, Ordering::Relaxed);
                done.run(|done| *done = posted.load(Ordering::Relaxed));
            };
            let threads: Vec<_> = (1..posters)
                .map(|_| {
                    let (posted, done) = (Arc::clone(&posted), Arc::clone(&done));
                    thread::spawn(move || post(&posted, &done))
                })
                .collect();
            post(&posted, &done);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert_eq!(*done.lock(), posters);
        });
    }

    #[test]
    fn work_that_finds_the_lock_taken_is_done_by_its_holder() {
        everything_is_done(2);
    }
}
