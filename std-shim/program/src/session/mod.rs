//! The connection of two sides, whether they copy a file or measure. `counterpart` is the other
//! side, over the control channel; `traffic` is requests over the rails; `environment` has the
//! resources of a side, `peer_timeouts` its timeouts, `quality` the options of its packets,
//! `backend` their kind, `rail_repair` the handling of rails that fail; `rail_news` collects events
//! of rails, `server_address` is where to connect, `ask` asks a server for its devices, `error`
//! what can fail.

mod ask;
mod backend;
mod counterpart;
mod environment;
mod error;
mod peer_timeouts;
mod quality;
mod rail_news;
mod rail_repair;
mod server_address;
mod traffic;

pub(crate) use ask::{Asked, ask, local_ip};
pub use backend::Backend;
pub(crate) use counterpart::{Counterpart, expect_asker, tell_failure};
pub(crate) use environment::Environment;
pub(crate) use error::Failure;
pub use error::SessionError;
pub use peer_timeouts::PeerTimeouts;
pub use quality::QualityOfService;
pub(crate) use rail_news::Reporter;
pub use rail_news::{RailNews, RailNewsItem};
pub use rail_repair::RailRepair;
pub use server_address::ServerAddress;
pub(crate) use traffic::{About, Traffic};
