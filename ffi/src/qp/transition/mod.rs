//! Moving a queue pair from state to state.
//!
//! `forward` is the way up to RTS, `aside` the ways off it, `change` from a state to itself; `modify`
//! makes a transition, and `fill` is what each one tells it.
//!
//! A transition is a struct with the fields that verbs demands: none can be forgotten, and none that
//! another kind of queue pair wants can be given. Those that lead from a state to itself have only
//! fields that may be left out.
//!
//! Alternate paths (`IBV_QP_ALT_PATH`, `IBV_QP_PATH_MIG_STATE`) are left out: RoCE has none, and the
//! engine's own rails do what they are for.

mod aside;
mod change;
mod fill;
mod forward;
mod modify;

pub use aside::{Recover, Resume, ToErr, ToReset, ToSqd};
pub use change::{
    ChangeInit, ChangeRts, ChangeSqd, DatagramChangeInit, DatagramChangeRts, DatagramChangeSqd,
    UnreliableChangeRts, UnreliableChangeSqd,
};
pub use forward::{
    DatagramToInit, DatagramToRtr, ToInit, ToRtr, ToRts, UnreliableToRtr, UnreliableToRts,
};
pub use modify::Transition;
