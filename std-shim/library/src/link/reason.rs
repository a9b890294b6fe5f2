//! Why a side gave up.

use super::wire::MAX_REASON_BYTES;
use crate::printable;
use serde::Serialize;
use std::fmt;

/// Why a side gave up, for people. No longer than [`MAX_REASON_BYTES`], and safe to print.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reason(String);

impl Reason {
    /// The text of `why`, cut off if it is long; characters that are not
    /// [printable](printable::is_printable) are replaced.
    pub fn new(why: impl fmt::Display) -> Self {
        let mut text = printable::replaced(&why.to_string());
        text.truncate(text.floor_char_boundary(MAX_REASON_BYTES));
        Self(text)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
