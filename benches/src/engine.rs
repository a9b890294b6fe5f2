//! The engine at the rows' work: the real [`VirtualQp`] and [`VirtualCq`] on the null device.

mod messages;

pub use messages::Messages;

use crate::arrivals::REQUESTS;
use crate::polled::Polled;
use crate::rig::Rig;
use crate::workload::{
    BUFFERS, DEPTH, DEVICE, FRAGMENT, Message, OUTSTANDING, POLL, RAILS, Reported, SMALL, TOGETHER,
    keys, messages,
};
use heapless::Vec as Fixed;
use polyrail_core::hardware::{CompletionQueue, QueuePair};
use polyrail_core::verbs::{DeviceKeys, LocalBuffer, LocalPart, RecvWr, SendWr};
use polyrail_core::virtual_cq::{Event, TargetSet, VirtualCq};
use polyrail_core::virtual_qp::{Config, RailFailure, Scheme, VirtualQp};

/// Unreported requests that a virtual queue pair holds.
pub const WRS: usize = 256;

/// Depth of the many small virtual queue pairs, and requests that they hold: the smallest values,
/// as neither is used with one rail.
pub const SMALL_DEPTH: usize = 8;

/// The virtual queue pair of the many-rail rows.
pub type StripedQp<Q> = VirtualQp<Q, RAILS, DEPTH, WRS>;

/// One of the many small virtual queue pairs.
pub type SmallQp<Q> = VirtualQp<Q, 1, SMALL_DEPTH, SMALL_DEPTH>;

/// Returns the configuration of virtual queue pairs with several rails.
fn config(virtual_qp_num: u32, scheme: Scheme) -> Config {
    Config {
        virtual_qp_num,
        scheme,
        max_msg_size: FRAGMENT,
        max_msgs_per_qp: DEPTH as u32,
        ..Config::default()
    }
}

/// A virtual queue pair over all rails of `rig`, and a completion queue that it is attached to.
///
/// # Panics
///
/// If they do not fit each other: the rig is for another row.
pub fn connect<Q, C, const RAILS: usize>(
    rig: Rig<Q, C>,
    scheme: Scheme,
) -> (Box<VirtualQp<Q, RAILS, DEPTH, WRS>>, Box<VirtualCq<C, 1, 64>>)
where
    Q: QueuePair,
    C: CompletionQueue,
{
    connect_as(rig, config(1, scheme))
}

fn rerouting(scheme: Scheme) -> Config {
    Config { rail_failure: RailFailure::Reroute, ..config(1, scheme) }
}

fn connect_as<Q, C, const RAILS: usize>(
    rig: Rig<Q, C>,
    config: Config,
) -> (Box<VirtualQp<Q, RAILS, DEPTH, WRS>>, Box<VirtualCq<C, 1, 64>>)
where
    Q: QueuePair,
    C: CompletionQueue,
{
    let qp = VirtualQp::new(config, rig.rails, rig.notify).expect("a sound rig");
    let mut cq = VirtualCq::new([rig.cq]).expect("one completion queue");
    cq.attach(0, &qp).expect("a deep completion queue");
    (Box::new(qp), Box::new(cq))
}

#[inline]
fn note(reported: &mut Reported, event: Event) {
    match event {
        Event::Completion(wc) => reported.note(wc.wr_id, wc.status),
        Event::Foreign { .. } => panic!("every queue pair is attached"),
    }
}

/// Polls until `count` requests are reported.
#[inline]
fn poll<C: CompletionQueue, const ROUTES: usize>(
    cq: &mut VirtualCq<C, 1, ROUTES>,
    qps: &mut (impl TargetSet + ?Sized),
    count: usize,
) -> Reported {
    let mut reported = Reported::default();
    while reported.count() < count {
        let polled = cq.poll(qps, POLL, |event| note(&mut reported, event));
        debug_assert!(polled.error.is_none());
    }
    reported
}

/// A sending virtual queue pair and its requests.
#[derive(Debug)]
pub struct Sender<Q, C, const RAILS: usize> {
    qp: Box<VirtualQp<Q, RAILS, DEPTH, WRS>>,
    cq: Box<VirtualCq<C, 1, 64>>,
    messages: Vec<Message>,
    keys: Vec<DeviceKeys>,
    /// Completions of a burst, for [`feed`](Self::feed).
    polled: Polled,
}

