//! The wrapper.

use crate::batch::Memory;
use crate::faults::Faults;
use crate::late::Late;
use crate::roster::Serial;
use polyrail_core::hardware::QueuePair;
use polyrail_core::verbs::{RecvRequest, SendRequest};

/// A queue pair, shared receive queue, completion queue or [`Domain`](polyrail::backend::Domain)
/// with a faulty driver, made by [`Faults`].
///
/// Without faults it behaves as `T` does, except that a batch never posts more requests than the
/// queue's size. Nothing allocates after it was made.
#[derive(Debug)]
pub struct Faulty<T> {
    /// First, so that a queue pair has left the roster before it is destroyed.
    pub(crate) enrolment: Option<Enrolment>,
    pub(crate) inner: T,
    pub(crate) faults: Faults,
    /// Memory for batches, in queues that have them.
    pub(crate) sends: Memory<SendRequest>,
    pub(crate) receives: Memory<RecvRequest>,
    /// Delayed completions of a completion queue.
    pub(crate) late: Late,
}

impl<T> Faulty<T> {
    pub(crate) fn new(inner: T, faults: &Faults) -> Self {
        Self {
            enrolment: None,
            inner,
            faults: faults.clone(),
            sends: Memory::NONE,
            receives: Memory::NONE,
            late: Late::default(),
        }
    }

    /// Returns the wrapped object, for functions that the wrapper does not have.
    pub fn inner(&self) -> &T {
        &self.inner
    }

    /// Returns its faults.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }
}

/// Makes another handle of the same device or shared receive queue, with the same faults.
impl<T: Clone> Clone for Faulty<T> {
    fn clone(&self) -> Self {
        let receives = self.receives.another();
        Self { receives, ..Self::new(self.inner.clone(), &self.faults) }
    }
}

/// A queue pair's place on the roster, until it is dropped.
#[derive(Debug)]
pub(crate) struct Enrolment {
    faults: Faults,
    serial: Serial,
}

impl Enrolment {
    pub(crate) fn new(faults: &Faults, qp: &impl QueuePair) -> Self {
        let serial = faults.roster().enroll(qp.device(), qp.qp_num());
        Self { faults: faults.clone(), serial }
    }

    /// Records that the queue pair takes no more receives. Returns whether none of its completions
    /// are held back.
    pub(crate) fn end(&self) -> bool {
        self.faults.roster().end(self.serial)
    }
}

impl Drop for Enrolment {
    fn drop(&mut self) {
        self.faults.roster().dismiss(self.serial);
    }
}
