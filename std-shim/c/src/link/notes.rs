//! Whose a note is: its first byte says so.

/// The program's.
pub(crate) const PROGRAM: u8 = 0;

/// That of rails that carry messages, which healing has no messages for.
pub(crate) const RAILS: u8 = 1;
