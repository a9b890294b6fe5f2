//! What endpoints ask of a kind of hardware, besides the data path, which is core's
//! ([`crate::hardware`]).
//!
//! A backend opens its devices in its own way, with its own options, and from then on is a
//! [`Domain`]: it makes completion queues and queue pairs, registers memory, and moves queue pairs
//! through their states ([`Connect`]). What the two ends of a rail tell each other is plain data
//! ([`RailAddress`](crate::endpoint::RailAddress)), so endpoints, the copy path and perf are written
//! once.
//!
//! The shape is that of verbs: [`Connect`]'s methods are the transitions of `ibv_modify_qp`, and
//! what they are handed is what its attributes need. [`crate::nic`] is a backend; with the feature
//! `verbs`, `rdma` is another one.

mod error;
mod name;
mod port;
mod software;

pub use error::DeviceError;
pub use name::{DeviceName, DeviceNameError};
pub use polyrail_software_nic::{ConnectOptions, Gid, GidKind, Mtu, QpCap, RemoteQp};
pub use port::Port;

use polyrail_core::hardware::{CompletionQueue, QueuePair};
use polyrail_core::verbs::{AccessFlags, DeviceId};
use polyrail_software_nic::{Pages, RegionKeys};
use std::fmt::Debug;
use std::sync::Arc;

/// A device as endpoints use it: opened, with a protection domain, and with the ports that rails
/// are to take.
pub trait Domain {
    /// Its queue pairs.
    type Qp: Connect;
    /// Its completion queues.
    type Cq: CompletionQueue;
    /// Registered memory. Dropping it deregisters the memory.
    type Region: Debug;

    /// The device's number, unique in this process.
    fn device_id(&self) -> DeviceId;

    /// The device's name, for people.
    fn device_name(&self) -> &str;

    /// Requests that one queue of a queue pair can hold.
    fn max_qp_wr(&self) -> u32;

    /// The ports that rails take in turn, at least one.
    ///
    /// # Errors
    ///
    /// The device does not say, or is gone.
    fn ports(&self) -> Result<Vec<Port>, DeviceError>;

    /// A completion queue for at least `capacity` completions.
    ///
    /// # Errors
    ///
    /// The device refuses.
    fn create_cq(&self, capacity: u32) -> Result<Self::Cq, DeviceError>;

    /// A reliable connected queue pair in RESET, both of whose queues complete on `cq`.
    ///
    /// # Errors
    ///
    /// The device refuses.
    fn create_qp(&self, cq: &Self::Cq, cap: QpCap) -> Result<Self::Qp, DeviceError>;

    /// Registers `pages`, all [`len`](Pages::len) bytes and no more. Until the region is dropped, it
    /// keeps the pages.
    ///
    /// # Errors
    ///
    /// The device refuses.
    fn register_pages(
        &self,
        pages: &Arc<Pages>,
        access: AccessFlags,
    ) -> Result<(Self::Region, RegionKeys), DeviceError>;
}

/// A queue pair whose state an endpoint can change.
pub trait Connect: QueuePair {
    /// RESET to INIT, on a port: receives can be posted.
    ///
    /// # Errors
    ///
    /// The device refuses, as with the other transitions.
    fn init(&self, port: &Port, options: &ConnectOptions) -> Result<(), DeviceError>;

    /// INIT to RTR, on the same port: the peer's requests are carried out. Of the options,
    /// `path_mtu` is the path's, and `max_rd_atomic` what the peer was told.
    ///
    /// # Errors
    ///
    /// See [`init`](Self::init).
    fn ready_to_receive(
        &self,
        port: &Port,
        peer: &RemoteQp,
        options: &ConnectOptions,
    ) -> Result<(), DeviceError>;

    /// RTR to RTS: requests can be posted. `psn` is the packet sequence number that the peer was
    /// told, and the options' `max_rd_atomic` is what the peer takes.
    ///
    /// # Errors
    ///
    /// See [`init`](Self::init).
    fn ready_to_send(&self, psn: u32, options: &ConnectOptions) -> Result<(), DeviceError>;

    /// To ERR, from any state but RESET: everything outstanding completes, flushed.
    ///
    /// # Errors
    ///
    /// See [`init`](Self::init).
    fn fail(&self) -> Result<(), DeviceError>;
}
