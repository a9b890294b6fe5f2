//! The devices that carry data between two hosts: RDMA devices, through verbs, or network
//! interfaces, over TCP.
//!
//! `choice` is what the user chose. A side that connects [`reach`]es a server: it asks for the
//! server's [`Offer`](polyrail::link::Offer), and opens devices of a backend that both have. A
//! server has an [`Offered`], opens both, and serves each peer with the backend of the peer's
//! rails. `pairing` finds the network interfaces of two hosts that share a network, and
//! `interfaces` opens them; `opened` are open devices of one backend; `error` is what can fail.

mod choice;
mod error;
mod interfaces;
mod offered;
mod opened;
mod pairing;
mod reach;

pub use crate::session::Backend;
pub use choice::{ChosenDevice, ChosenDeviceError, DeviceChoice};
pub use error::DevicesError;
pub use offered::Offered;
pub use opened::OpenedDevices;
pub use reach::{Reached, reach};
