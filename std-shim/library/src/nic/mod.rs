//! The NIC in software, of the crate [`polyrail_software_nic`], as a [backend](crate::backend) of
//! endpoints; with the memory that is registered with it, it is all that programs need to try this crate
//! on a machine without any NIC.
//!
//! `domain` is what endpoints ask of a device; `connect` brings queue pairs through their states.

mod connect;
mod domain;

pub use crate::memory::{OutOfRange, RegisteredBuffer};
pub use polyrail_software_nic::*;
