//! Completion channels: waiting for completions instead of polling for them.

use crate::context::{Context, nonblocking};
use crate::error::{Argument, Result, VerbsError};
use crate::named::Named;
use crate::owned::{CloseError, Owned};
use polyrail_core::hardware::CqId;
use rdma_sys::ibv_comp_channel;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[derive(Debug)]
struct Shared {
    raw: Owned<ibv_comp_channel>,
    context: Context,
}

/// Where completion queues tell that they have something (`struct ibv_comp_channel`). A cheap handle;
/// completion queues keep it alive.
///
/// # Order of calls
///
/// A queue tells once, for the first completion after it was [armed](crate::CqHandle::arm). So: arm,
/// then poll until the queue is empty, then [wait](Self::wait); when the event is here, begin anew.
/// Polling before arming would miss what comes in between.
///
/// Every event is acknowledged when it is read, so that no completion queue waits for it when it is
/// destroyed.
#[derive(Clone, Debug)]
pub struct CompletionChannel(Arc<Shared>);

impl CompletionChannel {
    /// The oldest event that was not read: which completion queue has something. Does not block.
    ///
    /// # Errors
    ///
    /// What reading the file descriptor reports.
    pub fn next_event(&self) -> Result<Option<CqId>> {
        Ok(self.next_event_and_user_context()?.map(|(id, _)| id))
    }

    /// As [`next_event`](Self::next_event), with the queue's
    /// [`user_context`](crate::CqInit::user_context).
    ///
    /// # Errors
    ///
    /// What reading the file descriptor reports.
    pub fn next_event_and_user_context(&self) -> Result<Option<(CqId, usize)>> {
        let mut cq = ptr::null_mut();
        let mut cq_context = ptr::null_mut();
        // SAFETY: the channel is alive, and both pointers are written to local variables.
        let returned =
            unsafe { rdma_sys::ibv_get_cq_event(self.as_ptr(), &raw mut cq, &raw mut cq_context) };
        if returned != 0 {
            let error = VerbsError::last("ibv_get_cq_event", Argument::None);
            return if error.errno == libc::EAGAIN { Ok(None) } else { Err(error) };
        }
        // SAFETY: destroying a completion queue waits until all its events are acknowledged, so it
        // is still there, and all are made here.
        let Named { id, user_context } = unsafe { Named::read(cq_context) };
        // SAFETY: as above; it is acknowledged once.
        unsafe { rdma_sys::ibv_ack_cq_events(cq, 1) };
        Ok(Some((id, user_context)))
    }

    /// Waits for an event: for ever without a timeout, or with one beyond what the clock can count.
    ///
    /// # Errors
    ///
    /// As [`next_event`](Self::next_event).
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Option<CqId>> {
        // What the clock cannot count to is for ever.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            if let Some(event) = self.next_event()? {
                return Ok(Some(event));
            }
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(None);
            }
            readable(self.as_fd(), left)?;
        }
    }

    /// The device it belongs to.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// Destroys it.
    ///
    /// # Errors
    ///
    /// A completion queue still uses it, or the library reports an error.
    pub fn close(self) -> std::result::Result<(), CloseError> {
        let shared = Arc::into_inner(self.0).ok_or(CloseError::InUse)?;
        Ok(shared.raw.close()?)
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_comp_channel {
        self.0.raw.as_ptr()
    }
}

/// Waits until a file descriptor can be read, a time passed, or a signal came.
fn readable(fd: BorrowedFd<'_>, timeout: Option<Duration>) -> Result<()> {
    // Rounded up: 0 would be a busy loop.
    let timeout_ms = timeout.map_or(-1, |left| {
        left.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as libc::c_int
    });
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry is given and counted.
    if unsafe { libc::poll(&raw mut poll, 1, timeout_ms) } < 0 {
        let error = VerbsError::last("poll", Argument::Number("fd", poll.fd as u64));
        if error.errno != libc::EINTR {
            return Err(error);
        }
    }
    Ok(())
}

impl AsFd for CompletionChannel {
    /// Becomes readable when there is an event.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel keeps the file descriptor open while it is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.as_raw_fd()) }
    }
}

impl AsRawFd for CompletionChannel {
    fn as_raw_fd(&self) -> RawFd {
        // SAFETY: the channel is alive.
        unsafe { (*self.as_ptr()).fd }
    }
}

impl Context {
    /// A new completion channel.
    ///
    /// # Errors
    ///
    /// EMFILE, ENOMEM.
    pub fn create_channel(&self) -> Result<CompletionChannel> {
        // SAFETY: the context is open.
        let raw = unsafe { rdma_sys::ibv_create_comp_channel(self.as_ptr()) };
        // SAFETY: null, or a fresh channel that is handed over.
        let raw = unsafe { Owned::new(raw, "ibv_create_comp_channel", Argument::None) }?;
        // SAFETY: the channel is alive.
        nonblocking(unsafe { (*raw.as_ptr()).fd })?;
        Ok(CompletionChannel(Arc::new(Shared { raw, context: self.clone() })))
    }
}
