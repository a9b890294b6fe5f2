//! Messages between two processes over 1 to 8 rails, driven by the receiver: irecv, isend, test.
//!
//! A [`Receiver`] offers buffers by writing entries into the memory of its [`Sender`]. The sender
//! takes the next one when it has something to send, splits the message over the rails that are in
//! service and have credits, and writes it straight into the buffer; each rail that carries a part
//! ends with an immediate. The first immediate tells the receiver which rails will bring one; when
//! all have come, it knows the exact size. A rail that carries nothing gets nothing: no packet, no
//! receive, no completion.
//!
//! A connection goes one way; two make a pair. Both its ends are targets of a
//! [`VirtualCq`](crate::virtual_cq::VirtualCq), beside virtual queue pairs: one poll serves all.
//!
//! # Example
//!
//! Two ends in one process, over one rail; `core/examples/messages` is the whole program, over two.
//!
//! ```
//! # #[path = "../../examples/messages/backend.rs"]
//! # mod backend;
//! # use backend::Loopback;
//! # use polyrail_core::hardware::CqId;
//! use polyrail_core::p2p::{
//!     Pool, Receiver, ReceiverConfig, RecvBuffer, Region, Sender, SenderConfig,
//! };
//! use polyrail_core::verbs::{DeviceId, DeviceKeys, LocalBuffer};
//! use polyrail_core::virtual_cq::VirtualCq;
//! # use std::sync::atomic::AtomicU64;
//! # #[repr(align(64))]
//! # struct Words([AtomicU64; 1024]);
//! # impl Words {
//! #     fn leaked() -> &'static [AtomicU64] {
//! #         &Box::leak(Box::new(Self([const { AtomicU64::new(7) }; 1024]))).0
//! #     }
//! # }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let (near, far) = (DeviceId(0), DeviceId(1));
//! # let (ring, records, source, target) =
//! #     (Words::leaked(), Words::leaked(), Words::leaked(), Words::leaked());
//! # let loopback = Loopback::default();
//! # let keys = [(near, ring), (far, records), (near, source), (far, target)].map(|(device, words)| {
//! #     let key = loopback.register(words);
//! #     [DeviceKeys { device, lkey: key, rkey: key }]
//! # });
//! # let [ring_keys, records_keys, source_keys, target_keys] = &keys;
//! # let [near_qp, far_qp] = loopback.connect([near, far]);
//! # let mut near_cq = VirtualCq::<_, 1, 4>::new([loopback.cq(near)])?;
//! # let mut far_cq = VirtualCq::<_, 1, 4>::new([loopback.cq(far)])?;
//! # let srq = loopback.srq(far);
//! // SAFETY: the words live to the end, registered, and nobody else uses them.
//! let (ring, records) = unsafe {
//!     (Region::new(ring, *ring_keys)?, Region::new(records, *records_keys)?)
//! };
//! // Room for 1 queue pair with 64 requests in flight, 8 messages under way.
//! let mut sender = Sender::<_, _, 1, 64, 8>::new(SenderConfig::default(), [near_qp], ring)?;
//!
//! // The receives of all connections of a device are a pool; each connection has an account.
//! let mut pool = Pool::new(far, 64);
//! far_cq.set_aside(CqId(1), 64)?;
//! let account = pool.open(srq, 16)?;
//! let config = ReceiverConfig::default();
//! let mut receiver = Receiver::<_, _, _, 1, 64, 8>::new(config, [far_qp], [], [account], records)?;
//!
//! // The ends exchange their cards, over whatever link there is.
//! sender.connect(&receiver.card())?;
//! receiver.connect(&sender.card())?;
//! near_cq.attach(0, &sender)?;
//! far_cq.attach(0, &receiver)?;
//!
//! // SAFETY: the buffers live to the end, and nobody looks at them before their requests are done.
//! let (from, to) = unsafe {
//!     let addr = |words: &[AtomicU64]| words.as_ptr().addr() as u64;
//!     (LocalBuffer::new(addr(source), 1000), LocalBuffer::new(addr(target), 4096))
//! };
//! let recv = receiver.irecv(&[RecvBuffer { local: to, tag: 0, keys: target_keys }])?;
//! let send = sender.isend(from, 0, source_keys)?;
//! let received = loop {
//!     let polled = far_cq.poll(&mut receiver, 32, |_| {});
//!     assert_eq!(polled.error, None);
//!     if let Some(received) = receiver.test(recv)? {
//!         break received;
//!     }
//! };
//! assert_eq!(received.sizes(), [1000]);
//! while !sender.test(send)? {
//!     let polled = near_cq.poll(&mut sender, 32, |_| {});
//!     assert_eq!(polled.error, None);
//! }
//! # Ok(())
//! # }
//! ```

// Files:
//
// `immediate`, `entry`, `record`, `mask`, `card` and `error` are plain values; `entry` also
// explains how to read memory that a NIC writes. `split` divides messages among rails. `memory` is
// the memory that devices access, and `pool` the receives that connections share. `lane` is one
// queue pair with the requests in flight on it, `draining` its end, and `lanes` the list of the
// queue pairs of one end. `control` has the control messages, and the owner's calls when queue
// pairs fail and return. `sender` and `receiver` are the ends, with one file for each step of a
// message.

mod cancel;
mod card;
mod control;
mod draining;
pub(crate) mod entry;
mod error;
mod immediate;
mod lane;
mod lanes;
mod mask;
mod memory;
mod pool;
mod receiver;
mod record;
mod sender;
mod split;

pub use cancel::{CANCEL_VERSION, CancelError};
pub use card::{Ports, ReceiverCard, RemoteMemory, SenderCard};
pub use control::{ConnectionEnd, Control};
pub use entry::{ENTRY_BYTES, Entry, EntryError, EntryForm, MAX_BUFFERS};
pub use error::{BuildError, CallError, CardError, Failure, NotNow, ProtocolError};
pub use immediate::{ImmLayout, Immediate, MAX_SLOTS, SIZE_UNIT, Told};
pub use mask::Mask;
pub use memory::{Region, TooManyKeys, Words};
pub use pool::{Account, ForeignAccount, POOL_WR_ID, Pool, PoolError};
pub use receiver::{FlushHandle, Received, Receiver, ReceiverConfig, RecvBuffer, RecvHandle};
pub use record::{RECORD_BYTES, RecordError};
pub use sender::{SendHandle, Sender, SenderConfig};
pub use split::{Parts, SplitPolicy};
