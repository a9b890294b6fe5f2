//! The NIC over TCP of crate [`polyrail_tcp_nic`], as a [backend](crate::backend) of endpoints. With
//! it, programs of any two Linux hosts can be connected, without any RDMA device.
//!
//! `domain` implements the device, and `connect` the state transitions of queue pairs.

mod connect;
mod domain;

pub use polyrail_tcp_nic::*;
