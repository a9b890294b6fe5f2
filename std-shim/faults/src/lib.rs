//! Faults of drivers on request, around any backend, for tests.
//!
//! Such a driver accepts part of a batch, reports a full queue, refuses for good, returns
//! completions late, or fails to poll. [`Faults`] wraps queue pairs, completion queues, shared
//! receive queues, or whole devices of endpoints into [`Faulty`] ones, which are affected by
//! injected faults. The wrapped objects may be real verbs or the software NIC.
//!
//! Faults of devices and links (lost links, silence, lost acknowledgements, receivers that are not
//! ready, a device that goes away) are in the software NIC: see [`polyrail::nic::Fault`].
//!
//! # Example
//!
//! A driver whose queue is full, and which then accepts one request of a batch, only costs time:
//!
//! ```
//! use polyrail::endpoint::{Endpoint, EndpointBuilder, connect_endpoints};
//! use polyrail::hardware::Refusal;
//! use polyrail::memory::RegisteredBuffer;
//! use polyrail::nic::{CompletionQueue, DeviceConfig, Fabric, QueuePair};
//! use polyrail::verbs::{AccessFlags, SendWr};
//! use polyrail_faults::{DriverFault, Faults, Faulty, WorkQueue};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! const LENGTH: u32 = 1 << 20;
//! let fabric = Fabric::threaded();
//! let here = fabric.create_device(DeviceConfig::named("here")).alloc_pd()?;
//! let there = fabric.create_device(DeviceConfig::named("there")).alloc_pd()?;
//!
//! type FaultyEndpoint = Endpoint<Faulty<QueuePair>, Faulty<CompletionQueue>>;
//! let faults = Faults::new();
//! let faulty = faults.domain(here.clone());
//! let sound = Faults::new().domain(there.clone());
//! let mut sender: FaultyEndpoint = EndpointBuilder::new().rails(2).build(&[&faulty])?;
//! let mut receiver: FaultyEndpoint = EndpointBuilder::new().rails(2).build(&[&sound])?;
//! connect_endpoints(&mut sender, &mut receiver)?;
//!
//! let writable = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
//! let from = RegisteredBuffer::new(LENGTH as usize, AccessFlags::empty(), &[&here])?;
//! let to = RegisteredBuffer::new(LENGTH as usize, writable, &[&there])?;
//! from.write_at(0, &[7; LENGTH as usize])?;
//!
//! let queue = WorkQueue::Send;
//! let refusal = Refusal::QueueFull;
//! faults.inject(DriverFault::QueueFull { queue, commits: 2 });
//! faults.inject(DriverFault::AcceptOnly { queue, nth_batch: 0, requests: 1, refusal });
//! let keys = from.toward(&to.remote())?;
//! sender.post_send(&SendWr::write(1, from.local(0, LENGTH)?, to.addr(), &keys))?;
//! let done = loop {
//!     if let Some(done) = sender.poll(16).completions.pop() {
//!         break done;
//!     }
//! };
//! assert!(done.status.is_success());
//! let mut last = [0];
//! to.read_at(LENGTH as usize - 1, &mut last)?;
//! assert_eq!(last, [7]);
//! # Ok(())
//! # }
//! ```
//!
//! # Where to begin
//!
//! [`DriverFault`] lists the faults, and [`Faults`] injects them into the [`Faulty`] objects that
//! it makes. [`Relay`] breaks the control connection of two processes.

// Files:
//
// `fault` lists the faults, and `Faults` (`faults`) injects them; `plan` decides which batch or
// poll a fault affects. `Faulty` (`faulty`) is the wrapper. `batch` and `queues` implement queues
// for it, and `completion_queue` completion queues, whose completions are held back in `late` for
// queue pairs on the `roster`. `domain` implements a device of endpoints.
//
// `Relay` (`relay`) breaks the control connection of two processes.

mod batch;
mod completion_queue;
mod domain;
mod fault;
mod faults;
mod faulty;
mod late;
mod plan;
mod queues;
mod relay;
mod roster;

pub use batch::{RecvBatch, SendBatch};
pub use fault::{DriverFault, WorkQueue};
pub use faults::Faults;
pub use faulty::Faulty;
pub use relay::Relay;
