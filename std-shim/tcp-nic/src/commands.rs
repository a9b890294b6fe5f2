//! Requests to I/O threads, and what a thread waits for.

use crate::shared::{Command, CqShared, DeviceShared, Inbox, IoThread, QpShared};
use polyrail_nic_parts::sync::lock;
use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;
use std::os::fd::AsFd;
use std::os::unix::thread::JoinHandleExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Names of what a thread waits for; never used twice, so an event that comes late names nothing.
static NEXT_TOKEN: AtomicU64 = AtomicU64::new(FIRST_TOKEN);
pub(crate) const WAKE: u64 = 0;
pub(crate) const NETLINK: u64 = 1;
const FIRST_TOKEN: u64 = 2;

/// The longest time that `epoll_pwait` can wait.
const MOST_MILLIS: u64 = i32::MAX as u64;

/// Returns a new name.
pub(crate) fn token() -> u64 {
    NEXT_TOKEN.fetch_add(1, Ordering::Relaxed)
}

impl Inbox {
    pub(crate) fn send(&self, command: Command) {
        lock(&self.commands).push(command);
        self.wake();
    }

    pub(crate) fn wake(&self) {
        // It fails only if it was woken 2^64 - 2 times.
        _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Lets the next [`wake`](Self::wake) be an event again. It comes before what the wake is for
    /// is looked at: a command that comes between the two would have no wake.
    pub(crate) fn take_wake(&self) {
        let mut count = [0; 8];
        _ = rustix::io::read(&self.wake, &mut count);
    }
}

impl Drop for IoThread {
    fn drop(&mut self) {
        if !self.process.is_current() {
            // A fork has no such thread, and may have given its stack to a thread of its own. To
            // detach the one would detach the other.
            std::mem::forget(self.thread.take());
            return;
        }
        self.inbox.ends.store(true, Ordering::Release);
        self.inbox.wake();
        // The thread itself drops the last device if it holds it while its owners leave.
        if let Some(thread) = self.thread.take() {
            // SAFETY: it only returns the number of the calling thread. (`thread::current` would
            // allocate in a thread of a C program, and free it never if it is the main thread.)
            let current = unsafe { libc::pthread_self() };
            // musl calls the number a pointer.
            if thread.as_pthread_t() as libc::pthread_t != current {
                // A thread that panicked has ended, too.
                _ = thread.join();
            }
        }
    }
}

impl IoThread {
    /// Serves the listener of a device, under a new name.
    pub(crate) fn add_device(&self, device: &Arc<DeviceShared>, token: u64) -> Result<(), Errno> {
        self.inbox.send(Command::Device(Arc::downgrade(device), token));
        let data = EventData::new_u64(token);
        epoll::add(&self.inbox.epoll, &device.listener, data, EventFlags::IN)
    }

    /// Serves a completion queue while it is not polled.
    pub(crate) fn add_cq(&self, cq: &Arc<CqShared>) -> Result<(), Errno> {
        self.inbox.send(Command::Cq(Arc::downgrade(cq)));
        let data = EventData::new_u64(cq.io_token);
        epoll::add(&self.inbox.epoll, &cq.epoll, data, EventFlags::IN)
    }

    /// Stops to serve a completion queue or a listener that is about to be closed. Closing is not
    /// enough: a fork has the descriptor, too, and what it refers to would be reported for ever.
    pub(crate) fn remove(&self, fd: impl AsFd) {
        _ = epoll::delete(&self.inbox.epoll, fd);
    }

    /// Serves a completion queue again that was polled.
    pub(crate) fn watch_cq(&self, cq: &CqShared) {
        if !cq.io_watches.swap(true, Ordering::SeqCst) {
            self.inbox.set_watched(cq, true);
        }
    }

    /// Connects a queue pair to its peer.
    pub(crate) fn dial(&self, qp: &QpShared) {
        self.inbox.send(Command::Dial(qp.me.clone()));
    }

    /// Looks at the time of a queue pair's requests now, which may be earlier than planned.
    pub(crate) fn look_at(&self, qp: &QpShared) {
        self.inbox.send(Command::Watch(qp.me.clone()));
    }

    /// Lets a failure of a queue pair take effect.
    pub(crate) fn finish(&self, qp: &QpShared) {
        self.inbox.send(Command::Finish(qp.me.clone()));
    }

    /// Looks at the interfaces of devices, once the system can list them.
    pub(crate) fn look_at_interfaces(&self) {
        self.inbox.send(Command::Interfaces);
    }

    /// Moves data again after a link was opened.
    pub(crate) fn resume(&self) {
        self.inbox.send(Command::Resume);
    }
}

impl Inbox {
    pub(crate) fn set_watched(&self, cq: &CqShared, watched: bool) {
        let flags = if watched { EventFlags::IN } else { EventFlags::empty() };
        // It fails only if the queue is not served by this thread any more.
        _ = epoll::modify(&self.epoll, &cq.epoll, EventData::new_u64(cq.io_token), flags);
    }

    /// Leaves a completion queue to its poller. The flag is changed last: an owner that finds it
    /// cleared watches the queue again, which must not be undone.
    pub(crate) fn stop_watching(&self, cq: &CqShared) {
        self.set_watched(cq, false);
        cq.io_watches.store(false, Ordering::Release);
    }

    /// Takes a completion queue over from its poller, and sends what it holds. The flag is changed
    /// first: an owner that holds something reads the flag afterwards, so one of the two threads
    /// sends it. Must be called without locks.
    pub(crate) fn take_over(&self, cq: &CqShared) {
        cq.io_watches.store(true, Ordering::SeqCst);
        self.set_watched(cq, true);
        cq.send_held();
    }

    /// Waits until something is ready, or until this many nanoseconds have passed, in whole
    /// milliseconds: so `epoll_pwait2` is not needed, which Linux before 5.11 and many filters of
    /// system calls do not have. Returns the number of events.
    pub(crate) fn wait(&self, events: &mut [Event], left: Option<u64>) -> usize {
        let timespec = left.map(|left| {
            let millis = left.div_ceil(1_000_000).min(MOST_MILLIS);
            Timespec {
                tv_sec: (millis / 1_000) as i64,
                tv_nsec: (millis % 1_000 * 1_000_000) as i64,
            }
        });
        // It fails only if a signal comes.
        epoll::wait(&self.epoll, events, timespec.as_ref()).unwrap_or_default()
    }
}

impl QpShared {
    /// Watches the time of the requests, from the first one on.
    pub(crate) fn watch(&self) {
        if !self.is_watched.load(Ordering::Acquire) && !self.is_watched.swap(true, Ordering::AcqRel)
        {
            self.device.io.look_at(self);
        }
    }
}
