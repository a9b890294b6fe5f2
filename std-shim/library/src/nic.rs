//! The NIC in software, of the crate [`polyrail_software_nic`], and the memory that is registered with
//! it: all that programs need to try this crate on a machine without any NIC.

pub use crate::memory::{OutOfRange, RegisteredBuffer};
pub use polyrail_software_nic::*;
