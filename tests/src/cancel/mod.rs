//! A model of taking requests back.
//!
//! The model shows which rules make [`cancel`] safe. One end posts requests over a few rails and takes some of them back while rails fail. The other end executes what
//! arrives. A rail that fails and a rail that is fenced on purpose take the same steps: both queue
//! pairs go to the error state, the peer reports what has arrived, and only then is it certain that
//! nothing more of that queue pair is executed. What a failed rail loses is posted again on the
//! others ([Rails that fail]).
//!
//! [`explore`] lets everything happen in every order in a small [`World`], and checks after each
//! step that a report is true and stays true: no byte of a request changes after its report, and
//! what is reported as not written was never written. Each of the [`Rules`] can be broken, which the
//! model must find. It found one that its designers had not: see
//! [`later_reports_await_gaps`](Rules::later_reports_await_gaps).
//!
//! What the model leaves out: the messages by which a rail returns (the engine's own worlds have
//! them), limits of queues and windows, SENDs and atomics, requests of SPRAY whose data is in their
//! notification (they are too late once they are posted, as a notification is), and the peer's own
//! requests, whose fences look like failures here.
//!
//! [`cancel`]: polyrail_core::virtual_qp::VirtualQp::cancel
//! [Rails that fail]: polyrail_core::virtual_qp::VirtualQp#rails-that-fail

mod explore;
mod peer;
mod rules;
mod state;
mod step;
mod world;

pub use explore::{Broken, Explored, explore};
pub use rules::Rules;
pub use step::{Fault, Outcome, Promise, Step};
pub use world::{Job, Kind, World, worlds};
