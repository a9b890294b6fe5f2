//! One physical queue pair, as the engine drives it, and the set of them that one end has.
//!
//! - `id`: the number of a rail, and sets of numbers;
//! - [`tag`]: the `wr_id` of a physical request;
//! - `in_flight`: the batches on a send queue, and its credits;
//! - `receives`: the receives that are posted on a receive queue;
//! - `physical`: a rail of a virtual queue pair;
//! - `lifecycle`: the states of a rail, from failure to return; `control`: the messages about them;
//!   `event`: what the owner reads of them; `error`: how a rail failed, and its counters;
//! - `health`: what every queue pair has that can fail, here and in `p2p`;
//! - `rails`: the steps of every end whose rails fail and return.
//!
//! A rail knows nothing of virtual requests: a batch has room for what its owner remembers.

mod control;
mod error;
mod event;
mod health;
mod id;
mod in_flight;
mod lifecycle;
mod physical;
mod rails;
mod receives;
pub(crate) mod tag;

pub use control::{ControlDecodeError, ControlMessage, RailReport, ReportedState};
pub use error::{RailCounters, RailError};
pub use event::{FailedBecause, RailEvent, RailEventKind};
pub(crate) use health::PhysicalRail;
// Only messages name these.
#[cfg(target_has_atomic = "64")]
pub(crate) use health::{Identity, RailHealth};
pub use id::{MAX_RAILS, RailId, RailSet};
pub(crate) use in_flight::{Batch, Content, MAX_DEPTH, TagMatch};
pub use lifecycle::{ControlError, RailState};
pub(crate) use physical::Rail;
pub(crate) use rails::{Rails, RailsFailure, Reroute};
pub use rails::{Rejected, ReplaceError};
