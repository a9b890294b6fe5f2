//! The address of a server.

use super::peer_timeouts::PeerTimeouts;
use crate::job::Link;
use polyrail::link::{LinkError, Token};

/// The address of a [server](crate::serve), and the token that it requires, if any. Converts from
/// text such as `10.0.0.2:7471`, without a token.
#[derive(Clone, Debug)]
pub struct ServerAddress {
    /// Host and port.
    pub address: String,
    /// The secret that both sides have.
    pub token: Option<Token>,
}

impl<T: Into<String>> From<T> for ServerAddress {
    fn from(address: T) -> Self {
        Self { address: address.into(), token: None }
    }
}

impl ServerAddress {
    pub(crate) fn connect(&self, timeouts: &PeerTimeouts) -> Result<Link, LinkError> {
        Link::connect_with_token(&self.address, &timeouts.link(), self.token.as_ref())
    }
}
