//! What two sides that have met have in common, whether they copy a file or measure: what they run
//! in, how each listens to the other while data moves over the rails, how long it waits for it, and
//! what can go wrong.

mod counterpart;
mod environment;
mod error;
mod patience;
mod traffic;

pub(crate) use counterpart::{Counterpart, expect_asker, tell_failure};
pub(crate) use environment::Environment;
pub(crate) use error::Failure;
pub use error::SessionError;
pub use patience::Patience;
pub(crate) use traffic::{About, Traffic};
