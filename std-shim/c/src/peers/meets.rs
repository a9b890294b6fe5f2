//! A peer as its link sees it.

use crate::code::Code;
use crate::error::{Failure, Refusal};
use crate::link::{Meets, Message};
use polyrail::backend::Connect;
use polyrail::endpoint::{ConnectError, EndpointQp};
use polyrail::exchange::Reach;

/// A peer.
pub(super) struct Member<'s, Q>(pub(super) &'s mut EndpointQp<Q>);

/// The code of two ends that do not come together.
pub(super) fn connect_failure(error: &ConnectError) -> Failure {
    let code = match error {
        ConnectError::Modify { .. } => Code::Device,
        _ => Code::Mismatch,
    };
    Failure::of(code, error)
}

impl<Q: Connect> Meets for Member<'_, Q> {
    fn reach(&mut self) -> Result<Reach, Failure> {
        Ok(self.0.address().into())
    }

    fn connect(&mut self, theirs: &Reach) -> Result<(), Failure> {
        let Some(address) = theirs.requests() else {
            return Err(Failure::new(Code::Mismatch, "the other side's peer is for messages"));
        };
        self.0.connect(address).map_err(|error| connect_failure(&error))
    }

    fn next_control(&mut self) -> Option<Message> {
        self.0.healing_link()?.next_message().map(Message::Heal)
    }

    fn hear(&mut self, message: &Message) -> Result<(), Refusal> {
        let (Message::Heal(message), Some(link)) = (message, self.0.healing_link()) else {
            return Ok(());
        };
        link.hear(*message).map_err(|_| Refusal::NotNow)
    }

    fn control_lost(&mut self) {
        if let Some(link) = self.0.healing_link() {
            link.restored();
        }
    }
}
