//! Names that a peer may give a file.

use serde::Serialize;

/// Bytes of the longest name of a file.
pub const MAX_NAME_BYTES: usize = 255;

/// A file's name: no path, and nothing that would be hidden or means a directory. At most 255 bytes,
/// as file systems have it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileName(String);

impl FileName {
    /// The name, if it is one.
    pub fn new(name: &str) -> Option<Self> {
        let plain = !name.contains(|c: char| c == '/' || c.is_control());
        let fits = (1..=MAX_NAME_BYTES).contains(&name.len());
        (plain && fits && !name.starts_with('.')).then(|| Self(name.to_owned()))
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