impl<Q: QueuePair, C: CompletionQueue, const RAILS: usize> Sender<Q, C, RAILS> {
    /// Over all rails of `rig`, for requests of `length` bytes.
    pub fn new(rig: Rig<Q, C>, scheme: Scheme, length: u32) -> Self {
        Self::of(connect(rig, scheme), length)
    }

    /// The same, with rails that others take over for.
    pub fn rerouting(rig: Rig<Q, C>, scheme: Scheme, length: u32) -> Self {
        Self::of(connect_as(rig, rerouting(scheme)), length)
    }

    fn of(
        (qp, cq): (Box<VirtualQp<Q, RAILS, DEPTH, WRS>>, Box<VirtualCq<C, 1, 64>>),
        length: u32,
    ) -> Self {
        Self { qp, cq, messages: messages(length), keys: keys(), polled: Polled::new() }
    }

    /// Posts the burst as writes.
    #[inline(never)]
    pub fn post_writes(&mut self) {
        for message in &self.messages {
            let Message { wr_id, local, remote_addr } = *message;
            let wr = SendWr::write(wr_id, local, remote_addr, &self.keys);
            self.qp.post_send(&wr).expect("there is room for a burst");
        }
    }

    /// Posts the burst as writes with immediate.
    #[inline(never)]
    pub fn post_writes_with_imm(&mut self) {
        for message in &self.messages {
            let Message { wr_id, local, remote_addr } = *message;
            let wr = SendWr::write_with_imm(wr_id, local, remote_addr, message.imm(), &self.keys);
            self.qp.post_send(&wr).expect("there is room for a burst");
        }
    }

    /// Posts the burst as SENDs.
    #[inline(never)]
    pub fn post_sends(&mut self) {
        for message in &self.messages {
            let wr = SendWr::send(message.wr_id, message.local, &self.keys);
            self.qp.post_send(&wr).expect("there is room for a burst");
        }
    }

    /// Posts the burst as writes, each from a list of buffers.
    #[inline(never)]
    pub fn post_lists(&mut self, buffers: u32) {
        for message in &self.messages {
            let Message { wr_id, local, remote_addr } = *message;
            let step = local.length() / buffers;
            let mut parts = Fixed::<_, { BUFFERS as usize }>::new();
            for at in 0..buffers {
                let local = message.part(at * step, step);
                parts.push(LocalPart { local, keys: &self.keys }).expect("no more than `BUFFERS`");
            }
            let wr = SendWr::write(wr_id, LocalBuffer::EMPTY, remote_addr, &self.keys);
            self.qp.post_list(&wr, &parts).expect("there is room for a burst");
        }
    }

    /// Posts the burst as writes, with several requests in each call.
    #[inline(never)]
    pub fn post_together(&mut self, together: usize) {
        for messages in self.messages.chunks(together) {
            let mut wrs = Fixed::<_, TOGETHER>::new();
            for message in messages {
                let Message { wr_id, local, remote_addr } = *message;
                let wr = SendWr::write(wr_id, local, remote_addr, &self.keys);
                wrs.push(wr).expect("no more than `TOGETHER`");
            }
            self.qp.post_many(&wrs).expect("there is room for a burst");
        }
    }

    /// Polls until the burst is reported.
    #[inline(never)]
    pub fn poll(&mut self) -> Reported {
        poll(&mut self.cq, &mut *self.qp, self.messages.len())
    }

    /// Polls the first completion queue alone until the burst is reported.
    #[inline(never)]
    pub fn poll_cq(&mut self) -> Reported {
        let mut reported = Reported::default();
        while reported.count() < self.messages.len() {
            let sink = |event| note(&mut reported, event);
            let polled = self.cq.poll_cq(0, &mut *self.qp, POLL, sink);
            debug_assert!(polled.error.is_none());
        }
        reported
    }

    /// Polls for one event at a time until the burst is reported.
    #[inline(never)]
    pub fn poll_one(&mut self) -> Reported {
        let mut reported = Reported::default();
        while reported.count() < self.messages.len() {
            let (event, polled) = self.cq.poll_one(&mut *self.qp);
            debug_assert!(polled.error.is_none());
            if let Some(event) = event {
                note(&mut reported, event);
            }
        }
        reported
    }

