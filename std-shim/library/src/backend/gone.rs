//! Removed devices.

/// Proof that a queue pair's device was removed, and that no request of this queue pair or its peer
/// accesses memory any more.
///
/// Only a backend can detect this. The owner of a proof may return the buffers to the program.
#[derive(Clone, Copy, Debug)]
pub struct Gone(());

impl Gone {
    /// Makes the proof.
    ///
    /// # Safety
    ///
    /// The device accesses no memory through the queue pair, now or later.
    pub const unsafe fn new() -> Self {
        Self(())
    }
}
