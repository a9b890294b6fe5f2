//! What two sides share, whether they copy a file or measure: their environment, how each listens to the
//! other while data moves over the rails, how long it waits, and what can go wrong.

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
