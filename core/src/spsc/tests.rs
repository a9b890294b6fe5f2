//! Single-threaded behaviour of the ring. Two threads: `spsc` in the tests package.

extern crate std;

use super::wrap::about_to_wrap;
use super::{AlreadySplit, Doorbell, PopError, PushError, Ring};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::vec::Vec;

#[test]
fn values_come_out_in_order_round_after_round() {
    let mut ring = about_to_wrap::<u32, 4>();
    let (mut producer, mut consumer) = ring.split();
    let mut pushed = 0;
    let mut popped = 0;
    for burst in [1, 4, 3, 2, 4, 4, 1] {
        for _ in 0..burst {
            producer.push(pushed).unwrap();
            pushed += 1;
        }
        while let Ok(value) = consumer.pop() {
            assert_eq!(value, popped);
            popped += 1;
        }
        assert_eq!(pushed, popped);
    }
}

#[test]
fn a_full_ring_gives_the_value_back_wherever_its_words_stand() {
    let mut ring = about_to_wrap::<_, 2>();
    let (mut producer, mut consumer) = ring.split();
    producer.push('a').unwrap();
    producer.push('b').unwrap();
    assert_eq!(producer.push('c'), Err(PushError::Full('c')));
    assert_eq!(producer.push('c').unwrap_err().into_value(), 'c');
    assert_eq!(consumer.pop(), Ok('a'));
    producer.push('c').unwrap();
    assert_eq!((consumer.pop(), consumer.pop()), (Ok('b'), Ok('c')));
    assert_eq!(consumer.pop(), Err(PopError::Empty));
}

#[test]
fn a_ring_of_one_place_works() {
    let mut ring = Ring::<u8, 1>::new();
    let (mut producer, mut consumer) = ring.split();
    for value in 0..5 {
        producer.push(value).unwrap();
        assert_eq!(producer.push(9), Err(PushError::Full(9)));
        assert_eq!(consumer.pop(), Ok(value));
        assert_eq!(consumer.pop(), Err(PopError::Empty));
    }
}

#[test]
fn what_was_pushed_before_the_producer_went_comes_out_first() {
    let mut ring = about_to_wrap::<u8, 4>();
    let (mut producer, mut consumer) = ring.split();
    producer.push(1).unwrap();
    producer.push(2).unwrap();
    assert!(!consumer.is_closed());
    drop(producer);
    assert!(consumer.is_closed() && !consumer.is_empty());
    assert_eq!((consumer.pop(), consumer.pop()), (Ok(1), Ok(2)));
    assert_eq!(consumer.pop(), Err(PopError::Closed));
    assert_eq!(consumer.pop_batch(4, |_| unreachable!()), 0);
}

#[test]
fn a_producer_without_consumer_is_refused_when_its_room_is_used_up() {
    let mut ring = Ring::<u8, 2>::new();
    let (mut producer, mut consumer) = ring.split();
    producer.push(1).unwrap();
    consumer.pop().unwrap();
    drop(consumer);
    assert!(producer.is_closed());
    producer.push(2).unwrap();
    for _ in 0..2 {
        assert_eq!(producer.push(3), Err(PushError::Closed(3)));
    }
    assert_eq!(producer.push_batch(&mut std::iter::repeat(4)), 0);
}

#[test]
fn every_value_is_dropped_once() {
    let value = Rc::new(());
    let mut ring = about_to_wrap::<Rc<()>, 4>();
    let (mut producer, mut consumer) = ring.split();
    for _ in 0..4 {
        producer.push(Rc::clone(&value)).unwrap();
    }
    drop(consumer.pop().unwrap());
    producer.push(Rc::clone(&value)).unwrap();
    assert!(producer.push(Rc::clone(&value)).is_err());
    assert_eq!(Rc::strong_count(&value), 5);
    drop((producer, consumer));
    assert_eq!(Rc::strong_count(&value), 5, "the ring keeps what was not popped");
    drop(ring);
    assert_eq!(Rc::strong_count(&value), 1);
}

