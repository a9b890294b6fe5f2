//! The messages of two sides that use this library.

use crate::types::POLYRAIL_HELLO_BYTES;
use polyrail::link::{self, HandshakeError, HexBytes, NoOutcome, Place, Purpose};
use serde::Serialize;

/// The program's own part of a hello.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Meeting {
    pub(crate) hello: HexBytes,
}

pub(crate) type OurHello = link::Hello<Meeting>;
// cbindgen would take the alias for one of the header's `Link`.
/// cbindgen:ignore
pub(crate) type OurLink = link::Link<Meeting>;
pub(crate) type OurMessage = link::Message<Meeting>;

impl Purpose for Meeting {
    type Outcome = NoOutcome;

    fn read(place: &Place<'_>) -> Result<Self, HandshakeError> {
        let hello = place.object(&["hello"])?.field("hello")?;
        Ok(Self { hello: HexBytes::read(&hello, POLYRAIL_HELLO_BYTES)? })
    }

    fn read_outcome(place: &Place<'_>) -> Result<NoOutcome, HandshakeError> {
        place.object(&[]).map(|_| NoOutcome {})
    }
}
