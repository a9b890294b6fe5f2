//! The software NIC with one thread and with several: small WRITEs, each of which notifies its
//! receiver.
//!
//! One thread polls both ends; two threads poll one each; and two progress threads do so for
//! producers that hand requests over and wait for them. They take turns, for as many processors as
//! the machine has.

use crate::measure::{Figures, Timed, measure_in_turns};
use crate::processors::elsewhere;
use crate::rings::{Pushed, Rings};
use crate::workload::OUTSTANDING;
use polyrail::backend::{Connect, Domain};
use polyrail::endpoint::{Endpoint, EndpointBuilder, connect_endpoints};
use polyrail::memory::RegisteredBuffer;
use polyrail::nic::{DeviceConfig, Fabric, ProtectionDomain};
use polyrail::progress::{Handle, Pending, ProgressThread, SubmitError};
use polyrail_core::hardware::CompletionQueue;
use polyrail_core::verbs::{AccessFlags, DeviceKeys, LocalBuffer, RecvWr, SendWr};
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::yield_now;
use std::time::Instant;

/// The name of the rows.
pub const NAME: &str = "software_nic";

/// Bytes of a request.
pub const LENGTH: u32 = 256;

/// Requests under way.
const WINDOW: usize = 64;

/// Requests of one round.
const ROUND: usize = 256;

/// The kind of requests of a row.
#[derive(Clone, Debug)]
struct Route {
    from: LocalBuffer,
    to: u64,
    keys: Vec<DeviceKeys>,
}

impl Route {
    fn wr(&self) -> SendWr<'_> {
        SendWr::write_with_imm(1, self.from, self.to, 7, &self.keys)
    }
}

/// Both ends, connected.
pub(crate) struct Ends<D: Domain = ProtectionDomain> {
    near: Endpoint<D::Qp, D::Cq>,
    far: Endpoint<D::Qp, D::Cq>,
    route: Route,
    _memory: [RegisteredBuffer<D::Region>; 2],
}

impl Ends {
    fn new(rails: usize) -> Self {
        Self::between(domains(), rails)
    }
}

/// Of two devices of one fabric.
pub(crate) fn domains() -> [ProtectionDomain; 2] {
    let fabric = Fabric::threaded();
    ["near", "far"].map(|name| {
        fabric.create_device(DeviceConfig::named(name)).alloc_pd().expect("a new device")
    })
}

impl<D: Domain> Ends<D> {
    fn between(domains: [D; 2], rails: usize) -> Self {
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let memory = domains.each_ref().map(|domain| {
            RegisteredBuffer::new(LENGTH as usize, access, &[domain]).expect("memory")
        });
        let keys = memory[0].toward(&memory[1].remote()).expect("one device at each end");
        let from = memory[0].local(0, LENGTH).expect("all of it");
        let route = Route { from, to: memory[1].addr(), keys };
        let builder = EndpointBuilder::new().rails(rails);
        let [mut near, mut far] =
            domains.each_ref().map(|domain| builder.build(&[domain]).expect("a new device"));
        connect_endpoints(&mut near, &mut far).expect("devices of one fabric");
        Self { near, far, route, _memory: memory }
    }

    /// The same, with receives for a whole window.
    pub(crate) fn ready(domains: [D; 2], rails: usize) -> Self {
        let mut ends = Self::between(domains, rails);
        (0..WINDOW).for_each(|_| receive(&mut ends.far));
        ends
    }

    /// Carries this many requests, until both ends have reported all of them.
    pub(crate) fn carry(&mut self, count: usize) {
        let Self { near, far, route, .. } = self;
        let [mut sent, mut taken] = [(); 2].map(|()| Progress::default());
        while sent.done < count || taken.done < count {
            sent.send(near, route, count);
            taken.take(far);
        }
    }
}

fn receive<Q: Connect, C: CompletionQueue>(far: &mut Endpoint<Q, C>) {
    far.post_recv(&RecvWr::notification(1)).expect("there is room for the window");
}

/// Completions of a poll, all of which are successes.
fn poll<Q: Connect, C: CompletionQueue>(endpoint: &mut Endpoint<Q, C>) -> usize {
    let polled = endpoint.poll_with(WINDOW, |event| {
        assert!(event.completion().is_some_and(|wc| wc.status.is_success()));
    });
    assert_eq!(polled.error, None);
    polled.events
}

/// Sends this many requests, without waiting for the other end.
#[derive(Debug, Default)]
struct Progress {
    posted: usize,
    done: usize,
}

impl Progress {
    fn send<Q: Connect, C: CompletionQueue>(
        &mut self,
        near: &mut Endpoint<Q, C>,
        route: &Route,
        count: usize,
    ) -> usize {
        while self.posted < count && self.posted - self.done < WINDOW {
            near.post_send(&route.wr()).expect("there is room for the window");
            self.posted += 1;
        }
        let done = poll(near);
        self.done += done;
        done
    }

    /// Takes notifications, and makes room for more.
    fn take<Q: Connect, C: CompletionQueue>(&mut self, far: &mut Endpoint<Q, C>) -> usize {
        let came = poll(far);
        (0..came).for_each(|_| receive(far));
        self.done += came;
        came
    }
}

