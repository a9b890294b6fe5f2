//! The object behind a handle of peers.

use super::common::Common;
use super::connections::Connections;
use super::messages::set::MessagesOn;
use super::requests::set::RequestsOn;
use crate::error::Refusal;
use crate::numbers::Numbers;
use crate::peer_state::PeerState;
use crate::table::{Kind, Object};
use crate::types::Peers;
use polyrail::nic::ProtectionDomain;
#[cfg(feature = "verbs")]
use polyrail::rdma::VerbsDomain;
#[cfg(feature = "tcp")]
use polyrail::tcp;

impl Object for Peers {
    const KIND: Kind = Kind::Peers;
    const NAME: &str = "polyrail_peers";
    type Value = AnyPeers;
}

/// Peers for requests or for messages, on one backend.
pub(crate) struct AnyPeers {
    pub(super) common: Common,
    pub(super) set: AnySet,
}

/// The connections of an object.
pub(super) enum AnySet {
    SoftwareRequests(RequestsOn<ProtectionDomain>),
    SoftwareMessages(MessagesOn<ProtectionDomain>),
    #[cfg(feature = "verbs")]
    VerbsRequests(RequestsOn<VerbsDomain>),
    #[cfg(feature = "verbs")]
    VerbsMessages(MessagesOn<VerbsDomain>),
    #[cfg(feature = "tcp")]
    TcpRequests(RequestsOn<tcp::ProtectionDomain>),
    #[cfg(feature = "tcp")]
    TcpMessages(MessagesOn<tcp::ProtectionDomain>),
}

/// Evaluates an expression with the peers for requests of any backend; refuses peers for
/// messages.
macro_rules! on_requests {
    ($any:expr, ($common:ident, $requests:ident) => $what:expr) => {{
        let $crate::peers::object::AnyPeers { common: $common, set } = $any;
        match set {
            $crate::peers::object::AnySet::SoftwareRequests($requests) => $what,
            #[cfg(feature = "verbs")]
            $crate::peers::object::AnySet::VerbsRequests($requests) => $what,
            #[cfg(feature = "tcp")]
            $crate::peers::object::AnySet::TcpRequests($requests) => $what,
            _ => $crate::error::refuse($crate::code::Code::Kind, "these peers are for messages"),
        }
    }};
}
pub(super) use on_requests;

/// Evaluates an expression with the peers for messages of any backend; refuses peers for
/// requests.
macro_rules! on_messages {
    ($any:expr, ($common:ident, $messages:ident) => $what:expr) => {{
        let $crate::peers::object::AnyPeers { common: $common, set } = $any;
        match set {
            $crate::peers::object::AnySet::SoftwareMessages($messages) => $what,
            #[cfg(feature = "verbs")]
            $crate::peers::object::AnySet::VerbsMessages($messages) => $what,
            #[cfg(feature = "tcp")]
            $crate::peers::object::AnySet::TcpMessages($messages) => $what,
            _ => $crate::error::refuse($crate::code::Code::Kind, "these peers are for requests"),
        }
    }};
}
pub(super) use on_messages;

impl AnySet {
    /// Returns the interface that both kinds of connections have.
    pub(super) fn connections(&mut self) -> &mut dyn Connections {
        match self {
            Self::SoftwareRequests(requests) => requests,
            Self::SoftwareMessages(messages) => messages,
            #[cfg(feature = "verbs")]
            Self::VerbsRequests(requests) => requests,
            #[cfg(feature = "verbs")]
            Self::VerbsMessages(messages) => messages,
            #[cfg(feature = "tcp")]
            Self::TcpRequests(requests) => requests,
            #[cfg(feature = "tcp")]
            Self::TcpMessages(messages) => messages,
        }
    }
}

impl AnyPeers {
    pub(super) fn new(set: AnySet) -> Self {
        Self { common: Common::new(), set }
    }

    /// Finds a peer: the connections, and the peer's place among them.
    pub(super) fn find(&mut self, peer: u64) -> Result<Found<'_>, Refusal> {
        let Self { common, set } = self;
        let place = common.numbers.place(peer)?;
        let set = set.connections();
        let place = Numbers::found(set.has(place).then_some(place), peer)?;
        Ok(Found { common, set, place })
    }
}

/// A peer that was found.
pub(super) struct Found<'p> {
    pub(super) common: &'p mut Common,
    pub(super) set: &'p mut dyn Connections,
    pub(super) place: usize,
}

impl Found<'_> {
    pub(super) fn state(&mut self) -> &mut PeerState {
        &mut self.common.states[self.place]
    }
}
