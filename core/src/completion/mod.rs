//! What comes out of a virtual completion queue, and what it asks of the targets that completions are
//! for.
//!
//! `event` is what a poll hands out, `target` what a virtual queue pair (or any other consumer of
//! physical completions) offers. Both sides of that boundary know this module, and neither knows the
//! other.

mod event;
mod target;

pub use event::{Event, Polled, VirtualWc};
pub use target::{CompletionTarget, Role, TargetSet};
pub(crate) use target::{DirectCompletions, PhysicalQp, sealed};

/// Completions taken from a physical queue at a time, as in the reference implementation.
pub const POLL_BATCH: usize = 32;
