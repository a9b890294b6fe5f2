//! What two sides share, whether they copy a file or measure: their environment, how each listens to the
//! other while data moves over the rails, how long it waits, how the network treats its packets, what becomes of rails that fail, who is told of
//! it, and what can go wrong.

mod care;
mod counterpart;
mod environment;
mod error;
mod patience;
mod quality;
mod rail_news;
mod server_address;
mod traffic;

pub use care::RailCare;
pub(crate) use counterpart::{Counterpart, expect_asker, tell_failure};
pub(crate) use environment::Environment;
pub(crate) use error::Failure;
pub use error::SessionError;
pub use patience::Patience;
pub use quality::QualityOfService;
pub(crate) use rail_news::Reporter;
pub use rail_news::{RailNews, RailNewsItem};
pub use server_address::ServerAddress;
pub(crate) use traffic::{About, Traffic};
