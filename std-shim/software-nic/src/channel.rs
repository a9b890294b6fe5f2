//! Completion channels: waiting for completions instead of polling for them.

use crate::error::NicError;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

/// Where completion queues tell that they have something (`struct ibv_comp_channel`). A cheap handle.
///
/// A queue tells once, for the first completion after it was [armed](crate::CompletionQueue::req_notify). So:
/// [clear](Self::clear), arm, then poll until the queue is empty, then wait until the file descriptor can be
/// read; and begin anew. Polling before arming would miss what comes in between.
///
/// The software NIC has no processor of its own: requests are carried out by polls of the completion queue of
/// their sender. So an armed queue also tells as long as its queue pairs have requests to be carried out.
#[derive(Clone, Debug)]
pub struct CompletionChannel(Arc<OwnedFd>);

impl CompletionChannel {
    pub(crate) fn new() -> Result<Self, NicError> {
        // SAFETY: no memory is involved.
        let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if fd < 0 {
            let errno = io::Error::last_os_error().raw_os_error().unwrap_or_default();
            return Err(NicError::NoChannel { errno });
        }
        // SAFETY: it was just made, and nobody else has it.
        Ok(Self(Arc::new(unsafe { OwnedFd::from_raw_fd(fd) })))
    }

    /// Makes the file descriptor readable.
    pub(crate) fn ring(&self) {
        let one = 1_u64.to_ne_bytes();
        // SAFETY: eight bytes are given, as many as are said. That there were 2^64 rings is no error: it is
        // readable.
        _ = unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Forgets what was told so far.
    pub fn clear(&self) {
        let mut told = [0_u8; 8];
        // SAFETY: room for eight bytes is given. That there is nothing to read is no error.
        _ = unsafe { libc::read(self.0.as_raw_fd(), told.as_mut_ptr().cast(), told.len()) };
    }
}

impl AsFd for CompletionChannel {
    /// Can be read when a queue has told something that was not [cleared](Self::clear).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
