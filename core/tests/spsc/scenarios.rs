//! What two threads do to a ring, and what must hold afterwards in any order of their steps.
//!
//! Where possible, scenarios try rather than wait, so that loom has few steps to interleave. The
//! main thread holds the ring to the end, and sees what both ends left.

use super::threads::{Bed, JoinHandle, spawn, yield_now};
use polyrail_core::spsc::{self, Doorbell, PopError, PushError, Ring};
use std::sync::Arc;

type Producer<T, const N: usize> = spsc::Producer<T, N, Arc<Ring<T, N>>>;
type Consumer<T, const N: usize> = spsc::Consumer<T, N, Arc<Ring<T, N>>>;

/// A ring that the caller keeps, and its ends.
fn ring<T, const N: usize>() -> (Arc<Ring<T, N>>, Producer<T, N>, Consumer<T, N>) {
    let ring = Arc::new(Ring::new());
    let (producer, consumer) = Ring::split_shared(Arc::clone(&ring)).unwrap();
    (ring, producer, consumer)
}

/// Tries to push 0, 1, 2 and so on; a number that was refused is tried again. Returns the end, and
/// the first number that was not taken.
fn try_pushes<const N: usize>(
    tries: usize,
    mut producer: Producer<usize, N>,
) -> JoinHandle<(Producer<usize, N>, usize)> {
    spawn(move || {
        let mut next = 0;
        for _ in 0..tries {
            match producer.push(next) {
                Ok(()) => next += 1,
                Err(refused) => assert_eq!(refused, PushError::Full(next)),
            }
        }
        (producer, next)
    })
}

/// Tries to pop, and checks that 0, 1, 2 and so on come.
fn try_pops<const N: usize>(tries: usize, consumer: &mut Consumer<usize, N>) -> usize {
    let mut next = 0;
    for _ in 0..tries {
        match consumer.pop() {
            Ok(value) => {
                assert_eq!(value, next);
                next += 1;
            }
            Err(error) => assert_eq!(error, PopError::Empty),
        }
    }
    next
}

/// Pushes and pops equally often, then pops the rest: everything taken comes out, in order.
fn tries_on<const N: usize>(pushes: usize, pops: usize) {
    let (_ring, producer, mut consumer) = ring::<_, N>();
    let pushing = try_pushes(pushes, producer);
    let popped = try_pops(pops, &mut consumer);
    let (producer, pushed) = pushing.join().unwrap();
    let mut rest = Vec::new();
    consumer.pop_batch(N, |value| rest.push(value));
    assert!(rest.into_iter().eq(popped..pushed));
    assert!(consumer.is_empty() && !producer.is_closed());
}

pub(crate) fn pops_meet_an_empty_ring(tries: usize) {
    tries_on::<4>(tries - 1, tries);
}

pub(crate) fn pushes_meet_a_full_ring(tries: usize) {
    tries_on::<2>(tries, 1);
}

pub(crate) fn a_ring_of_one_place_is_full_and_empty_in_turn(tries: usize) {
    tries_on::<1>(tries, tries);
}

pub(crate) fn positions_wrap_around(tries: usize) {
    tries_on::<2>(tries, tries);
}

/// Pushes 0, 1, 2 and so on in batches, and drops the producer.
fn push_batches<const N: usize>(values: usize, mut producer: Producer<usize, N>) -> JoinHandle<()> {
    spawn(move || {
        let mut pending = 0..values;
        while pending.start < values {
            if producer.push_batch(&mut pending) == 0 {
                yield_now();
            }
        }
    })
}

pub(crate) fn batches_fill_and_empty(values: usize) {
    let (_ring, producer, mut consumer) = ring::<usize, 2>();
    let pushing = push_batches(values, producer);
    let mut next = 0;
    while next < values {
        let mut expected = next;
        let taken = consumer.pop_batch(2, |value| {
            assert_eq!(value, expected);
            expected += 1;
        });
        next += taken;
        assert_eq!(next, expected);
        if taken == 0 {
            yield_now();
        }
    }
    pushing.join().unwrap();
    assert_eq!(consumer.pop(), Err(PopError::Closed));
}

pub(crate) fn a_batch_meets_single_pops(values: usize) {
    let (_ring, mut producer, mut consumer) = ring::<usize, 2>();
    let pushing = spawn(move || producer.push_batch(&mut (0..values)));
    let popped = try_pops(2, &mut consumer);
    let pushed = pushing.join().unwrap();
    assert!((2..=values).contains(&pushed));
    let mut rest = Vec::new();
    while consumer.pop_batch(2, |value| rest.push(value)) > 0 {}
    assert!(rest.into_iter().eq(popped..pushed));
}

