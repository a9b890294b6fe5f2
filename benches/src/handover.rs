//! The cost of handing a request to another thread: the engine's ring beside well-known crates.
//!
//! One thread pushes requests one at a time until the ring is full, then another pops them one at a
//! time until it is empty, and so on. The time from the first push to the last pop, divided by the
//! requests, is the cost one way. All transfer values of the same size, that of a request to
//! polyrail's progress thread, through rings of the same capacity. The floor is the cheapest of the
//! crates in this run; the baseline is the standard library's bounded channel.
//!
//! Each thread has a separate processor, because on a shared one the scheduler would dominate the
//! result. They take turns, so contention at an empty or full ring does not matter. A program whose
//! two ends work at the same time may see other figures.

use crate::measure::{Figures, Timed, as_printed, measure_in_turns};
use crate::processors::elsewhere;
use polyrail_core::spsc;
use ringbuf::traits::{Consumer as _, Producer as _, Split as _};
use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex, PoisonError, mpsc};
use std::thread::{JoinHandle, yield_now};
use std::time::{Duration, Instant};

/// The name of the row.
pub const NAME: &str = "spsc_handover";

/// At most this many times the cheapest crate.
pub const LIMIT: f64 = 1.2;

/// Requests that fit a ring.
const CAPACITY: usize = 256;

/// Requests of one round.
const ROUND: u32 = 1 << 14;

/// Tries before a thread yields: the other end's thread may not be running.
const TRIES: u32 = 1 << 10;

/// Size of a request in bytes; the report checks that it is that of `polyrail::progress`.
pub const REQUEST_BYTES: usize = 56;

/// A value of a request's size; the first word is its number.
type Payload = [u64; REQUEST_BYTES / 8];

/// An end that pushes.
trait Push: Send + 'static {
    /// Returns whether there was room.
    fn push(&mut self, payload: Payload) -> bool;
}

/// An end that pops.
trait Pop: Send + 'static {
    /// Pops the value with this number. Returns whether it was there. The value is not returned, so
    /// that no crate pays for converting its result.
    fn pop(&mut self, number: u64) -> bool;
}

/// Reads a value as a user would.
#[inline]
fn receive(payload: Payload, number: u64) -> bool {
    assert_eq!(black_box(payload)[0], number);
    true
}

/// Makes an end out of the crates' own types.
macro_rules! ends {
    ($producer:ty, $push:ident; $consumer:ty, $pop:ident -> $there:ident) => {
        impl Push for $producer {
            #[inline]
            fn push(&mut self, payload: Payload) -> bool {
                <$producer>::$push(self, payload).is_ok()
            }
        }

        impl Pop for $consumer {
            #[inline]
            fn pop(&mut self, number: u64) -> bool {
                matches!(<$consumer>::$pop(self), $there(payload) if receive(payload, number))
            }
        }
    };
}

type OurRing = Arc<spsc::Ring<Payload, CAPACITY>>;
ends!(spsc::Producer<Payload, CAPACITY, OurRing>, push;
      spsc::Consumer<Payload, CAPACITY, OurRing>, pop -> Ok);
