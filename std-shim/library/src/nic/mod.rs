//! The software NIC of crate [`polyrail_software_nic`], as a [backend](crate::backend) of
//! endpoints. With it, programs can use this crate on a machine without any RDMA device.

// Files:
//
// `domain` implements the device, and `connect` the state transitions of queue pairs.

mod connect;
mod domain;

// What other backends have as well is in `backend` and `memory`.
pub use polyrail_software_nic::{
    AsyncEvent, Attribute, CompletionChannel, CompletionQueue, Connector, Device, DeviceConfig,
    DeviceLimits, Fabric, Fault, FaultKind, FaultPlan, MemoryRegion, ModifyError, NicError,
    PortState, ProtectionDomain, QpAttributes, QpInit, QpState, QueuePair, RecvBatch, SendBatch,
    SharedReceiveQueue, Span, Step, TurnOutcome, When, ack_timeout, connect_pair, errno, is_device,
    rnr_delay, vendor,
};