fn rings() -> Timed {
    let mut rings = Rings::new(Pushed::InChunks);
    let bursts = (ROUND / OUTSTANDING) as u32;
    Box::new(move |rounds| rings.turn(rounds * bursts))
}

fn one_thread(rails: usize) -> Timed {
    let mut ends = Ends::ready(domains(), rails);
    Box::new(move |rounds| {
        let start = Instant::now();
        ends.carry(rounds as usize * ROUND);
        start.elapsed()
    })
}

/// Polls as long as there is something, and yields the processor after polls that brought nothing.
fn until(count: usize, mut progress: impl FnMut() -> (usize, usize)) {
    const TRIES: u32 = 64;
    let mut idle = 0;
    loop {
        let (done, news) = progress();
        if done >= count {
            return;
        }
        idle = if news > 0 { 0 } else { idle + 1 };
        if idle > TRIES {
            yield_now();
        } else if idle > 0 {
            std::hint::spin_loop();
        }
    }
}

/// Starts a thread that receives as many notifications as requested.
fn receiver(mut far: Endpoint) -> (Sender<usize>, Receiver<()>) {
    let (counts, told) = channel();
    let (says, done) = channel();
    let receives = move || {
        while let Ok(count) = told.recv() {
            let mut taken = Progress::default();
            until(count, || {
                let came = taken.take(&mut far);
                (taken.done, came)
            });
            if says.send(()).is_err() {
                return;
            }
        }
    };
    elsewhere(|| std::thread::spawn(receives));
    (counts, done)
}

fn two_threads(rails: usize) -> Timed {
    let Ends { mut near, far, route, _memory } = Ends::ready(domains(), rails);
    let (counts, done) = receiver(far);
    Box::new(move |rounds| {
        let _kept = &_memory;
        let count = rounds as usize * ROUND;
        let mut sent = Progress::default();
        counts.send(count).expect("the receiver waits");
        let start = Instant::now();
        until(count, || {
            let done = sent.send(&mut near, &route, count);
            (sent.done, done)
        });
        done.recv().expect("the receiver goes on");
        start.elapsed()
    })
}

/// Requests that were handed over and not waited for.
#[derive(Debug, Default)]
struct Window(VecDeque<Pending>);

impl Window {
    /// Hands one over, if there is room, or waits for the oldest.
    fn next(&mut self, mut post: impl FnMut() -> Result<Pending, SubmitError>) -> bool {
        if self.0.len() < WINDOW {
            match post() {
                Ok(pending) => {
                    self.0.push_back(pending);
                    return true;
                }
                Err(SubmitError::Full) => {}
                Err(error) => panic!("{error}"),
            }
        }
        self.finish_one();
        false
    }

    fn finish_one(&mut self) {
        if let Some(pending) = self.0.pop_front() {
            assert!(pending.wait().is_ok_and(|wc| wc.status.is_success()));
        }
    }
}

fn handles(rails: usize) -> Timed {
    let Ends { near, far, route, _memory } = Ends::new(rails);
    let threads = [near, far].map(|end| ProgressThread::spawn(end).expect("a thread"));
    let [mut sends, mut receives]: [Handle; 2] =
        threads.each_ref().map(|thread| thread.handle(0).expect("its only one"));
    let [mut sent, mut notified] = [(); 2].map(|()| Window::default());
    Box::new(move |rounds| {
        let _kept = (&_memory, &threads);
        let count = rounds as usize * ROUND;
        let start = Instant::now();
        let mut posted = 0;
        while posted < count {
            while notified.0.len() < WINDOW {
                notified.next(|| receives.post_recv(&RecvWr::notification(1)));
            }
            if sent.next(|| sends.post_send(&route.wr())) {
                posted += 1;
            } else {
                // It was notified before.
                notified.finish_one();
            }
        }
        while !sent.0.is_empty() {
            sent.finish_one();
            notified.finish_one();
        }
        start.elapsed()
    })
}

/// Nanoseconds a request, of each way.
#[derive(Clone, Copy, Debug)]
pub struct Ways {
    /// Rails of the virtual queue pair.
    pub rails: usize,
    /// One thread polls both ends.
    pub one_thread: Figures,
    /// A thread for each end.
    pub two_threads: Figures,
    /// Between the same two processors, requests and reports by bare rings: how fast they reach
    /// each other.
    pub rings: Figures,
    /// Two progress threads and a producer.
    pub handles: Figures,
}

/// Measures all.
///
/// # Panics
///
/// If the system gives no threads or memory.
pub fn measure(repeats: u32, allocations: fn() -> u64) -> Vec<Ways> {
    let ways = |rails| {
        let polled = move || {
            let contenders = [one_thread(rails), two_threads(rails), rings()];
            measure_in_turns(contenders, ROUND, repeats, allocations)
        };
        // On a separate thread, which stays on a processor. The system schedules the three threads.
        let measuring = std::thread::spawn(polled);
        let [one_thread, two_threads, rings] = measuring.join().expect("requests succeed");
        let [handles] = measure_in_turns([handles(rails)], ROUND, repeats, allocations);
        Ways { rails, one_thread, two_threads, rings, handles }
    };
    [1, 4].map(ways).into()
}
