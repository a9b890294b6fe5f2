//! What must hold between any two calls.

use super::qp::VirtualQp;
use crate::hardware::QueuePair;

impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize>
    VirtualQp<Q, RAILS, DEPTH, WRS>
{
    /// Checks what must hold between any two calls. Called after every step in debug builds.
    ///
    /// # Panics
    ///
    /// If it does not: a bug of this crate.
    pub fn invariants(&self) {
        self.sends.invariants();
        self.recvs.invariants();
        self.scheme.invariants();
        if !self.is_multi() {
            return;
        }
        for rail in self.all_rails() {
            rail.sends.invariants();
            assert!(rail.recvs.posted() <= rail.recvs.limit());
        }
        self.dispatch_invariants();
        self.pass_through_invariants();
        self.ahead_invariants();
        self.list_invariants();
    }

    #[inline]
    pub(super) fn debug_invariants(&self) {
        #[cfg(debug_assertions)]
        self.invariants();
    }
}
