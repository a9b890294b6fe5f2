//! Bytes and messages: nothing that a peer can send is taken for more than it is.
//!
//! `given` are messages of all kinds; `bytes` are tests of how one is written and found again,
//! `fields` of what is in it, `stream` of the order in which messages come, and `repeats` of those
//! that come again over a new stream. `drawn` has both ends of a link over a network that fails as
//! drawn; `sky` is that network.

mod bytes;
mod drawn;
mod fields;
mod given;
mod repeats;
mod sky;
mod stream;

use super::{HandshakeError, NoPurpose};

type Hello = super::Hello<NoPurpose>;
type Incoming = super::Incoming<NoPurpose>;
type Message = super::Message<NoPurpose>;

fn error(json: &str) -> HandshakeError {
    match Message::from_json(json.as_bytes()) {
        Err(error) => error,
        Ok(message) => panic!("{json} was read as {message:?}"),
    }
}
