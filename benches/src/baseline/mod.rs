//! The baseline: the C++ design that polyrail replaces, written plainly in Rust.
//!
//! It has what the rows need of the [reference implementation](polyrail_core::docs::reference): a
//! hash map and two deques track requests ([`WrTracker`]), a deque for each queue pair correlates
//! completions ([`PhysicalQp`]), every fragment is a post and a signaled completion of its own,
//! device keys are a hash map that is cloned into the request, completions are routed by opcode
//! through a hash map, one notify is in flight at a time, and polling returns vectors. Reviewed,
//! not tuned: where that design leaves a choice, the cheaper one was taken (completions are polled
//! onto the stack, result vectors are moved, virtual queue pairs are reached by index).
//!
//! Left out: what no row does, such as SPRAY's receive side, data receives and connection set-up.
//! Its [known defects](polyrail_core::docs::reference#defects-that-polyrail-is-free-of) are kept,
//! except the one that would leak memory while it is measured.

mod completion;
mod driver;
mod physical;
mod request;
mod sequence;
mod tracker;
mod virtual_cq;
mod virtual_qp;

pub use driver::{Receiver, Sender, request};
pub use physical::PhysicalQp;
pub use request::{DeviceKeysMap, Error, Keys, RecvWr, SendWr, VirtualWc};
pub use tracker::{ActiveWr, WrTracker};
pub use virtual_cq::VirtualCq;
pub use virtual_qp::{Config, Scheme, VirtualQp};
