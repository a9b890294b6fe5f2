//! Which process made an object.
//!
//! A fork copies memory, but not what the memory refers to: the child has copies of handles of
//! queue pairs, threads and sockets that belong to its parent. If the child released them, its
//! parent's queue pairs would be destroyed and its peers would read messages that the parent never
//! sent. A lock that another thread held during the fork is never released in the child. Objects
//! therefore keep the [`Process`] that made them. In any other process, they release nothing, send
//! nothing, take no lock, and return [`Forked`].
//!
//! The check is a load and a comparison, so that it can be made for each request. (`getpid` is a
//! system call.)
//!
//! What a process needs once, such as its threads, is a [`PerProcess`].
//!
//! # Limits
//!
//! Forks are counted by a handler of `pthread_atfork(3)`. A child of `vfork`, or of a system call
//! that does not go through the C library, is not detected.

mod per_process;

pub use per_process::PerProcess;

use std::fmt;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

/// The number of forks between the first process and this one, counted from the first object.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// The process that made an object.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Process {
    forks: u32,
    id: u32,
}

/// An object was used in a process that is a fork of the process that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "process {current} is a fork of process {owner}, which made the object: only process {owner} \
     can use it"
)]
pub struct Forked {
    /// The process that made the object.
    pub owner: u32,
    /// The process that used it.
    pub current: u32,
}

impl Process {
    /// Returns the calling process.
    pub fn current() -> Self {
        system::count_forks();
        Self { forks: FORKS.load(Ordering::Relaxed), id: process::id() }
    }

    /// Returns the process as a number, for an atomic.
    pub const fn to_bits(self) -> u64 {
        (self.forks as u64) << 32 | self.id as u64
    }

    /// Returns the process that [`to_bits`](Self::to_bits) was called for.
    pub const fn from_bits(bits: u64) -> Self {
        Self { forks: (bits >> 32) as u32, id: bits as u32 }
    }

    /// Returns the number of the process (`getpid(2)`).
    pub const fn id(self) -> u32 {
        self.id
    }

    /// Returns whether it is the calling process.
    #[inline]
    pub fn is_current(self) -> bool {
        // Relaxed: a child has one thread, and its handler ran before.
        self.forks == FORKS.load(Ordering::Relaxed)
    }

    /// Refuses any other process than this one.
    ///
    /// # Errors
    ///
    /// The calling process is a fork of this one.
    #[inline]
    pub fn check(self) -> Result<(), Forked> {
        if self.is_current() { Ok(()) } else { Err(self.forked()) }
    }

    #[cold]
    fn forked(self) -> Forked {
        Forked { owner: self.id, current: process::id() }
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Process({})", self.id)
    }
}

#[cfg(all(unix, not(miri)))]
mod system {
    use super::FORKS;
    use std::sync::atomic::{AtomicBool, Ordering};

    static IS_COUNTING: AtomicBool = AtomicBool::new(false);

    extern "C" fn forked() {
        FORKS.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts forks from now on.
    pub(super) fn count_forks() {
        // Not a `Once`: a fork while another thread is in it would lock it forever. If two threads
        // register at once, each fork counts twice, which is as good.
        if !IS_COUNTING.load(Ordering::Acquire) {
            // SAFETY: the handler only changes an atomic, which is permitted after a fork, and the
            // C library forgets it when this library is unloaded.
            let registered = unsafe { libc::pthread_atfork(None, None, Some(forked)) };
            // Without memory for the handler, the next object tries again.
            IS_COUNTING.store(registered == 0, Ordering::Release);
        }
    }
}

/// Systems without forks, and Miri, which has none.
#[cfg(any(not(unix), miri))]
mod system {
    pub(super) const fn count_forks() {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_belongs_to_the_process_that_made_it() {
        let here = Process::current();
        assert!(here.is_current());
        assert_eq!((here.id(), here.check()), (process::id(), Ok(())));
        assert_eq!(here, Process::current());
        assert_eq!(here, Process::from_bits(here.to_bits()));
    }

    #[test]
    fn the_error_names_both_processes() {
        assert_eq!(
            Forked { owner: 10, current: 11 }.to_string(),
            "process 11 is a fork of process 10, which made the object: only process 10 can use it"
        );
    }
}
