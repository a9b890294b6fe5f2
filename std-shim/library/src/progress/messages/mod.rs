//! Messages from any thread: one thread owns connections for messages and polls them, others hand it sends and
//! receives, and get futures.
//!
//! A [`P2pEndpointSet`] is what the thread owns, or a single
//! [`P2pEndpoint`](crate::p2p::P2pEndpoint). Each [`P2pHandle`] is for one member of it. The engine says
//! ["not now"](crate::p2p::CallError::NotNow) to a message for which the peer has offered no buffer, or for which there
//! is no room; here such requests wait with the thread, in order, and nobody has to try again.
//!
//! ```
//! use futures_util::future::try_join;
//! use polyrail::memory::RegisteredBuffer;
//! use polyrail::nic::{DeviceConfig, Fabric};
//! use polyrail::p2p::{P2pBuilder, RecvBuffer, connect_p2p_endpoints};
//! use polyrail::progress::messages::P2pThread;
//! use polyrail::verbs::AccessFlags;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! const BYTES: u32 = 1 << 20;
//! let fabric = Fabric::threaded();
//! let device = |name| fabric.create_device(DeviceConfig::named(name)).alloc_pd();
//! let (here, there) = ([device("here0")?, device("here1")?], [device("there0")?, device("there1")?]);
//! let (here, there) = (here.each_ref(), there.each_ref());
//! let mut near = P2pBuilder::new().rails(2).build(&here)?;
//! let mut far = P2pBuilder::new().rails(2).build(&there)?;
//! connect_p2p_endpoints(&mut near, &mut far)?;
//! let (near, far) = (P2pThread::spawn(near)?, P2pThread::spawn(far)?);
//!
//! let writable = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
//! let from = RegisteredBuffer::new(BYTES as usize, AccessFlags::empty(), &here)?;
//! let to = RegisteredBuffer::new(BYTES as usize, writable, &there)?;
//! from.write_at(0, b"hello")?;
//!
//! let (mut sender, mut receiver) = (near.handle(0).unwrap(), far.handle(0).unwrap());
//! // Nothing is offered yet: the message waits.
//! let sent = sender.isend(from.local(0, 5)?, 7, &from.own_keys())?;
//! let to_keys = to.own_keys();
//! let offered = RecvBuffer { local: to.local(0, BYTES)?, tag: 7, keys: &to_keys };
//! // Any executor will do; `wait` is for threads without one. Whichever end fails, it is over.
//! let (_, received) = pollster::block_on(try_join(sent, receiver.irecv(&[offered])?))?;
//! assert_eq!(received.sizes(), [5]);
//! let mut bytes = [0; 5];
//! to.read_at(0, &mut bytes)?;
//! assert_eq!(&bytes, b"hello");
//! near.shutdown()?;
//! # Ok(())
//! # }
//! ```
//!
//! # When there is nothing to do
//!
//! The thread rests as [its sibling](super#when-there-is-nothing-to-do) does: while requests are under way, it sleeps for
//! 50 µs at a time, unless completion queues were made to
//! [tell](crate::p2p::P2pBuilder::completion_channel). Then it sleeps until one does, or a handle hands something over, and
//! looks every 10 ms all the same. But for as long as a message waits for a buffer of the peer's, it looks every 50 µs in
//! any case: offers are written into memory, and nobody tells of that.
//!
//! # What fails
//!
//! When a connection fails, its requests come back with the reason as soon as no device accesses their buffers any
//! more, and what is handed over later does at once. Members whose rails are re-routed heal by themselves; the
//! thread's owner carries what they and their peers have to tell each other ([`P2pLink`]). When a completion queue
//! breaks ([`P2pHandle::queue_error`]), members that are not re-routed fail, and what devices have not given back within
//! a second comes back as [`P2pError::Abandoned`].
//!
//! # Memory
//!
//! A handle allocates when it is made, and when it is handed device keys that are not among the 16 sets it used last for
//! that kind of request. Nothing else on the way of a request allocates, on any thread; except that a thread's first
//! wait makes what it waits with.
//!
//! # Files
//!
//! `handle` is the producer's view, with a `lane` for each kind of `request`; `port` is the thread's side of a handle,
//! with a `desk` for each `kind`. `run` is the thread, `thread` and `link` are its owner's views, and `news` is what they
//! tell each other.

mod handle;
mod mailbox;
mod members;
mod port;
mod request;
mod thread;

pub use handle::{P2pHandle, PendingDone, PendingRecv};
pub use mailbox::MemberEvent;
pub use request::P2pError;
pub use thread::{P2pLink, P2pThread};

#[cfg(doc)]
use crate::p2p::P2pEndpointSet;
