//! Many peers of one process on the software NIC: the time to make, connect and close them, their
//! memory, and what posting and polling costs as more of them are active.

use crate::many::resident_bytes;
use crate::random::XorShift;
use polyrail::endpoint::{ConnectError, EndpointBuilder, EndpointSet, connect_endpoints};
use polyrail::memory::RegisteredBuffer;
use polyrail::nic::{
    CompletionQueue, DeviceConfig, DeviceLimits, Fabric, ProtectionDomain, QueuePair,
    SharedReceiveQueue,
};
use polyrail::p2p::{EngineReceiver, EngineSender};
use polyrail::verbs::{AccessFlags, DeviceKeys, SendWr};
use polyrail_core::internals::RoutingTable;
use std::error::Error;
use std::time::{Duration, Instant};

/// Rails of each peer, and devices of each end.
pub const RAILS: usize = 2;

/// Most peers: each has a route for each rail and one for its notify queue pair.
pub const MOST: usize = RoutingTable::<ROUTES>::CAPACITY / (RAILS + 1);

const ROUTES: usize = 1 << 16;

/// Bytes of a request.
pub const LENGTH: u32 = 64;

/// Requests that each figure is the mean of, at least.
pub const REQUESTS: usize = 100_000;

type Set = EndpointSet<QueuePair, CompletionQueue, ROUTES>;

/// Some of the peers are active: each round, each of them gets one request, in random order.
#[derive(Clone, Copy, Debug)]
pub struct Active {
    /// Number of active peers.
    pub peers: usize,
    /// Time of a request, from its post to its report.
    pub request_ns: f64,
    /// Time of a poll while requests are in flight.
    pub poll_ns: f64,
    /// Requests that a poll reports.
    pub reports: f64,
}

/// What many peers cost.
#[derive(Clone, Debug)]
pub struct Peers {
    /// Number of peers.
    pub count: usize,
    /// Time to make both ends of all of them.
    pub made: Duration,
    /// Time to connect all of them.
    pub connected: Duration,
    /// Time to close both ends of all of them.
    pub closed: Duration,
    /// Resident bytes of one end of one peer, its queues in the device included, once connected.
    pub resident: u64,
    /// Resident bytes of one end of one peer, once each peer was used.
    pub resident_used: u64,
    /// Time of a poll while nothing is in flight.
    pub idle_poll_ns: f64,
    /// Time of a request that is posted to a random peer when the one before it is reported.
    pub one_by_one_ns: f64,
    /// With more and more of them active.
    pub active: Vec<Active>,
}

/// Both ends of all peers.
struct Ends {
    near: Set,
    far: Set,
    memory: [RegisteredBuffer; 2],
    keys: Vec<DeviceKeys>,
}

impl Ends {
    fn make(count: usize) -> Result<Self, Box<dyn Error>> {
        let fabric = Fabric::threaded();
        // A completion queue has room for everything that can fail at once.
        let limits = DeviceLimits { max_cqe: 1 << 24, ..DeviceLimits::default() };
        let config = |name| DeviceConfig { limits, ..DeviceConfig::named(name) };
        let domain = |name: String| fabric.create_device(config(name)).alloc_pd();
        let domains = |end: &str| -> Result<Vec<ProtectionDomain>, Box<dyn Error>> {
            Ok((0..RAILS).map(|at| domain(format!("{end}{at}"))).collect::<Result<_, _>>()?)
        };
        let (near, far) = (domains("near")?, domains("far")?);
        let builder = EndpointBuilder::new().rails(RAILS);
        let set =
            |domains: &[ProtectionDomain]| Set::with_routes((0..count).map(|_| (builder, domains)));
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let buffer = |domains: &[ProtectionDomain]| RegisteredBuffer::new(4096, access, domains);
        let memory = [buffer(&near)?, buffer(&far)?];
        let keys = memory[0].toward(&memory[1].remote())?;
        Ok(Self { near: set(&near)?, far: set(&far)?, memory, keys })
    }

    fn connect(&mut self) -> Result<(), ConnectError> {
        let mut pairs = self.near.qps_mut().zip(self.far.qps_mut());
        pairs.try_for_each(|(near, far)| connect_endpoints(near, far))
    }

    fn post(&mut self, peer: usize) -> Result<(), Box<dyn Error>> {
        let [near, far] = &self.memory;
        let wr = SendWr::write(peer as u64, near.local(0, LENGTH)?, far.addr(), &self.keys);
        let qp = self.near.get_mut(peer).ok_or("no such peer")?;
        Ok(qp.post_send(&wr)?)
    }

