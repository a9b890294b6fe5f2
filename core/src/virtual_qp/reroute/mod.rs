//! Rails that fail, with [`RailFailure::Reroute`](super::RailFailure::Reroute).
//!
//! The steps from failure to return are those of every end (`rail::rails`). Here is what they mean
//! for requests:
//!
//! 1. `stop`: a completion failed, a driver refused, the owner or the peer reported a failure. What
//!    is in flight on the rail succeeds or is lost (`rail::in_flight`).
//! 2. `recover`: with the peer's count, what arrived of what was lost is done. What did not arrive
//!    is posted again on rails with credits, plain fragments already before the peer's count; SENDs
//!    and notifies on the new queue pair of their rail.
//! 3. `replace`: a new queue pair takes the rail's place, and its receives are posted.
//!
//! `give_up` is the end of a virtual queue pair that cannot go on. This file has the messages,
//! events and states for the owner.
//!
//! As long as it is unknown what arrived of what a rail lost, nothing in the ring moves past
//! `posted`: the copy that was posted again may be acknowledged while the lost copy can still be
//! executed, so the request must not be reported yet.

mod give_up;
mod recover;
mod replace;
mod stop;

use super::qp::VirtualQp;
use crate::hardware::QueuePair;
use crate::rail::{ControlError, ControlMessage, RailEvent, RailId, RailSet, RailState, Rails};

impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize>
    VirtualQp<Q, RAILS, DEPTH, WRS>
{
    /// Returns the next message for the peer. After every poll and every other call, the owner
    /// carries all messages, in order, to [`control`](Self::control) of the other end.
    pub fn next_control(&mut self) -> Option<ControlMessage> {
        self.next_message().map(|(_, message)| message)
    }

    /// Handles a message of the peer. What it allows is done at once; requests that are complete
    /// with it come out of the next poll.
    ///
    /// # Errors
    ///
    /// No correct peer sends this message: the virtual queue pair is in the error state. Or it does
    /// not re-route: nothing changed.
    pub fn control(&mut self, message: ControlMessage) -> Result<(), ControlError> {
        self.handle(message, |id| id)
    }

    /// The link that carried control messages broke, and both owners have a new one: **both** ends
    /// send everything again that may have been lost.
    pub fn control_lost(&mut self) {
        self.repeat_messages();
    }

    /// Returns the number of the peer's messages that changed nothing: they were repeated, or about
    /// queue pairs that are replaced.
    pub fn ignored_controls(&self) -> u64 {
        self.reroute.ignored()
    }

    /// Returns the oldest event of a rail that was not taken yet, if there is one. Events of one
    /// rail come in the order in which they happened. The newest five of each rail are kept, and
    /// one call adds four at most: an owner that takes all events after each poll and each other
    /// call misses none.
    pub fn take_rail_event(&mut self) -> Option<RailEvent> {
        self.take_event().map(|(_, event)| event)
    }

    /// Returns where a rail stands between failure and return.
    pub fn rail_state(&self, rail: RailId) -> Option<RailState> {
        self.rail(rail).map(|rail| rail.health.lifecycle.state())
    }

    /// Returns the data rails that take requests: they have not failed, and their owner has not
    /// [taken them out of service](Self::set_rail_in_service). If a rail fails and fewer than
    /// [`min_rails`](super::Config::min_rails) of them are left, the virtual queue pair fails.
    pub fn rails_in_service(&self) -> RailSet {
        Rails::rails_in_service(self)
    }

    /// Returns the rails that this end wants to be fenced on purpose, and whose peer has not
    /// answered yet. They are in service.
    pub fn rails_asked_for(&self) -> RailSet {
        let asks = self.all_rails().filter(|rail| rail.health.lifecycle.asks_for_fence());
        asks.map(|rail| rail.id).collect()
    }

    /// Whether a rail is out of service on purpose, or perhaps: it failed after the peer was asked
    /// to fence it. It counts as in service, until its replacement is or fails.
    pub fn is_out_on_purpose(&self, rail: RailId) -> bool {
        self.rail(rail).is_some_and(|rail| rail.health.lifecycle.is_out_on_purpose())
    }

    /// Returns the generation of a rail: 0 for its first queue pair, counted up modulo 2^16 with
    /// each that failed and was replaced, here or at the peer.
    pub fn rail_generation(&self, rail: RailId) -> Option<u16> {
        self.rail(rail).map(|rail| rail.health.lifecycle.generation())
    }

    /// The owner reports that a rail has failed: its port went down, it makes no progress. What it
    /// has in flight is posted again on other rails, as if the rail had failed by itself. Returns
    /// whether that changed anything: not with
    /// [`RailFailure::Fatal`](super::RailFailure::Fatal), nor if it has failed already.
    pub fn fail_rail(&mut self, rail: RailId) -> bool {
        Rails::fail_rail(self, rail)
    }
}
