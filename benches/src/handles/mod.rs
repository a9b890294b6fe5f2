//! The cost of a progress thread: requests through a handle, compared with direct posts, on the
//! null device.
//!
//! Contenders take turns, so that other load of the machine affects them equally. With a handle,
//! two threads do the work of one, so the figures mean little on a machine with fewer processors or
//! other load.

mod device;

use crate::measure::{Figures, Timed, as_printed, measure_in_turns};
use crate::null::{NullCq, NullQp};
use crate::processors::{GO_IDLE, elsewhere};
use crate::rings::{Pushed, Rings};
use crate::workload::{FRAGMENT, FRAGMENTS, Message, OUTSTANDING, POLL, SMALL, keys, messages};
use arrayvec::ArrayVec;
use device::{Controls, Device, Movable};
use hdrhistogram::Histogram;
use polyrail::endpoint::{Endpoint, EndpointBuilder, connect_endpoints};
use polyrail::progress::{HANDLE_DEPTH, Handle, Pending, ProgressThread, SubmitError};
use polyrail_core::verbs::{DeviceKeys, SendWr};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use std::collections::VecDeque;
use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{JoinHandle, sleep, yield_now};
use std::time::{Duration, Instant};

/// The name of the rows.
pub const NAME: &str = "handles";

/// Through a handle at least this part of the direct rate.
pub const RATE_LIMIT: f64 = 0.5;

/// Alternative limit, as a multiple of the least that two threads could do. Work that costs less
/// than the rings themselves cannot be handed over at half its rate.
pub const LEAST_LIMIT: f64 = 3.0;

/// Limit for the time from handle to doorbell, in nanoseconds more than a direct post.
pub const DOORBELL_LIMIT_NS: f64 = 500.0;

/// How often each way to a doorbell is timed, and each wake-up.
const DOORBELLS: usize = 2000;
const WAKES: usize = 200;

/// Long enough for a thread to fall asleep after it has announced that.
const FALL_ASLEEP: Duration = Duration::from_micros(300);

type NullEndpoint = Endpoint<Movable<NullQp>, Movable<NullCq>>;

/// A virtual queue pair on a separate null device, and its requests.
#[derive(Debug)]
struct End {
    endpoint: NullEndpoint,
    controls: Arc<Controls>,
    messages: Vec<Message>,
    keys: Vec<DeviceKeys>,
}

/// What requests a row has.
#[derive(Clone, Copy, Debug)]
struct Shape {
    rails: usize,
    length: u32,
}

impl End {
    fn new(Shape { rails, length }: Shape) -> Self {
        let builder = EndpointBuilder::new().rails(rails).max_msg_size(FRAGMENT).max_inline_data(0);
        let [near, far] = [Device::new(), Device::new()];
        let controls = Arc::clone(&near.controls);
        let build = |device| builder.build(&[device]).expect("the null device refuses nothing");
        let mut endpoint = build(&near);
        connect_endpoints(&mut endpoint, &mut build(&far)).expect("it connects nothing");
        Self { endpoint, controls, messages: messages(length), keys: keys() }
    }

    /// Into the care of a thread.
    fn into_thread(self) -> Producer {
        let Self { endpoint, controls, messages, keys } = self;
        let thread = ProgressThread::spawn(endpoint).expect("a thread");
        let handle = thread.handle(0).expect("its only one");
        let pending = VecDeque::with_capacity(HANDLE_DEPTH);
        Producer { handle, pending, controls, messages, keys, _thread: thread }
    }

    fn post(&mut self, at: usize) {
        let wr = write(&self.messages[at], &self.keys);
        self.endpoint.post_send(&wr).expect("there is room for a burst");
    }

    fn poll(&mut self, count: usize) {
        let mut reported = 0;
        while reported < count {
            let polled = self.endpoint.poll_with(POLL, |event| {
                assert!(event.completion().is_some_and(|wc| wc.status.is_success()));
            });
            reported += polled.events;
        }
    }

    fn turn(&mut self, bursts: u32) -> Duration {
        let start = Instant::now();
        for _ in 0..bursts {
            (0..OUTSTANDING).for_each(|at| self.post(at));
            self.poll(OUTSTANDING);
        }
        start.elapsed()
    }

    /// How long until the doorbell, in nanoseconds.
    fn doorbell(&mut self) -> u64 {
        let start = self.controls.now();
        self.post(0);
        let rang = self.controls.take_doorbell().expect("it was posted");
        self.poll(1);
        rang - start
    }
}

/// A producer with a handle.
#[derive(Debug)]
struct Producer {
    handle: Handle,
    pending: VecDeque<Pending>,
    controls: Arc<Controls>,
    messages: Vec<Message>,
    keys: Vec<DeviceKeys>,
    _thread: ProgressThread<Movable<NullQp>, Movable<NullCq>, 16>,
}

fn write<'k>(message: &Message, keys: &'k [DeviceKeys]) -> SendWr<'k> {
    SendWr::write(message.wr_id, message.local, message.remote_addr, keys)
}

