//! How much a handle may have under way.

/// Requests of one kind that one handle may have unreported: sends, and as many receives.
pub const HANDLE_DEPTH: usize = if cfg!(polyrail_loom) { 2 } else { 256 };
