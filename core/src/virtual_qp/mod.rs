//! The virtual queue pair: one queue pair made of many.
//!
//! # The way of a request
//!
//! A WRITE_WITH_IMM with SPRAY over several rails, from post to report:
//!
//! 1. `post`: checked; takes a slot of the ring (`tracker`), which remembers it with its keys (`slot`);
//!    the scheme (`scheme::spray`) notes that the receiver is to be notified.
//! 2. `dispatch`: `choose` gives each rail that has credits a share. The share is noted as a batch on its
//!    rail (`rail::in_flight`) and posted as one chain of fragments.
//! 3. The owner polls: `virtual_cq::poll` takes completions from a physical queue, `virtual_cq::deliver`
//!    looks their route up and hands them to `complete`, which retires their batches.
//! 4. `pump`, once for all that came: the request's data is acknowledged, and so is everything before it,
//!    so the scheme posts its notify. What waited for credits goes out (back to 2), receives are posted.
//! 5. A later poll brings the notify's completion: `complete` tells the scheme, `pump` finds nothing more
//!    to do, and `report` hands the request out, after all those posted before it.
//!
//! Without an immediate, 5 follows 4 in the same poll. With DQPLB (`scheme::dqplb`) fragments carry
//! numbers, and there is no notify. SENDs and atomics take the way in `pass_through`.
//!
//! # The other files
//!
//! | file | |
//! |---|---|
//! | `qp` | the parts of a virtual queue pair, and what its owner may look at |
//! | `build`, `config`, `error` | how one is made, and why not; what may go wrong later |
//! | `post_many` | several requests with one call |
//! | `list`, `parts` | requests of several buffers, and how their buffers are cut |
//! | `receive`, `data_receives` | receives, and those with buffers |
//! | `state` | failures: what the owner learns, and what it may do |
//! | `reroute` | rails that others take over for, step by step |

mod build;
mod choose;
mod complete;
mod config;
mod data_receives;
mod dispatch;
mod error;
mod list;
mod parts;
mod pass_through;
mod post;
mod post_many;
mod pump;
mod qp;
mod receive;
mod report;
mod reroute;
pub(crate) mod scheme;
mod slot;
mod state;
pub(crate) mod tracker;

pub use crate::rail::{
    ControlDecodeError, ControlError, ControlMessage, FailedBecause, MAX_RAILS, RailCounters,
    RailError, RailEvent, RailEventKind, RailId, RailNews, RailSet, RailState, ToldState,
};
pub use build::PairDevicesError;
pub use config::{
    BuildError, Config, FRAGMENT_ALIGN, FragmentSizeError, PassThroughOrder, RailChoice,
    RailFailure,
};
pub use error::{Failure, PostError, PostManyError, PostRecvError, PostSendError, ProtocolError};
pub use qp::VirtualQp;
pub use reroute::{Rejected, ReplaceError};
pub use scheme::Scheme;
pub use scheme::dqplb::{OutsideWindow, PeerWindow, PeerWindowError};
pub use state::QpState;
pub use tracker::TrackerFull;