/// Looks until a request ended.
fn spin(mut pending: Pending) {
    loop {
        for _ in 0..1000 {
            if let Some(outcome) = pending.try_take() {
                assert!(outcome.is_ok_and(|wc| wc.status.is_success()));
                return;
            }
            spin_loop();
        }
        yield_now();
    }
}

impl Producer {
    /// Hands a request over, after waiting for room.
    fn post(&mut self, at: usize) {
        loop {
            match self.handle.post_send(&write(&self.messages[at], &self.keys)) {
                Ok(pending) => return self.pending.push_back(pending),
                Err(SubmitError::Full) => self.finish_half(),
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn finish_half(&mut self) {
        let half = self.pending.len().div_ceil(2);
        self.pending.drain(..half).for_each(spin);
    }

    fn post_singly(&mut self) {
        (0..OUTSTANDING).for_each(|at| self.post(at));
    }

    /// Hands a burst over with one call, after waiting for room.
    fn post_burst(&mut self) {
        let wrs: ArrayVec<SendWr<'_>, OUTSTANDING> =
            self.messages.iter().map(|message| write(message, &self.keys)).collect();
        let mut rest = &wrs[..];
        while let Err(some) = self.handle.post_many(rest, &mut self.pending) {
            assert_eq!(some.error, SubmitError::Full);
            rest = &rest[some.submitted..];
            let half = self.pending.len().div_ceil(2);
            self.pending.drain(..half).for_each(spin);
        }
    }

    /// Hands over this many bursts. The threads of other contenders are asleep, and this
    /// contender's is awake.
    fn turn(&mut self, bursts: u32, post: fn(&mut Self)) -> Duration {
        sleep(GO_IDLE);
        post(self);
        self.pending.drain(..).for_each(spin);
        let start = Instant::now();
        (0..bursts).for_each(|_| post(self));
        self.pending.drain(..).for_each(spin);
        start.elapsed()
    }

    /// How long until the doorbell, in nanoseconds; the thread is awake, since it has just reported
    /// a request.
    fn doorbell(&mut self) -> u64 {
        self.post(0);
        self.pending.drain(..).for_each(spin);
        self.controls.take_doorbell();
        let start = self.controls.now();
        self.post(0);
        let rang = loop {
            if let Some(rang) = self.controls.take_doorbell() {
                break rang;
            }
            spin_loop();
        };
        self.pending.drain(..).for_each(spin);
        rang - start
    }
}

/// Rates of a kind of request.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    /// The requests.
    pub work: &'static str,
    /// Posted and polled by one thread.
    pub direct: Figures,
    /// Through a handle, one at a time and in bursts.
    pub ways: [Way; 2],
}

/// A way through a handle.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// How requests are handed over.
    pub name: &'static str,
    /// What a request costs.
    pub handle: Figures,
    /// The least that it could cost, in nanoseconds: as many requests and reports by bare rings,
    /// and for the thread what a request costs directly.
    pub least: f64,
}

impl Way {
    /// The part of the direct rate.
    pub fn rate(&self, direct: &Figures) -> f64 {
        direct.ns / self.handle.ns
    }

    /// How many times the least.
    pub fn of_least(&self) -> f64 {
        self.handle.ns / self.least
    }

