//! Devices that were removed.

/// The word of a backend that a queue pair's device is gone, and that nothing of what was posted to it,
/// here or by its peer, accesses memory any more.
///
/// Only a backend can know: who has one may hand the buffers back.
#[derive(Clone, Copy, Debug)]
pub struct Gone(());

impl Gone {
    /// Gives the word.
    ///
    /// # Safety
    ///
    /// The device accesses no memory through the queue pair, now and later.
    pub const unsafe fn new() -> Self {
        Self(())
    }
}
