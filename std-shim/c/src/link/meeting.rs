//! The messages of two sides that use this library.

use crate::types::{POLYRAIL_HELLO_BYTES, POLYRAIL_MAX_DEVICES};
use polyrail::link::{self, HandshakeError, HexBytes, NoOutcome, Place, Purpose};
use serde::Serialize;

/// The last position that a device can have.
const LAST_DEVICE: u64 = POLYRAIL_MAX_DEVICES as u64 - 1;

/// The program's own part of a hello.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Meeting {
    pub(crate) hello: HexBytes,
    /// The positions of the side's devices, in the order in which its rails use them: the keys of
    /// exported regions are in the order of the domain. Absent if it is the same order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) devices: Vec<u8>,
}

pub(crate) type OurHello = link::Hello<Meeting>;
// cbindgen would take the alias for one of the header's `Link`.
/// cbindgen:ignore
pub(crate) type OurLink = link::Link<Meeting>;
pub(crate) type OurMessage = link::Message<Meeting>;

impl Purpose for Meeting {
    type Outcome = NoOutcome;

    fn read(place: &Place<'_>) -> Result<Self, HandshakeError> {
        let fields = place.object(&["hello", "devices"])?;
        let position = |place: &Place<'_>| Ok(place.number(0, LAST_DEVICE)? as u8);
        let devices = match fields.optional("devices") {
            Some(place) => place.list(1, POLYRAIL_MAX_DEVICES)?.iter().map(position).collect(),
            None => Ok(Vec::new()),
        };
        let hello = HexBytes::read(&fields.field("hello")?, POLYRAIL_HELLO_BYTES)?;
        Ok(Self { hello, devices: devices? })
    }

    fn read_outcome(place: &Place<'_>) -> Result<NoOutcome, HandshakeError> {
        place.object(&[]).map(|_| NoOutcome {})
    }
}
