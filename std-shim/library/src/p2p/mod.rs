//! Messages between two processes, receiver driven: the receiver offers buffers, the sender sends to them, over one or
//! many rails.
//!
//! What the engine's [`Sender`](polyrail_core::p2p::Sender) and [`Receiver`](polyrail_core::p2p::Receiver) need
//! is made here: devices, queue pairs, shared receive queues with their pools, registered memory. A
//! [`P2pEndpoint`] has both directions of a pair, or [only](P2pBuilder::only) one.
//!
//! 1. [`P2pBuilder::build`] makes it, its [`address`](P2pMember::address) is for the peer as text or plain data, and
//!    [`connect`](P2pMember::connect) takes the peer's.
//! 2. [`irecv`](P2pMember::irecv) offers up to 8 buffers; [`isend`](P2pMember::isend) sends one to a buffer that
//!    the peer has offered, in the order of its offers, and finds it by its tag there.
//! 3. [`poll`](P2pEndpoint::poll) drives everything; [`test_send`](P2pMember::test_send) and
//!    [`test_recv`](P2pMember::test_recv) tell what is done. A buffer is the endpoint's until they say so.
//!
//! Back-pressure is a value, [`CallError::NotNow`]: nothing changed, poll and try again. With a
//! [`P2pThread`](crate::progress::messages::P2pThread), many threads send and receive, and nobody has to.
//!
//! ```
//! use polyrail::memory::RegisteredBuffer;
//! use polyrail::nic::{DeviceConfig, Fabric};
//! use polyrail::p2p::{P2pBuilder, RecvBuffer, connect_p2p_endpoints};
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
//! connect_p2p_endpoints(&mut near, &mut far)?;
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
//!     // The offer is on its way, or its endpoint has failed.
//!     far.poll(16)?;
//!     assert!(far.test_recv(receive)?.is_none(), "nothing was sent");
//! };
//! while !near.test_send(send)? {
//!     near.poll(16)?;
//!     far.poll(16)?;
//! }
//! let received = loop {
//!     if let Some(received) = far.test_recv(receive)? {
//!         break received;
//!     }
//!     far.poll(16)?;
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
//! A [`P2pEndpointSet`] has many members, each for one peer, on the same devices: they share a completion queue and a pool
//! of receives for each device, and one poll serves all. Members come and go, and one that fails costs the
//! others nothing.
//!
//! # Rails that fail
//!
//! With [`P2pBuilder::reroutes`], chosen at both ends, a rail that fails costs no message: what it had not brought is
//! sent again by others, once it is certain that the lost rail does nothing more. Endpoints learn of failures by
//! completions, by events of their devices and by silence, and make new queue pairs in the places of the old ones at growing
//! intervals. What they have to tell each other of that ([`P2pMessage`]) their owners carry, over any link that
//! keeps the order: [`next_message`](P2pMember::next_message) of one to [`hear`](P2pEndpoint::hear) of the other, after
//! every poll. [`take_event`](P2pMember::take_event) says what happened.
//!
//! # Files
//!
//! `sizes` and `words` are what the engine's types are made with; `builder` has the options, and `make` makes members of
//! them, of queue pairs from `queue_pair`, and what they share (`shared`, with its `pools`); `address` is what travels,
//! `connect` brings two together. `member` is what users call, of an `endpoint` or a `set`; `healing` is about rails that
//! fail, with what is told in `message` and remembered in `healer`; `new_queue_pairs` brings them back, and
//! `patience` is about those that come back in vain. What happens is told in `tracing`.

mod address;
mod builder;
mod connect;
mod endpoint;
mod error;
mod healer;
mod healing;
mod make;
mod member;
mod message;
mod new_queue_pairs;
mod patience;
mod pools;
mod queue_pair;
mod set;
mod shared;
mod sizes;
mod tell;
mod tracing;
mod words;

pub use address::{MAX_ADDRESS_BYTES, P2pAddress, P2pAddressError, QueuePairAddress};
pub use builder::P2pBuilder;
pub use connect::connect_p2p_endpoints;
pub use endpoint::P2pEndpoint;
pub use error::{P2pBuildError, P2pConnectError};
pub use member::P2pMember;
pub use message::{End, MAX_P2P_MESSAGE_BYTES, P2pMessage, P2pMessageError};
pub use polyrail_core::p2p::{
    CallError, EntryForm, Failure, FlushHandle, MAX_BUFFERS, NotNow, PoolError, ProtocolError,
    Received, RecvBuffer, RecvHandle, SendHandle, SplitPolicy,
};
pub use set::{P2pEndpointSet, P2pRemoveError};
pub use sizes::{EngineReceiver, EngineSender, P2P_ROUTES, QUEUE_PAIRS, SLOTS};
pub use words::PageWords;
