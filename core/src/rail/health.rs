//! What every physical queue pair has that can fail and be replaced: a rail of a virtual queue
//! pair, and a queue pair of a message connection.

use super::error::RailError;
use super::event::{FailedBecause, RailEvent, RailEventKind, RailEvents};
use super::id::RailId;
use super::lifecycle::Lifecycle;
use crate::hardware::{QueuePair, Refusal};
use crate::verbs::{Completion, DeviceId, WcStatus};

/// How far the failure of a queue pair is dealt with.
///
/// A struct apart from the rest of a rail, because no post and no completion of a queue pair that
/// works reads more of it than the state: with thousands of queue pairs, each further cache line is
/// a miss.
#[derive(Debug)]
pub(crate) struct RailHealth {
    pub(crate) lifecycle: Lifecycle,
    /// Events that the owner has not taken.
    pub(crate) events: RailEvents,
    /// The queue pair is in the error state, or destroyed: it answers its peer nothing.
    pub(crate) is_silent: bool,
    /// The owner reported that the queue pair is destroyed. Its completions prove nothing any more,
    /// because what was in flight counts as ended already.
    pub(crate) is_gone: bool,
    /// The failure is one that the requests in flight may have caused.
    pub(crate) suspects_requests: bool,
}

impl RailHealth {
    /// The health of the first queue pair in a place.
    pub(crate) fn new() -> Self {
        Self {
            lifecycle: Lifecycle::NEW,
            events: RailEvents::default(),
            is_silent: false,
            is_gone: false,
            suspects_requests: false,
        }
    }

    /// The queue pair is destroyed.
    pub(crate) const fn note_gone(&mut self) {
        self.is_gone = true;
        self.is_silent = true;
    }

    /// A new queue pair takes the place of the one that failed. Events stay until the owner takes
    /// them.
    pub(crate) const fn note_new_queue_pair(&mut self) {
        self.is_gone = false;
        self.is_silent = false;
    }
}

/// Which queue pair a report is about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    pub(crate) rail: RailId,
    pub(crate) device: DeviceId,
    pub(crate) qp_num: u32,
}

/// A physical queue pair that can fail and be replaced.
///
/// A trait, and not one struct, because what is hot differs: a rail keeps what a post touches in
/// the cache lines before and behind its queue pair, and a connection keeps the purpose of each
/// request.
pub(crate) trait PhysicalRail {
    type Qp: QueuePair;

    fn identity(&self) -> Identity;

    fn health(&self) -> &RailHealth;

    fn health_mut(&mut self) -> &mut RailHealth;

    /// The queue pair, together with its health: the driver's answer is kept there.
    fn qp_and_health(&mut self) -> (&mut Self::Qp, &mut RailHealth);

    /// Whether new requests may be posted.
    fn is_in_service(&self) -> bool {
        self.health().lifecycle.is_in_service()
    }

    /// Whether it counts as in service where a minimum number of rails has to be: also while it is
    /// out on purpose, since nothing is wrong with it.
    fn counts_as_in_service(&self) -> bool {
        self.is_in_service() || self.health().lifecycle.is_out_on_purpose()
    }

    /// Puts a new queue pair in the place of the one that failed, which it returns. `device_at` is
    /// the place of the new one's device. Receives may be posted to it; requests wait until both
    /// ends are ready.
    fn replace(&mut self, queue_pair: Self::Qp, device_at: usize) -> Self::Qp;

    /// Nothing has been posted to, or has arrived on, the queue pair of this generation.
    fn start_over(&mut self, generation: u16);

    /// Begins a generation, whether there is a queue pair of it or not.
    fn begin_generation(&mut self, generation: u16) {
        self.start_over(generation);
        // The requests that may be to blame were counted at the fence of the generation before.
        self.health_mut().suspects_requests = false;
    }

    /// Moves the queue pair to the error state, unless it is known to be there. Returns the
    /// driver's refusal.
    fn enter_error(&mut self) -> Option<Refusal> {
        let (qp, health) = self.qp_and_health();
        // A queue pair that was destroyed must not be touched. One in the error state stays there,
        // and ibv_modify_qp(3) is a system call.
        if health.is_silent {
            return None;
        }
        let refused = qp.enter_error().err();
        // A refusal is not kept: the fence needs the error state, so each later poll asks again.
        health.is_silent = refused.is_none();
        refused
    }

    /// Notes an event of the queue pair of this generation for the owner.
    fn note_event(&mut self, generation: u16, kind: RailEventKind) {
        // The device is noted now: when the owner reads the event, a queue pair of another device
        // may be in the place.
        let Identity { rail, device, .. } = self.identity();
        self.health_mut().events.add(RailEvent { rail, device, generation, kind });
    }

    /// Moves the queue pair of a rail that failed to the error state, and notes the event.
    fn note_failure(&mut self, why: FailedBecause) {
        if let FailedBecause::Error(error) = why {
            // Failures that the owner or the peer reports say nothing about the requests.
            self.health_mut().suspects_requests = error.suspects_requests();
        }
        // Before the event, which reports the driver's refusal: the rail may then need `lose_rail`.
        let refused = self.enter_error();
        let generation = self.health().lifecycle.generation();
        self.note_event(generation, RailEventKind::Failed { why, refused });
    }

    /// Returns the record of a failed completion.
    fn completion_error(&self, completion: &Completion, offset: u32) -> RailError {
        RailError {
            status: completion.status,
            vendor_err: completion.vendor_err,
            errno: None,
            ..self.refusal_error(0, offset)
        }
    }

    /// Returns the record of requests that ended although no completion reported an error.
    fn flush_error(&self) -> RailError {
        RailError { status: WcStatus::WR_FLUSH_ERR, errno: None, ..self.refusal_error(0, 0) }
    }

    /// Returns the record of a post that the driver refused.
    fn refusal_error(&self, errno: i32, offset: u32) -> RailError {
        let Identity { rail, device, qp_num } = self.identity();
        RailError {
            rail,
            device,
            qp_num,
            // A refused post has no completion. GENERAL_ERR lets other rails take over
            // (`is_of_rail`), and counts against the request (`suspects_requests`).
            status: WcStatus::GENERAL_ERR,
            vendor_err: 0,
            errno: Some(errno),
            offset,
        }
    }
}
