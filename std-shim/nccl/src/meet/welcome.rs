//! The answer to a hello: where the connection is found again if its link breaks, and the address of its end.
//!
//! ```text
//!  bytes 0..2    port, in little endian
//!        2..18   session
//!        18..    address
//! ```

use super::session::Session;

const HEAD: usize = 2 + Session::BYTES;

/// Where a connection is found again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Welcome {
    pub(super) port: u16,
    pub(super) session: Session,
}

impl Welcome {
    pub(super) fn encode(&self, address: &str) -> Vec<u8> {
        let mut body = Vec::with_capacity(HEAD + address.len());
        body.extend(self.port.to_le_bytes());
        body.extend(self.session.bytes());
        body.extend(address.as_bytes());
        body
    }

    /// And the address.
    pub(super) fn decode(body: &[u8]) -> Option<(Self, &[u8])> {
        let (port, rest) = body.split_first_chunk()?;
        let (session, address) = rest.split_first_chunk()?;
        let session = Session::from_bytes(*session);
        Some((Self { port: u16::from_le_bytes(*port), session }, address))
    }
}