ends!(rtrb::Producer<Payload>, push; rtrb::Consumer<Payload>, pop -> Ok);
ends!(heapless::spsc::Producer<'static, Payload>, enqueue;
      heapless::spsc::Consumer<'static, Payload>, dequeue -> Some);
ends!(ringbuf::HeapProd<Payload>, try_push; ringbuf::HeapCons<Payload>, try_pop -> Some);
ends!(mpsc::SyncSender<Payload>, try_send; mpsc::Receiver<Payload>, try_recv -> Ok);

/// The results.
#[derive(Clone, Copy, Debug)]
pub struct Handover {
    /// The crates, by name.
    pub crates: [(&'static str, Figures); 3],
    /// The standard library's bounded channel.
    pub baseline: Figures,
    /// The engine's ring.
    pub ours: Figures,
}

impl Handover {
    /// The cheapest crate.
    pub fn floor(&self) -> (&'static str, Figures) {
        let [first, rest @ ..] = self.crates;
        rest.into_iter()
            .fold(first, |least, other| if other.1.ns < least.1.ns { other } else { least })
    }

    /// Ours over the cheapest crate.
    pub fn ratio(&self) -> f64 {
        self.ours.ns / self.floor().1.ns
    }

    /// Whether ours is within [`LIMIT`], and allocates nothing.
    pub fn holds(&self) -> bool {
        as_printed(self.ratio()) <= LIMIT && self.ours.allocs_per_op == 0.0
    }
}

/// Measures all in turns, `repeats` of them.
///
/// # Panics
///
/// If requests get lost or out of order.
pub fn measure(repeats: u32, allocations: fn() -> u64) -> Handover {
    // On a separate thread, which stays on a processor.
    let measuring = std::thread::spawn(move || {
        let contenders = [rtrb(), ours(), heapless(), ringbuf(), channel()];
        measure_in_turns(contenders, ROUND as usize, repeats, allocations)
    });
    let [rtrb, ours, heapless, ringbuf, baseline] =
        measuring.join().expect("requests come in order");
    let crates = [("rtrb", rtrb), ("heapless", heapless), ("ringbuf", ringbuf)];
    Handover { crates, baseline, ours }
}

fn ours() -> Timed {
    let Ok((producer, consumer)) = spsc::Ring::split_shared(OurRing::default()) else {
        unreachable!("a new ring")
    };
    contender(producer, consumer)
}

fn rtrb() -> Timed {
    let (producer, consumer) = rtrb::RingBuffer::new(CAPACITY);
    contender(producer, consumer)
}

fn heapless() -> Timed {
    // It keeps one place free, and lends its ends: the memory stays until the program ends.
    let queue = Box::leak(Box::new(heapless::spsc::Queue::<Payload, { CAPACITY + 1 }>::new()));
    let (producer, consumer) = queue.split();
    contender(producer, consumer)
}

fn ringbuf() -> Timed {
    let (producer, consumer) = ringbuf::HeapRb::new(CAPACITY).split();
    contender(producer, consumer)
}

fn channel() -> Timed {
    let (producer, consumer) = mpsc::sync_channel(CAPACITY);
    contender(producer, consumer)
}

/// The shared state of the two threads between turns.
struct Control {
    /// Both are about to begin, or have finished.
    meet: Barrier,
    /// Requests of the next turn; 0 ends the consumer.
    requests: AtomicU64,
    /// Requests that were pushed, in all, at the end of a burst.
    pushed: AtomicU64,
    /// Requests that were popped, in all, at the end of a burst.
    popped: AtomicU64,
    /// When it had the last one.
    end: Mutex<Instant>,
}

/// Two threads with a ring in between. The calling thread is the producer.
struct Line<P> {
    producer: P,
    control: Arc<Control>,
    consumer: Option<JoinHandle<()>>,
}

fn contender<P: Push, C: Pop>(producer: P, consumer: C) -> Timed {
    let control = Arc::new(Control {
        meet: Barrier::new(2),
        requests: AtomicU64::new(0),
        pushed: AtomicU64::new(0),
        popped: AtomicU64::new(0),
        end: Mutex::new(Instant::now()),
    });
    let theirs = Arc::clone(&control);
    let consumer = Some(elsewhere(|| std::thread::spawn(move || consume(&theirs, consumer))));
    let mut line = Line { producer, control, consumer };
    Box::new(move |rounds| line.turn(u64::from(rounds) * u64::from(ROUND)))
}

impl<P: Push> Line<P> {
    fn turn(&mut self, requests: u64) -> Duration {
        let Self { producer, control, .. } = self;
        control.requests.store(requests, Ordering::Relaxed);
        control.pushed.store(0, Ordering::Relaxed);
        control.popped.store(0, Ordering::Relaxed);
        control.meet.wait();
        let start = Instant::now();
        for number in 0..requests {
            let mut payload = black_box([number; REQUEST_BYTES / 8]);
            payload[0] = number;
            until(|| producer.push(payload).then_some(()));
            let all = number + 1;
            if all % CAPACITY as u64 == 0 {
                control.pushed.store(all, Ordering::Release);
                until(|| (control.popped.load(Ordering::Acquire) == all).then_some(()));
            }
        }
        control.meet.wait();
        *control.end.lock().unwrap_or_else(PoisonError::into_inner) - start
    }
}

impl<P> Drop for Line<P> {
    fn drop(&mut self) {
        self.control.requests.store(0, Ordering::Relaxed);
        self.control.meet.wait();
        if let Some(consumer) = self.consumer.take() {
            consumer.join().expect("requests come in order");
        }
    }
}

fn consume(control: &Control, mut consumer: impl Pop) {
    loop {
        control.meet.wait();
        let requests = control.requests.load(Ordering::Relaxed);
        if requests == 0 {
            return;
        }
        for number in 0..requests {
            if number % CAPACITY as u64 == 0 {
                until(|| (control.pushed.load(Ordering::Acquire) > number).then_some(()));
            }
            until(|| consumer.pop(number).then_some(()));
            if (number + 1) % CAPACITY as u64 == 0 {
                control.popped.store(number + 1, Ordering::Release);
            }
        }
        *control.end.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        control.meet.wait();
    }
}

/// Tries until it succeeds.
#[inline]
fn until<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    loop {
        for _ in 0..TRIES {
            if let Some(value) = attempt() {
                return value;
            }
            spin_loop();
        }
        yield_now();
    }
}
