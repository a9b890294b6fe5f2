//! The connection of two sides, whether they copy a file or measure. `counterpart` is the other
//! side, over the control channel; `traffic` is requests over the rails; `environment` has the
//! resources of a side, `patience` its timeouts, `quality` the options of its packets, `care` the
//! handling of rails that fail; `rail_news` collects events of rails, `server_address` is where to
//! connect, `error` what can fail.

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
