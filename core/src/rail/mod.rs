//! One physical queue pair, as the engine drives it: what it was given, what is in flight on it, and
//! how its completions are matched with that.
//!
//! - `id`: which rail, and sets of rails;
//! - [`tag`]: the `wr_id` of a physical request;
//! - `in_flight`: the batches on a send queue, and its credits;
//! - `receives`: what is posted on a receive queue;
//! - `error`: how a rail failed, and its counters;
//! - `physical`: the rail itself.
//!
//! A rail knows nothing of virtual requests: a batch has room for whatever its owner wants to
//! remember.

mod error;
mod id;
mod in_flight;
mod physical;
mod receives;
pub(crate) mod tag;

pub use error::{RailCounters, RailError};
pub use id::{RailId, RailSet};
pub(crate) use in_flight::{Batch, Content, TagMatch};
pub(crate) use physical::{Rail, address};
