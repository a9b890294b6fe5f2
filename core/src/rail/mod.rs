//! One physical queue pair, as the engine drives it: what it was given, what is in flight on it, and
//! how its completions are matched with that.
//!
//! - `id`: which rail, and sets of rails;
//! - [`tag`]: the `wr_id` of a physical request;
//! - `in_flight`: the batches on a send queue, and its credits;
//! - `receives`: what is posted on a receive queue;
//! - `error`: how a rail failed, and its counters;
//! - `lifecycle`: its states, from failure to return; `control`: what the ends tell each other of them;
//!   `event`: what its owner is told;
//! - `physical`: the rail itself.
//!
//! A rail knows nothing of virtual requests: a batch has room for whatever its owner wants to
//! remember.

mod control;
mod error;
mod event;
mod id;
mod in_flight;
mod lifecycle;
mod physical;
mod receives;
pub(crate) mod tag;

pub use control::{ControlDecodeError, ControlMessage, RailNews, ToldState};
pub use error::{RailCounters, RailError};
pub(crate) use event::RailEvents;
pub use event::{FailedBecause, RailEvent, RailEventKind};
pub use id::{MAX_RAILS, RailId, RailSet};
pub(crate) use in_flight::{Batch, Content, MAX_DEPTH, TagMatch};
pub use lifecycle::{ControlError, RailState};
pub(crate) use lifecycle::{Heard, Lifecycle};
pub(crate) use physical::{Rail, address};
