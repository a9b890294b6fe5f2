//! Completion queues: where completions go, polling, which also moves data, and notifications.

use crate::clock::now;
use crate::commands::token;
use crate::device::Device;
use crate::incoming;
use crate::shared::{CqShared, DeviceShared, QpShared};
use polyrail_core::hardware::{self, CqError, CqId};
use polyrail_core::verbs::{Completion, DeviceId};
use polyrail_nic_parts::channel::CompletionChannel;
use polyrail_nic_parts::completions::{Completions, Entry, NOBODY, Notify, Owner, ReleasedSlots};
use polyrail_nic_parts::error::{NicError, errno};
use polyrail_nic_parts::event::AsyncEvent;
use polyrail_nic_parts::options::in_limits;
use polyrail_nic_parts::sync::{Apart, lock};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// Completion queue numbers are unique per process; from 2^32 on, so that they differ from those of
/// the software NIC.
static NEXT_CQ: AtomicU64 = AtomicU64::new(1 << 32);

/// Connections that one poll serves.
const AT_ONCE: usize = 16;

/// The time of the last poll, while one is under way.
pub(crate) const POLLING: u64 = u64::MAX;

/// Do not wait.
const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

impl Device {
    /// Creates a completion queue that holds exactly `capacity` completions.
    ///
    /// # Errors
    ///
    /// The capacity is 0 or over the device's limit; the system has no file descriptor left.
    pub fn create_cq(&self, capacity: u32) -> Result<CompletionQueue, NicError> {
        self.create_cq_with(capacity, None)
    }

    /// Creates a completion queue that notifies a channel of completions when it is
    /// [armed](CompletionQueue::req_notify).
    ///
    /// # Errors
    ///
    /// As [`create_cq`](Self::create_cq).
    pub fn create_cq_with_channel(
        &self,
        capacity: u32,
        channel: &CompletionChannel,
    ) -> Result<CompletionQueue, NicError> {
        self.create_cq_with(capacity, Some(channel.clone()))
    }

    fn create_cq_with(
        &self,
        capacity: u32,
        channel: Option<CompletionChannel>,
    ) -> Result<CompletionQueue, NicError> {
        self.0.process.check()?;
        in_limits("the completion queue's capacity", capacity, self.0.limits.max_cqe)?;
        let shared = CqShared::new(&self.0, capacity, channel)?;
        self.0.io.add_cq(&shared).map_err(no_descriptor)?;
        Ok(CompletionQueue { shared })
    }

    /// Creates a completion channel.
    ///
    /// # Errors
    ///
    /// The system has no file descriptor left.
    pub fn create_channel(&self) -> Result<CompletionChannel, NicError> {
        self.0.process.check()?;
        CompletionChannel::new()
    }
}

fn no_descriptor(errno: rustix::io::Errno) -> NicError {
    NicError::NoDescriptor { what: "completion queue", errno: errno.raw_os_error() }
}

impl CqShared {
    fn new(
        device: &Arc<DeviceShared>,
        capacity: u32,
        channel: Option<CompletionChannel>,
    ) -> Result<Arc<Self>, NicError> {
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(no_descriptor)?;
        let id = CqId(NEXT_CQ.fetch_add(1, Ordering::Relaxed));
        Ok(Arc::new(Self {
            id,
            device: Arc::clone(device),
            capacity: AtomicU32::new(capacity),
            inner: Apart::new(Mutex::new(Completions::new(capacity))),
            is_empty: Apart::new(AtomicBool::new(true)),
            channel,
            epoll,
            connections: Mutex::default(),
            only: AtomicU32::new(NOBODY),
            holding: Mutex::new(Vec::with_capacity(AT_ONCE)),
            has_holding: AtomicBool::new(false),
            polled_at: Apart::new(AtomicU64::new(0)),
            io_token: token(),
            io_watches: AtomicBool::new(true),
        }))
    }

    /// Attaches a work queue of `qp`, whose completions go here. Returns its owner index.
    pub(crate) fn attach(&self, qp: Weak<QpShared>, released: Arc<ReleasedSlots>) -> u32 {
        lock(&self.inner).attach(Owner { qp, released })
    }

    /// Undoes [`attach`](Self::attach). Its completions stay in the queue.
    pub(crate) fn detach(&self, owner: u32) {
        lock(&self.inner).detach(owner);
    }

