//! What happens to a connection: events of its queue pairs, which its owner takes, and its failure.
//! Both are also reported to `tracing`.

use super::member::P2pMember;
use super::message::{End, QueuePairId};
use crate::backend::Domain;
use crate::endpoint::{NamedRailError, NamedRailEvent};
use crate::heal::{Added, RailHistory};
use crate::trace;
use polyrail_core::p2p::{CallError, ConnectionEnd, Failure};
use polyrail_core::virtual_qp::{RailEvent, RailEventKind};
use std::error::Error;
use std::time::Instant;

impl<D: Domain> P2pMember<D> {
    /// Returns the oldest unread event of a queue pair, with its end and its index there. At most
    /// 256 are kept; the oldest are dropped. There are none unless rails are re-routed.
    pub fn take_rail_event(&mut self) -> Option<(End, usize, RailEvent)> {
        let (end, place, named) = self.take_named_rail_event()?;
        Some((end, place, named.event))
    }

    /// Takes the same event as [`take_rail_event`](Self::take_rail_event), with its device's name
    /// and what was detected.
    pub fn take_named_rail_event(&mut self) -> Option<(End, usize, NamedRailEvent)> {
        self.log_events();
        self.log.take()
    }

    /// Returns what happened to a queue pair so far.
    pub(crate) fn queue_pair_history(&self, id: QueuePairId) -> Option<&RailHistory> {
        self.log.history(id)
    }

    /// Returns the rail that the queue pair in a place of either end belongs to.
    pub(crate) const fn rail_of(&self, place: usize) -> usize {
        if self.rails == 0 { 0 } else { place % self.rails }
    }

    /// Returns a number that no other connection of this process has or had.
    pub(crate) const fn id(&self) -> u64 {
        self.id
    }

    /// Reports the events of queue pairs and keeps them for the owner, then reports why an end
    /// failed.
    pub(super) fn log_events(&mut self) {
        while let Some((end, place, event)) = self.next_event() {
            let named = self.report_event(end, place, event);
            if let RailEventKind::Fenced { arrived, again } = event.kind {
                self.fenced(end, arrived > 0, again > 0);
            }
            self.log.keep(end, place, named);
        }
        for end in [End::Sender, End::Receiver] {
            if self.failure_of(end).is_some() {
                self.report_failure(end);
            }
        }
    }

    fn next_event(&mut self) -> Option<(End, usize, RailEvent)> {
        let Self { sender, receiver, .. } = self;
        let sent = sender.as_mut().and_then(|sender| sender.take_rail_event());
        if let Some((place, event)) = sent {
            return Some((End::Sender, place, event));
        }
        let (place, event) = receiver.as_mut()?.take_rail_event()?;
        Some((End::Receiver, place, event))
    }

    /// Fails an end if requests in flight on rails that failed were lost, and nothing else was
    /// found for too long.
    fn fenced(&mut self, end: End, arrived: bool, lost: bool) {
        let completed = self.completed(end);
        if self.log.fenced(end, arrived, lost, completed) {
            let Self { sender, receiver, .. } = self;
            match end {
                End::Sender => sender.iter_mut().for_each(|sender| sender.not_healed()),
                End::Receiver => receiver.iter_mut().for_each(|receiver| receiver.not_healed()),
            }
        }
    }

    /// Counts the successful completions of an end.
    pub(super) fn completed(&self, end: End) -> u64 {
        let counters = (0..).map_while(|place| self.queue_pair_counters(end, place));
        counters.map(|each| each.completions.saturating_sub(each.errors)).sum()
    }

    /// Reports once why an end failed, when a call returns that it did.
    // By reference: the result of a call is not copied.
    #[inline]
    pub(super) fn report_if_failed<T>(&mut self, end: End, called: &Result<T, CallError>) {
        if let Err(CallError::Failed(_)) = called {
            self.report_failure(end);
        }
    }

    /// Reports once why an end failed, if it did.
    #[cold]
    fn report_failure(&mut self, end: End) {
        let Some(failure) = self.failure_of(end).copied() else { return };
        let is_reported = &mut self.log.is_end_reported[usize::from(end == End::Receiver)];
        if std::mem::replace(is_reported, true) {
            return;
        }
        let of = self.log.end(end);
        match failure {
            Failure::Rail(error) => {
                let device = self.device_of_failure(&failure);
                trace::end_failed(of, &NamedRailError { error, device });
            }
            failure => trace::end_failed(of, &failure),
        }
    }

    /// Returns the name of the device of the rail that failed; empty after other failures.
    pub(super) fn device_of_failure(&self, failure: &Failure) -> String {
        match failure {
            Failure::Rail(error) => self.device_name(error.device).unwrap_or_default().to_owned(),
            _ => String::new(),
        }
    }

    fn report_event(&mut self, end: End, place: usize, event: RailEvent) -> NamedRailEvent {
        let device = self.device_name(event.device).unwrap_or_default().to_owned();
        let at = Instant::now();
        let rail = QueuePairId { end, index: place as u8 };
        let Added { detected, out_for } = self.log.add(rail, event.kind, at);
        let named = NamedRailEvent { event, device, detected, at, out_for };
        trace::queue_pair_event(self.log.end(end), place, &event, &named.device, &named);
        named
    }

    /// Reports a failed attempt to replace a queue pair.
    pub(super) fn report_attempt(&self, end: End, place: usize, error: &dyn Error) {
        trace::no_queue_pair_for(self.log.end(end), place, error);
    }
}
