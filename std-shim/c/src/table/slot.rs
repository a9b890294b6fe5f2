//! One place of the table.
//!
//! ```text
//! state: | generation, 40 bits | kind, 8 bits | .. | poisoned | in use |
//!
//!   free (kind 0) --put--> idle --enter--> in use --leave--> idle, or poisoned
//!        ^                  |                                    |
//!        +-----take: generation + 1------------------------------+
//! ```
//!
//! Words are written between the state "free" and the next idle one, and read between two looks at
//! the same idle state, as with a sequence lock.

use super::handle::GENERATION_BITS;
use super::kind::{Kind, Misuse};
use super::words::{WORDS, Words};
use polyrail_process::Process;
use std::array;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};

const IN_USE: u64 = 1;
const POISONED: u64 = 2;
const FLAGS: u64 = IN_USE | POISONED;
const KIND_SHIFT: u32 = 16;
const KIND_MASK: u64 = 0xff << KIND_SHIFT;
const GENERATION_SHIFT: u32 = u64::BITS - GENERATION_BITS;

/// A place for an object.
#[derive(Debug)]
pub(super) struct Slot {
    state: AtomicU64,
    value: AtomicPtr<()>,
    words: [AtomicU64; WORDS],
    /// The process that put the object in.
    process: AtomicU64,
    /// While the slot is free: the next free one.
    pub(super) next: AtomicU32,
}

/// Returns the state of an object that is not in use.
const fn idle(generation: u64, kind: Kind) -> u64 {
    generation << GENERATION_SHIFT | (kind as u64) << KIND_SHIFT
}

impl Slot {
    pub(super) fn new() -> Self {
        Self {
            state: AtomicU64::new(0),
            value: AtomicPtr::new(ptr::null_mut()),
            words: array::from_fn(|_| AtomicU64::new(0)),
            process: AtomicU64::new(0),
            next: AtomicU32::new(0),
        }
    }

    /// Puts an object in, and returns its generation. The slot is free, and only this call has it.
    pub(super) fn put(&self, kind: Kind, value: *mut (), words: &Words) -> u64 {
        let generation = self.state.load(Ordering::Relaxed) >> GENERATION_SHIFT;
        // Who reads one of the new words sees that the old object is gone.
        fence(Ordering::Release);
        for (place, word) in self.words.iter().zip(words) {
            place.store(*word, Ordering::Relaxed);
        }
        self.value.store(value, Ordering::Relaxed);
        self.process.store(Process::current().to_bits(), Ordering::Relaxed);
        self.state.store(idle(generation, kind), Ordering::Release);
        generation
    }

    /// Why a state is not the idle one.
    #[cold]
    fn misuse(state: u64, idle: u64) -> Misuse {
        let differs = state ^ idle;
        if differs >> GENERATION_SHIFT != 0 || state & KIND_MASK == 0 {
            Misuse::Closed
        } else if differs & KIND_MASK != 0 {
            Misuse::OtherKind
        } else if state & IN_USE != 0 {
            Misuse::Busy
        } else {
            Misuse::Poisoned
        }
    }

    /// Refuses an object that the parent of this process put in. A call that the parent was in
    /// during the fork never leaves the object here.
    #[inline]
    pub(super) fn check_process(&self, generation: u64) -> Result<(), Misuse> {
        let process = Process::from_bits(self.process.load(Ordering::Relaxed));
        if process.is_current() { Ok(()) } else { self.foreign(generation, process) }
    }

    #[cold]
    fn foreign(&self, generation: u64, process: Process) -> Result<(), Misuse> {
        let state = self.state.load(Ordering::Acquire);
        let is_there = state >> GENERATION_SHIFT == generation && state & KIND_MASK != 0;
        // A handle of an object that is gone is refused by the caller.
        if is_there { process.check().map_err(Misuse::Forked) } else { Ok(()) }
    }

    /// Makes the object the caller's, until [`leave`](Self::leave) with what is returned.
    #[inline]
    pub(super) fn enter(&self, generation: u64, kind: Kind) -> Result<u64, Misuse> {
        let idle = idle(generation, kind);
        let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
        match self.state.compare_exchange(idle, idle | IN_USE, acquire, relaxed) {
            Ok(_) => Ok(idle),
            Err(state) => Err(Self::misuse(state, idle)),
        }
    }

    /// Ends what [`enter`](Self::enter) began.
    #[inline]
    pub(super) fn leave(&self, idle: u64, is_whole: bool) {
        // Only its user writes the state of an object in use.
        self.state.store(if is_whole { idle } else { idle | POISONED }, Ordering::Release);
    }

    /// Returns the object. Only for the call that has entered.
    #[inline]
    pub(super) fn value(&self) -> *mut () {
        self.value.load(Ordering::Relaxed)
    }

    /// Returns the words of the object.
    #[inline(always)]
    pub(super) fn words(&self, generation: u64, kind: Kind) -> Result<Words, Misuse> {
        let idle = idle(generation, kind);
        let state = self.state.load(Ordering::Acquire);
        // That another call uses the object does not change its words.
        if state & !FLAGS != idle {
            return Err(Self::misuse(state, idle));
        }
        let words = array::from_fn(|at| self.words[at].load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let state = self.state.load(Ordering::Relaxed);
        if state & !FLAGS == idle { Ok(words) } else { Err(Self::misuse(state, idle)) }
    }

    /// Takes the object out, poisoned or not.
    pub(super) fn take(&self, generation: u64, kind: Kind) -> Result<*mut (), Misuse> {
        let idle = idle(generation, kind);
        let poisoned = idle | POISONED;
        let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
        let entered = self
            .state
            .compare_exchange(idle, idle | IN_USE, acquire, relaxed)
            .or_else(|_| self.state.compare_exchange(poisoned, idle | IN_USE, acquire, relaxed));
        if let Err(state) = entered {
            return Err(Self::misuse(state, idle));
        }
        let value = self.value.swap(ptr::null_mut(), Ordering::Relaxed);
        let next = (generation + 1) & ((1 << GENERATION_BITS) - 1);
        self.state.store(next << GENERATION_SHIFT, Ordering::Release);
        Ok(value)
    }
}
