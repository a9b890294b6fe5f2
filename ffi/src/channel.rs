//! Completion channels: wait for completions instead of polling.

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

/// A completion channel (`struct ibv_comp_channel`): completion queues report to it that they have
/// completions. Cloning is cheap; completion queues keep the channel alive.
///
/// # Order of calls
///
/// A queue reports once, for the first completion after it was [armed](crate::CqHandle::arm). Arm
/// it, poll until it is empty, [wait](Self::wait) for an event, then repeat. Completions that
/// arrive between a poll and a later arm are not reported.
///
/// Every event is acknowledged when it is read, so destroying a completion queue does not block on
/// one.
#[derive(Clone, Debug)]
pub struct CompletionChannel(Arc<Shared>);

impl CompletionChannel {
    /// Returns the completion queue that the oldest unread event names. Does not block.
    ///
    /// # Errors
    ///
    /// Errors of reading the file descriptor.
    pub fn next_event(&self) -> Result<Option<CqId>> {
        Ok(self.next_event_and_user_context()?.map(|(id, _)| id))
    }

    /// Like [`next_event`](Self::next_event), with the queue's
    /// [`user_context`](crate::CqInit::user_context).
    ///
    /// # Errors
    ///
    /// Errors of reading the file descriptor.
    pub fn next_event_and_user_context(&self) -> Result<Option<(CqId, usize)>> {
        const CALL: &str = "ibv_get_cq_event";
        let channel = self.0.raw.for_call(CALL)?;
        let mut cq = ptr::null_mut();
        let mut cq_context = ptr::null_mut();
        // SAFETY: the channel is alive, and both pointers are written to local variables.
        let returned =
            unsafe { rdma_sys::ibv_get_cq_event(channel, &raw mut cq, &raw mut cq_context) };
        if returned != 0 {
            let error = VerbsError::last(CALL, Argument::None);
            return if error.errno == libc::EAGAIN { Ok(None) } else { Err(error) };
        }
        // SAFETY: destroying a completion queue waits until all its events are acknowledged, so it
        // still exists; all completion queues are created in this crate.
        let Named { id, user_context } = unsafe { Named::read(cq_context) };
        // SAFETY: as above; each event is acknowledged once.
        unsafe { rdma_sys::ibv_ack_cq_events(cq, 1) };
        Ok(Some((id, user_context)))
    }

    /// Waits for an event. Waits without limit if `timeout` is `None` or exceeds the range of the
    /// clock.
    ///
    /// # Errors
    ///
    /// As [`next_event`](Self::next_event).
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Option<CqId>> {
        // An overflow of the clock means no deadline.
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

    /// Returns the device of the channel.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// Destroys the channel.
    ///
    /// # Errors
    ///
    /// A completion queue still uses the channel, or the library reports an error.
    pub fn close(self) -> std::result::Result<(), CloseError> {
        let shared = Arc::into_inner(self.0).ok_or(CloseError::InUse)?;
        Ok(shared.raw.close()?)
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_comp_channel {
        self.0.raw.as_ptr()
    }
}

/// Waits until a file descriptor is readable, the timeout expires, or a signal arrives.
fn readable(fd: BorrowedFd<'_>, timeout: Option<Duration>) -> Result<()> {
    // Rounded up, since 0 would make the caller a busy loop.
    let timeout_ms = timeout.map_or(-1, |left| {
        left.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as libc::c_int
    });
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: the array has one entry, and the count is 1.
    if unsafe { libc::poll(&raw mut poll, 1, timeout_ms) } < 0 {
        let error = VerbsError::last("poll", Argument::Number("fd", poll.fd as u64));
        if error.errno != libc::EINTR {
            return Err(error);
        }
    }
    Ok(())
}

impl AsFd for CompletionChannel {
    /// Becomes readable when an event arrives.
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
    /// Creates a completion channel.
    ///
    /// # Errors
    ///
    /// EMFILE, ENOMEM.
    pub fn create_channel(&self) -> Result<CompletionChannel> {
        const CALL: &str = "ibv_create_comp_channel";
        // SAFETY: the context is open.
        let raw = unsafe { rdma_sys::ibv_create_comp_channel(self.for_call(CALL)?) };
        // SAFETY: null, or a new channel that nothing else owns.
        let raw = unsafe { Owned::new(raw, CALL, Argument::None) }?;
        // SAFETY: the channel is alive.
        nonblocking(unsafe { (*raw.as_ptr()).fd })?;
        Ok(CompletionChannel(Arc::new(Shared { raw, context: self.clone() })))
    }
}
