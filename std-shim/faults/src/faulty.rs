//! The wrapper.

use crate::batch::Memory;
use crate::faults::Faults;
use crate::late::Late;
use crate::roster::Serial;
use polyrail_core::hardware::QueuePair;
use polyrail_core::verbs::{RecvRequest, SendRequest};

/// A queue pair, shared receive queue, completion queue or [`Domain`](polyrail::backend::Domain) with
/// a driver that does what its [`Faults`] say; made by them.
///
/// It is what `T` is, and without faults it behaves as `T` does, except that a batch of more requests
/// than the queue was granted never posts more than these. Nothing allocates once it is made.
#[derive(Debug)]
pub struct Faulty<T> {
    /// First, so that a queue pair has left the roster before it is destroyed.
    pub(crate) enrolment: Option<Enrolment>,
    pub(crate) inner: T,
    pub(crate) faults: Faults,
    /// Memory for batches, of queues that have them.
    pub(crate) sends: Memory<SendRequest>,
    pub(crate) receives: Memory<RecvRequest>,
    /// Of a completion queue.
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

    /// What is wrapped, for what the wrapper does not offer.
    pub fn inner(&self) -> &T {
        &self.inner
    }

    /// The faults that it suffers.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }
}

/// The same device, or another handle of the same shared receive queue, with the same faults.
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

    /// The queue pair takes no receive any more; returns whether nothing of it is held back.
    pub(crate) fn end(&self) -> bool {
        self.faults.roster().end(self.serial)
    }
}

impl Drop for Enrolment {
    fn drop(&mut self) {
        self.faults.roster().dismiss(self.serial);
    }
}
