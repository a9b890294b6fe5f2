//! The software NIC of crate [`polyrail_software_nic`], as a [backend](crate::backend) of
//! endpoints. With it, programs can use this crate on a machine without any RDMA device.

// Files:
//
// `domain` implements the device, and `connect` the state transitions of queue pairs.

mod connect;
mod domain;

pub use polyrail_software_nic::*;
