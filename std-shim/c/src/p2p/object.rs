//! What is behind a handle of peers for messages.

use super::requests::Requests;
use crate::error::Refusal;
use crate::kept::Kept;
use crate::news::News;
use crate::numbers::Numbers;
use crate::pace::Pace;
use crate::table::{Kind, Object};
use crate::types::P2p;
use polyrail::backend::Domain;
use polyrail::nic::ProtectionDomain;
use polyrail::p2p::{P2pEndpointSet, P2pMember};
#[cfg(feature = "verbs")]
use polyrail::rdma::VerbsDomain;

impl Object for P2p {
    const KIND: Kind = Kind::P2p;
    const NAME: &str = "polyrail_p2p";
    type Value = AnyP2p;
}

/// Places in the routing table: three quarters hold queue pairs, such as those of 1536 peers of two rails.
const ROUTES: usize = 8192;

pub(super) type Set<D> = P2pEndpointSet<D, ROUTES>;

/// Peers on either backend.
pub(crate) enum AnyP2p {
    Software(P2pOn<ProtectionDomain>),
    #[cfg(feature = "verbs")]
    Verbs(P2pOn<VerbsDomain>),
}

/// Does the same on either backend.
macro_rules! on_backend {
    ($any:expr, $p2p:ident => $what:expr) => {
        match $any {
            $crate::p2p::object::AnyP2p::Software($p2p) => $what,
            #[cfg(feature = "verbs")]
            $crate::p2p::object::AnyP2p::Verbs($p2p) => $what,
        }
    };
}
pub(super) use on_backend;

/// Peers on one backend.
pub(crate) struct P2pOn<D: Domain> {
    pub(super) set: Box<Set<D>>,
    pub(super) reroutes: bool,
    pub(super) rails: u32,
    pub(super) numbers: Numbers,
    /// What is kept of each peer, by place.
    pub(super) kept: Vec<Kept>,
    pub(super) requests: Requests,
    pub(super) news: News,
    pub(super) pace: Pace,
}

impl<D: Domain> P2pOn<D> {
    /// A peer, and its place.
    #[inline]
    pub(super) fn member(&mut self, peer: u64) -> Result<(usize, &mut P2pMember<D>), Refusal> {
        let place = self.numbers.place(peer)?;
        Ok((place, Numbers::found(self.set.member_mut(place), peer)?))
    }
}
