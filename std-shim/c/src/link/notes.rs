//! The first byte of a note: it belongs to the program or to the rails.

/// A note of the program.
pub(crate) const PROGRAM: u8 = 0;

/// A note of rails that carry messages: the link has no message type for their repair.
pub(crate) const RAILS: u8 = 1;
