//! What the two ends of a connection tell each other of queue pairs that fail and return.

use crate::rail::{ControlDecodeError, ControlMessage};

/// A message from one end of a connection to the other: what
/// [`ControlMessage`](crate::virtual_qp::ControlMessage) says of a rail, of one of its queue pairs.
///
/// It says a state, not an event: what was not sent yet is replaced by what is true now. The engine does no
/// I/O: the owners of both ends carry messages, in order, each once.
///
/// ```
/// use polyrail_core::p2p::Control;
/// use polyrail_core::virtual_qp::{ControlMessage, RailId, RailNews, ToldState};
///
/// let news = RailNews {
///     rail: RailId::Data(1),
///     generation: 0,
///     state: ToldState::Fenced,
///     arrived: 1000,
///     previous_arrived: 0,
/// };
/// let control = Control { queue_pair: 5, message: ControlMessage::Rail(news) };
/// assert_eq!(Control::decode(&control.encode()), Ok(control));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Control {
    /// The place of the queue pair; 0 of a message that is about none.
    pub queue_pair: u8,
    /// What is told.
    pub message: ControlMessage,
}

impl Control {
    /// Bytes of every message.
    pub const BYTES: usize = ControlMessage::BYTES;

    /// The byte that is 0 in messages of virtual queue pairs.
    const QUEUE_PAIR: usize = 5;

    /// The message as bytes: those of [`ControlMessage::encode`], with the queue pair's place in byte 5.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = self.message.encode();
        bytes[Self::QUEUE_PAIR] = self.queue_pair;
        bytes
    }

    /// Reads a message.
    ///
    /// # Errors
    ///
    /// The bytes are none: whatever [`encode`](Self::encode) does not produce.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Result<Self, ControlDecodeError> {
        let mut bytes = *bytes;
        let at = Self::QUEUE_PAIR;
        let queue_pair = core::mem::take(&mut bytes[at]);
        let message = ControlMessage::decode(&bytes)?;
        if message == ControlMessage::Error && queue_pair != 0 {
            return Err(ControlDecodeError::Reserved { at, value: queue_pair });
        }
        Ok(Self { queue_pair, message })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_about_no_queue_pair() {
        let error = Control { queue_pair: 0, message: ControlMessage::Error };
        let mut bytes = error.encode();
        assert_eq!(Control::decode(&bytes), Ok(error));
        bytes[5] = 3;
        assert_eq!(Control::decode(&bytes), Err(ControlDecodeError::Reserved { at: 5, value: 3 }));
        bytes[0] = 0;
        assert!(Control::decode(&bytes).is_err());
    }
}