    /// Whether it is fast enough, and nothing is allocated.
    pub fn holds(&self, direct: &Figures) -> bool {
        let is_fast = as_printed(self.rate(direct)) >= RATE_LIMIT
            || as_printed(self.of_least()) <= LEAST_LIMIT;
        is_fast && self.handle.allocs_per_op == 0.0
    }
}

/// The results.
#[derive(Debug)]
pub struct Handles {
    /// Of each kind of request.
    pub rates: Vec<Rates>,
    /// Median time to the doorbell, direct and through a handle, in nanoseconds.
    pub doorbells: [f64; 2],
    /// From a completion to the task that waits for it, both threads asleep, in nanoseconds: an
    /// eventfd, another thread, and an unparked one; and through the progress thread.
    pub wakes: [Histogram<u64>; 2],
}

impl Handles {
    /// How much longer a handle takes to the doorbell, in nanoseconds.
    pub fn doorbell_extra(&self) -> f64 {
        self.doorbells[1] - self.doorbells[0]
    }
}

/// Measures all of it.
///
/// # Panics
///
/// If the system gives no threads or file descriptors.
pub fn measure(repeats: u32, allocations: fn() -> u64) -> Handles {
    const WORK: [(&str, Shape); 2] = [
        ("4 KiB on one rail", Shape { rails: 1, length: SMALL }),
        ("1 MiB over 4 rails", Shape { rails: 4, length: FRAGMENT * FRAGMENTS }),
    ];
    // On a separate thread, which stays on a processor.
    let measuring = std::thread::spawn(move || {
        (WORK.map(|(work, shape)| rates(work, shape, repeats, allocations)), doorbells(WORK[0].1))
    });
    let (rates, doorbells) = measuring.join().expect("requests succeed");
    Handles { rates: rates.into(), doorbells, wakes: wakes(WORK[0].1) }
}

fn rates(work: &'static str, shape: Shape, repeats: u32, allocations: fn() -> u64) -> Rates {
    let mut direct = End::new(shape);
    let [mut single, mut many] = [(); 2].map(|()| elsewhere(|| End::new(shape).into_thread()));
    let [mut fenced, mut chunks] = [Pushed::Singly, Pushed::InChunks].map(Rings::new);
    let contenders: [Timed; 5] = [
        Box::new(move |bursts| {
            sleep(GO_IDLE);
            direct.turn(1);
            direct.turn(bursts)
        }),
        Box::new(move |bursts| single.turn(bursts, Producer::post_singly)),
        Box::new(move |bursts| many.turn(bursts, Producer::post_burst)),
        Box::new(move |bursts| fenced.turn(bursts)),
        Box::new(move |bursts| chunks.turn(bursts)),
    ];
    let [direct, single, many, fenced, chunks] =
        measure_in_turns(contenders, OUTSTANDING, repeats, allocations);
    // The producer pushes, and the thread takes chunks and carries the requests out: one of the two
    // is slower.
    let thread = chunks.ns + direct.ns;
    let ways = [
        Way { name: "one at a time", handle: single, least: fenced.ns.max(thread) },
        Way { name: "in bursts", handle: many, least: thread },
    ];
    Rates { work, direct, ways }
}

fn doorbells(shape: Shape) -> [f64; 2] {
    let mut direct = End::new(shape);
    let mut producer = elsewhere(|| End::new(shape).into_thread());
    for controls in [&direct.controls, &producer.controls] {
        controls.notes_doorbells.store(true, std::sync::atomic::Ordering::SeqCst);
    }
    let mut times = [const { Vec::new() }; 2];
    for _ in 0..DOORBELLS {
        times[0].push(direct.doorbell());
        times[1].push(producer.doorbell());
    }
    times.map(|mut times| {
        times.sort_unstable();
        times[times.len() / 2] as f64
    })
}

/// The device's side of wake-ups: on request, it waits until the other side sleeps, acts, and
/// reports the time.
struct Waker {
    go: Sender<()>,
    acted: Receiver<Instant>,
    _thread: JoinHandle<()>,
}

impl Waker {
    fn new(
        mut is_asleep: impl FnMut() -> bool + Send + 'static,
        mut act: impl FnMut() + Send + 'static,
    ) -> Self {
        let (go, gone) = channel();
        let (acts, acted) = channel();
        let run = move || {
            while gone.recv().is_ok() {
                while !is_asleep() {
                    sleep(FALL_ASLEEP);
                }
                sleep(FALL_ASLEEP);
                let at = Instant::now();
                act();
                if acts.send(at).is_err() {
                    return;
                }
            }
        };
        Self { go, acted, _thread: std::thread::spawn(run) }
    }

    /// Returns the time from its action to the end of `wait`, in nanoseconds.
    fn time(&self, wait: impl FnOnce()) -> u64 {
        self.go.send(()).expect("it waits");
        wait();
        let end = Instant::now();
        let begin = self.acted.recv().expect("it reports the time");
        end.saturating_duration_since(begin).as_nanos() as u64
    }
}

fn wakes(shape: Shape) -> [Histogram<u64>; 2] {
    let mut producer = End::new(shape).into_thread();
    let [sees, acts] = [(); 2].map(|()| Arc::clone(&producer.controls));
    let completes = Waker::new(move || sees.is_armed(), move || acts.release());
    let floor = Relay::new();
    let minute = Duration::from_secs(60).as_nanos() as u64;
    let mut times = [(); 2]
        .map(|()| Histogram::new_with_bounds(1, minute, 3).expect("three digits are allowed"));
    for _ in 0..WAKES {
        times[0].saturating_record(floor.time());
        producer.controls.hold();
        producer.post(0);
        let pending = producer.pending.pop_front().expect("it was posted");
        times[1].saturating_record(completes.time(|| {
            assert!(pending.wait().is_ok_and(|wc| wc.status.is_success()));
        }));
    }
    times
}

/// The least that it takes: who sleeps on a file descriptor wakes who sleeps.
struct Relay {
    waker: Waker,
    woken: Receiver<()>,
}

impl Relay {
    fn new() -> Self {
        let told = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).expect("a file descriptor"));
        let tells = Arc::clone(&told);
        let (wakes, woken) = channel();
        std::thread::spawn(move || {
            while poll(&mut [PollFd::new(&told, PollFlags::IN)], None).is_ok() {
                rustix::io::read(&told, &mut [0; 8]).expect("it can be read");
                if wakes.send(()).is_err() {
                    return;
                }
            }
        });
        let tell = move || {
            rustix::io::write(&tells, &1_u64.to_ne_bytes()).expect("room for one more");
        };
        Self { waker: Waker::new(|| true, tell), woken }
    }

    fn time(&self) -> u64 {
        self.waker.time(|| self.woken.recv().expect("it is woken"))
    }
}