    /// Polls once. Returns how many requests are reported.
    fn poll(&mut self) -> Result<usize, Box<dyn Error>> {
        let mut failed = None;
        let polled = self.near.poll_with(usize::MAX, |event| match event.completion() {
            Some(wc) if wc.status.is_success() => {}
            other => failed = Some(format!("{other:?}")),
        });
        match (polled.error, failed) {
            (None, None) => Ok(polled.events),
            (Some(error), _) => Err(error.into()),
            (_, Some(failed)) => Err(failed.into()),
        }
    }

    /// Polls until `requests` requests are reported. Returns how many polls that took.
    fn poll_all(&mut self, requests: usize) -> Result<usize, Box<dyn Error>> {
        let (mut reported, mut polls) = (0, 0);
        while reported < requests {
            reported += self.poll()?;
            polls += 1;
        }
        Ok(polls)
    }

    fn active(&mut self, peers: &mut [usize], requests: usize) -> Result<Active, Box<dyn Error>> {
        let mut random = XorShift::new();
        let rounds = requests.div_ceil(peers.len());
        let (mut all, mut polling, mut polls) = (Duration::ZERO, Duration::ZERO, 0);
        for _ in 0..rounds {
            (1..peers.len()).rev().for_each(|at| peers.swap(at, random.below(at + 1)));
            let start = Instant::now();
            for peer in &*peers {
                self.post(*peer)?;
            }
            let posted = Instant::now();
            polls += self.poll_all(peers.len())?;
            polling += posted.elapsed();
            all += start.elapsed();
        }
        let requests = (rounds * peers.len()) as f64;
        Ok(Active {
            peers: peers.len(),
            request_ns: nanoseconds(all) / requests,
            poll_ns: nanoseconds(polling) / polls as f64,
            reports: requests / polls as f64,
        })
    }
}

fn nanoseconds(time: Duration) -> f64 {
    time.as_nanos() as f64
}

/// Makes `count` peers, 1 to [`MOST`], connects them, uses them, and closes them. Each figure is the
/// mean of at least `requests` requests.
///
/// # Errors
///
/// A device refuses, or a request fails.
pub fn measure(count: usize, requests: usize) -> Result<Peers, Box<dyn Error>> {
    let before = resident_bytes();
    let of_one = |bytes: u64| bytes.saturating_sub(before) / (2 * count as u64);
    let start = Instant::now();
    let mut ends = Ends::make(count)?;
    let made = start.elapsed();
    let start = Instant::now();
    ends.connect()?;
    let connected = start.elapsed();
    let resident = of_one(resident_bytes());
    let start = Instant::now();
    for _ in 0..requests {
        ends.poll()?;
    }
    let idle_poll_ns = nanoseconds(start.elapsed()) / requests as f64;
    let mut random = XorShift::new();
    let start = Instant::now();
    for at in 0..requests.max(count) {
        // Each once, and then any.
        ends.post(if at < count { at } else { random.below(count) })?;
        ends.poll_all(1)?;
    }
    let one_by_one_ns = nanoseconds(start.elapsed()) / requests.max(count) as f64;
    let mut active = Vec::new();
    for peers in [1, 100, 10_000].into_iter().filter(|peers| *peers <= count) {
        // Spread over all of them, so that those of a round have no memory in common.
        let mut spread: Vec<_> = (0..peers).map(|at| at * count / peers).collect();
        active.push(ends.active(&mut spread, requests)?);
    }
    let resident_used = of_one(resident_bytes());
    let start = Instant::now();
    drop(ends);
    let closed = start.elapsed();
    Ok(Peers {
        count,
        made,
        connected,
        closed,
        resident,
        resident_used,
        idle_poll_ns,
        one_by_one_ns,
        active,
    })
}

/// The memory of one end of a peer that messages are exchanged with.
#[derive(Clone, Copy, Debug)]
pub struct MessageEnd {
    /// Which end.
    pub name: &'static str,
    /// Bytes registered with its devices: entries, records, scratch words.
    pub registered: usize,
    /// Bytes of the engine's state.
    pub state: usize,
}

type Sender = EngineSender<QueuePair>;
type Receiver = EngineReceiver<QueuePair, SharedReceiveQueue>;

/// The two ends.
pub const MESSAGE_ENDS: [MessageEnd; 2] = [
    MessageEnd {
        name: "sender",
        registered: Sender::REGION_WORDS * size_of::<u64>(),
        state: size_of::<Sender>(),
    },
    MessageEnd {
        name: "receiver",
        registered: Receiver::REGION_WORDS * size_of::<u64>(),
        state: size_of::<Receiver>(),
    },
];
