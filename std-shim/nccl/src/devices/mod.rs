//! The devices of this process: each NIC is one, and several NICs can be merged into one.
//!
//! `description` has the properties of a NIC; `software`, `tcp` and `verbs` find NICs; `rail_ids` are
//! their rails; `list` contains all devices.

mod description;
mod list;
mod rail_ids;
mod software;
#[cfg(any(feature = "tcp", feature = "verbs"))]
mod sysfs;
#[cfg(feature = "tcp")]
mod tcp;
#[cfg(feature = "verbs")]
mod verbs;

pub(crate) use list::{Device, Devices};
#[cfg(feature = "test-hooks")]
pub(crate) use software::inject;
