//! The first byte of a note: it belongs to the program or to the rails.

/// The program's.
pub(crate) const PROGRAM: u8 = 0;

/// That of rails that carry messages, which healing has no messages for.
pub(crate) const RAILS: u8 = 1;
