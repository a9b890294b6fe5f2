//! The shared state of devices and their queues. These types refer to each other, so they are
//! declared in one file; their methods are in the files with their names.
//!
//! # Locks
//!
//! Locks are always taken in this order:
//!
//! 1. how a queue pair meets its peer;
//! 2. its read half: who holds it reads the socket and places payload;
//! 3. its write half: who holds it writes to the socket;
//! 4. the memory table of the device, for reading;
//! 5. the queue pair's queues;
//! 6. a shared receive queue;
//! 7. a completion queue;
//! 8. the interfaces of a device;
//! 9. leaves: events, the registry of queue pairs, lists of queue pairs in a completion queue,
//!    commands to an I/O thread.
//!
//! Halves are held during system calls that never wait. A thread that has something to send and
//! finds the write half taken leaves it to the holder ([`Handover`]).

use crate::handover::Handover;
use crate::meeting::Meeting;
use crate::outgoing::Outgoing;
use crate::read_half::ReadHalf;
use crate::requester::Requester;
use crate::responder::Responder;
use crate::socket::{Buffers, Socket};
use polyrail_core::hardware::{CqId, QpLimits};
use polyrail_core::verbs::{AccessFlags, DeviceId};
use polyrail_nic_parts::address::MeetingKey;
use polyrail_nic_parts::channel::CompletionChannel;
use polyrail_nic_parts::completions::{Completions, ReleasedSlots};
use polyrail_nic_parts::event::AsyncEvent;
use polyrail_nic_parts::event_log::{EventCursor, EventLog};
use polyrail_nic_parts::memory::{DomainId, MemoryTable, RegionCount};
use polyrail_nic_parts::options::DeviceLimits;
use polyrail_nic_parts::recv_ring::RecvRing;
use polyrail_nic_parts::state::StateCell;
use polyrail_nic_parts::sync::Apart;
use polyrail_process::Process;
use std::collections::{BTreeMap, VecDeque};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock, RwLock, Weak};
use std::thread::JoinHandle;

/// A device, shared with its queues.
#[derive(Debug)]
pub(crate) struct DeviceShared {
    pub(crate) id: DeviceId,
    pub(crate) name: String,
    /// Name of the network interface where it was opened.
    pub(crate) interface: String,
    /// Index of that interface, which stays when it is renamed; `None` if it had gone by then.
    pub(crate) index: Option<u32>,
    /// Whether packets to other hosts can leave by that interface.
    pub(crate) leads_to_others: bool,
    /// The interfaces that had the address and carrier at the last look that found any.
    pub(crate) places: Mutex<Vec<String>>,
    pub(crate) process: Process,
    /// The address and the port of the listener.
    pub(crate) address: SocketAddr,
    /// Where peers connect. It identifies the device among all of its network.
    pub(crate) advertised: SocketAddr,
    pub(crate) listener: TcpListener,
    pub(crate) limits: DeviceLimits,
    pub(crate) memory: Apart<RwLock<MemoryTable>>,
    /// Number of memory regions.
    pub(crate) regions: RegionCount,
    pub(crate) next_domain: AtomicU32,
    pub(crate) next_qp_num: AtomicU32,
    pub(crate) qps: Mutex<BTreeMap<u32, Weak<QpShared>>>,
    pub(crate) events: EventLog<AsyncEvent>,
    /// The cursor of readers without a separate one. Locked before the events.
    pub(crate) events_read: Mutex<EventCursor>,
    /// Whether an interface has carrier and the address.
    pub(crate) has_carrier: AtomicBool,
    /// Whether the owner lets packets through: see [`crate::Device::set_link`].
    pub(crate) is_open: AtomicBool,
    pub(crate) io: Arc<IoThread>,
    /// Nanoseconds that its I/O thread looks for more before it sleeps.
    pub(crate) spin: u64,
    /// Sizes of the buffers of its connections.
    pub(crate) buffers: Buffers,
}

/// A completion queue, shared with its queue pairs.
#[derive(Debug)]
pub(crate) struct CqShared {
    pub(crate) id: CqId,
    pub(crate) device: Arc<DeviceShared>,
    /// Changed under the lock of `inner`.
    pub(crate) capacity: AtomicU32,
    pub(crate) inner: Apart<Mutex<Completions<QpShared>>>,
    /// Whether a poll would find nothing in `inner`, changed under its lock.
    pub(crate) is_empty: Apart<AtomicBool>,
    pub(crate) channel: Option<CompletionChannel>,
    /// Reports which connections of its queue pairs are readable.
    pub(crate) epoll: OwnedFd,
    /// Queue pairs that hold an [acknowledgement](QpShared::holds_acknowledgement) or
    /// [requests](QpShared::holds_requests), by their owner index.
    pub(crate) holding: Mutex<Vec<u32>>,
    pub(crate) has_holding: AtomicBool,
    /// The owner indices of the connections that [`epoll`](Self::epoll) watches.
    pub(crate) connections: Mutex<Vec<u32>>,
    /// The only one of them; [`NOBODY`](polyrail_nic_parts::completions::NOBODY) if there are none
    /// or several.
    pub(crate) only: AtomicU32,
    /// When its owner last polled, or if that moved data, when the poll ended, in nanoseconds of
    /// the process's clock; 0: the owner waits;
    /// [`POLLING`](crate::completion_queue::POLLING): it moves data now.
    pub(crate) polled_at: Apart<AtomicU64>,
    /// Its name in the I/O thread.
    pub(crate) io_token: u64,
    /// Whether the I/O thread is notified of readable connections.
    pub(crate) io_watches: AtomicBool,
}

