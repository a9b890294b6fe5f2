//! What the owner of an endpoint does when rails fail: it reads what happened, carries repair
//! messages, and fails rails itself.

use super::place::rail_ids;
use super::qp::EndpointQp;
use super::rail_event::NamedRailEvent;
use crate::backend::Connect;
use crate::heal::{HealingLink, RailHistory};
use crate::trace;
use polyrail_core::hardware::{CqError, QueuePair};
use polyrail_core::virtual_qp::{QpState, RailEvent, RailFailure, RailId, RailState};
use std::time::Instant;

impl<Q> EndpointQp<Q>
where
    Q: QueuePair,
{
    /// Returns the next event of a rail; events of one rail are in order. There are none unless
    /// rails are re-routed. If the owner does not read them, the oldest are dropped. [`trace`]
    /// reports the same events, failures as warnings, fences on purpose as information.
    pub fn take_rail_event(&mut self) -> Option<NamedRailEvent> {
        // Most calls find nothing, and need no clock.
        if let Some(event) = self.qp.take_rail_event() {
            let now = Instant::now();
            self.log_rail_event(event, now);
            self.log_rail_events(now);
        }
        let logged = self.log.take()?;
        Some(NamedRailEvent::new(logged, self.device_name(logged.event.device)))
    }

    /// Returns what happened to a rail so far.
    pub(crate) fn rail_history(&self, rail: RailId) -> Option<&RailHistory> {
        self.log.history(rail)
    }

    /// Takes note of what happened to rails.
    pub(super) fn log_rail_events(&mut self, now: Instant) {
        while let Some(event) = self.qp.take_rail_event() {
            self.log_rail_event(event, now);
        }
    }

    fn log_rail_event(&mut self, event: RailEvent, now: Instant) {
        let logged = self.log.add(event, now);
        let named = NamedRailEvent::new(logged, self.device_name(event.device));
        let qp = self.qp.virtual_qp_num();
        trace::rail_event(qp, &event, &named.device, &named);
    }

    /// Returns the link that carries repair messages to the peer's endpoint and from it, if rails
    /// are re-routed. The owner carries them unless [`connect_endpoints`](super::connect_endpoints)
    /// has connected the two endpoints.
    pub fn healing_link(&self) -> Option<HealingLink<RailId>> {
        self.healer.as_ref().map(|healer| healer.link().clone())
    }

    /// Whether the next repair step can handle repair messages of the peer.
    pub(crate) fn has_messages(&self) -> bool {
        let healer = self.healer.as_ref().filter(|_| self.joined.is_over());
        healer.is_some_and(|healer| healer.link().can_handle())
    }

    /// Whether other rails take over from one that fails.
    pub(super) fn reroutes(&self) -> bool {
        self.qp.config().rail_failure == RailFailure::Reroute
    }
}

impl<Q> EndpointQp<Q>
where
    Q: Connect,
{
    /// Moves one queue pair to ERR, for example because a port went down or a rail makes no
    /// progress. With [`RailFailure::Reroute`](polyrail_core::virtual_qp::RailFailure::Reroute)
    /// other rails take over, and true is returned; otherwise the virtual queue pair fails at the
    /// first flushed request.
    pub fn fail_rail(&mut self, rail: RailId) -> bool {
        let rerouted = self.qp.fail_rail(rail);
        if !rerouted {
            self.flush_rail(rail);
        }
        rerouted
    }

    /// Whether the endpoint survives a broken completion queue: none of its queue pairs completes
    /// there, or only those of rails that are out of service and whose completions are not awaited.
    pub fn survives(&mut self, error: &CqError) -> bool {
        if !self.reroutes() {
            return !self.completes_on(error.cq);
        }
        self.lose_gone_rails();
        let is_awaited = |rail: RailId| {
            let state = self.qp.rail_state(rail);
            state.is_some_and(|state| state.awaits_completions())
                && self.qp.physical(rail).is_some_and(|qp| qp.cq() == error.cq)
        };
        self.state() != QpState::Error && !rail_ids().any(is_awaited)
    }

    /// Loses the rails whose devices are gone, as far as the backend knows, so that other rails
    /// take over. Returns whether there were any. Polls still report that the completion queue of
    /// such a device is broken; the other completion queues are polled all the same.
    pub(super) fn lose_gone_rails(&mut self) -> bool {
        let mut any = false;
        for rail in rail_ids() {
            let awaited = self.qp.rail_state(rail).is_some_and(RailState::awaits_completions);
            let gone = self.qp.physical(rail).filter(|_| awaited).and_then(Connect::gone);
            if gone.is_some() {
                // SAFETY: the backend's word.
                any |= unsafe { self.qp.lose_rail(rail) };
            }
        }
        any
    }

    /// Moves every queue pair to ERR, so that all requests complete as flushed. If rails are
    /// re-routed, the peer is notified. Poll until no request is unreported; then no device
    /// accesses the buffers any more. With one rail [`unreported`](Self::unreported) is always 0:
    /// poll until as many requests and receives were reported as you posted.
    ///
    /// The [state](Self::state) is [`QpState::Error`] at once, and the [failure](Self::failure) is
    /// [`GivenUp`](super::EndpointError::GivenUp) unless the endpoint had failed before.
    pub fn fail(&mut self) {
        self.qp.fail();
        if self.reroutes() {
            self.lose_gone_rails();
        }
        rail_ids().for_each(|rail| self.flush_rail(rail));
    }

    fn flush_rail(&self, rail: RailId) {
        if let Some(qp) = self.physical(rail) {
            // Refused if the device is gone: then there is nothing left to flush either.
            _ = qp.fail();
        }
    }
}
