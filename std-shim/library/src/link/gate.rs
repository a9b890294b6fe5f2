//! What a side that listens asks of those that connect before anything else is told.

use super::error::LinkError;
use super::message::Message;
use super::purpose::Purpose;
use super::token::{Nonces, Prover, Token, random};

/// Whether the other side may be told anything.
#[derive(Debug)]
pub(super) enum Gate {
    /// It may.
    Open,
    /// It has to prove that it knows the token, and has not begun to.
    Closed(Token),
    /// It has begun, and was asked to do it with these nonces.
    Asked(Token, Nonces),
}

/// What becomes of a message that came to a gate.
#[derive(Debug)]
pub(super) enum AtGate<P: Purpose> {
    /// It passes.
    Passes(Message<P>),
    /// It is answered, and nobody else sees it.
    Answered(Message<P>),
}

impl Gate {
    pub(super) fn new(token: Option<Token>) -> Self {
        token.map_or(Self::Open, Self::Closed)
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self, Self::Open)
    }

    /// A message came.
    ///
    /// # Errors
    ///
    /// It may not come before a proof, or proves nothing.
    pub(super) fn pass<P: Purpose>(&mut self, message: Message<P>) -> Result<AtGate<P>, LinkError> {
        match (&*self, message) {
            (Self::Open, Message::Knock { .. }) => Err(LinkError::NoToken),
            (Self::Open, message) | (_, message @ Message::Failed { .. }) => {
                Ok(AtGate::Passes(message))
            }
            (Self::Closed(token), Message::Knock { nonce: theirs }) => {
                let nonce = random();
                *self = Self::Asked(token.clone(), [theirs, nonce]);
                Ok(AtGate::Answered(Message::Challenge { nonce }))
            }
            (Self::Asked(token, nonces), Message::Proof { proof }) => {
                if !token.is_proved(Prover::Connects, nonces, &proof) {
                    return Err(LinkError::WrongToken);
                }
                let proof = token.proof(Prover::Listens, nonces);
                *self = Self::Open;
                Ok(AtGate::Answered(Message::Proof { proof }))
            }
            _ => Err(LinkError::TokenWanted),
        }
    }
}
