//! Endpoints that heal by themselves: rails that fail are taken out of service, given new queue pairs, and
//! brought back, while requests move on the others.
//!
//! `message` has the messages that two ends exchange, and `link` carries them. `walk` is a repair step, which some of
//! the polls run, with its parts in `notice`, `new_queue_pairs` and `limits`; `healer` is the state between two
//! steps. `given_up` is the end. What messages (`p2p`) need as well is in `crate::heal`.

mod given_up;
mod healer;
mod limits;
mod link;
mod message;
mod new_queue_pairs;
mod notice;
mod walk;

pub(super) use given_up::GivenUp;
pub(super) use healer::Healer;
pub use link::{HealingLink, NotHeard};
pub use message::{HealingMessage, HealingMessageError, MAX_HEALING_BYTES};
pub(super) use walk::{HEAL_EVERY, Owner};