pub(crate) fn a_producer_goes_while_its_consumer_pops(values: usize) {
    let (_ring, mut producer, mut consumer) = ring::<usize, 2>();
    let pushing = spawn(move || {
        let mut next = 0;
        while next < values {
            match producer.push(next) {
                Ok(()) => next += 1,
                Err(_) => yield_now(),
            }
        }
    });
    let mut next = 0;
    loop {
        match consumer.pop() {
            Ok(value) => {
                assert_eq!(value, next);
                next += 1;
            }
            Err(PopError::Empty) => yield_now(),
            Err(PopError::Closed) => break,
        }
    }
    assert_eq!(next, values, "closed means that nothing is left");
    pushing.join().unwrap();
}

/// Pops batches until the producer is gone and nothing is left.
pub(crate) fn a_producer_goes_while_its_consumer_pops_batches(values: usize) {
    let (_ring, producer, mut consumer) = ring::<usize, 2>();
    let pushing = push_batches(values, producer);
    let mut next = 0;
    loop {
        // Asked first: what the producer pushed before it went is there.
        let is_gone = consumer.is_closed();
        let taken = consumer.pop_batch(values, |value| {
            assert_eq!(value, next);
            next += 1;
        });
        match taken {
            0 if is_gone => break,
            0 => yield_now(),
            _ => {}
        }
    }
    assert_eq!(next, values, "gone and empty means that nothing is left");
    assert_eq!(consumer.pop(), Err(PopError::Closed));
    pushing.join().unwrap();
}

/// A value whose drops are counted.
type Counted = Arc<()>;

pub(crate) fn a_consumer_goes_while_its_producer_pushes(tries: usize) {
    let value = Counted::new(());
    let (ring, mut producer, mut consumer) = ring::<Counted, 2>();
    let given = value.clone();
    let pushing = spawn(move || {
        let mut taken = 0;
        let mut closed = false;
        for _ in 0..tries {
            match producer.push(given.clone()) {
                Ok(()) => {
                    assert!(!closed, "a consumer that is gone stays gone");
                    taken += 1;
                }
                Err(PushError::Full(_)) => assert!(!closed),
                Err(PushError::Closed(_)) => {
                    assert!(producer.is_closed());
                    closed = true;
                }
            }
        }
        drop(given);
        (taken, producer)
    });
    let popped = usize::from(consumer.pop().is_ok());
    drop(consumer);
    let (taken, mut producer) = pushing.join().unwrap();
    assert!(producer.is_closed());
    assert_eq!(Arc::strong_count(&value) - 1, taken - popped);
    // The producer may still use room that it knew of; then it learns that the consumer is gone.
    let pushed = (0..3).take_while(|_| producer.push(value.clone()).is_ok()).count();
    assert!(pushed <= 2);
    assert!(matches!(producer.push(value.clone()), Err(PushError::Closed(_))));
    drop((producer, ring));
    assert_eq!(Arc::strong_count(&value), 1, "every value is dropped once");
}

pub(crate) fn a_consumer_goes_while_its_producer_pushes_batches(batches: usize) {
    let value = Counted::new(());
    let (ring, mut producer, mut consumer) = ring::<Counted, 2>();
    let given = value.clone();
    let pushing = spawn(move || {
        let mut taken = 0;
        for _ in 0..batches {
            let mut offered = 0;
            let values = std::iter::repeat_n(&given, 2).cloned();
            let pushed = producer.push_batch(&mut values.inspect(|_| offered += 1));
            assert_eq!(pushed, offered, "asked for only when there is room");
            taken += pushed;
        }
        drop(given);
        (taken, producer)
    });
    let mut popped = 0;
    consumer.pop_batch(1, |_| popped += 1);
    drop(consumer);
    let (taken, mut producer) = pushing.join().unwrap();
    assert!((2..=2 + popped).contains(&taken));
    assert_eq!(Arc::strong_count(&value) - 1, taken - popped);
    // The producer may still use room that it knew of; then it learns that the consumer is gone.
    producer.push_batch(&mut std::iter::repeat_n(&value, 2).cloned());
    assert_eq!(producer.push_batch(&mut std::iter::once(value.clone())), 0);
    assert!(producer.is_closed());
    drop((producer, ring));
    assert_eq!(Arc::strong_count(&value), 1, "every value is dropped once");
}

