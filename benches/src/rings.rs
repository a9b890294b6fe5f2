//! The least that requests through another thread can cost: bare rings there and back.

use crate::handover::REQUEST_BYTES;
use crate::processors::{GO_IDLE, elsewhere};
use crate::workload::OUTSTANDING;
use arrayvec::ArrayVec;
use polyrail::progress::HANDLE_DEPTH;
use std::hint::{black_box, spin_loop};
use std::sync::atomic::{Ordering, fence};
use std::sync::mpsc::{Sender, channel};
use std::thread::{sleep, spawn, yield_now};
use std::time::{Duration, Instant};

/// Values of the size of a request, which is also that of a report.
type Payload = [u64; REQUEST_BYTES / 8];

/// Between two yields.
const LOOKS: u32 = 1000;

/// How requests and reports are pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pushed {
    /// Requests by themselves, with a fence after each, as a producer needs that looks whether the
    /// thread sleeps.
    Singly,
    /// In chunks of a burst.
    InChunks,
}

/// A thread that returns every value, through two of the cheapest rings.
#[derive(Debug)]
pub(crate) struct Rings {
    pushed: Pushed,
    there: rtrb::Producer<Payload>,
    back: rtrb::Consumer<Payload>,
    /// How many the thread is to take, before it sleeps again.
    go: Sender<usize>,
}

impl Rings {
    pub(crate) fn new(pushed: Pushed) -> Self {
        let (there, mut requests) = rtrb::RingBuffer::new(HANDLE_DEPTH);
        let (mut reports, back) = rtrb::RingBuffer::<Payload>::new(HANDLE_DEPTH);
        let (go, gone) = channel();
        elsewhere(|| {
            spawn(move || {
                for count in gone {
                    let mut taken = 0;
                    while taken < count {
                        taken += give_back(&mut requests, &mut reports);
                    }
                }
            })
        });
        Self { pushed, there, back, go }
    }

    /// As many requests under way as a handle has. The threads of others are asleep, and its own is
    /// awake.
    pub(crate) fn turn(&mut self, bursts: u32) -> Duration {
        sleep(GO_IDLE);
        let count = (bursts as usize + 1) * OUTSTANDING;
        self.go.send(count).expect("it waits");
        self.exchange(OUTSTANDING);
        let start = Instant::now();
        self.exchange(count - OUTSTANDING);
        start.elapsed()
    }

    fn exchange(&mut self, count: usize) {
        let (mut sent, mut reported) = (0, 0);
        while reported < count {
            while sent < count && sent - reported <= HANDLE_DEPTH - OUTSTANDING {
                self.push_burst();
                sent += OUTSTANDING;
            }
            reported += take(&mut self.back, |payload| _ = black_box(payload));
        }
    }

    fn push_burst(&mut self) {
        if self.pushed == Pushed::Singly {
            for number in 0..OUTSTANDING {
                self.there.push(payload(number)).expect("room for all that are under way");
                fence(Ordering::SeqCst);
            }
            return;
        }
        let chunk = self.there.write_chunk_uninit(OUTSTANDING);
        chunk
            .expect("room for all that are under way")
            .fill_from_iter((0..OUTSTANDING).map(payload));
        fence(Ordering::SeqCst);
    }
}

/// A request.
fn payload(number: usize) -> Payload {
    let mut payload = Payload::default();
    payload[0] = number as u64;
    black_box(payload)
}

/// Gives back what is there, as many as are; returns how many.
fn give_back(
    requests: &mut rtrb::Consumer<Payload>,
    reports: &mut rtrb::Producer<Payload>,
) -> usize {
    let mut came = ArrayVec::<Payload, OUTSTANDING>::new();
    let count = take(requests, |payload| came.push(black_box(payload)));
    let chunk = reports.write_chunk_uninit(count).expect("room for all that are under way");
    chunk.fill_from_iter(came)
}

/// Takes what is there, at least one and a burst at most; returns how many.
fn take(ring: &mut rtrb::Consumer<Payload>, sink: impl FnMut(Payload)) -> usize {
    loop {
        for _ in 0..LOOKS {
            let count = ring.slots().min(OUTSTANDING);
            if count > 0 {
                let chunk = ring.read_chunk(count).expect("they are there");
                chunk.into_iter().for_each(sink);
                return count;
            }
            spin_loop();
        }
        // The other thread may have no processor.
        yield_now();
    }
}
