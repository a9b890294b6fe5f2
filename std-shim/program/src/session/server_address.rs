//! Whom a side that asks connects to.

use super::patience::Patience;
use crate::job::Control;
use polyrail::exchange::{ControlError, Token};

/// A [server](crate::serve), and the token that it wants to be known, if any. Text such as `10.0.0.2:7471` is one
/// without.
#[derive(Clone, Debug)]
pub struct ServerAddress {
    /// Host and port.
    pub address: String,
    /// What both sides know.
    pub token: Option<Token>,
}

impl<T: Into<String>> From<T> for ServerAddress {
    fn from(address: T) -> Self {
        Self { address: address.into(), token: None }
    }
}

impl ServerAddress {
    pub(crate) fn connect(&self, patience: &Patience) -> Result<Control, ControlError> {
        Control::connect_with_token(&self.address, &patience.timeouts(), self.token.as_ref())
    }
}
