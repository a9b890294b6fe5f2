//! Messages from any thread: one thread owns message endpoints and polls them; other threads hand
//! sends and receives to it, and get futures.
//!
//! The thread owns a [`P2pEndpointSet`], or a single [`P2pEndpoint`](crate::p2p::P2pEndpoint). Each
//! [`P2pHandle`] belongs to one member of the set. The engine refuses a message with ["not
//! now"](crate::p2p::CallError::NotNow) while the peer has offered no buffer for it, or there is no
//! room. The thread keeps such requests, in order, and tries again.
//!
//! ```
//! use futures_util::future::try_join;
//! use polyrail::memory::RegisteredBuffer;
//! use polyrail::nic::{DeviceConfig, Fabric};
//! use polyrail::p2p::{P2pBuilder, RecvBuffer, connect_endpoints};
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
//! connect_endpoints(&mut near, &mut far)?;
//! let (near, far) = (P2pThread::spawn(near)?, P2pThread::spawn(far)?);
//!
//! let writable = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
//! let from = RegisteredBuffer::new(BYTES as usize, AccessFlags::empty(), &here)?;
//! let to = RegisteredBuffer::new(BYTES as usize, writable, &there)?;
//! from.write_at(0, b"hello")?;
//!
//! let (mut sender, mut receiver) = (near.handle(0).unwrap(), far.handle(0).unwrap());
//! // The peer has offered no buffer yet: the message waits.
//! let sent = sender.isend(from.local(0, 5)?, 7, &from.own_keys())?;
//! let to_keys = to.own_keys();
//! let offered = RecvBuffer { local: to.local(0, BYTES)?, tag: 7, keys: &to_keys };
//! // Any executor will do; `wait` is for threads without one. A failure of either end is the result.
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
//! Between two processes, [`bring_up_p2p`](crate::link::bring_up_p2p) connects the two endpoints
//! over a link before the thread takes them. The example `async_messages` is a program that does
//! this.
//!
//! # When there is nothing to do
//!
//! The thread rests as [that of virtual queue pairs](super#when-there-is-nothing-to-do) does: at
//! most 50 µs at a time while requests are under way, or 10 ms if completion queues have a
//! [channel](crate::p2p::P2pBuilder::completion_channel). But while a message waits for a buffer of
//! the peer, it looks every 50 µs in any case: the peer writes its offers to memory, which wakes no
//! thread.
//!
//! # What fails
//!
//! When a member fails, its requests end with the reason as soon as no device accesses their
//! buffers any more, and later requests end at once. Members whose rails are re-routed repair them;
//! the thread's owner carries the [repair messages](crate::heal::HealingLink) of members whose
//! peers are in other processes. When a completion queue breaks ([`P2pHandle::queue_error`]),
//! members that are not re-routed fail. Requests whose buffers devices have not returned a second
//! later end as [`P2pError::Abandoned`].
//!
//! # Memory
//!
//! A handle allocates when it is made, and for device keys that are not among the 16 sets that it
//! used last for that kind of request. No other step of a request allocates, on any thread, except
//! that a thread's first wait makes its waker.

// Files:
//
// `handle` is the producer's view, with a lane for each kind of `request`. `port` is the thread's
// side of a handle, with a desk for each kind. `members` are what the loop drives. `thread` is the
// owner's view, and `mailbox` holds what the thread and its owner exchange.

mod handle;
mod mailbox;
mod members;
mod port;
mod request;
mod thread;

pub use handle::{P2pHandle, PendingDone, PendingRecv};
pub use mailbox::MemberEvent;
pub use request::P2pError;
pub use thread::P2pThread;

#[cfg(doc)]
use crate::p2p::P2pEndpointSet;
