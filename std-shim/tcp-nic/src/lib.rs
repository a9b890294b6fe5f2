//! A verbs device over TCP: one-sided requests between any two Linux hosts, with the interface of
//! `polyrail-ffi` and `polyrail-software-nic`. No RDMA hardware and no package is needed.
//!
//! A [`Device`] is a network interface with an address. A [`QueuePair`] is one TCP connection, so a
//! virtual queue pair of four rails over two interfaces has four connections. Memory is any memory
//! of the process: registered, with keys that are checked for every request.
//!
//! # Who moves the data
//!
//! - A post sends its requests from the posting thread, with one system call for a batch, as far as
//!   the socket takes them. Short requests that follow one which is not acknowledged wait until the
//!   next poll if the completion queue is being polled, so that one system call sends several.
//!   Without a poll, they are sent after 1 to 2 ms.
//! - A poll that finds no completion receives what has come, and sends what could not be sent
//!   before.
//! - An I/O thread does both while nothing polls: peers can read and write memory of a program that
//!   does something else. Devices of the same [`ThreadPlace`] share I/O threads: at most half as
//!   many as the place has processors, rounded up.
//!
//! Payload is placed by the system call that receives it, without a buffer in between, if it is not
//! received whole together with its header.
//!
//! # Promises beyond RDMA, and short of it
//!
//! - A request completes when all its bytes are *in the peer's memory*. With RDMA, a WRITE
//!   completes when the peer's NIC has it.
//! - When [`to_error`](QueuePair::to_error) has returned, nothing of the peer is placed any more.
//!   When a [`MemoryRegion`] has been dropped, no thread accesses its bytes.
//! - Two queue pairs prove to each other that they have the other's key, which travels with the
//!   queue pair's address. Bytes are **not encrypted**, as with RDMA.
//! - Losses and reordering of packets are TCP's matter, so `retry_cnt` repetitions are not made:
//!   `timeout` times `retry_cnt + 1` is the time without progress after which a request fails.
//!   Progress is anything that the peer, or its system, confirms.
//!
//! # Differences from other devices
//!
//! | | here | elsewhere |
//! |---|---|---|
//! | a WRITE is complete | its bytes are in memory | verbs: the NIC has them |
//! | the connection to the peer is made | after RTR, in the background; posts wait for it | verbs: at RTR |
//! | the peer ends, or enters ERR | outstanding requests, and those posted later, fail at once (RETRY_EXC_ERR) | verbs: after the retries |
//! | `retry_cnt` and `timeout` | one time without progress | verbs: repetitions |
//! | `timeout` 0 | no limit | as verbs |
//! | no receive is posted | the peer is notified when one is; `rnr_retry` times the timer is the limit (7: none). If the peer's system does not answer meanwhile, the request fails after `timeout` times `retry_cnt + 1`, at least 3 s (RETRY_EXC_ERR) | verbs: repetitions |
//! | bad lkey of a WRITE or SEND | LOC_PROT_ERR, as in the specification | rxe: LOC_QP_OP_ERR |
//! | SEND longer than the receive, at the sender | REM_INV_REQ_ERR | rxe: REM_OP_ERR |
//! | memory deregistered while a request moves it | LOC_PROT_ERR here, REM_ACCESS_ERR at the peer; a READ that the peer has begun to answer from it, and requests of the queue pair that were sent before and are not acknowledged: RETRY_EXC_ERR with vendor code [`KEY_UNKNOWN`](vendor::KEY_UNKNOWN) | verbs: REM_ACCESS_ERR |
//! | MTU, packet sequence numbers, service level and all fields of packets | ignored | verbs: must agree |
//! | SQD, and RESET of a queue pair | not supported | verbs: supported |
//! | memory windows, LOCAL_INV, SEND_WITH_INV | not supported | verbs: depends on the device |
//! | on-demand paging | always: memory is never pinned | verbs: depends on the device |
//!
//! # Example
//!
//! ```
//! use polyrail_core::hardware::{CompletionQueue as _, QueuePair as _, SendBatch as _};
//! use polyrail_core::verbs::{AccessFlags, Imm, Opcode, SendFlags, SendRequest};
//! use polyrail_nic_parts::options::{ConnectOptions, QpCap};
//! use polyrail_nic_parts::pages::Pages;
//! use polyrail_tcp_nic::{Device, DeviceOptions, QpInit, connect_pair};
//! use std::mem::MaybeUninit;
//! use std::sync::Arc;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let options = DeviceOptions::default();
//! let here = Device::open("127.0.0.1", &options)?.alloc_pd()?;
//! let there = Device::open("127.0.0.2", &options)?.alloc_pd()?;
//! let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
//! let source = Arc::new(Pages::new(4096)?);
//! let target = Arc::new(Pages::new(4096)?);
//! let local = here.register_pages(&source, access)?;
//! let remote = there.register_pages(&target, access)?;
//! let mut cq = here.device().create_cq(16)?;
//! let peer_cq = there.device().create_cq(16)?;
//! let mut qp = here.create_qp(&QpInit::new(&cq, QpCap::default()))?;
//! let peer = there.create_qp(&QpInit::new(&peer_cq, QpCap::default()))?;
//! // In two processes, each sends its `as_remote` to the other, and calls `connect`.
//! connect_pair(&qp, &peer, &ConnectOptions::default())?;
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
//! let done = loop {
//!     if let [done] = cq.poll(&mut completions)? {
//!         break *done;
//!     }
//! };
//! assert!(done.status.is_success());
//! let mut bytes = [0; 13];
//! target.span(0, 13).read(&mut bytes);
//! assert_eq!(&bytes, b"over the rail");
//! # Ok(())
//! # }
//! ```

