//! How long requests wait, for rails and for the peer's word.

use super::given_up::GivenUp;
use super::walk::Walk;
use crate::backend::Connect;
use crate::endpoint::place::{rail_ids, rail_index};
use crate::heal::Healing;
use polyrail_core::hardware::CompletionQueue;
use polyrail_core::virtual_qp::{RailId, RailSet};
use std::time::Duration;

/// Walks that there are at least while a limit of time passes.
const WALKS: u32 = 8;

impl<Q, C, const ROUTES: usize> Walk<'_, Q, C, ROUTES>
where
    Q: Connect,
    C: CompletionQueue,
{
    /// An owner who was away has not waited: what was told meanwhile may not be heard yet. Of the time since
    /// the last walk, only a part of each limit counts.
    pub(super) fn forgive_absence(&mut self) {
        let Healing { fence_timeout, rail_timeout, .. } = self.healer.options;
        let last = self.healer.last_walk.replace(self.now).unwrap_or(self.now);
        let away = self.now.saturating_duration_since(last);
        let beyond =
            |limit: Option<Duration>| away.saturating_sub(limit.unwrap_or_default() / WALKS);
        for since in self.healer.cares.iter_mut().filter_map(|care| care.unfenced_since.as_mut()) {
            *since += beyond(fence_timeout);
        }
        if let Some((since, _)) = &mut self.healer.waits_since {
            *since += beyond(rail_timeout);
        }
    }

    /// Gives the endpoint up if its requests have waited for too long.
    pub(super) fn keep_to_limits(&mut self) {
        let headway = rail_ids().map(|rail| self.carried(rail).completed).sum();
        let has_sends = self.qp.virtual_qp().unreported_sends() > 0;
        let is_waiting =
            has_sends && rail_ids().any(|rail| self.is_out(rail) || self.is_unproven(rail));
        self.healer.waits_since = match self.healer.waits_since {
            _ if !is_waiting => None,
            Some((since, before)) if before == headway => Some((since, before)),
            _ => Some((self.now, headway)),
        };
        if !is_waiting {
            // Until something waits, the peer may take its time.
            self.healer.cares.iter_mut().for_each(|care| care.unfenced_since = None);
            return;
        }
        if let Some((rail, waited)) = self.unfenced_for_too_long() {
            let unfenced = self.fail();
            self.qp.given_up = Some(GivenUp::NoFence { rail, waited, unfenced });
        } else if let Some(waited) = self.without_rails_for_too_long() {
            let out_of_service = rail_ids().filter(|rail| self.is_out(*rail)).collect();
            let unfenced = self.fail();
            self.qp.given_up = Some(GivenUp::NotHealed { out_of_service, waited, unfenced });
        }
    }

    /// Whether the rail is back, and has completed nothing since: whoever waited for it waits on.
    fn is_unproven(&self, rail: RailId) -> bool {
        let carried = self.carried(rail);
        let returned = rail_index(rail).and_then(|at| self.healer.cares.get(at)?.returned);
        returned.is_some_and(|returned| returned.is_unproven(carried))
    }

    fn unfenced_for_too_long(&mut self) -> Option<(RailId, Duration)> {
        let limit = self.healer.options.fence_timeout?;
        let is_late = |rail: RailId| {
            let since = self.healer.cares.get(rail_index(rail)?)?.unfenced_since?;
            (self.now.saturating_duration_since(since) >= limit).then_some((rail, limit))
        };
        rail_ids().find_map(is_late)
    }

    fn without_rails_for_too_long(&self) -> Option<Duration> {
        let limit = self.healer.options.rail_timeout?;
        let (since, _) = self.healer.waits_since?;
        if self.qp.virtual_qp().has_sends_in_flight() {
            // A peer may be as late as it likes.
            return None;
        }
        (self.now.saturating_duration_since(since) >= limit).then_some(limit)
    }

    /// Returns the rails through which the peer's memory may still be written.
    fn fail(&mut self) -> RailSet {
        self.qp.fail_all();
        self.qp.virtual_qp().unfenced()
    }
}
