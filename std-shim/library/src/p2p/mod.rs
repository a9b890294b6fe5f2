//! Messages between two processes, driven by the receiver: the receiver offers buffers, and the
//! sender writes to them, over one or many rails.
//!
//! This module creates everything that the engine's [`Sender`](polyrail_core::p2p::Sender) and
//! [`Receiver`](polyrail_core::p2p::Receiver) need: devices, queue pairs, shared receive queues
//! with their pools, registered memory. A [`P2pEndpoint`] has both directions of a pair, or
//! [only](P2pBuilder::only) one.
//!
//! 1. [`P2pBuilder::build`] builds it. Its [`address`](P2pMember::address) is sent to the peer as
//!    text or plain data, and [`connect`](P2pMember::connect) takes the peer's address.
//! 2. [`irecv`](P2pMember::irecv) offers up to 8 buffers. [`isend`](P2pMember::isend) sends to a
//!    buffer that the peer has offered: offers are used in order, and buffers of an offer are
//!    selected by tag.
//! 3. [`poll`](P2pEndpoint::poll) drives everything; [`test_send`](P2pMember::test_send) and
//!    [`test_recv`](P2pMember::test_recv) return whether a message is complete. Until then its
//!    buffer belongs to the endpoint.
//!
//! Backpressure is the error [`CallError::NotNow`]: nothing changed; poll and try again. With a
//! [`P2pThread`](crate::progress::messages::P2pThread), many threads send and receive without
//! polling.
//!
//! ```
//! use polyrail::memory::RegisteredBuffer;
//! use polyrail::nic::{DeviceConfig, Fabric};
//! use polyrail::p2p::{P2pBuilder, RecvBuffer, connect_endpoints};
//! use polyrail::verbs::AccessFlags;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! const BYTES: u32 = 1 << 20;
//! let fabric = Fabric::threaded();
//! let device = |name| fabric.create_device(DeviceConfig::named(name)).alloc_pd();
//! let (here, there) = ([device("here0")?, device("here1")?], [device("there0")?, device("there1")?]);
//! let (here, there) = (here.each_ref(), there.each_ref());
//!
//! let mut near = P2pBuilder::new().rails(2).build(&here)?;
//! let mut far = P2pBuilder::new().rails(2).build(&there)?;
//! connect_endpoints(&mut near, &mut far)?;
//!
//! let writable = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
//! let from = RegisteredBuffer::new(BYTES as usize, AccessFlags::empty(), &here)?;
//! let to = RegisteredBuffer::new(BYTES as usize, writable, &there)?;
//! from.write_at(0, b"hello")?;
//!
//! let (from_keys, to_keys) = (from.own_keys(), to.own_keys());
//! let offered = RecvBuffer { local: to.local(0, BYTES)?, tag: 7, keys: &to_keys };
//! let receive = far.irecv(&[offered])?;
//! let send = loop {
//!     match near.isend(from.local(0, 5)?, 7, &from_keys) {
//!         Err(error) if error.is_not_now() => {}
//!         sent => break sent?,
//!     }
//!     // The offer has not arrived yet, or its endpoint has failed.
//!     far.poll(16).check()?;
//!     assert!(far.test_recv(receive)?.is_none(), "nothing was sent");
//! };
//! while !near.test_send(send)? {
//!     near.poll(16).check()?;
//!     far.poll(16).check()?;
//! }
//! let received = loop {
//!     if let Some(received) = far.test_recv(receive)? {
//!         break received;
//!     }
//!     far.poll(16).check()?;
//! };
//! assert_eq!(received.sizes(), [5]);
//! let mut bytes = [0; 5];
//! to.read_at(0, &mut bytes)?;
//! assert_eq!(&bytes, b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! # Many peers
//!
//! A [`P2pEndpointSet`] has many members, each for one peer, on the same devices. They share a
//! completion queue and a pool of receives per device, and one poll serves all. Members can be
//! added and removed, and the failure of one does not affect the others.
//!
//! # Rails that fail
//!
//! With [`P2pBuilder::rail_failure`], chosen at both ends, no message is lost when a rail fails:
//! other rails send again what the failed rail had not delivered, once it is certain that the
//! failed rail transfers nothing more. Endpoints detect failures by completions, device events and
//! timeouts, and [repair](crate::heal::Healing) rails with new queue pairs, which they create at
//! growing intervals. If the two ends are in different processes, the program carries the repair
//! messages between them ([`HealingLink`]), over any channel that keeps their order. Nothing has to
//! be carried between endpoints of one process that [`connect_endpoints`] connected.
//! [`take_rail_event`](P2pMember::take_rail_event) returns the events.

// Files:
//
// `sizes` has the parameters of the engine's types. `builder` has the options; `make` builds
// members from them, with their queue pairs, and the resources that they share (`shared`, with its
// `pools`). `address` is the data for the peer, and `connect` connects two endpoints. `member` has
// the operations of an `endpoint` or a `set`, and `cancel` takes them back. `repair` is what `heal`
// needs to repair rails, with names for its messages in `message`. `report` keeps events
// (`rail_log`) and emits them.

mod address;
mod builder;
mod cancel;
mod connect;
mod endpoint;
mod error;
mod make;
mod member;
mod message;
mod pools;
mod rail_log;
mod repair;
mod report;
mod set;
mod shared;
mod sizes;

pub use address::{MAX_ADDRESS_BYTES, P2pAddress, P2pAddressError, QueuePairAddress};
pub use builder::P2pBuilder;
pub use connect::connect_endpoints;
pub use endpoint::P2pEndpoint;
pub use error::{NamedFailure, P2pBuildError, P2pConnectError};
pub use member::P2pMember;
pub use message::{
    End, EndControl, HealingLink, HealingMessage, NotHandled, QueuePairId, ReplacementAddress,
};
pub use polyrail_core::p2p::{
    CallError, CancelError, EntryForm, Failure, FlushHandle, MAX_BUFFERS, NotNow, PoolError,
    ProtocolError, Received, RecvBuffer, RecvHandle, SendHandle, SplitPolicy,
};
pub use set::{P2pEndpointSet, P2pRemoveError};
pub use sizes::{EngineReceiver, EngineSender, P2P_ROUTES, PageWords, QUEUE_PAIRS, SLOTS};
