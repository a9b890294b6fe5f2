//! Memory that devices may access: owned pages, registered with one or more of them, and what a
//! peer has to know to reach them.
//!
//! `buffer` is what users hold, on pages that the software NIC's crate owns and touches; `remote` is
//! the peer's side of it.

mod buffer;
mod range;
mod remote;

pub use buffer::RegisteredBuffer;
pub use polyrail_software_nic::{OutOfMemory, Pages, RegionKeys};
pub use range::OutOfRange;
pub use remote::{DeviceCountMismatch, RemoteBuffer};
