//! The interface of endpoints to a kind of hardware. The data path is core's interface
//! ([`crate::hardware`]).
//!
//! A backend opens its devices in its own way, with its own options. An open device is a
//! [`Domain`]: it creates completion queues and queue pairs, registers memory, and moves queue
//! pairs between states ([`Connect`]). It also reports its events ([`DeviceEvent`]), to each reader
//! by a cursor. The data that the two ends of a rail exchange is plain
//! ([`RailAddress`](crate::endpoint::RailAddress)), so endpoints do not depend on the backend.
//!
//! The interface follows verbs: [`Connect`]'s methods are the transitions of `ibv_modify_qp`, and
//! their arguments are its attributes. [`crate::nic`] is a backend; with the features `tcp` and
//! `verbs`, `tcp` and `rdma` are others. [`crate::any`] has all of them behind one type.

mod aside;
mod connect;
mod connecting;
mod domain;
mod error;
mod event;
mod gone;
mod name;
mod notify;
mod other_backend;
mod port;
mod region;

pub use aside::MOST_ASIDE;
pub use connect::{Connect, ConnectSteps};
pub use connecting::Connecting;
pub(crate) use domain::listed;
pub use domain::{Domain, DomainRef};
pub use error::DeviceError;
pub(crate) use error::link_layers;
pub use event::DeviceEvent;
pub use gone::Gone;
pub use name::{DeviceName, DeviceNameError};
pub use notify::Notify;
pub use other_backend::OtherBackend;
pub use polyrail_nic_parts::address::{Gid, GidKind, Meeting, MeetingKey, Mtu, RemoteQp};
pub use polyrail_nic_parts::event_log::{EventCursor, EventLog};
pub use polyrail_nic_parts::options::{ConnectOptionError, ConnectOptions, QpCap};
pub use port::Port;
pub use region::{DmaBuf, MemoryOwner, MemoryRange, Region};
