//! The virtual completion queue: polls the physical ones and routes what comes.
//!
//! A [`VirtualCq`] owns the [completion queues](crate::hardware::CompletionQueue) of its virtual
//! queue pairs. [`attach`](VirtualCq::attach) checks that they are large enough, and
//! [`poll`](VirtualCq::poll) returns [`Event`]s: a [`VirtualWc`] for each request that is done.

// Files:
//
// - `cq`: the queue and what it owns;
// - `routing`: which target a physical completion belongs to;
// - `registry`: the attached targets, and who of them is to be drained next;
// - `attach`: attaching and detaching them;
// - `poll`: polling the physical queues in turns; completions of one batch go to their targets;
// - `deliver`: events go to the caller's sink, within the caller's budget;
// - `waiting`: what waits from earlier polls.

mod attach;
mod cq;
mod deliver;
mod poll;
mod registry;
pub(crate) mod routing;
mod waiting;

pub use crate::completion::{CompletionTarget, Event, POLL_BATCH, Polled, TargetSet, VirtualWc};
pub use attach::AttachError;
pub use cq::{TooManyCqs, VirtualCq};
pub use routing::RouteError;
