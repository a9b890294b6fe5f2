//! Parts of the engine for its own tests, models and benches. Not a promise: they change without
//! notice.

pub use crate::completion::Role;
#[cfg(target_has_atomic = "64")]
pub use crate::p2p::entry::{entry_word, hash as entry_hash, ring_words};
pub use crate::rail::tag::{Tag, TagKind};
pub use crate::virtual_cq::routing::{Reserved, Route, RoutingTable};
pub use crate::virtual_qp::scheme::dqplb::sequence::{MODULUS, SequenceImm, SequenceNumber};
pub use crate::virtual_qp::scheme::dqplb::window::{Arrival, SequenceWindow};
pub use crate::virtual_qp::tracker::WrTracker;
