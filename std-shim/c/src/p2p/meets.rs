//! A peer for messages as its link sees it.

use super::object::Set;
use crate::code::Code;
use crate::error::{Failure, Refusal};
use crate::link::{Meets, Message, RAILS};
use polyrail::backend::Domain;
use polyrail::exchange::{HexBytes, Reach};
use polyrail::p2p::{P2pConnectError, P2pMember, P2pMessage};

/// A peer, and where it is in its set.
pub(super) struct Member<'s, D: Domain> {
    pub(super) set: &'s mut Set<D>,
    pub(super) place: usize,
}

/// The code of two ends that do not come together.
pub(super) fn connect_failure(error: &P2pConnectError) -> Failure {
    let code = match error {
        P2pConnectError::Modify { .. } => Code::Device,
        _ => Code::Mismatch,
    };
    Failure::of(code, error)
}

impl<D: Domain> Member<'_, D> {
    fn member(&mut self) -> Result<&mut P2pMember<D>, Failure> {
        let member = self.set.member_mut(self.place);
        member.ok_or_else(|| Failure::new(Code::Peer, "the peer is not there any more"))
    }

    /// What the other end tells of its rails.
    pub(super) fn hear_control(&mut self, text: &[u8]) -> Result<(), Failure> {
        let message = P2pMessage::from_json(text);
        let message = message.map_err(|error| Failure::of(Code::Protocol, &error))?;
        let heard = self.set.hear(self.place, message);
        heard.map_err(|error| Failure::of(Code::Protocol, &error))
    }
}

impl<D: Domain> Meets for Member<'_, D> {
    fn reach(&mut self) -> Result<Reach, Failure> {
        Ok(self.member()?.address().into())
    }

    fn connect(&mut self, theirs: &Reach) -> Result<(), Failure> {
        let Some(address) = theirs.messages() else {
            return Err(Failure::new(Code::Mismatch, "the other side's peer is for requests"));
        };
        self.member()?.connect(address).map_err(|error| connect_failure(&error))
    }

    fn next_control(&mut self) -> Option<Message> {
        let message = self.member().ok()?.next_message()?;
        let note = [&[RAILS], message.to_json().as_bytes()].concat();
        Some(Message::Note { bytes: HexBytes(note) })
    }

    fn hear(&mut self, message: &Message) -> Result<(), Refusal> {
        match message {
            Message::Note { bytes } if bytes.0.first() == Some(&RAILS) => {
                Ok(self.hear_control(&bytes.0[1..])?)
            }
            _ => Ok(()),
        }
    }

    fn control_lost(&mut self) {
        if let Ok(member) = self.member() {
            member.link_restored();
        }
    }
}