pub(crate) fn both_ends_go_at_once(values: usize) {
    let value = Counted::new(());
    let (ring, mut producer, mut consumer) = ring::<Counted, 2>();
    let given = value.clone();
    let pushing = spawn(move || {
        for _ in 0..values {
            _ = producer.push(given.clone());
        }
    });
    let popping = spawn(move || drop(consumer.pop()));
    pushing.join().unwrap();
    popping.join().unwrap();
    drop(ring);
    assert_eq!(Arc::strong_count(&value), 1);
}

pub(crate) fn a_shared_ring_is_split_by_one(_: usize) {
    let ring = Arc::new(Ring::<u8, 2>::new());
    let other = Arc::clone(&ring);
    let theirs = spawn(move || Ring::split_shared(other).is_ok());
    let ours = Ring::split_shared(Arc::clone(&ring)).is_ok();
    assert!(ours != theirs.join().unwrap());
}

/// Where the consumer sleeps, and the flag that shows it to producers.
struct Sleeper {
    bell: Doorbell,
    bed: Bed,
}

impl Sleeper {
    fn new() -> Arc<Self> {
        Arc::new(Self { bell: Doorbell::new(), bed: Bed::new() })
    }

    fn wake(&self) {
        if self.bell.ring() {
            self.bed.notify();
        }
    }

    /// Sleeps, unless a last check finds something to do. A wake-up that is lost is a deadlock,
    /// which loom finds, and a test that hangs.
    fn sleep(&self, something_to_do: impl FnOnce() -> bool) {
        self.bell.arm();
        if !something_to_do() {
            self.bed.wait();
        }
        self.bell.disarm();
    }
}

/// Pushes 0, 1, 2 and so on, and wakes the consumer each time; returns the producer.
fn push_and_wake<const N: usize>(
    values: usize,
    mut producer: Producer<usize, N>,
    sleeper: &Arc<Sleeper>,
) -> JoinHandle<Producer<usize, N>> {
    let sleeper = Arc::clone(sleeper);
    spawn(move || {
        let mut next = 0;
        while next < values {
            match producer.push(next) {
                Ok(()) => {
                    next += 1;
                    sleeper.wake();
                }
                Err(_) => yield_now(),
            }
        }
        producer
    })
}

pub(crate) fn a_sleeper_is_woken_for_every_value(values: usize) {
    let (_ring, producer, mut consumer) = ring::<usize, 2>();
    let sleeper = Sleeper::new();
    let pushing = push_and_wake(values, producer, &sleeper);
    let mut next = 0;
    while next < values {
        match consumer.pop() {
            Ok(value) => {
                assert_eq!(value, next);
                next += 1;
            }
            Err(_) => sleeper.sleep(|| !consumer.is_empty()),
        }
    }
    pushing.join().unwrap();
}

pub(crate) fn a_sleeper_is_woken_by_the_end(_: usize) {
    let (_ring, mut producer, mut consumer) = ring::<usize, 2>();
    let sleeper = Sleeper::new();
    let waker = Arc::clone(&sleeper);
    let pushing = spawn(move || {
        while producer.push(0).is_err() {
            yield_now();
        }
        drop(producer);
        waker.wake();
    });
    let mut popped = 0;
    loop {
        match consumer.pop() {
            Ok(_) => popped += 1,
            Err(PopError::Empty) => {
                sleeper.sleep(|| !consumer.is_empty() || consumer.is_closed());
            }
            Err(PopError::Closed) => break,
        }
    }
    assert_eq!(popped, 1);
    pushing.join().unwrap();
}

pub(crate) fn a_sleeper_serves_two_producers(values: usize) {
    let (_first_ring, first, mut from_first) = ring::<usize, 2>();
    let (_second_ring, second, mut from_second) = ring::<usize, 2>();
    let sleeper = Sleeper::new();
    let pushing = [first, second].map(|producer| push_and_wake(values, producer, &sleeper));
    let mut popped = 0;
    while popped < 2 * values {
        let taken = from_first.pop_batch(2, |_| ()) + from_second.pop_batch(2, |_| ());
        popped += taken;
        if taken == 0 {
            sleeper.sleep(|| !from_first.is_empty() || !from_second.is_empty());
        }
    }
    pushing.into_iter().for_each(|pushing| assert!(!pushing.join().unwrap().is_closed()));
}
