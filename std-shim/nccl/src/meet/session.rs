//! Which connection a new link is for: a secret of its two ends.

use super::secret;
use crate::guard::Refusal;
use crate::random::random;

/// Which connection a new link is for: a secret of its two ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Session([u8; Self::BYTES]);

impl Session {
    pub(super) const BYTES: usize = secret::BYTES;

    pub(super) fn new() -> Result<Self, Refusal> {
        Ok(Self(random()?))
    }

    pub(super) const fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    pub(super) const fn bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }

    pub(super) fn is(&self, other: &Self) -> bool {
        secret::is_same(&self.0, &other.0)
    }
}
