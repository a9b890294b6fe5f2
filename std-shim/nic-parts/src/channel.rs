//! Completion channels: waiting for completions instead of polling for them.

use crate::error::NicError;
use polyrail_process::Process;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

/// Notifies programs that completion queues have completions (`struct ibv_comp_channel`). A cheap
/// handle.
///
/// A queue notifies once, for the first completion after it was armed (`req_notify`). The loop of a
/// program is: [clear](Self::clear), arm, poll until the queue is empty, then wait until the file
/// descriptor is readable. Polling before arming would miss completions that arrive in between.
///
/// The software NIC has no thread of its own. Polling the sender's completion queue executes its
/// requests, so an armed queue also notifies as long as its queue pairs have requests to execute.
#[derive(Clone, Debug)]
pub struct CompletionChannel {
    fd: Arc<OwnedFd>,
    /// A fork shares the descriptor, and must not take notifications from its parent.
    process: Process,
}

impl CompletionChannel {
    /// Creates a channel without notifications. Programs let a device create it.
    ///
    /// # Errors
    ///
    /// The system has no file descriptor left.
    pub fn new() -> Result<Self, NicError> {
        // SAFETY: no memory is involved.
        let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if fd < 0 {
            let errno = io::Error::last_os_error().raw_os_error().unwrap_or_default();
            return Err(NicError::NoDescriptor { what: "completion channel", errno });
        }
        // SAFETY: the descriptor was just created, and has no other owner.
        let fd = Arc::new(unsafe { OwnedFd::from_raw_fd(fd) });
        Ok(Self { fd, process: Process::current() })
    }

    /// Notifies: makes the file descriptor readable. Devices call it.
    pub fn ring(&self) {
        let one = 1_u64.to_ne_bytes();
        // SAFETY: the buffer has the stated eight bytes. An overflow after 2^64 rings is not an
        // error, because the descriptor is readable then.
        _ = unsafe { libc::write(self.fd.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Clears earlier notifications.
    pub fn clear(&self) {
        if !self.process.is_current() {
            return;
        }
        let mut told = [0_u8; 8];
        // SAFETY: the buffer has room for eight bytes. An empty counter is not an error.
        _ = unsafe { libc::read(self.fd.as_raw_fd(), told.as_mut_ptr().cast(), told.len()) };
    }
}

impl AsFd for CompletionChannel {
    /// Returns the descriptor, which is readable after a notification that was not
    /// [cleared](Self::clear).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
