//! Moves a queue pair between states.
//!
//! `forward` has the transitions up to RTS, `aside` those that leave RTS, and `change` those from a
//! state to itself; `modify` makes a transition, `connector` makes those up to RTS on another
//! thread, and `fill` writes the attributes.
//!
//! A transition is a struct with the fields that verbs requires: none can be forgotten, and fields
//! of other services do not exist. Transitions from a state to itself have optional fields only.
//!
//! Alternate paths (`IBV_QP_ALT_PATH`, `IBV_QP_PATH_MIG_STATE`) are left out: RoCE does not have
//! them, and the engine's rails replace them.

mod aside;
mod change;
mod connector;
mod fill;
mod forward;
mod modify;

pub use aside::{Recover, Resume, ToErr, ToReset, ToSqd};
pub use change::{
    ChangeInit, ChangeRts, ChangeSqd, DatagramChangeInit, DatagramChangeRts, DatagramChangeSqd,
    UnreliableChangeRts, UnreliableChangeSqd,
};
pub use connector::Connector;
pub(super) use connector::move_to_err;
pub use forward::{
    DatagramToInit, DatagramToRtr, ToInit, ToRtr, ToRts, UnreliableToRtr, UnreliableToRts,
};
pub use modify::Transition;
