//! Names of files that a peer may choose.

use serde::Serialize;

/// Length of the longest file name, in bytes.
pub const MAX_NAME_BYTES: usize = 255;

/// A valid name of a file: not a path, not hidden, not `.` or `..`, and at most 255 bytes, the
/// limit of common file systems.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileName(String);

impl FileName {
    /// Returns the name if it is valid.
    pub fn new(name: &str) -> Option<Self> {
        let plain = !name.contains(|c: char| c == '/' || c.is_control());
        let fits = (1..=MAX_NAME_BYTES).contains(&name.len());
        (plain && fits && !name.starts_with('.')).then(|| Self(name.to_owned()))
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
