//! The std layer of polyrail; so far, the NIC in software.

pub mod nic;