    /// Adds a completion.
    pub(crate) fn push(&self, entry: Entry) {
        let mut inner = lock(&self.inner);
        if inner.overrun {
            return;
        }
        if inner.held() == self.capacity.load(Ordering::Relaxed) as usize {
            inner.overrun = true;
            self.fail_owners(&inner);
        } else if inner.show(entry)
            && let Some(channel) = &self.channel
        {
            channel.ring();
        }
        self.note_contents(&inner);
    }

    fn note_contents(&self, inner: &Completions<QpShared>) {
        let is_empty = inner.held() == 0 && !inner.overrun;
        // Written only if it changes, because polling threads have the line in their caches.
        if self.is_empty.load(Ordering::Relaxed) != is_empty {
            self.is_empty.store(is_empty, Ordering::Release);
        }
    }

    /// Moves the queue pairs of an overrun completion queue to ERR. Their failure takes effect in
    /// the I/O thread, because locks of one of them are held.
    fn fail_owners(&self, inner: &Completions<QpShared>) {
        self.device.events.push(AsyncEvent::CqError { cq: self.id });
        for owner in inner.owners.iter().flatten() {
            if let Some(qp) = owner.qp.upgrade() {
                qp.state.fail();
                qp.note_failure();
                self.device.io.finish(&qp);
            }
        }
    }

    fn owner(&self, index: u32) -> Option<Arc<QpShared>> {
        if index == NOBODY {
            return None;
        }
        let inner = lock(&self.inner);
        inner.owners.get(index as usize)?.as_ref()?.qp.upgrade()
    }

    /// Moves data of the queue pairs whose connections are ready, without waiting. `is_polled`: the
    /// caller takes what completes. Returns whether data came over the only connection, or whether
    /// any of several was ready.
    pub(crate) fn drive(&self, is_polled: bool) -> bool {
        if is_polled && let Some(has_come) = self.drive_only() {
            return has_come;
        }
        let mut events =
            [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; AT_ONCE];
        // It fails only if a signal comes.
        let ready = epoll::wait(&self.epoll, &mut events[..], Some(&NOW)).unwrap_or_default();
        for event in &events[..ready] {
            let (flags, data) = (event.flags, event.data);
            let Some(qp) = self.owner(data.u64() as u32) else { continue };
            if flags.contains(EventFlags::OUT) {
                qp.is_writable.store(true, Ordering::Release);
            }
            incoming::run(&qp);
            if is_polled {
                self.hold_acknowledgement(&qp, data.u64() as u32);
            }
            qp.send();
        }
        ready > 0
    }

    /// Reads from the only connection, without a system call before that finds out whether it is
    /// ready. Returns whether data has come; nothing if there are several connections, or if this
    /// one waits until it is writable.
    fn drive_only(&self) -> Option<bool> {
        let owner = self.only.load(Ordering::Acquire);
        let qp = self.owner(owner)?;
        if qp.is_full.load(Ordering::Relaxed) {
            return None;
        }
        let has_come = incoming::run(&qp);
        if has_come {
            self.hold_acknowledgement(&qp, owner);
            qp.send();
        }
        Some(has_come)
    }

    /// Lets the acknowledgement of one request wait until the next poll, if something completed
    /// that the owner may answer: the answer brings it. Otherwise each message of two ends that
    /// take turns needs one more frame, with a system call at both ends. The sender of several
    /// requests may wait for room to send others.
    fn hold_acknowledgement(&self, qp: &QpShared, owner: u32) {
        // While the I/O thread is notified of data, it does not look whether the owner still polls.
        if self.is_empty.load(Ordering::Acquire)
            || self.io_watches.load(Ordering::SeqCst)
            || lock(&qp.queues).responder.unacknowledged() != 1
        {
            return;
        }
        self.hold(&qp.holds_acknowledgement, owner);
    }

    /// Lets the requests that a queue pair has just posted wait until the next poll, or until
    /// enough are [gathered](QpShared::gathers).
    pub(crate) fn hold_requests(&self, qp: &QpShared) {
        self.hold(&qp.holds_requests, qp.send_owner);
    }

    fn hold(&self, holds: &AtomicBool, owner: u32) {
        if !holds.swap(true, Ordering::SeqCst) {
            lock(&self.holding).push(owner);
        }
        self.has_holding.store(true, Ordering::SeqCst);
        // The I/O thread may have taken over without seeing it.
        if self.io_watches.load(Ordering::SeqCst) {
            self.send_held();
        }
    }

