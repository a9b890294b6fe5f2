//! DQPLB: every fragment of a WRITE_WITH_IMM is one itself, and its immediate is a sequence number.
//!
//! - [`sequence`]: the numbers, and how they travel;
//! - `numbers`: the sender, which gives them out and does not run too far ahead;
//! - [`window`]: the receiver, which notes what arrives ahead of its turn;
//! - `rules`: both as a scheme.

mod numbers;
mod rules;
pub(crate) mod sequence;
pub(crate) mod window;

pub(in crate::virtual_qp) use numbers::SendNumbers;
pub use numbers::{PeerWindow, PeerWindowError};
pub(in crate::virtual_qp) use rules::Dqplb;
pub use window::OutsideWindow;
pub(in crate::virtual_qp) use window::SequenceWindow;
