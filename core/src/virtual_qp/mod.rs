//! The virtual queue pair: one queue pair made of many.
//!
//! A [`VirtualQp`] owns its physical queue pairs, as [`Config`] says. Its page lists its methods by
//! subject, with the order and the limits of requests. A
//! [`VirtualCq`](crate::virtual_cq::VirtualCq) polls the completion queues, and returns a report
//! for each request. [The architecture](crate::docs::architecture) follows a request from post to
//! report, and [rails that fail](crate::docs::rails_that_fail) explains what happens to it when its
//! rail fails.

// The path of a request:
//
// A WRITE_WITH_IMM with SPRAY over several rails, from post to report:
//
// 1. `post` checks the request and copies it with its keys into a slot (`slot`) of the ring
//    (`tracker`). With SPRAY, the slot is marked as a request with a notification.
// 2. `dispatch`: `choose` gives each rail that has credits a share. The share is recorded as a
//    batch on its rail (`rail::in_flight`) and posted as one chain of fragments.
// 3. The owner polls: `virtual_cq::poll` takes completions from a physical queue, looks up their
//    route and passes them to `complete`, which retires their batches.
// 4. `pump` runs once for each set of completions. The data of the request and of all earlier
//    requests is acknowledged, so the scheme posts the notify. Requests that waited for credits go
//    out (step 2), and receives are posted.
// 5. A later poll brings the completion of the notify: `complete` passes it to the scheme, and
//    `pump` reports the request after all requests posted before it.
//
// Without an immediate, step 5 follows step 4 in the same poll. With DQPLB (`scheme::dqplb`)
// fragments carry numbers, and there is no notify. `pass_through` handles SENDs and atomics.
//
// The other files:
//
// | file | |
// |---|---|
// | `qp` | the fields of a virtual queue pair, and its read-only queries |
// | `build`, `config`, `error` | construction, configuration and errors |
// | `post_many` | several requests with one call |
// | `list`, `parts` | requests with several buffers, and how their buffers are cut into fragments |
// | `whole_list` | requests with several buffers that are one fragment |
// | `one_trip` | short WRITE_WITH_IMMs with SPRAY, whose data is in their notify: no steps 2 to 4 |
// | `slot`, `tracker`, `keys` | the slots of the rings, the rings, and the keys of requests |
// | `receive`, `data_receives` | receives without and with buffers |
// | `state` | which rails may take requests, and failures: queries and actions of the owner |
// | `reroute` | recovery of failed rails, step by step |
// | `cancel` | requests that are taken back |

mod build;
mod cancel;
mod choose;
mod complete;
mod config;
mod data_receives;
mod dispatch;
mod error;
mod keys;
mod list;
mod one_trip;
mod parts;
mod pass_through;
mod post;
mod post_many;
mod pump;
mod qp;
mod receive;
mod reroute;
pub(crate) mod scheme;
mod slot;
mod state;
pub(crate) mod tracker;
mod whole_list;

pub use crate::rail::{
    ControlDecodeError, ControlError, ControlMessage, FailedBecause, MAX_RAILS, RailCounters,
    RailError, RailEvent, RailEventKind, RailId, RailReport, RailSet, RailState, Rejected,
    ReplaceError, ReportedState,
};
pub use build::PairDevicesError;
pub use cancel::{CANCEL_VERSION, CancelError};
pub use config::{
    BuildError, Config, FRAGMENT_ALIGN, FragmentSizeError, PassThroughOrder, RailChoice,
    RailFailure,
};
pub use error::{Failure, PostError, PostManyError, PostRecvError, PostSendError, ProtocolError};
pub use qp::VirtualQp;
pub use scheme::Scheme;
pub use scheme::dqplb::{OutsideWindow, PeerWindow, PeerWindowError};
pub use state::QpState;
pub use tracker::TrackerFull;