    /// Sends what queue pairs hold, unless it was sent for another reason. Must be called without
    /// locks.
    pub(crate) fn send_held(&self) {
        if !self.has_holding.load(Ordering::SeqCst)
            || !self.has_holding.swap(false, Ordering::SeqCst)
        {
            return;
        }
        loop {
            let Some(owner) = lock(&self.holding).pop() else { return };
            if let Some(qp) = self.owner(owner) {
                qp.send_held();
            }
        }
    }

    /// Moves data of all queue pairs, ready or not.
    pub(crate) fn service_all(&self) {
        let owners = lock(&self.inner).owners.len();
        for qp in (0..owners).filter_map(|index| self.owner(index as u32)) {
            qp.service();
        }
    }

    /// Begins to watch the connection of a queue pair.
    fn register(&self, fd: impl AsFd, owner: u32) -> Result<(), rustix::io::Errno> {
        let mut connections = lock(&self.connections);
        epoll::add(&self.epoll, fd, EventData::new_u64(owner.into()), readable())?;
        connections.push(owner);
        self.note_only(&connections);
        Ok(())
    }

    /// Ends to watch the connection of a queue pair.
    fn unregister(&self, fd: impl AsFd, owner: u32) {
        let mut connections = lock(&self.connections);
        // It fails if it was not watched. Another queue pair may have the index by now.
        if epoll::delete(&self.epoll, fd).is_ok()
            && let Some(at) = connections.iter().position(|other| *other == owner)
        {
            connections.swap_remove(at);
            self.note_only(&connections);
        }
    }

    fn note_only(&self, connections: &[u32]) {
        let only = if let [only] = connections { *only } else { NOBODY };
        self.only.store(only, Ordering::Release);
    }
}

impl Drop for CqShared {
    fn drop(&mut self) {
        if !self.device.is_forked() {
            self.device.io.remove(&self.epoll);
        }
    }
}

fn readable() -> EventFlags {
    EventFlags::IN | EventFlags::RDHUP
}

impl QpShared {
    /// Begins to watch the connection.
    pub(crate) fn register(&self) -> Result<(), rustix::io::Errno> {
        let Some(socket) = self.socket.get() else { return Ok(()) };
        self.send_cq.register(socket, self.send_owner)?;
        if !Arc::ptr_eq(&self.send_cq, &self.recv_cq) {
            self.recv_cq.register(socket, self.recv_owner)?;
        }
        Ok(())
    }

    /// Records whether the socket is full. While it is, the send completion queue reports when it
    /// is writable. The caller holds the write half.
    pub(crate) fn set_full(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::Relaxed);
        let Some(socket) = self.socket.get() else { return };
        let flags = if is_full { readable() | EventFlags::OUT } else { readable() };
        let data = EventData::new_u64(self.send_owner.into());
        // It fails after the connection was closed.
        _ = epoll::modify(&self.send_cq.epoll, socket, data, flags);
    }

    /// Ends the connection, and no longer watches it.
    pub(crate) fn close(&self) {
        let Some(socket) = self.socket.get() else { return };
        self.send_cq.unregister(socket, self.send_owner);
        self.recv_cq.unregister(socket, self.recv_owner);
        socket.shut_down();
    }
}

/// A completion queue. It may be dropped at any time, because its queue pairs keep it alive.
#[derive(Debug)]
pub struct CompletionQueue {
    pub(crate) shared: Arc<CqShared>,
}

impl CompletionQueue {
    /// Requests a notification of the next completion (`ibv_req_notify_cq`): of any completion, or
    /// of the next solicited or failed one. A request for any completion takes precedence over one
    /// for solicited completions.
    pub fn req_notify(&mut self, solicited_only: bool) {
        let cq = &self.shared;
        if cq.device.is_forked() {
            return;
        }
        {
            let mut inner = lock(&cq.inner);
            if !solicited_only {
                inner.armed = Some(Notify::Any);
            } else if inner.armed.is_none() {
                inner.armed = Some(Notify::Solicited);
            }
        }
        // From now on, the I/O thread moves the data.
        cq.polled_at.store(0, Ordering::Release);
        cq.device.io.watch_cq(cq);
        cq.send_held();
    }

    /// Returns the channel that it notifies.
    pub fn channel(&self) -> Option<&CompletionChannel> {
        self.shared.channel.as_ref()
    }

