//! The frame that messages travel in, and how long things may be.

/// The first bytes of every message.
pub const MAGIC: [u8; 4] = *b"PLYR";

/// The version of the protocol that this side speaks.
pub const VERSION: u32 = 8;

/// Bytes of a message's header.
pub const HEADER_BYTES: usize = 12;

/// Bytes of the longest message that is read, without its header. The longest of ours, a hello for
/// messages over 16 queue pairs each way, has less than half of it.
pub const MAX_MESSAGE_BYTES: u32 = 16 << 10;

/// Bytes of the longest reason.
pub const MAX_REASON_BYTES: usize = 1 << 10;

/// Bytes of the longest note.
pub const MAX_NOTE_BYTES: usize = 5 << 10;
