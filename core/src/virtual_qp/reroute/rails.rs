//! The rails of a virtual queue pair as one end: what their failures and returns mean for its
//! requests, and what its owner calls.

use crate::hardware::{QpLimits, QueuePair};
use crate::rail::{
    ControlError, ControlMessage, FailedBecause, PhysicalRail, Rail, RailEvent, RailId, RailState,
    Rails, RailsFailure, Reroute,
};
use crate::verbs::DeviceId;
use crate::virtual_qp::list::usable;
use crate::virtual_qp::parts::front_bytes;
use crate::virtual_qp::qp::VirtualQp;

/// Messages, events and states.
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

    /// Returns the generation of a rail: 0 for its first queue pair, counted up modulo 2^16 with
    /// each that failed and was replaced, here or at the peer.
    pub fn rail_generation(&self, rail: RailId) -> Option<u16> {
        self.rail(rail).map(|rail| rail.health.lifecycle.generation())
    }

    /// The owner reports that a rail has failed: its port went down, it makes no progress. What it
    /// has in flight is posted again on other rails, as if the rail had failed by itself. Returns
    /// whether that changed anything: not with
    /// [`RailFailure::Fatal`](super::super::RailFailure::Fatal), nor if it has failed already.
    pub fn fail_rail(&mut self, rail: RailId) -> bool {
        Rails::fail_rail(self, rail)
    }
}

impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize> Rails
    for VirtualQp<Q, RAILS, DEPTH, WRS>
{
    type Rail = Rail<Q, DEPTH>;
    type Place = RailId;

    fn reroute(&self) -> &Reroute {
        &self.reroute
    }

    fn reroute_mut(&mut self) -> &mut Reroute {
        &mut self.reroute
    }

    fn rail_at(&self, id: RailId) -> Option<&Rail<Q, DEPTH>> {
        self.rail(id)
    }

    fn rail_at_mut(&mut self, id: RailId) -> Option<&mut Rail<Q, DEPTH>> {
        self.rail_mut(id)
    }

    fn places(&self) -> impl Iterator<Item = (RailId, &Rail<Q, DEPTH>)> {
        self.all_rails().map(|rail| (rail.id, rail))
    }

    fn places_mut(&mut self) -> impl Iterator<Item = (RailId, &mut Rail<Q, DEPTH>)> {
        self.all_rails_mut().map(|rail| (rail.id, rail))
    }

    fn id_of(&self, id: RailId) -> RailId {
        id
    }

    fn has_failed(&self) -> bool {
        self.health.failed
    }

    fn give_up_for(&mut self, why: RailsFailure) {
        self.give_up(why.into());
    }

    fn posted(rail: &Rail<Q, DEPTH>) -> u32 {
        rail.sends.receives_due()
    }

    fn stop_using(&mut self, id: RailId, why: &FailedBecause) {
        if let FailedBecause::Error(error) = why {
            // The first error of a rail stays for the owner (`first_error`), though other rails
            // take over.
            self.health.note_error(*error);
        }
        let partial = self.rail(id).and_then(|rail| rail.sends.partial());
        let bytes_taken =
            partial.map(|(batch, index, _)| front_bytes(&self.sends, &batch, index, self.cut()));
        let Some(rail) = self.rail_mut(id) else { return };
        if let Some(bytes) = bytes_taken {
            rail.sends.withhold(bytes);
        }
        rail.sends.begin_loss();
        self.offers.sends.remove(id);
        if partial.is_some() {
            // The front that the driver took has no signaled request behind it, so the driver is
            // offered one.
            self.offers.sends.insert(id);
        }
        // A rail that is Draining takes no receives: they are posted to the next queue pair.
        self.offers.receives.remove(id);
        self.update_rail(id);
        // At once, and not with the next poll: from here on no request may be reported before the
        // peer's count.
        self.update_fence();
    }

    fn drain_rail(&mut self, id: RailId) -> Option<u32> {
        let rail = self.rail_mut(id)?;
        let is_complete = rail.sends.is_empty() && rail.recvs.is_empty();
        // Complete is not enough: a queue pair that answers may still carry out what is on its way.
        if rail.enter_error().is_some() || !is_complete {
            return None;
        }
        rail.sends.end_loss();
        Some(rail.recvs.arrived())
    }

    fn note_fenced(&mut self, id: RailId) -> bool {
        if id == RailId::Notify {
            // The receives that took nothing wait for the next queue pair.
            self.recvs.unpost();
        }
        // Behind the drain, when it is known which requests the rail lost.
        !self.blames_request(id)
    }

    fn fenced(&mut self, id: RailId, generation: u16, arrived: u32) {
        self.rail_fenced(id, generation, arrived);
    }

    fn returned(&mut self, id: RailId) {
        self.update_rail(id);
    }

    fn request_recovery(&mut self) {
        self.health.needs_recovery = true;
    }

    fn go_on(&mut self) {
        self.pump_all();
    }

    fn device_at(&self, id: RailId, device: DeviceId) -> Option<usize> {
        self.devices.contains(device).then(|| self.devices.place_of(id, device))
    }

    fn limits(
        &self,
        id: RailId,
        granted: &QpLimits,
    ) -> impl IntoIterator<Item = (&'static str, u32, u32)> {
        let rail = self.rail(id);
        let max_send_wr = rail.map_or(0, |rail| rail.sends.limit());
        let max_recv_wr = rail.map_or(0, |rail| rail.recvs.limit());
        // The notify queue pair carries no payload, only immediates.
        let message = if id == RailId::Notify { 0 } else { self.config.max_msg_size };
        // Lists are cut, and receives remembered, for what all queue pairs took when they were
        // built.
        let send_sge = if id == RailId::Notify { 1 } else { self.max_sge };
        let recv_sge = if id == RailId::Data(0) { self.max_recv_sge } else { 1 };
        [
            ("max_send_wr", granted.max_send_wr, max_send_wr),
            ("max_recv_wr", granted.max_recv_wr, max_recv_wr),
            ("max_msg_size", granted.max_msg_size, message),
            ("max_send_sge", usable(granted.max_send_sge), send_sge),
            ("max_recv_sge", usable(granted.max_recv_sge), recv_sge),
        ]
    }
}