    /// Changes its capacity to exactly `capacity` completions (`ibv_resize_cq`). Its completions
    /// stay.
    ///
    /// # Errors
    ///
    /// The capacity is 0, over the device's limit, or less than the number of its completions.
    pub fn resize(&mut self, capacity: u32) -> Result<(), NicError> {
        let device = &self.shared.device;
        device.process.check()?;
        let inner = lock(&self.shared.inner);
        let held = inner.held() as u32;
        in_limits("the completion queue's capacity", capacity, device.limits.max_cqe)?;
        if capacity < held {
            return Err(NicError::Holds { asked: capacity, held });
        }
        self.shared.capacity.store(capacity, Ordering::Relaxed);
        Ok(())
    }

    fn error(&self, errno: i32) -> CqError {
        CqError { cq: self.shared.id, device: self.shared.device.id, errno }
    }
}

// SAFETY: a completion is added after its request is executed, in the order of its queue, and is
// removed when it is polled.
unsafe impl hardware::CompletionQueue for CompletionQueue {
    fn id(&self) -> CqId {
        self.shared.id
    }

    fn device(&self) -> DeviceId {
        self.shared.device.id
    }

    fn capacity(&self) -> u32 {
        self.shared.capacity.load(Ordering::Relaxed)
    }

    /// Sends what waits for a poll. If there is no completion, this thread also moves the data that
    /// has come.
    fn poll<'o>(
        &mut self,
        out: &'o mut [MaybeUninit<Completion>],
    ) -> Result<&'o [Completion], CqError> {
        let cq = &self.shared;
        if cq.device.is_forked() {
            return Err(self.error(errno::EPERM));
        }
        cq.send_held();
        if cq.is_empty.load(Ordering::Acquire) {
            // Megabytes take longer than the I/O thread waits for the next poll. It would wake for
            // each packet, and find that this thread reads it.
            let began = now();
            cq.polled_at.store(POLLING, Ordering::Release);
            let has_come = cq.drive(true);
            cq.polled_at.store(if has_come { now() } else { began }, Ordering::Release);
            if cq.is_empty.load(Ordering::Acquire) {
                return Ok(&[]);
            }
        }
        incoming::observe_placed();
        let mut inner = lock(&cq.inner);
        if inner.overrun {
            return Err(self.error(errno::EIO));
        }
        let taken = inner.take(out);
        cq.note_contents(&inner);
        Ok(taken)
    }
}

#[cfg(test)]
mod rt_tests {
    use super::*;
    use crate::ends::{End, ends, wait};
    use crate::modify::connect_pair;
    use crate::queue_pair::QpInit;
    use polyrail_core::verbs::WcStatus;
    use polyrail_nic_parts::options::{ConnectOptions, QpCap};
    use std::time::Duration;

    #[test]
    fn a_connection_that_is_ended_again_leaves_the_next_one_of_its_index() {
        let (near, far) = ends("127.8.0.11", "127.8.0.12");
        let End { device: _device, pd, cq, qp } = near;
        let late = Arc::clone(&qp.shared);
        drop(qp);
        let pairs = [1, 2].map(|count| {
            let init = |cq| QpInit::new(cq, QpCap::default());
            let near = pd.create_qp(&init(&cq)).unwrap();
            let far = far.pd.create_qp(&init(&far.cq)).unwrap();
            connect_pair(&near, &far, &ConnectOptions::default()).unwrap();
            wait(|| lock(&cq.shared.connections).len() == count);
            (near, far)
        });
        let owners = pairs.each_ref().map(|(near, _)| near.shared.send_owner);
        assert_eq!(owners[0], late.send_owner);
        late.close();
        assert_eq!(*lock(&cq.shared.connections), owners);
        assert_eq!(cq.shared.only.load(Ordering::Acquire), NOBODY);
    }

    /// So the I/O thread leaves the queue to it.
    #[test]
    fn a_poll_that_takes_long_is_under_way_until_its_end() {
        let (mut near, mut far) = ends("127.8.0.13", "127.8.0.14");
        let (cq, qp) = (Arc::clone(&near.cq.shared), Arc::clone(&near.qp.shared));
        near.receive();
        // A poll that has read the message waits for it.
        let held = lock(&qp.queues);
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(near.complete(1), [WcStatus::SUCCESS]));
            far.send();
            let reads = || qp.read.try_lock().is_err();
            wait(|| {
                let began = reads();
                std::thread::sleep(Duration::from_millis(20));
                began && reads()
            });
            assert_eq!(cq.polled_at.load(Ordering::Acquire), POLLING);
            let late = now();
            drop(held);
            wait(|| cq.polled_at.load(Ordering::Acquire) != POLLING);
            assert!(cq.polled_at.load(Ordering::Acquire) > late);
        });
    }
}
