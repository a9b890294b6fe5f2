//! What is behind a handle of peers.

use crate::error::Refusal;
use crate::kept::Kept;
use crate::news::News;
use crate::numbers::Numbers;
use crate::pace::Pace;
use crate::table::{Kind, Object};
use crate::types::{Completion, Peers};
use polyrail::backend::Domain;
use polyrail::endpoint::{EndpointBuilder, EndpointQp, EndpointSet};
use polyrail::nic::ProtectionDomain;
#[cfg(feature = "verbs")]
use polyrail::rdma::VerbsDomain;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

impl Object for Peers {
    const KIND: Kind = Kind::Peers;
    const NAME: &str = "polyrail_peers";
    type Value = AnyPeers;
}

/// Peers on either backend.
pub(crate) enum AnyPeers {
    Software(PeersOn<ProtectionDomain>),
    #[cfg(feature = "verbs")]
    Verbs(PeersOn<VerbsDomain>),
}

/// Does the same on either backend.
macro_rules! on_backend {
    ($any:expr, $peers:ident => $what:expr) => {
        match $any {
            $crate::peers::object::AnyPeers::Software($peers) => $what,
            #[cfg(feature = "verbs")]
            $crate::peers::object::AnyPeers::Verbs($peers) => $what,
        }
    };
}
pub(super) use on_backend;

/// Peers on one backend.
pub(crate) struct PeersOn<D: Domain> {
    pub(super) set: EndpointSet<D::Qp, D::Cq>,
    pub(super) domains: Vec<D>,
    /// What peers are without options of their own.
    pub(super) builder: EndpointBuilder,
    pub(super) numbers: Numbers,
    /// The peer of each virtual queue pair, as completions name them.
    pub(super) routes: Routes,
    /// What is kept of each peer, by place.
    pub(super) kept: Vec<Kept>,
    pub(super) news: News,
    /// What was reported and found no room.
    pub(super) backlog: VecDeque<Completion>,
    pub(super) pace: Pace,
}

impl<D: Domain> PeersOn<D> {
    /// A peer, and its place.
    #[inline]
    pub(super) fn member(&mut self, peer: u64) -> Result<(usize, &mut EndpointQp<D::Qp>), Refusal> {
        let place = self.numbers.place(peer)?;
        Ok((place, Numbers::found(self.set.get_mut(place), peer)?))
    }
}

/// Peers by the numbers of virtual queue pairs.
pub(super) type Routes = HashMap<u32, u64, BuildHasherDefault<Spread>>;

/// Numbers that this process itself counts need no hash that nobody can foresee.
#[derive(Clone, Copy, Default)]
pub(super) struct Spread(u64);

impl Hasher for Spread {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32((*byte).into());
        }
    }

    #[inline]
    fn write_u32(&mut self, number: u32) {
        /// 2^64 over the golden ratio: the high bits differ, too.
        const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(FACTOR);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}
