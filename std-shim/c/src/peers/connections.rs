//! The interface of connections for requests and connections for messages.

use crate::error::{Failure, Refusal};
use crate::events::PeerEvent;
use crate::link::{Meets, Message, NotConnected};
use crate::types::{EndpointOptions, RailInfo, RailState};
use polyrail::link::Reach;
use polyrail::metrics::ConnectionMetrics;
use polyrail::virtual_qp;

/// The connections of an object, by place. Callers pass only places that [`has`](Self::has)
/// confirms.
pub(super) trait Connections {
    /// Whether there is a connection in this place.
    fn has(&self, place: usize) -> bool;

    /// Creates a connection, and returns its place. Its rails use the devices in the order of those
    /// of the peer `toward` which it is made.
    fn add(
        &mut self,
        options: Option<&EndpointOptions>,
        toward: Option<&Reach>,
    ) -> Result<usize, Refusal>;

    /// Returns the positions of the devices, in the order in which the rails of a connection use
    /// them; empty if it is that of the domain.
    fn devices(&self, place: usize) -> &[u8];

    /// Assigns the connection in this place to the peer with this number.
    fn welcome(&mut self, place: usize, peer: u64);

    /// Fails a connection.
    fn fail(&mut self, place: usize);

    /// Destroys a connection, and discards what was not reported of this peer.
    fn remove(&mut self, place: usize, peer: u64) -> Result<(), Refusal>;

    /// Fails all connections, and returns whether no device accesses their memory any more.
    fn close(&mut self) -> bool;

    /// Returns the card, as text.
    fn card(&mut self, place: usize) -> Result<String, Failure>;

    /// Connects with the other end, which made this card.
    fn connect(&mut self, place: usize, card: &[u8]) -> Result<(), Failure>;

    /// Returns the address of this end of a connection.
    fn reach(&mut self, place: usize) -> Result<Reach, Failure>;

    /// Connects with the other end of a link, whose rails use the `devices` of its domain in this
    /// order, without waiting. Returns whether it is connected.
    fn meet(&mut self, place: usize, theirs: &Reach, devices: &[u8]) -> Result<bool, NotConnected>;

    /// Whether rails of this connection are rerouted.
    fn reroutes(&self, place: usize) -> bool;

    /// Returns the next repair message for the other end, for a link.
    fn next_message(&mut self, place: usize) -> Option<Message>;

    /// Handles a message that came over the link. `NotNow`: try again after a poll.
    fn take_message(&mut self, place: usize, message: &Message) -> Result<(), Refusal>;

    /// Returns the next repair message for the other end, as text.
    fn next_control(&mut self, place: usize) -> Option<String>;

    /// Handles a message that [`next_control`](Self::next_control) returned at the other end.
    /// `NotNow`: try again after a poll.
    fn control(&mut self, place: usize, text: &[u8]) -> Result<(), Refusal>;

    /// Records that messages may be lost.
    fn control_lost(&mut self, place: usize);

    /// Repairs rails at once.
    fn heal(&mut self);

    /// Returns the next event of a rail.
    fn next_rail_event(&mut self, place: usize) -> Option<PeerEvent>;

    /// Returns why a connection failed, if it did.
    fn failure(&mut self, place: usize) -> Option<String>;

    /// Returns the state of a connection.
    fn standing(&self, place: usize) -> Standing;

    /// Returns what each connection has counted.
    fn metrics(&self) -> Vec<ConnectionMetrics>;

    /// Returns what the connection in this place has counted; `None` if there is none.
    fn metrics_of(&self, place: usize) -> Option<ConnectionMetrics>;

    /// Returns the state and counters of each rail.
    fn rails(&self, place: usize) -> Vec<RailInfo>;
}

/// The state of a connection.
pub(super) struct Standing {
    pub(super) rails: u32,
    pub(super) rails_in_service: u32,
    pub(super) is_degraded: bool,
    /// Requests or messages that were not reported yet.
    pub(super) unreported: u32,
}

/// Converts the state of a rail to its C value.
pub(super) fn rail_state(state: virtual_qp::RailState) -> RailState {
    match state {
        virtual_qp::RailState::InService => RailState::InService,
        virtual_qp::RailState::Draining => RailState::Draining,
        virtual_qp::RailState::Fenced => RailState::Fenced,
        virtual_qp::RailState::Down => RailState::Down,
        virtual_qp::RailState::Joining => RailState::Joining,
    }
}

/// The connection of a peer, as its link uses it.
pub(super) struct Member<'s> {
    pub(super) set: &'s mut dyn Connections,
    pub(super) place: usize,
}

impl Meets for Member<'_> {
    fn reach(&mut self) -> Result<Reach, Failure> {
        self.set.reach(self.place)
    }

    fn devices(&self) -> &[u8] {
        self.set.devices(self.place)
    }

    fn connect(&mut self, theirs: &Reach, devices: &[u8]) -> Result<bool, NotConnected> {
        self.set.meet(self.place, theirs, devices)
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
