//! Wakes a consumer that sleeps, at no cost for one that is awake.

use crate::sync::{AtomicBool, Ordering, fence};

/// Records whether a consumer sleeps, so that producers wake it only then. The consumer may serve
/// many rings.
///
/// ```text
///   consumer                                      producer
///
///   awake ──── arm ───► asleep                    push
///     ▲                   │                       ring ──► true: wake the consumer
///     │                   │ check the rings,           └─► false: it is awake, or another
///     └──── disarm ───────┘ then sleep                     producer wakes it
/// ```
///
/// The consumer announces that it goes to sleep, then checks its rings; a producer pushes, then
/// checks whether the consumer sleeps. Each has a fence between its two steps, so at least one of
/// them sees the step of the other, and the consumer never sleeps while a value is in a ring. The
/// caller puts the thread to sleep and wakes it. A wake-up that comes before the sleep must end it,
/// as with `std::thread::park`.
///
/// ```
/// use polyrail_core::spsc::Doorbell;
///
/// let bell = Doorbell::new();
/// assert!(!bell.ring());
/// bell.arm();
/// // The consumer finds its rings empty, and sleeps.
/// assert!(bell.ring());
/// assert!(!bell.ring());
/// bell.disarm();
/// ```
#[derive(Debug)]
pub struct Doorbell {
    asleep: AtomicBool,
}

impl Doorbell {
    /// Creates a doorbell whose consumer is awake.
    #[cfg(not(polyrail_loom))]
    pub const fn new() -> Self {
        Self { asleep: AtomicBool::new(false) }
    }

    /// Creates a doorbell whose consumer is awake; loom's types have no constant constructors.
    #[cfg(polyrail_loom)]
    pub fn new() -> Self {
        Self { asleep: AtomicBool::new(false) }
    }

    /// Announces that the consumer goes to sleep. The consumer must check its rings once more
    /// before it sleeps.
    pub fn arm(&self) {
        // All accesses are swaps, each of which sees the one before, so a producer never acts on an
        // older state.
        self.asleep.swap(true, Ordering::AcqRel);
        fence(Ordering::SeqCst);
    }

    /// Announces that the consumer is awake, whether or not it slept.
    pub fn disarm(&self) {
        self.asleep.swap(false, Ordering::AcqRel);
    }

    /// Called after a push, or any other change that the consumer must see. Returns whether the
    /// caller must wake the consumer; of many concurrent callers, one must.
    #[must_use = "the consumer may sleep"]
    #[inline]
    pub fn ring(&self) -> bool {
        fence(Ordering::SeqCst);
        self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::AcqRel)
    }
}

impl Default for Doorbell {
    fn default() -> Self {
        Self::new()
    }
}
