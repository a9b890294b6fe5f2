//! A verbs device over TCP: queue pairs whose connections are TCP connections, between any two
//! Linux hosts, with the interface of `polyrail-ffi` and `polyrail-software-nic`.

mod arrival;
mod completion_queue;
mod device;
mod domain;
mod ending;
mod incoming;
mod interface;
mod io;
mod meeting;
mod modify;
mod netlink;
mod outgoing;
mod queue_pair;
mod random;
mod receive_queue;
mod requester;
mod responder;
mod shared;
mod socket;
mod transmit;
mod watch;
mod wire;

pub use completion_queue::CompletionQueue;
pub use device::{Device, DeviceOptions, OpenError, PORT};
pub use domain::{MemoryRegion, ProtectionDomain};
pub use interface::{InterfaceAddress, addresses};
pub use modify::connect_pair;
pub use queue_pair::{QpInit, QueuePair, RecvBatch, SendBatch};
pub use receive_queue::{SharedReceiveQueue, SharedRecvBatch};
