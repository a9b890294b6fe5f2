//! The baseline: the C++ design that polyrail replaces, written plainly in Rust.
//!
//! It contains the parts of the [reference implementation](polyrail_core::docs::reference) that the
//! rows use. A hash map and two deques track requests ([`WrTracker`]), and a deque for each queue
//! pair correlates completions ([`PhysicalQp`]). Every fragment is a separate post with a signaled
//! completion. Device keys are a hash map that is cloned into the request. Completions are routed
//! by opcode through a hash map, one notify is in flight at a time, and polling returns vectors.
//! The code is reviewed but not tuned: where the design leaves a choice, the cheaper one was taken
//! (completions are polled onto the stack, result vectors are moved, virtual queue pairs are found
//! by index).
//!
//! Parts that no row uses are left out, such as SPRAY's receive side, data receives and connection
//! set-up. The [known defects](polyrail_core::docs::reference#defects-that-polyrail-is-free-of) are
//! kept, except the one that would leak memory during measurements.

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
