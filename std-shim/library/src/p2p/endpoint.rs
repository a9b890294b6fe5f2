//! Messages with one peer, with separate completion queues.

use super::builder::P2pBuilder;
use super::error::P2pBuildError;
use super::member::{P2pMember, Targets};
use super::shared::Shared;
use super::sizes::{EngineSender, P2P_ROUTES};
use crate::backend::{Domain, DomainRef, listed};
use polyrail_core::virtual_cq::Polled;
use polyrail_software_nic as nic;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

/// Messages with one peer, with separate completion queues: a [`P2pMember`] that can be polled. See
/// the [module](super).
pub struct P2pEndpoint<D: Domain = nic::ProtectionDomain> {
    /// Dropped before what its queue pairs complete on.
    pub(super) member: P2pMember<D>,
    pub(super) shared: Shared<D, P2P_ROUTES>,
}

impl<D: Domain> fmt::Debug for P2pEndpoint<D>
where
    P2pMember<D>: fmt::Debug,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("P2pEndpoint").field("member", &self.member).finish_non_exhaustive()
    }
}

impl<D: Domain> Deref for P2pEndpoint<D> {
    type Target = P2pMember<D>;

    #[inline]
    fn deref(&self) -> &P2pMember<D> {
        &self.member
    }
}

impl<D: Domain> DerefMut for P2pEndpoint<D> {
    #[inline]
    fn deref_mut(&mut self) -> &mut P2pMember<D> {
        &mut self.member
    }
}

impl P2pBuilder {
    /// Builds an endpoint: per device, one completion queue, one registration of the protocol's
    /// memory for each end, and if it receives, one shared receive queue with its pool; rails on
    /// the devices in turn, and on the ports of each device in turn; all queue pairs in INIT. With
    /// more devices than rails, the last devices are not used.
    ///
    /// # Errors
    ///
    /// A device or the engine refuses.
    pub fn build<'d, D: Domain>(
        &self,
        domains: impl IntoIterator<Item: DomainRef<'d, D>>,
    ) -> Result<P2pEndpoint<D>, P2pBuildError> {
        let mut shared = Shared::new(*self, &listed(domains), 1)?;
        let others: &mut [EngineSender<D::Qp>] = &mut [];
        Ok(P2pEndpoint { member: shared.open(0, None, others)?, shared })
    }
}

impl<D: Domain> P2pEndpoint<D> {
    /// Drives everything that waits for completions: takes at most `budget` of them. If rails are
    /// re-routed, some polls also [repair](crate::heal::Healing) them. Allocates only for new queue
    /// pairs.
    ///
    /// Messages are reported by [`test_send`](P2pMember::test_send) and
    /// [`test_recv`](P2pMember::test_recv), so [`events`](Polled::events) counts only completions
    /// of unknown queue pairs.
    #[inline]
    pub fn poll(&mut self, budget: usize) -> Polled {
        let Self { member, shared } = self;
        let polled = shared.poll(&mut Targets(member), budget);
        if shared.is_time_to_heal(0) {
            self.heal();
        }
        polled
    }

    /// Runs the [repair](crate::heal::Healing) step of polls immediately, if the endpoint repairs
    /// its rails. For owners that poll seldom.
    #[cold]
    pub fn heal(&mut self) {
        self.member.heal(&mut self.shared);
    }

    /// [Fails](P2pMember::fail) the connection, then polls until no device accesses any buffer, or
    /// `timeout` has passed. If the endpoint [repairs](crate::heal::Healing) its rails, its last
    /// messages for the peer are in its [link](P2pMember::healing_link) afterwards.
    pub fn give_up(&mut self, timeout: Duration) {
        const BUDGET: usize = 64;
        self.fail();
        self.heal();
        let begin = Instant::now();
        while !self.is_drained() && begin.elapsed() < timeout {
            if self.poll(BUDGET).error.is_some() {
                return;
            }
        }
    }
}
