//! Detects silent rails: if a driver never completes a request whose peer is gone, and reports
//! nothing, only a timeout detects it.

use super::health::EndpointError;
use super::place::{RAIL_IDS, rail_ids};
use super::qp::EndpointQp;
use crate::backend::Connect;
use crate::heal::{Look, SilenceWatch};
use polyrail_core::virtual_qp::RailId;
use std::time::{Duration, Instant};

/// Watches an endpoint for rails whose oldest request makes no progress.
///
/// It is for endpoints whose rails are not re-routed. Endpoints with automatic
/// [repair](crate::heal::Healing) have their own watch, with
/// [`stall_timeout`](crate::heal::Healing::stall_timeout), and this one finds nothing.
///
/// Call it in the polling loop, after the poll: a request counts as stalled if it is still
/// incomplete although the poll would have found its completion.
#[derive(Clone, Debug)]
pub struct StallWatch {
    timeout: Duration,
    watch: SilenceWatch<RAIL_IDS>,
    /// The caller's count at the last check, while something was in flight.
    reported: Option<u64>,
}

impl StallWatch {
    /// Creates a watch that permits `timeout` without progress, plus up to an eighth of it.
    pub const fn new(timeout: Duration) -> Self {
        Self { timeout, watch: SilenceWatch::new(), reported: None }
    }

    /// How long there may be between two checks, or it takes longer to find a rail.
    pub(crate) fn interval(&self) -> Duration {
        SilenceWatch::<RAIL_IDS>::interval(self.timeout)
    }

    /// Checks the rails, if a check is due. `posted` and `reported` count the caller's send
    /// requests; with a single rail, which the engine does not track, only they show progress.
    ///
    /// # Errors
    ///
    /// [`EndpointError::Silent`]: a rail made no progress for the timeout. Its queue pair was moved
    /// to ERR, so later polls return its requests as flushed, and the virtual queue pair fails
    /// unless rails are re-routed.
    pub fn check<Q>(
        &mut self,
        endpoint: &mut EndpointQp<Q>,
        posted: u64,
        reported: u64,
    ) -> Result<(), EndpointError>
    where
        Q: Connect,
    {
        if endpoint.healer.is_some() {
            return Ok(());
        }
        if !self.watch.is_due(Instant::now(), self.timeout) {
            return Ok(());
        }
        let stalled = endpoint.check_stalled();
        let still = self.reported == Some(reported);
        self.reported = (posted > reported).then_some(reported);
        let single = !endpoint.virtual_qp().is_multi() && still && posted > reported;
        let mut looks = [Look { is_stalled: false, peer_is_alive: true }; RAIL_IDS];
        for (rail, look) in rail_ids().zip(&mut looks) {
            look.is_stalled = stalled.contains(rail) || (single && rail == RailId::Data(0));
        }
        match self.watch.look(looks).next().and_then(|at| rail_ids().nth(at)) {
            None => Ok(()),
            Some(rail) => {
                endpoint.fail_rail(rail);
                let device = endpoint.device_of(rail);
                Err(EndpointError::Silent { rail, device, waited: self.timeout })
            }
        }
    }
}
