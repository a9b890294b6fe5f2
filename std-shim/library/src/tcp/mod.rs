//! The NIC over TCP of crate [`polyrail_tcp_nic`], as a [backend](crate::backend) of endpoints.
//! With it, programs of any two Linux hosts can be connected, without any RDMA device.
//!
//! [`devices`] lists them, and [`open_devices`] or [`open_usable_devices`] opens them. [Over
//! TCP](crate::over_tcp) explains when to use it, and how.

// Files:
//
// `domain` implements the device, and `connect` the state transitions of queue pairs. `devices`
// lists devices, `open` opens them by name, and `usable` opens those that can be used.

mod connect;
mod devices;
mod domain;
mod open;
mod usable;

pub use devices::{DeviceReport, devices};
pub use open::{OpenDevicesError, open_another_device, open_device, open_devices};
pub use usable::{NotUsed, open_usable_devices};

pub use polyrail_tcp_nic::*;
