//! How it is known that a queue pair in ERR took its last receive from a shared receive queue.
//!
//! The specification has an event for it (InfiniBand Architecture Specification, volume 1, 10.3.1): put the
//! queue pair in ERR, wait for *Last WQE Reached*, then poll until there is nothing. That is the way of every
//! device but one. A device that never raises the event never gives its word; nothing is made up for it.
//!
//! rxe, the kernel's software device, raises none in Linux 6.1, though it does in newer ones. ERR only asks its
//! responder to stop, which may be about to complete a message on another processor. Destroying the queue
//! pair waits until no packet refers to it and its responder has returned, for good, and takes nothing out
//! of the completion queue. So there it is destroyed; its owner has no use for it any more. (Requests of its
//! own that were not flushed yet would be lost; so would a receive that a SEND of several packets has begun to
//! fill, which the specification lets happen to whoever does not wait for the event.)
//!
//! No other device is treated so: libraries of NICs, mlx5's among them, take the completions of a queue
//! pair that is destroyed out of its completion queue, polled or not.

use crate::attributes::DeviceAttributes;
use crate::context::Context;
use crate::end::ReceiveEnd;
use crate::error::VerbsError;
use crate::named::Named;
use crate::owned::Owned;
use crate::qp_state::QpState;
use rdma_sys::ibv_qp;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

/// Whether destroying a queue pair of the device says that it took its last receive, and its completions
/// stay.
pub(super) const fn ends_by_destroying(device: &DeviceAttributes) -> bool {
    device.is_rxe()
}

/// How far a queue pair has come to its last receive.
#[derive(Debug)]
pub(super) struct LastWqe {
    /// Where events of the queue pair leave their word.
    named: Arc<Named<ReceiveEnd>>,
    /// It was in RESET again: an event may be of its life before.
    was_reset: AtomicBool,
    destroying: Destroying,
}

#[derive(Debug)]
enum Destroying {
    NotBegun,
    UnderWay(JoinHandle<Result<(), VerbsError>>),
    Done(Result<(), VerbsError>),
}

/// What a thread returned that has ended. It has nothing to panic with.
fn joined(thread: JoinHandle<Result<(), VerbsError>>) -> Result<(), VerbsError> {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

impl LastWqe {
    pub(super) fn new(named: Arc<Named<ReceiveEnd>>) -> Self {
        Self { named, was_reset: AtomicBool::new(false), destroying: Destroying::NotBegun }
    }

    pub(super) fn user_context(&self) -> usize {
        self.named.user_context
    }

    /// Waits until it is destroyed, if it is being destroyed.
    pub(super) fn wait(self) -> Result<(), VerbsError> {
        match self.destroying {
            Destroying::NotBegun => Ok(()),
            Destroying::UnderWay(thread) => joined(thread),
            Destroying::Done(result) => result,
        }
    }

    /// Whether an event said so. That events are read here takes them from nobody.
    pub(super) fn is_heard(&self, context: &Context) -> Result<bool, i32> {
        if self.was_reset.load(Ordering::Relaxed) {
            return Err(libc::EINVAL);
        }
        if !self.named.id.is_reached() {
            context.take_note_of_events().map_err(|error| error.errno)?;
        }
        Ok(self.named.id.is_reached())
    }

    /// Has a thread destroy the queue pair, unless there can be none: that waits for packets, which a port
    /// that is down may hold for seconds. What the device may still reach, `parts`, is kept until then.
    pub(super) fn destroy(
        &mut self,
        raw: &mut Option<Owned<ibv_qp>>,
        parts: impl Send + Sync + 'static,
    ) -> Result<(), i32> {
        let (give, take) = mpsc::sync_channel::<Owned<ibv_qp>>(1);
        let work = move || take.recv().map_or(Ok(()), Owned::close);
        let thread = thread::Builder::new().name("polyrail-destroy".to_owned()).spawn(work);
        let thread = thread.map_err(|error| error.raw_os_error().unwrap_or(libc::EAGAIN))?;
        if let Some(mut raw) = raw.take() {
            raw.keep(Arc::new((Arc::clone(&self.named), parts)));
            // The thread waits for it.
            _ = give.send(raw);
        }
        self.destroying = Destroying::UnderWay(thread);
        Ok(())
    }

    /// Whether the queue pair is being destroyed, or was.
    pub(super) fn is_destroying(&self) -> bool {
        !matches!(self.destroying, Destroying::NotBegun)
    }

    /// Whether the queue pair was destroyed; or why it cannot be.
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

    /// Takes note of a transition.
    pub(super) fn moved_to(&self, state: QpState) {
        if state == QpState::Reset {
            self.was_reset.store(true, Ordering::Relaxed);
        }
    }
}
