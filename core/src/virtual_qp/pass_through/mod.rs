//! SENDs and atomics: they pass through to rail 0, at once if their order allows it, else deferred.
//!
//! A deferred request has its place in the ring, which tells what was posted before it, but the ring's
//! cursors pass it: it holds up neither dispatch nor notifies nor reports of other requests, but for
//! what their order promises. Deferred requests are posted to rail 0 in posting order, complete in that
//! order, and are reported when they complete. Until then their slots are kept.

mod many;
mod state;
mod steps;

pub(super) use state::PassThrough;
