//! Names that a peer may give a file.

use serde::Serialize;

/// Length of the longest file name, in bytes.
pub const MAX_NAME_BYTES: usize = 255;

/// A file's name: not a path, not hidden, and not a directory's. At most 255 bytes, as in file systems.
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
