//! Detects that a queue pair in ERR took its last receive from a shared receive queue.
//!
//! The InfiniBand specification (volume 1, section 10.3.1) defines an event for this: move the
//! queue pair to ERR, wait for *Last WQE Reached*, then poll until the completion queue is empty.
//! All devices but rxe are treated this way. If a device never raises the event, the end is never
//! reported.
//!
//! rxe, the kernel's software RDMA driver, does not raise the event in Linux 6.1; newer kernels do.
//! In ERR its responder is only asked to stop, and may still complete a message on another
//! processor. Destroying the queue pair waits until no packet refers to it and its responder has
//! returned for good, and leaves its completions in the completion queue. On rxe the queue pair is
//! therefore destroyed, which its owner permits by asking. Send requests that were not flushed yet
//! are lost, and so is a receive that a SEND of several packets has begun to fill; the
//! specification permits the latter for programs that do not wait for the event.
//!
//! Other devices are not treated this way: libraries of NICs, such as mlx5, remove the completions
//! of a destroyed queue pair from its completion queue, polled or not.

use crate::attributes::DeviceAttributes;
use crate::context::Context;
use crate::end::ReceiveEnd;
use crate::error::VerbsError;
use crate::named::Named;
use crate::owned::Owned;
use crate::qp_state::QpState;
use polyrail_process::Process;
use rdma_sys::ibv_qp;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

/// Whether destroying a queue pair of the device proves that it took its last receive, and keeps
/// its completions.
pub(super) const fn ends_by_destroying(device: &DeviceAttributes) -> bool {
    device.is_rxe()
}

/// Progress of a queue pair towards its last receive.
#[derive(Debug)]
pub(super) struct LastWqe {
    /// Records the events of the queue pair.
    named: Arc<Named<ReceiveEnd>>,
    /// The queue pair returned to RESET, so a recorded event may be older than that.
    was_reset: AtomicBool,
    destroying: Destroying,
    process: Process,
}

#[derive(Debug)]
enum Destroying {
    NotBegun,
    UnderWay(JoinHandle<Result<(), VerbsError>>),
    Done(Result<(), VerbsError>),
}

/// Returns the result of a thread that has ended, or resumes its panic.
fn joined(thread: JoinHandle<Result<(), VerbsError>>) -> Result<(), VerbsError> {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

impl LastWqe {
    pub(super) fn new(named: Arc<Named<ReceiveEnd>>) -> Self {
        let (was_reset, process) = (AtomicBool::new(false), Process::current());
        Self { named, was_reset, destroying: Destroying::NotBegun, process }
    }

    pub(super) fn user_context(&self) -> usize {
        self.named.user_context
    }

    /// Waits until a destruction in progress ends.
    pub(super) fn wait(mut self) -> Result<(), VerbsError> {
        VerbsError::check_process(self.process, "ibv_destroy_qp")?;
        match std::mem::replace(&mut self.destroying, Destroying::NotBegun) {
            Destroying::NotBegun => Ok(()),
            Destroying::UnderWay(thread) => joined(thread),
            Destroying::Done(result) => result,
        }
    }

    /// Whether the queue pair belongs to the process that this one is a fork of.
    pub(super) fn is_forked(&self) -> bool {
        !self.process.is_current()
    }

    /// Whether the event was raised. Events that are read here are kept for `next_event`.
    pub(super) fn has_event(&self, context: &Context) -> Result<bool, i32> {
        if self.was_reset.load(Ordering::Relaxed) {
            return Err(libc::EINVAL);
        }
        if !self.named.id.is_reached() {
            context.read_events().map_err(|error| error.errno)?;
        }
        Ok(self.named.id.is_reached())
    }

    /// Destroys the queue pair on a new thread, since that waits for packets, which a port that is
    /// down may hold for seconds. Fails if the thread cannot be created. `parts`, which the device
    /// may still reach, is kept until the thread ends. The caller is the only owner of the queue
    /// pair.
    pub(super) fn destroy(
        &mut self,
        raw: &mut Option<Arc<Owned<ibv_qp>>>,
        parts: impl Send + Sync + 'static,
    ) -> Result<(), i32> {
        let (give, take) = mpsc::sync_channel::<Owned<ibv_qp>>(1);
        let work = move || take.recv().map_or(Ok(()), Owned::close);
        let thread = thread::Builder::new().name("polyrail-destroy".to_owned()).spawn(work);
        let thread = thread.map_err(|error| error.raw_os_error().unwrap_or(libc::EAGAIN))?;
        if let Some(mut raw) = raw.take().and_then(Arc::into_inner) {
            raw.keep(Arc::new((Arc::clone(&self.named), parts)));
            // The thread is waiting to receive it.
            _ = give.send(raw);
        }
        self.destroying = Destroying::UnderWay(thread);
        Ok(())
    }

    /// Whether the queue pair is being destroyed, or was destroyed.
    pub(super) fn is_destroying(&self) -> bool {
        !matches!(self.destroying, Destroying::NotBegun)
    }

    /// Whether the queue pair was destroyed. Returns the errno if that failed.
    pub(super) fn is_destroyed(&mut self) -> Result<bool, i32> {
        self.destroying = match std::mem::replace(&mut self.destroying, Destroying::NotBegun) {
            Destroying::UnderWay(thread) if thread.is_finished() => {
                Destroying::Done(joined(thread))
            }
            other => other,
        };
        match self.destroying {
            Destroying::NotBegun | Destroying::UnderWay(_) => Ok(false),
            Destroying::Done(result) => result.map(|()| true).map_err(|error| error.errno),
        }
    }

    /// Records a transition.
    pub(super) fn moved_to(&self, state: QpState) {
        if state == QpState::Reset {
            self.was_reset.store(true, Ordering::Relaxed);
        }
    }
}

impl Drop for LastWqe {
    fn drop(&mut self) {
        if self.is_forked() {
            // The thread is the parent's. To detach it here would free its stack a second time.
            std::mem::forget(std::mem::replace(&mut self.destroying, Destroying::NotBegun));
        }
    }
}