#[test]
fn a_second_pair_goes_on_where_the_first_stopped() {
    let mut ring = Ring::<u8, 4>::new();
    let (mut producer, mut consumer) = ring.split();
    producer.push_batch(&mut (1..=3));
    consumer.pop().unwrap();
    drop((producer, consumer));
    let (mut producer, mut consumer) = ring.split();
    assert!(!producer.is_closed() && !consumer.is_closed());
    producer.push(4).unwrap();
    producer.push(5).unwrap();
    assert_eq!(producer.push(6), Err(PushError::Full(6)));
    let mut values = Vec::new();
    assert_eq!(consumer.pop_batch(9, |value| values.push(value)), 4);
    assert_eq!(values, [2, 3, 4, 5]);
}

#[test]
fn a_shared_ring_is_split_once() {
    let ring = Arc::new(Ring::<u8, 2>::new());
    let (mut producer, mut consumer) = Ring::split_shared(Arc::clone(&ring)).unwrap();
    assert_eq!(Ring::split_shared(Arc::clone(&ring)).unwrap_err(), AlreadySplit);
    drop(ring);
    producer.push(1).unwrap();
    drop(producer);
    assert_eq!(consumer.pop(), Ok(1));

    let mut borrowed = Ring::<u8, 2>::new();
    drop(borrowed.split());
    assert_eq!(Ring::split_shared(&borrowed).unwrap_err(), AlreadySplit);
}

#[test]
fn a_batch_is_seen_at_once_and_counts_what_moved() {
    let mut ring = about_to_wrap::<u32, 8>();
    let (mut producer, mut consumer) = ring.split();
    let seen_during = Cell::new(false);
    let mut values = (0..).take(12).inspect(|_| seen_during.set(!consumer.is_empty()));
    assert_eq!(producer.push_batch(&mut values), 8);
    assert!(!seen_during.get());
    assert_eq!(producer.push_batch(&mut values), 0);
    assert_eq!(values.next(), Some(8), "asked for only when there is room");
    assert_eq!(consumer.pop_batch(0, |_| unreachable!()), 0);
    let mut next = 0;
    assert_eq!(consumer.pop_batch(5, |value| next += u32::from(value == next)), 5);
    assert_eq!(next, 5);
    assert_eq!(producer.push_batch(&mut [7, 7].into_iter()), 2);
    assert_eq!(consumer.pop_batch(100, |_| ()), 5);
}

#[test]
fn a_batch_that_panics_keeps_what_was_moved() {
    let mut ring = Ring::<Rc<u32>, 8>::new();
    let (mut producer, mut consumer) = ring.split();
    let mut values = (0..8).map(|at| if at == 3 { panic!("no more") } else { Rc::new(at) });
    catch_unwind(AssertUnwindSafe(|| producer.push_batch(&mut values))).unwrap_err();
    let taken = Cell::new(0);
    let mut sink = |value: Rc<u32>| {
        taken.set(taken.get() + 1);
        assert_ne!(*value, 1, "enough");
    };
    catch_unwind(AssertUnwindSafe(|| consumer.pop_batch(8, &mut sink))).unwrap_err();
    assert_eq!(taken.get(), 2);
    assert_eq!(consumer.pop(), Ok(Rc::new(2)));
    assert_eq!(consumer.pop(), Err(PopError::Empty));
}

#[test]
fn two_threads_hand_over_values_that_own_memory() {
    let ring = Arc::new(Ring::<Vec<usize>, 4>::new());
    let (mut producer, mut consumer) = Ring::split_shared(ring).unwrap();
    let pushing = std::thread::spawn(move || {
        for at in 0..50 {
            let mut value = std::vec![at; 3];
            while let Err(refused) = producer.push(value) {
                value = refused.into_value();
                std::thread::yield_now();
            }
        }
    });
    let mut next = 0;
    loop {
        match consumer.pop() {
            Ok(value) => {
                assert_eq!(value, [next; 3]);
                next += 1;
            }
            Err(PopError::Empty) => std::thread::yield_now(),
            Err(PopError::Closed) => break,
        }
    }
    assert_eq!(next, 50);
    pushing.join().unwrap();
}

#[test]
fn a_doorbell_rings_once_for_each_time_it_is_armed() {
    let bell = Doorbell::default();
    assert!(!bell.ring());
    bell.arm();
    assert!(bell.ring());
    assert!(!bell.ring());
    bell.arm();
    bell.disarm();
    assert!(!bell.ring());
}
