//! The virtual queue pair: one queue pair made of many.
//!
//! A request's way, in the order of the files:
//!
//! 1. `post`: the request is checked, then takes a slot of the ring, or passes straight through;
//! 2. `dispatch`: its fragments go to rails, in batches; `choose` tells to which;
//! 3. `complete`: completions retire batches;
//! 4. `pump`: what is acknowledged moves on, and SPRAY's receiver is notified;
//! 5. `report`: finished requests come out, in posting order.

mod build;
mod choose;
mod complete;
mod config;
mod data_receives;
mod dispatch;
mod error;
mod fragments;
mod health;
mod invariants;
mod offers;
mod pass_through;
mod post;
mod pump;
mod qp;
mod receive;
mod recovery;
mod report;
mod retry;
pub(crate) mod scheme;
mod slot;
mod target;
pub(crate) mod tracker;

pub use crate::rail::{RailCounters, RailError, RailId, RailSet};
pub use config::{
    BuildError, Config, FRAGMENT_ALIGN, MAX_RAILS, PassThroughOrder, RailChoice, RailFailure,
};
pub use error::{PostError, PostRecvError, PostSendError, ProtocolError};
pub use qp::VirtualQp;
pub use recovery::QpState;
pub use scheme::Scheme;
pub use scheme::dqplb::{OutsideWindow, PeerWindow, PeerWindowError};
pub use tracker::TrackerFull;
