//! Handles that are misused, and threads that meet.

use super::*;
use crate::call::call;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

struct One;
struct Other;

impl Object for One {
    const KIND: Kind = Kind::Listener;
    const NAME: &str = "one";
    type Value = Vec<u64>;
}

impl Object for Other {
    const KIND: Kind = Kind::Link;
    const NAME: &str = "other";
    type Value = String;
}

const NO_WORDS: Words = [0; WORDS];

fn code<T>(result: Result<T, Refusal>) -> Code {
    call(|| result.map(drop))
}

#[test]
fn handles_that_were_closed_made_up_or_are_of_another_kind_are_refused() {
    let one: *mut One = insert(vec![1, 2], &NO_WORDS).unwrap();
    assert_eq!(*exclusive(one).unwrap(), [1, 2]);
    assert_eq!(code(exclusive(one.cast::<Other>())), Code::Kind);
    assert_eq!(code(remove(one.cast::<Other>())), Code::Kind);
    assert_eq!(code(words(one.cast::<Other>())), Code::Kind);
    assert_eq!(*remove(one).unwrap(), [1, 2]);
    let next: *mut One = insert(vec![3], &NO_WORDS).unwrap();
    for gone in [one, ptr::without_provenance_mut(0x1000), ptr::without_provenance_mut(usize::MAX)]
    {
        assert_eq!(code(exclusive(gone)), Code::Handle, "{gone:p}");
        assert_eq!(code(words(gone)), Code::Handle, "{gone:p}");
        assert_eq!(code(remove(gone)), Code::Handle, "{gone:p}");
    }
    // Every slot that was never used, too.
    let never = Handle { index: (slots::MOST - 1) as u32, generation: 0 };
    assert_eq!(code(exclusive::<One>(ptr::without_provenance_mut(never.encode()))), Code::Handle);
    assert_eq!(code(exclusive::<One>(ptr::null_mut())), Code::Null);
    remove(next).unwrap();
}

#[test]
fn a_second_call_is_refused_and_a_panic_poisons() {
    let one: *mut One = insert(vec![], &NO_WORDS).unwrap();
    {
        let _held = exclusive(one).unwrap();
        assert_eq!(code(exclusive(one)), Code::Busy);
        assert_eq!(code(remove(one)), Code::Busy);
        assert!(words(one).is_ok());
    }
    let panics = call(|| {
        let mut value = exclusive(one)?;
        value.push(1);
        panic!("on purpose");
    });
    assert_eq!(panics, Code::Panic);
    assert_eq!(code(exclusive(one)), Code::Poisoned);
    assert_eq!(*remove(one).unwrap(), [1]);
    assert_eq!(code(remove(one)), Code::Handle);
}

/// A Rust program may call in a destructor, and have the standard library in common with this one.
#[test]
fn a_call_while_the_thread_panics_poisons_nothing() {
    struct Calls<'a>(*mut One, &'a Cell<Option<Code>>);
    impl Drop for Calls<'_> {
        fn drop(&mut self) {
            assert!(thread::panicking());
            let pushed = call(|| {
                exclusive(self.0)?.push(1);
                Ok(())
            });
            self.1.set(Some(pushed));
        }
    }
    let one: *mut One = insert(vec![], &NO_WORDS).unwrap();
    let called = Cell::new(None);
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        let _calls = Calls(one, &called);
        panic!("of the program");
    }));
    assert!(unwound.is_err());
    assert_eq!((called.get(), code(exclusive(one))), (Some(Code::Ok), Code::Ok));
    assert_eq!(*remove(one).unwrap(), [1]);
}

/// Readers never see words of two objects, whatever slots are used for meanwhile.
#[test]
fn words_are_those_of_one_object() {
    let rounds = if cfg!(miri) { 50 } else { 20_000 };
    let slots = 3;
    let shown: Vec<AtomicPtrOf> = (0..slots).map(|_| AtomicPtrOf::default()).collect();
    let is_over = AtomicBool::new(false);
    let barrier = Barrier::new(2);
    thread::scope(|scope| {
        scope.spawn(|| {
            barrier.wait();
            for round in 0..rounds {
                let one: *mut One = insert(vec![], &[round; WORDS]).unwrap();
                let old = shown[round as usize % slots].0.swap(one, Ordering::AcqRel);
                if !old.is_null() {
                    remove(old).unwrap();
                }
            }
            is_over.store(true, Ordering::Release);
        });
        barrier.wait();
        while !is_over.load(Ordering::Acquire) {
            for place in &shown {
                let Ok(read) = words(place.0.load(Ordering::Acquire)) else { continue };
                assert!(read.iter().all(|word| *word == read[0]), "{read:?}");
            }
        }
    });
    for place in shown {
        let last = place.0.into_inner();
        assert_eq!(code(remove(last)), Code::Ok);
    }
}

#[derive(Default)]
struct AtomicPtrOf(std::sync::atomic::AtomicPtr<One>);

/// Threads that take slots at the same time, over several chunks, never get the same one.
#[test]
fn no_slot_is_taken_twice() {
    let (threads, each) = (4, if cfg!(miri) { 50 } else { 2000 });
    let taken: Vec<usize> = thread::scope(|scope| {
        let take = || {
            let mut kept = Vec::new();
            for round in 0..each {
                let one: *mut One = insert(vec![round], &NO_WORDS).unwrap();
                if round % 3 == 0 {
                    assert_eq!(*remove(one).unwrap(), [round]);
                } else {
                    kept.push(one.addr());
                }
            }
            kept
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(take)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    let mut slots: Vec<u32> =
        taken.iter().map(|address| Handle::of(*address).unwrap().index).collect();
    slots.sort_unstable();
    slots.dedup();
    assert_eq!(slots.len(), taken.len());
    for address in taken {
        remove::<One>(ptr::without_provenance_mut(address)).unwrap();
    }
}

#[test]
fn of_many_threads_one_at_a_time_has_the_object() {
    let one: *mut One = insert(vec![0], &NO_WORDS).unwrap();
    let address = one.addr();
    let each = if cfg!(miri) { 20 } else { 5000 };
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(move || {
                let one: *mut One = ptr::without_provenance_mut(address);
                let mut done = 0;
                while done < each {
                    if let Ok(mut value) = exclusive(one) {
                        value[0] += 1;
                        done += 1;
                    }
                }
            });
        }
    });
    assert_eq!(*remove(one).unwrap(), [3 * each]);
}
