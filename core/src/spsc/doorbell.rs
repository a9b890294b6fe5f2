//! Waking a consumer that sleeps, without a word to one that does not.

use crate::sync::{AtomicBool, Ordering, fence};

/// Tells whether a consumer sleeps, so that producers wake it only then. It may serve the consumer
/// of many rings.
///
/// ```text
///   consumer                                      producer
///
///   awake ──── arm ───► asleep                    push
///     ▲                   │                       ring ──► true: wake the consumer
///     │                   │ look once more,            └─► false: it is awake, or somebody
///     └──── disarm ───────┘ then sleep                     else wakes it
/// ```
///
/// The consumer announces that it goes to sleep and then looks into its rings; a producer pushes and
/// then asks whether the consumer sleeps. A fence lies between the two steps of each, so at least
/// one of them sees what the other did, and a value is never left with a consumer asleep. How a
/// thread sleeps and is woken is the caller's affair; a wake-up before the sleep has to end it, as
/// that of `std::thread::park` does.
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
    /// The consumer is awake.
    #[cfg(not(polyrail_loom))]
    pub const fn new() -> Self {
        Self { asleep: AtomicBool::new(false) }
    }

    /// The consumer is awake; loom's types cannot be made in constants.
    #[cfg(polyrail_loom)]
    pub fn new() -> Self {
        Self { asleep: AtomicBool::new(false) }
    }

    /// The consumer goes to sleep, after one more look into its rings.
    pub fn arm(&self) {
        // Swaps throughout, each of which sees the one before: so nobody takes an earlier answer
        // for the one that follows this.
        self.asleep.swap(true, Ordering::AcqRel);
        fence(Ordering::SeqCst);
    }

    /// The consumer is awake again, or did not fall asleep.
    pub fn disarm(&self) {
        self.asleep.swap(false, Ordering::AcqRel);
    }

    /// After a push, or anything else that the consumer has to see: whether the caller has to wake
    /// the consumer. One of many callers is told so.
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
