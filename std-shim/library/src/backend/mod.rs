//! What endpoints ask of a kind of hardware, besides the data path, which is core's
//! ([`crate::hardware`]).
//!
//! A backend opens its devices in its own way, with its own options, and from then on is a
//! [`Domain`]: it makes completion queues and queue pairs, registers memory, and moves queue pairs
//! through their states ([`Connect`]). It also says what happens to its device ([`DeviceEvent`]), to each
//! reader by its own cursor. What the two ends of a rail tell each other is plain data
//! ([`RailAddress`](crate::endpoint::RailAddress)), so endpoints, and what is built on them, are written
//! once.
//!
//! The shape is that of verbs: [`Connect`]'s methods are the transitions of `ibv_modify_qp`, and
//! what they are handed is what its attributes need. [`crate::nic`] is a backend; with the feature
//! `verbs`, `rdma` is another one.

mod connect;
mod connecting;
mod domain;
mod error;
mod event;
mod gone;
mod name;
mod notify;
mod port;
mod region;

pub use connect::Connect;
pub use connecting::Connecting;
pub use domain::Domain;
pub use error::DeviceError;
pub use event::DeviceEvent;
pub use gone::Gone;
pub use name::{DeviceName, DeviceNameError};
pub use notify::Notify;
pub use polyrail_software_nic::{
    ConnectOptionError, ConnectOptions, EventCursor, EventLog, Gid, GidKind, Mtu, QpCap, RemoteQp,
};
pub use port::Port;
pub use region::{DmaBuf, MemoryOwner, Region};
