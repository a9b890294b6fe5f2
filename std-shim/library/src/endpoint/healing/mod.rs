//! Endpoints that heal by themselves: rails that fail are taken out of service, given new queue pairs, and
//! brought back, while requests move on the others.
//!
//! `options` is what can be chosen; `message` is what two ends tell each other, and `link` the way between
//! them. `walk` does the work, after some of the polls, with its steps in `notice`, `new_queue_pairs` and
//! `patience`; `healer` is what it remembers in between, with `attempts`, when to try again, and `headway`, the watch
//! over rails that fall silent. `given_up` is the end.

mod attempts;
mod given_up;
mod headway;
mod healer;
mod link;
mod message;
mod new_queue_pairs;
mod notice;
mod options;
mod patience;
mod walk;

pub(crate) use attempts::Attempts;
pub(super) use given_up::GivenUp;
pub(super) use healer::Healer;
pub use link::{HealingLink, NotHeard};
pub use message::{HealingMessage, HealingMessageError, MAX_HEALING_BYTES};
pub use options::Healing;
pub(super) use walk::Owner;
