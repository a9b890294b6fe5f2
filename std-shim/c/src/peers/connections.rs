//! What connections for requests and connections for messages do, each in its own way.

use crate::error::{Failure, Refusal};
use crate::events::PeerEvent;
use crate::link::{Meets, Message};
use crate::types::{EndpointOptions, RailInfo, RailState};
use polyrail::link::Reach;
use polyrail::virtual_qp;

/// The connections of an object, by place. Only places that [`has`](Self::has) confirms are asked for.
pub(super) trait Connections {
    /// Whether there is a connection in this place.
    fn has(&self, place: usize) -> bool;

    /// Makes a connection, and returns its place.
    fn add(&mut self, options: Option<&EndpointOptions>) -> Result<usize, Refusal>;

    /// The connection in this place is of the peer with this number from now on.
    fn welcome(&mut self, place: usize, peer: u64);

    /// Gives a connection up.
    fn fail(&mut self, place: usize);

    /// Destroys a connection, and forgets what was not reported of this peer.
    fn remove(&mut self, place: usize, peer: u64) -> Result<(), Refusal>;

    /// Gives all connections up, and returns whether no device accesses memory of theirs any more.
    fn close(&mut self) -> bool;

    /// The card, as text.
    fn card(&mut self, place: usize) -> Result<String, Failure>;

    /// Connects with the other end, whose card this is.
    fn connect(&mut self, place: usize, card: &[u8]) -> Result<(), Failure>;

    /// Where a peer can be reached.
    fn reach(&mut self, place: usize) -> Result<Reach, Failure>;

    /// Connects with the other end of a link.
    fn meet(&mut self, place: usize, theirs: &Reach) -> Result<(), Failure>;

    /// Whether rails of this connection are rerouted.
    fn reroutes(&self, place: usize) -> bool;

    /// The next message about rails for the other end, for a link.
    fn next_message(&mut self, place: usize) -> Option<Message>;

    /// Takes a message of the other end's link. `NotNow`: try again after a poll.
    fn take_message(&mut self, place: usize, message: &Message) -> Result<(), Refusal>;

    /// The next message about rails for the other end, as text.
    fn next_control(&mut self, place: usize) -> Option<String>;

    /// Takes what the other end's [`next_control`](Self::next_control) has given. `NotNow`: try again after a poll.
    fn control(&mut self, place: usize, text: &[u8]) -> Result<(), Refusal>;

    /// Messages may be lost.
    fn control_lost(&mut self, place: usize);

    /// Repairs rails at once.
    fn heal(&mut self);

    /// The next thing that happened to a rail.
    fn next_rail_event(&mut self, place: usize) -> Option<PeerEvent>;

    /// Why a connection failed, if it did.
    fn failure(&mut self, place: usize) -> Option<String>;

    /// Where a connection stands.
    fn standing(&self, place: usize) -> Standing;

    /// What each rail did.
    fn rails(&self, place: usize) -> Vec<RailInfo>;
}

/// Where a connection stands.
pub(super) struct Standing {
    pub(super) rails: u32,
    pub(super) rails_in_service: u32,
    pub(super) is_degraded: bool,
    /// Requests, or messages, that are not reported.
    pub(super) unreported: u32,
    /// What failed first, even if the connection goes on.
    pub(super) first_error: Option<String>,
}

/// Where a rail stands, in C.
pub(super) fn rail_state(state: virtual_qp::RailState) -> RailState {
    match state {
        virtual_qp::RailState::InService => RailState::InService,
        virtual_qp::RailState::Draining => RailState::Draining,
        virtual_qp::RailState::Fenced => RailState::Fenced,
        virtual_qp::RailState::Down => RailState::Down,
        virtual_qp::RailState::Joining => RailState::Joining,
    }
}

/// A peer as its link sees it.
pub(super) struct Member<'s> {
    pub(super) set: &'s mut dyn Connections,
    pub(super) place: usize,
}

impl Meets for Member<'_> {
    fn reach(&mut self) -> Result<Reach, Failure> {
        self.set.reach(self.place)
    }

    fn connect(&mut self, theirs: &Reach) -> Result<(), Failure> {
        self.set.meet(self.place, theirs)
    }

    fn next_control(&mut self) -> Option<Message> {
        self.set.next_message(self.place)
    }

    fn hear(&mut self, message: &Message) -> Result<(), Refusal> {
        self.set.take_message(self.place, message)
    }

    fn control_lost(&mut self) {
        self.set.control_lost(self.place);
    }
}