    /// Posts the burst as WRITEs and polls its completions from the physical queue, to be fed.
    pub fn complete(&mut self) {
        self.post_writes();
        self.polled.refill(&mut self.cq.cqs_mut()[0]);
    }

    /// Feeds the completions that were polled.
    #[inline(never)]
    pub fn feed(&mut self) -> Reported {
        let mut reported = Reported::default();
        let sink = |event| note(&mut reported, event);
        // SAFETY: they were polled from a queue of this device, are in order, and `Polled` gives
        // them out once.
        unsafe { self.cq.feed(&mut *self.qp, DEVICE, self.polled.take(), sink) };
        reported
    }
}

/// A virtual queue pair on which numbered fragments arrive.
#[derive(Debug)]
pub struct Receiver<Q, C> {
    qp: Box<StripedQp<Q>>,
    cq: Box<VirtualCq<C, 1, 64>>,
    next_wr_id: u64,
}

impl<Q: QueuePair, C: CompletionQueue> Receiver<Q, C> {
    /// Over all rails of `rig`, with `OUTSTANDING` receives posted.
    pub fn new(rig: Rig<Q, C>) -> Self {
        Self::of(connect(rig, Scheme::Dqplb))
    }

    /// The same, with rails that others take over for.
    pub fn rerouting(rig: Rig<Q, C>) -> Self {
        Self::of(connect_as(rig, rerouting(Scheme::Dqplb)))
    }

    fn of((qp, cq): (Box<StripedQp<Q>>, Box<VirtualCq<C, 1, 64>>)) -> Self {
        let mut receiver = Self { qp, cq, next_wr_id: 0 };
        receiver.post(OUTSTANDING);
        receiver
    }

    #[inline]
    fn post(&mut self, count: usize) {
        for _ in 0..count {
            let wr = RecvWr::notification(self.next_wr_id);
            self.next_wr_id += 1;
            self.qp.post_recv(&wr).expect("there is room for a burst");
        }
    }

    /// Polls until `REQUESTS` requests have arrived, and posts as many receives again.
    #[inline(never)]
    pub fn receive(&mut self) -> Reported {
        let reported = poll(&mut self.cq, &mut *self.qp, REQUESTS);
        self.post(REQUESTS);
        reported
    }
}

/// Many small virtual queue pairs on one completion queue.
#[derive(Debug)]
pub struct Many<Q, C, const ROUTES: usize> {
    qps: Box<[SmallQp<Q>]>,
    cq: Box<VirtualCq<C, 1, ROUTES>>,
    messages: Vec<Message>,
    keys: Vec<DeviceKeys>,
    targets: Vec<u16>,
    next: usize,
}

impl<Q: QueuePair, C: CompletionQueue, const ROUTES: usize> Many<Q, C, ROUTES> {
    /// A virtual queue pair for each rail of `rig`; bursts go to `targets`, `OUTSTANDING` at a
    /// time.
    ///
    /// # Panics
    ///
    /// If `ROUTES` is too small for them.
    pub fn new(rig: Rig<Q, C>, targets: Vec<u16>) -> Self {
        let make = |(num, qp)| VirtualQp::new(config(num, Scheme::Spray), [qp], None);
        let qps: Box<[SmallQp<Q>]> =
            (1..).zip(rig.rails).map(make).collect::<Result<_, _>>().expect("a sound rig");
        let mut cq = Box::new(VirtualCq::new([rig.cq]).expect("one completion queue"));
        for (index, qp) in (0..).zip(&qps) {
            cq.attach(index, qp).expect("a deep completion queue and a large table");
        }
        Self { qps, cq, messages: messages(SMALL), keys: keys(), targets, next: 0 }
    }

    /// Post to report, each request on the next of the targets.
    #[inline(never)]
    pub fn scattered(&mut self) -> Reported {
        let targets = &self.targets[self.next..self.next + OUTSTANDING];
        for (message, target) in self.messages.iter().zip(targets) {
            let Message { wr_id, local, remote_addr } = *message;
            let wr = SendWr::write(wr_id, local, remote_addr, &self.keys);
            self.qps[*target as usize].post_send(&wr).expect("there is room for a burst");
        }
        self.next = (self.next + OUTSTANDING) % self.targets.len();
        poll(&mut self.cq, &mut *self.qps, self.messages.len())
    }
}
