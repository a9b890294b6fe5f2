//! The proofs of two sides that both have a token, before they exchange anything else.
//!
//! ```text
//!  connects:  Knocks ─ knock ─► Knocked ─ challenge arrives, proof ─► Proved ─ proof arrives ─► Open
//!  listens:   Closed ─ knock arrives, challenge ─► Asked ─ proof arrives, proof ──────────────► Open
//! ```

use super::error::LinkError;
use super::message::Message;
use super::purpose::Purpose;
use super::token::{Nonce, Nonces, Prover, Token, random};

const CHALLENGE: &str = "\"challenge\"";
const PROOF: &str = "\"proof\"";

/// How far the proofs are. Messages other than those about the proofs pass only an open gate.
#[derive(Debug)]
pub(super) enum Gate {
    /// There is no token, or both sides have proved that they have it.
    Open,
    /// This side listens. The peer has not begun.
    Closed(Token),
    /// The peer is asked to prove that it has the token, for these nonces.
    Asked(Token, Nonces),
    /// This side connects, and has not begun.
    Knocks(Token),
    /// This side has sent its nonce.
    Knocked(Token, Nonce),
    /// This side has proved that it has the token. The peer has not.
    Proved(Token, Nonces),
}

impl Gate {
    /// The gate of a side that listens.
    pub(super) fn listens(token: Option<&Token>) -> Self {
        token.cloned().map_or(Self::Open, Self::Closed)
    }

    /// The gate of a side that connects.
    pub(super) fn connects(token: Option<&Token>) -> Self {
        token.cloned().map_or(Self::Open, Self::Knocks)
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self, Self::Open)
    }

    /// The message that is expected next, for errors.
    pub(super) fn expected(&self) -> &'static str {
        match self {
            Self::Knocked(..) => CHALLENGE,
            _ => PROOF,
        }
    }

    /// Returns the message with which a side that connects begins, once.
    pub(super) fn knock<P: Purpose>(&mut self) -> Result<Option<Message<P>>, LinkError> {
        let Self::Knocks(token) = self else { return Ok(None) };
        let nonce = random()?;
        *self = Self::Knocked(token.clone(), nonce);
        Ok(Some(Message::Knock { nonce }))
    }

    /// Handles a message that arrived while the gate is not open, and returns the answer.
    pub(super) fn pass<P: Purpose>(
        &mut self,
        message: &Message<P>,
    ) -> Result<Option<Message<P>>, LinkError> {
        if let Message::Failed { reason } = message {
            return Err(LinkError::GaveUp { reason: reason.clone() });
        }
        let out_of_turn = |expected| Err(message.out_of_turn(expected).into());
        let (next, answer) = match (&*self, message) {
            (Self::Open, _) => return Ok(None),
            (Self::Closed(token), Message::Knock { nonce: theirs }) => {
                let nonce = random()?;
                (Self::Asked(token.clone(), [*theirs, nonce]), Some(Message::Challenge { nonce }))
            }
            (Self::Asked(token, nonces), Message::Proof { proof }) => {
                if !token.is_proved(Prover::Connects, nonces, proof) {
                    return Err(LinkError::WrongToken);
                }
                let proof = token.proof(Prover::Listens, nonces);
                (Self::Open, Some(Message::Proof { proof }))
            }
            (Self::Closed(_) | Self::Asked(..), _) => return Err(LinkError::TokenWanted),
            (Self::Knocked(token, ours), Message::Challenge { nonce }) => {
                let nonces = [*ours, *nonce];
                let proof = token.proof(Prover::Connects, &nonces);
                (Self::Proved(token.clone(), nonces), Some(Message::Proof { proof }))
            }
            (Self::Proved(token, nonces), Message::Proof { proof }) => {
                if !token.is_proved(Prover::Listens, nonces, proof) {
                    return Err(LinkError::WrongToken);
                }
                (Self::Open, None)
            }
            (Self::Knocks(_) | Self::Knocked(..), _) => return out_of_turn(CHALLENGE),
            (Self::Proved(..), _) => return out_of_turn(PROOF),
        };
        *self = next;
        Ok(answer)
    }
}
