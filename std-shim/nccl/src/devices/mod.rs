//! The NICs of this process, each of them a device, and devices that are several NICs.
//!
//! `description` is what is known of a NIC; `software` and `verbs` find them; `list` has them all.

mod description;
mod list;
mod software;
#[cfg(feature = "verbs")]
mod verbs;

pub(crate) use list::{Device, Devices};
#[cfg(feature = "test-hooks")]
pub(crate) use software::inject;
