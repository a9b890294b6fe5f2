//! Posted receives.

use polyrail_core::verbs::RecvRequest;
use polyrail_nic_parts::lists::Listed;
use polyrail_nic_parts::recv_ring::RecvRing;
use std::ops::{Deref, DerefMut};

/// The ring of posted receives, which records that one was missing. It dereferences to the ring.
#[derive(Debug)]
pub(crate) struct Posts {
    ring: RecvRing,
    /// A receive was needed while the ring was empty.
    was_missed: bool,
}

impl Posts {
    pub(crate) fn new(ring: RecvRing) -> Self {
        Self { ring, was_missed: false }
    }

    /// Takes the oldest receive, and returns it with the number of receives taken since the
    /// beginning.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<(Listed<RecvRequest>, u64)> {
        let taken = self.ring.pop();
        if taken.is_none() {
            self.was_missed = true;
        }
        taken
    }

    /// Returns whether a receive was needed while the ring was empty, since the last call.
    #[inline]
    pub(crate) fn take_missed(&mut self) -> bool {
        std::mem::take(&mut self.was_missed)
    }
}

impl Deref for Posts {
    type Target = RecvRing;

    #[inline]
    fn deref(&self) -> &RecvRing {
        &self.ring
    }
}

impl DerefMut for Posts {
    #[inline]
    fn deref_mut(&mut self) -> &mut RecvRing {
        &mut self.ring
    }
}
