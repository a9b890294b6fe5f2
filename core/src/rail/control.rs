//! The messages that the two ends of a virtual queue pair exchange about its rails.

use super::id::RailId;
use super::tag::Tag;

/// The state of a rail that one end reports to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ReportedState {
    /// The rail failed here, and is being drained.
    Failed = 1,
    /// Its queue pair is in the error state, and all its completions were taken: `arrived` is
    /// final.
    Fenced = 2,
    /// A new queue pair is in its place, connected, with all its receives posted: requests may
    /// come.
    Ready = 3,
}

/// The report of one end about one rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RailReport {
    /// The rail, by the number that both ends give it.
    pub rail: RailId,
    /// The generation of the rail: 0 for its first queue pair, counted up modulo 2^16.
    pub generation: u16,
    /// Its state.
    pub state: ReportedState,
    /// Receives of this generation that completed successfully, modulo 2^32; 0 until Fenced.
    pub arrived: u32,
    /// The final count of the generation before; 0 in the first generation.
    pub previous_arrived: u32,
    /// Nothing is wrong with the rail: it is fenced on purpose, to take requests back. Only in
    /// Failed and Fenced.
    pub on_purpose: bool,
}

/// A message from one end of a virtual queue pair to the other.
///
/// A message carries a state and not an event, so a message that was not sent yet is replaced by
/// the present state. The engine does no I/O. Its owner carries messages from
/// [`next_control`](crate::virtual_qp::VirtualQp::next_control) of one end to
/// [`control`](crate::virtual_qp::VirtualQp::control) of the other, in order, each once.
///
/// ```
/// use polyrail_core::virtual_qp::{ControlMessage, RailId, RailReport, ReportedState};
///
/// let report = RailReport {
///     rail: RailId::Data(1),
///     generation: 0,
///     state: ReportedState::Fenced,
///     arrived: 1000,
///     previous_arrived: 0,
///     on_purpose: false,
/// };
/// let bytes = ControlMessage::Rail(report).encode();
/// assert_eq!(ControlMessage::decode(&bytes), Ok(ControlMessage::Rail(report)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ControlMessage {
    /// About one rail.
    Rail(RailReport),
    /// The whole virtual queue pair failed.
    Error,
}

/// The bytes are not a control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlDecodeError {
    /// They do not begin with the magic bytes.
    #[error("a control message must begin with the bytes 50 52 01, not with {0:02x?}")]
    Magic([u8; 3]),
    /// Unknown state.
    #[error("a control message contains the unknown state {0}")]
    State(u8),
    /// Unknown rail.
    #[error("a control message contains the invalid rail {0}")]
    Rail(u8),
    /// A byte that must be 0 is not.
    #[error("byte {at} of a control message is {value}, not 0")]
    Reserved {
        /// Its place.
        at: usize,
        /// Its value.
        value: u8,
    },
}

impl ControlMessage {
    /// The number of bytes of every message.
    pub const BYTES: usize = 16;

    /// "PR", and the version of the encoding.
    pub(crate) const MAGIC: [u8; 3] = [b'P', b'R', 1];
    const ERROR: u8 = 4;
    /// Bit of the state byte of a fence on purpose.
    const ON_PURPOSE: u8 = 1 << 7;

    /// Returns the message as bytes, with numbers in network order:
    ///
    /// | bytes | |
    /// |---|---|
    /// | 0 to 2 | `50 52 01` |
    /// | 3 | 1 Failed, 2 Fenced, 3 Ready, 4 Error; bit 7 is set in Failed and Fenced of a fence on purpose |
    /// | 4 | the rail's number, 15 for the notify queue pair |
    /// | 5 | 0 |
    /// | 6, 7 | generation |
    /// | 8 to 11 | `arrived` |
    /// | 12 to 15 | `previous_arrived` |
    ///
    /// In Error, everything from byte 4 on is 0.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..3].copy_from_slice(&Self::MAGIC);
        // No state has this number, so one byte distinguishes all messages.
        bytes[3] = Self::ERROR;
        if let Self::Rail(report) = self {
            let on_purpose = if report.on_purpose { Self::ON_PURPOSE } else { 0 };
            bytes[3] = report.state as u8 | on_purpose;
            bytes[4] = report.rail.number();
            bytes[6..8].copy_from_slice(&report.generation.to_be_bytes());
            bytes[8..12].copy_from_slice(&report.arrived.to_be_bytes());
            bytes[12..].copy_from_slice(&report.previous_arrived.to_be_bytes());
        }
        bytes
    }

    /// Reads a message.
    ///
    /// # Errors
    ///
    /// [`encode`](Self::encode) does not produce these bytes.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Result<Self, ControlDecodeError> {
        let [m0, m1, m2, state, rail, pad, g0, g1, a0, a1, a2, a3, p0, p1, p2, p3] = *bytes;
        if [m0, m1, m2] != Self::MAGIC {
            return Err(ControlDecodeError::Magic([m0, m1, m2]));
        }
        const FAILED_ON_PURPOSE: u8 = 1 | ControlMessage::ON_PURPOSE;
        const FENCED_ON_PURPOSE: u8 = 2 | ControlMessage::ON_PURPOSE;
        let on_purpose = state & Self::ON_PURPOSE != 0;
        let state = match state {
            1 | FAILED_ON_PURPOSE => ReportedState::Failed,
            2 | FENCED_ON_PURPOSE => ReportedState::Fenced,
            3 => ReportedState::Ready,
            // Each message has one form: the decoder takes only what the encoder writes.
            Self::ERROR => return zeros(bytes, 4).map(|()| Self::Error),
            other => return Err(ControlDecodeError::State(other)),
        };
        // `p2p::Control` has the place of the queue pair in this byte, and clears it before it
        // decodes the rest.
        if pad != 0 {
            return Err(ControlDecodeError::Reserved { at: 5, value: pad });
        }
        let rail = match rail {
            Tag::NOTIFY_RAIL => RailId::Notify,
            // Whether this end has the rail is checked by `Rails::handle_report`.
            0..RailId::MAX => RailId::Data(rail),
            other => return Err(ControlDecodeError::Rail(other)),
        };
        Ok(Self::Rail(RailReport {
            rail,
            generation: u16::from_be_bytes([g0, g1]),
            state,
            arrived: u32::from_be_bytes([a0, a1, a2, a3]),
            previous_arrived: u32::from_be_bytes([p0, p1, p2, p3]),
            on_purpose,
        }))
    }
}

