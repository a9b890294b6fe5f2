//! The repair of rails that fail, for endpoints that carry requests and for those that carry
//! messages.
//!
//! [`Healing`] has the time limits that users choose. [`HealingLink`] carries [`HealingMessage`]s
//! between the two ends.
//!
//! # How it works
//!
//! A *rail* is one queue pair and its replacements. Some polls run a repair step, which is the same
//! for both kinds of endpoints. It reads the events of devices, checks for rails that complete
//! nothing, and attempts to create new queue pairs at growing intervals.
//!
//! ```text
//!  the end that offers                               the end that answers
//!    rail is Down: create a queue pair
//!    ── Offer (rail, generation, number, address) ──►  rail is Down: create the other end, connect it,
//!                                                      put it in the rail's place
//!    connect, put in the rail's place  ◄── Answer ───
//!      (over TCP, once there is a connection)
//!    ── Ready (engine) ─────────────────────────────►  in service
//!    in service  ◄──────────────────── Ready (engine) ─
//! ```
//!
//! Neither end posts to a rail before it is in service. Either end refuses if it cannot go on, and
//! the offer is repeated. If a port of the end that answers comes up, it sends Wanted, and the
//! other end offers at once.

// Files:
//
// Both kinds of endpoints implement `Repaired` (`repaired`), and a repair `step` has its parts in
// `detect` and `replace`. It reads `device_events`, checks for `silence`, and counts `attempts`.
// `limits` fails what waits for too long, and `cancel_grace` decides when rails are fenced for what
// is taken back. `healer` is the state between two steps and decides which
// polls run one; `rail_repair` is the part of it for one rail, with the steps of a
// `new_queue_pair`. `link` carries the messages (`message`). `history` counts what happened to a
// rail.

mod attempts;
mod cancel_grace;
mod detect;
mod device_events;
mod healer;
mod history;
mod limits;
mod link;
mod message;
mod new_queue_pair;
mod options;
mod rail_repair;
mod repaired;
mod replace;
mod silence;
mod step;

pub use history::{FailureCounts, FailureReason, RailTimes};
pub use link::{HealingLink, NotHandled};
pub use message::{
    HealingMessage, HealingMessageError, MAX_HEALING_BYTES, RailName, ReplacementAddress,
};
pub use options::Healing;
pub use repaired::Detected;

pub(crate) use cancel_grace::{CANCEL_GRACE, Cancels};
pub(crate) use healer::{HEAL_EVERY, Healer, Polls};
pub(crate) use history::{Added, RailHistory};
pub(crate) use limits::{Losses, Passed, Waiting};
pub(crate) use message::{bytes, hex, sealed};
pub(crate) use rail_repair::{Carried, Proof};
pub(crate) use repaired::Repaired;
pub(crate) use silence::{Look, SilenceWatch};
pub(crate) use step::RepairStep;
