//! A verbs device in software, with the same interface as `polyrail-ffi`, on a fabric in memory
//! instead of libibverbs.
//!
//! Code that is tested on it should work on real verbs: states, keys, flushes and failures follow
//! the specification, and where devices differ, it is as strict as the strictest.
//!
//! # Where to begin
//!
//! A [`Fabric`] connects devices in memory. A [`Device`] creates [`CompletionQueue`]s and
//! [`ProtectionDomain`]s, which create [`MemoryRegion`]s, [`QueuePair`]s and
//! [`SharedReceiveQueue`]s. [`DeviceConfig`] has the options of a device, and a [`Fault`] makes it
//! fail. On a [deterministic](Fabric::deterministic) fabric, a test executes every [`Step`].
//!
//! # Example
//!
//! ```
//! use polyrail_core::hardware::{CompletionQueue as _, QueuePair as _, SendBatch as _};
//! use polyrail_core::verbs::{AccessFlags, Imm, Opcode, SendFlags, SendRequest};
//! use polyrail_software_nic::{
//!     ConnectOptions, DeviceConfig, Fabric, Pages, QpCap, QpInit, connect_pair,
//! };
//! use std::mem::MaybeUninit;
//! use std::sync::Arc;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let fabric = Fabric::threaded();
//! let here = fabric.create_device(DeviceConfig::named("soft0")).alloc_pd()?;
//! let there = fabric.create_device(DeviceConfig::named("soft1")).alloc_pd()?;
//! let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
//! let source = Arc::new(Pages::new(4096)?);
//! let target = Arc::new(Pages::new(4096)?);
//! let local = here.register_pages(&source, access)?;
//! let remote = there.register_pages(&target, access)?;
//! let mut cq = here.device().create_cq(16)?;
//! let peer_cq = there.device().create_cq(16)?;
//! let mut qp = here.create_qp(&QpInit::new(&cq, QpCap::default()))?;
//! let mut peer = there.create_qp(&QpInit::new(&peer_cq, QpCap::default()))?;
//! connect_pair(&mut qp, &mut peer, &ConnectOptions::default())?;
//!
//! source.span(0, 13).write(b"over the rail");
//! let mut batch = qp.start_send();
//! batch.add(&SendRequest {
//!     wr_id: 1,
//!     opcode: Opcode::RdmaWrite,
//!     flags: SendFlags::SIGNALED,
//!     imm: Imm::default(),
//!     sge: source.local(0, 13).ok_or("within the pages")?.sge(local.lkey()),
//!     remote_addr: target.addr(),
//!     rkey: remote.rkey(),
//!     compare_add: 0,
//!     swap: 0,
//! });
//! batch.commit()?;
//!
//! let mut completions = [MaybeUninit::uninit(); 4];
//! let done = cq.poll(&mut completions)?;
//! assert!(done[0].status.is_success());
//! let mut bytes = [0; 13];
//! target.span(0, 13).read(&mut bytes);
//! assert_eq!(&bytes, b"over the rail");
//! # Ok(())
//! # }
//! ```
//!
//! # Differences from other devices
//!
//! | | here | elsewhere |
//! |---|---|---|
//! | bad lkey of a WRITE or SEND | LOC_PROT_ERR, as in the specification | rxe: LOC_QP_OP_ERR |
//! | bad lkey in a receive, receive too short | the receive completes LOC_PROT_ERR, LOC_LEN_ERR | rxe: LOC_QP_OP_ERR |
//! | SEND longer than the receive, at the sender | REM_INV_REQ_ERR | rxe: REM_OP_ERR |
//! | `retry_cnt` 7 | seven retries | rxe: forever |
//! | receives posted in ERR | flushed at once | rxe: they stay posted |
//! | a queue pair in ERR took its last shared receive | an event reports it, as in the specification | rxe: no event, up to at least Linux 6.1 |
//! | when requests are executed | while their completion queue is polled | rxe, hardware: immediately |
//! | SQD to RTS | held requests continue at once | rxe: at the next post |
//! | local port down | RETRY_EXC_ERR after the retries | rxe: LOC_QP_OP_ERR |
//! | completion queue overrun | the queue breaks, its queue pairs go to ERR | rxe: completions are lost |
//! | slots of the send and receive queue | free when a completion is polled, as mlx5 | rxe: at once |
//! | fields that verbs leaves undefined | misleading values | rxe: zeros |

// Files:
//
// The crate `polyrail_nic_parts` has what software devices have in common: addresses, options,
// errors, events and states; memory and its keys; rings, completions and channels. It comes first.
// Then, here:
//
// 1. plain data: `DeviceConfig` (`options`), `Step` (`step`), `Fault` (`fault`);
// 2. state behind locks: `send_queue`, `receives`, `posts`, `pending`; `line`, which limits the
//    rate of sending; and `clock`;
// 3. `shared`: the shared state of a fabric, its devices and their queues, with the order of
//    locks;
// 4. the path of a request: `batch` (posting), `execute` (the sending end, in the steps of
//    `transmit`), `responder` (the receiving end), `ending` (its last receives), `retry`,
//    `deferred`, `completion_queue`;
// 5. the public objects: `Fabric` (`fabric`), which connects devices, with its two modes, one of
//    them in `scheduler` (one action per step); `Device` (`device`), `ProtectionDomain` and
//    `MemoryRegion` (`domain`), `CompletionQueue` (`poll`), `SharedReceiveQueue`
//    (`receive_queue`), `QueuePair` (`queue_pair`, and its transitions in `modify` and
//    `connect`).

mod batch;
mod clock;
mod completion_queue;
mod connect;
mod deferred;
mod device;
mod domain;
mod ending;
mod execute;
mod fabric;
mod fault;
mod line;
mod modify;
mod options;
mod pending;
mod poll;
mod posts;
mod queue_pair;
mod receive_queue;
mod receives;
mod responder;
mod retry;
mod scheduler;
mod send_queue;
mod shared;
mod step;
mod transmit;

pub use batch::{RecvBatch, SendBatch};
pub use connect::connect_pair;
pub use device::{Device, PortState, is_device};
pub use domain::{MemoryRegion, ProtectionDomain};
pub use fabric::Fabric;
pub use fault::{Fault, FaultPlan, When};
pub use modify::Connector;
pub use options::DeviceConfig;
pub use poll::CompletionQueue;
pub use polyrail_nic_parts::address::{Gid, GidKind, Meeting, MeetingKey, Mtu, RemoteQp};
pub use polyrail_nic_parts::channel::CompletionChannel;
pub use polyrail_nic_parts::dma::Span;
pub use polyrail_nic_parts::error::{NicError, errno, vendor};
pub use polyrail_nic_parts::event::AsyncEvent;
pub use polyrail_nic_parts::event_log::{EventCursor, EventLog};
pub use polyrail_nic_parts::memory::RegionKeys;
pub use polyrail_nic_parts::options::{ConnectOptionError, ConnectOptions, DeviceLimits, QpCap};
pub use polyrail_nic_parts::pages::{OutOfMemory, Pages};
pub use polyrail_nic_parts::state::{
    Attribute, ModifyError, QpAttributes, QpState, ack_timeout, rnr_delay,
};
pub use queue_pair::{QpInit, QueuePair};
pub use receive_queue::SharedReceiveQueue;
pub use step::{FaultKind, Step, TurnOutcome};