fn zeros(bytes: &[u8], from: usize) -> Result<(), ControlDecodeError> {
    let mut rest = bytes.iter().enumerate().skip(from);
    rest.find(|(_, value)| **value != 0)
        .map_or(Ok(()), |(at, value)| Err(ControlDecodeError::Reserved { at, value: *value }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_survives_its_extremes() {
        for rail in [RailId::Data(0), RailId::Data(7), RailId::Notify] {
            for state in [ReportedState::Failed, ReportedState::Fenced, ReportedState::Ready] {
                for (generation, arrived, previous_arrived) in
                    [(0, 0, u32::MAX), (u16::MAX, u32::MAX, 0), (0x0102, 0x0304_0506, 0x0708_090A)]
                {
                    for on_purpose in [false, state != ReportedState::Ready] {
                        let report = RailReport {
                            rail,
                            generation,
                            state,
                            arrived,
                            previous_arrived,
                            on_purpose,
                        };
                        let message = ControlMessage::Rail(report);
                        assert_eq!(ControlMessage::decode(&message.encode()), Ok(message));
                    }
                }
            }
        }
        assert_eq!(
            ControlMessage::decode(&ControlMessage::Error.encode()),
            Ok(ControlMessage::Error)
        );
    }

    #[test]
    fn the_bytes_are_as_documented() {
        let report = RailReport {
            rail: RailId::Notify,
            generation: 0x0102,
            state: ReportedState::Fenced,
            arrived: 0x0304_0506,
            previous_arrived: 0x0708_090A,
            on_purpose: false,
        };
        let mut bytes = [0x50, 0x52, 1, 2, 15, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10];
        assert_eq!(ControlMessage::Rail(report).encode(), bytes);
        bytes[3] = 0x82;
        let report = RailReport { on_purpose: true, ..report };
        assert_eq!(ControlMessage::Rail(report).encode(), bytes);
        let mut error = [0; 16];
        error[..4].copy_from_slice(&[0x50, 0x52, 1, 4]);
        assert_eq!(ControlMessage::Error.encode(), error);
    }

    /// Each message has one form: what is read is what would be written.
    #[test]
    fn other_bytes_are_refused() {
        let good = [0x50, 0x52, 1, 1, 7, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10];
        let with = |at: usize, value: u8| {
            let mut bytes = good;
            bytes[at] = value;
            ControlMessage::decode(&bytes)
        };
        assert_eq!(with(1, 0), Err(ControlDecodeError::Magic([0x50, 0, 1])));
        assert_eq!(with(2, 2), Err(ControlDecodeError::Magic([0x50, 0x52, 2])));
        assert_eq!(with(3, 0), Err(ControlDecodeError::State(0)));
        assert_eq!(with(3, 5), Err(ControlDecodeError::State(5)));
        assert_eq!(with(3, 0x80), Err(ControlDecodeError::State(0x80)));
        assert_eq!(with(3, 0x83), Err(ControlDecodeError::State(0x83)), "Ready is no fence");
        assert_eq!(with(3, 0x84), Err(ControlDecodeError::State(0x84)));
        assert_eq!(with(4, 8), Err(ControlDecodeError::Rail(8)));
        assert_eq!(with(4, 16), Err(ControlDecodeError::Rail(16)));
        assert_eq!(with(5, 1), Err(ControlDecodeError::Reserved { at: 5, value: 1 }));
        assert_eq!(with(3, 4), Err(ControlDecodeError::Reserved { at: 4, value: 7 }));
    }
}
