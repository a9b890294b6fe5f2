//! Which connection a new link is for: a secret of its two ends.

use crate::guard::Refusal;
use crate::random::random;

/// Which connection a new link is for: a secret of its two ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Session([u8; Self::BYTES]);

impl Session {
    pub(super) const BYTES: usize = 16;

    pub(super) fn new() -> Result<Self, Refusal> {
        Ok(Self(random()?))
    }

    pub(super) const fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    pub(super) const fn bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }

    /// All bytes are compared, whichever differs first.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
    }
}
