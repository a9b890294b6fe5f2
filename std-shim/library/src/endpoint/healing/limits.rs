//! How long requests wait, for rails and for the peer's report.

use super::given_up::GivenUp;
use super::walk::Walk;
use crate::backend::Connect;
use crate::endpoint::place::{RAIL_IDS, rail_ids, rail_index};
use crate::heal::{Passed, Waiting};
use polyrail_core::hardware::CompletionQueue;
use polyrail_core::virtual_qp::{RailId, RailState};

impl<Q, C, const ROUTES: usize> Walk<'_, Q, C, ROUTES>
where
    Q: Connect,
    C: CompletionQueue,
{
    /// Gives the endpoint up if its requests have waited for too long.
    pub(super) fn keep_to_limits(&mut self) {
        let is_late = |rail| self.is_out(rail) || self.is_unproven(rail);
        let mut unfenced = [false; RAIL_IDS];
        for (rail, unfenced) in rail_ids().zip(&mut unfenced) {
            let state = self.state(rail);
            *unfenced = matches!(state, Some(RailState::Draining | RailState::Fenced));
        }
        let waiting = Waiting {
            is_waiting: self.qp.virtual_qp().unreported_sends() > 0 && rail_ids().any(is_late),
            is_in_flight: self.qp.virtual_qp().has_sends_in_flight(),
            completed: rail_ids().map(|rail| self.carried(rail).completed).sum(),
            unfenced,
        };
        let passed = self.healer.limits.check(self.now, &self.healer.options, &waiting);
        let Some(passed) = passed else { return };
        let out_of_service = rail_ids().filter(|rail| self.is_out(*rail)).collect();
        self.qp.fail();
        // The rails through which the peer's memory may still be written.
        let unfenced = self.qp.virtual_qp().unfenced();
        self.qp.given_up = Some(match passed {
            Passed::Fence { place, limit: waited } => {
                let rail = rail_ids().nth(place).unwrap_or(RailId::Notify);
                GivenUp::NoFence { rail, waited, unfenced }
            }
            Passed::Rails { limit: waited } => {
                GivenUp::NotHealed { out_of_service, waited, unfenced }
            }
        });
    }

    /// Whether the rail is back and has completed nothing since: what waited for it waits on.
    fn is_unproven(&self, rail: RailId) -> bool {
        let carried = self.carried(rail);
        let returned = rail_index(rail).and_then(|at| self.healer.cares.get(at)?.returned);
        returned.is_some_and(|returned| returned.is_unproven(carried))
    }
}