/// A shared receive queue, shared with its queue pairs.
#[derive(Debug)]
pub(crate) struct SrqShared {
    pub(crate) device: Arc<DeviceShared>,
    pub(crate) domain: DomainId,
    pub(crate) capacity: u32,
    pub(crate) inner: Mutex<SrqInner>,
}

/// The contents of a shared receive queue.
#[derive(Debug)]
pub(crate) struct SrqInner {
    pub(crate) ring: RecvRing,
    /// Queue pairs whose peers wait for a receive.
    pub(crate) waiting: VecDeque<Weak<QpShared>>,
}

/// A queue pair, shared with its device.
#[derive(Debug)]
pub(crate) struct QpShared {
    pub(crate) me: Weak<Self>,
    pub(crate) number: u32,
    /// Its name in the I/O thread.
    pub(crate) io_token: u64,
    pub(crate) device: Arc<DeviceShared>,
    pub(crate) domain: DomainId,
    pub(crate) send_cq: Arc<CqShared>,
    pub(crate) recv_cq: Arc<CqShared>,
    pub(crate) srq: Option<Arc<SrqShared>>,
    pub(crate) sq_sig_all: bool,
    pub(crate) limits: QpLimits,
    pub(crate) key: MeetingKey,
    pub(crate) state: StateCell,
    pub(crate) released: Arc<ReleasedSlots>,
    pub(crate) send_owner: u32,
    pub(crate) recv_owner: u32,
    pub(crate) meeting: Mutex<Meeting>,
    pub(crate) socket: OnceLock<Socket>,
    pub(crate) read: Apart<Mutex<ReadHalf>>,
    pub(crate) write: Handover<Outgoing>,
    pub(crate) queues: Apart<Mutex<Queues>>,
    /// The next poll sends an acknowledgement, unless a request that is posted until then brings
    /// it.
    pub(crate) holds_acknowledgement: AtomicBool,
    /// The next poll sends the requests that were posted last, unless another reason to send comes
    /// before.
    pub(crate) holds_requests: AtomicBool,
    /// The socket is full: the next attempt is made when it is writable. Changed under the lock of
    /// the write half.
    pub(crate) is_full: AtomicBool,
    /// The socket was found writable.
    pub(crate) is_writable: AtomicBool,
    /// The last frame was made: sending ends after it.
    pub(crate) ends_sending: AtomicBool,
    /// What the peer sent that no peer of this version sends.
    pub(crate) protocol_error: OnceLock<&'static str>,
    /// The owner wants the connection ended, whatever is still to be sent.
    pub(crate) is_cut: AtomicBool,
    /// A failure was found that needs both halves to take effect.
    pub(crate) has_failed: AtomicBool,
    /// Whether the I/O thread watches the time of its requests.
    pub(crate) is_watched: AtomicBool,
}

/// The queues of a queue pair.
#[derive(Debug)]
pub(crate) struct Queues {
    pub(crate) requester: Requester,
    pub(crate) responder: Responder,
    /// What the peer may do.
    pub(crate) access: AccessFlags,
    /// Whether the newest frame with data was a response, so that a request is next.
    pub(crate) response_was_last: bool,
    /// Bytes of requests that were posted since frames were made last.
    pub(crate) gathered: usize,
}

/// A request to a thread.
#[derive(Debug)]
pub(crate) enum Command {
    Device(Weak<DeviceShared>, u64),
    /// A device was closed.
    Closed,
    /// The interfaces of devices have to be looked at.
    Interfaces,
    Cq(Weak<CqShared>),
    Dial(Weak<QpShared>),
    Watch(Weak<QpShared>),
    Finish(Weak<QpShared>),
    Resume,
}

/// A handle of a thread. When it is dropped, with the last of its devices, the thread ends.
#[derive(Debug)]
pub(crate) struct IoThread {
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) process: Process,
    /// Taken when the thread is waited for.
    pub(crate) thread: Option<JoinHandle<()>>,
}

/// What a thread shares with others.
#[derive(Debug)]
pub(crate) struct Inbox {
    pub(crate) epoll: OwnedFd,
    pub(crate) wake: OwnedFd,
    pub(crate) commands: Mutex<Vec<Command>>,
    pub(crate) ends: AtomicBool,
}