// Files:
//
// 1. `wire`: the frames; `requester` and `responder`: what one end has posted and what it owes its
//    peer, without I/O;
// 2. `shared`: the shared state, with the order of locks;
// 3. the path of a request: `queue_pair` (posting), `gathering` (several at once), `outgoing`
//    (frames on their way), `transmit` (making and sending them), `handover` (by which thread),
//    `socket`; at the peer `incoming` (reading and placing, with the state in `read_half`),
//    `arrival` (what a frame does); back to the acknowledgement, which completes the request;
//    `completion_queue`;
// 4. the end of a queue pair: `ending`, with both halves of the connection locked;
// 5. how queue pairs find each other: `meeting` (messages and proofs), `handshake` (the two sides),
//    `call` (attempts);
// 6. the threads: `pool`, `place` (where they run), `commands` (requests to them), `io` (what they
//    do), `schedule` (when), `watch` (the time of requests), `clock`, `interface` and `netlink`;
// 7. the other objects: `device`, `domain`, `receive_queue`, `modify`.

mod arrival;
mod call;
mod clock;
mod commands;
mod completion_queue;
mod device;
mod domain;
mod ending;
#[cfg(test)]
mod ends;
mod gathering;
mod handover;
mod handshake;
mod incoming;
mod interface;
mod io;
mod meeting;
mod modify;
mod netlink;
mod outgoing;
mod place;
mod pool;
mod queue_pair;
mod read_half;
mod receive_queue;
mod requester;
mod responder;
mod schedule;
mod shared;
mod socket;
mod transmit;
mod watch;
mod wire;

pub use completion_queue::CompletionQueue;
pub use device::{Device, DeviceOptions, OpenError, PORT, is_device};
pub use domain::{MemoryRegion, ProtectionDomain};
pub use modify::connect_pair;
pub use place::ThreadPlace;
pub use polyrail_nic_parts::error::vendor;
pub use queue_pair::{QpInit, QueuePair, RecvBatch, SendBatch};
pub use receive_queue::{SharedReceiveQueue, SharedRecvBatch};
