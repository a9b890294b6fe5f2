//! What polyrail's tests share.
//!
//! [`model`] has the oracles that quickcheck and the fuzz targets share; [`endpoint`] puts virtual
//! queue pairs on software NICs. [`scripted`] is a NIC whose every completion the test decides; [`rig`] puts a virtual queue pair
//! and its completion queue on one; [`view`] says in short form what the NIC was asked to do.

pub mod endpoint;
pub mod model;
pub mod rig;
pub mod scripted;
pub mod view;
