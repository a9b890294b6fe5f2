//! Batches: requests are collected until the commit, which decides how many of them reach the
//! driver.

use crate::fault::WorkQueue;
use crate::faults::Faults;
use crate::plan::Cut;
use polyrail_core::hardware::{self, CommitError, QueuePair, ReceiveQueue, Refusal};
use polyrail_core::verbs::{RecvRequest, SendRequest, Sge};

/// Memory for collected requests.
#[derive(Debug)]
pub(crate) struct Memory<R> {
    requests: Vec<Kept<R>>,
    /// The lists of requests that have one, concatenated.
    sges: Vec<Sge>,
}

impl<R> Memory<R> {
    /// The memory of objects without batches.
    pub(crate) const NONE: Self = Self { requests: Vec::new(), sges: Vec::new() };

    /// Allocates the same amount for another handle of the queue.
    pub(crate) fn another(&self) -> Self {
        let requests = Vec::with_capacity(self.requests.capacity());
        Self { requests, sges: Vec::with_capacity(self.sges.capacity()) }
    }

    /// Allocates memory for a batch that fills a queue of `max_wr` requests, of up to `max_sge`
    /// buffers. One request is also kept for a queue of size 0, so that the driver itself refuses
    /// it.
    pub(crate) fn new(max_wr: u32, max_sge: u32) -> Self {
        let requests = max_wr.max(1) as usize;
        let lists = if max_sge > 1 { requests * max_sge as usize } else { 0 };
        Self { requests: Vec::with_capacity(requests), sges: Vec::with_capacity(lists) }
    }
}

/// A request, and the length of its list if it has one.
type Kept<R> = (R, Option<usize>);

/// The collected requests. Requests beyond the queue's size are only counted as too many.
#[derive(Debug)]
struct Staged<'q, R> {
    memory: &'q mut Memory<R>,
    too_many: bool,
}

impl<'q, R: Copy> Staged<'q, R> {
    fn new(memory: &'q mut Memory<R>) -> Self {
        memory.requests.clear();
        memory.sges.clear();
        Self { memory, too_many: false }
    }

    fn add(&mut self, request: R, list: Option<&[Sge]>) {
        let Memory { requests, sges } = &mut *self.memory;
        if requests.len() < requests.capacity() {
            requests.push((request, list.map(<[Sge]>::len)));
            sges.extend(list.unwrap_or_default());
        } else {
            self.too_many = true;
        }
    }

    /// Posts the requests that reach the driver, and returns the result of the faulty driver.
    fn commit(
        &self,
        cut: Option<Cut>,
        post: impl FnOnce(Requests<'_, R>) -> Result<(), CommitError>,
    ) -> Result<(), CommitError> {
        let Memory { requests, sges } = &*self.memory;
        let staged = requests.len() as u32;
        let full = self.too_many.then_some(Refusal::QueueFull);
        let (accepted, refusal) = match cut {
            Some(cut) if cut.requests < staged => (cut.requests, Some(cut.refusal)),
            _ => (staged, full),
        };
        // An empty batch is also passed on, because drivers differ in what they do with it.
        if accepted > 0 || staged == 0 {
            // A driver cannot have accepted requests that did not reach it, even if it reports
            // that.
            let at_most = |error: CommitError| CommitError {
                accepted: error.accepted.min(accepted),
                ..error
            };
            post(Requests { requests: &requests[..accepted as usize], sges }).map_err(at_most)?;
        }
        refusal.map_or(Ok(()), |refusal| Err(CommitError { accepted, refusal }))
    }
}

/// The requests that reach the driver.
struct Requests<'m, R> {
    requests: &'m [Kept<R>],
    sges: &'m [Sge],
}

impl<'m, R> Requests<'m, R> {
    /// Calls `each` for every request, with its list if it has one.
    fn for_each(self, mut each: impl FnMut(&'m R, Option<&'m [Sge]>)) {
        let mut sges = self.sges;
        for (request, buffers) in self.requests {
            let (list, behind) = sges.split_at(buffers.unwrap_or_default());
            sges = behind;
            each(request, buffers.map(|_| list));
        }
    }
}

/// A batch of send requests for a queue pair.
#[derive(Debug)]
pub struct SendBatch<'q, Q> {
    qp: &'q mut Q,
    faults: &'q Faults,
    staged: Staged<'q, SendRequest>,
}

impl<'q, Q> SendBatch<'q, Q> {
    pub(crate) fn new(
        qp: &'q mut Q,
        faults: &'q Faults,
        memory: &'q mut Memory<SendRequest>,
    ) -> Self {
        Self { qp, faults, staged: Staged::new(memory) }
    }
}

impl<Q: QueuePair> hardware::SendBatch for SendBatch<'_, Q> {
    fn add(&mut self, request: &SendRequest) {
        self.staged.add(*request, None);
    }

    fn add_list(&mut self, request: &SendRequest, buffers: &[Sge]) {
        self.staged.add(*request, Some(buffers));
    }

    fn commit(self) -> Result<(), CommitError> {
        self.staged.commit(self.faults.on_commit(WorkQueue::Send), |requests| {
            let mut batch = self.qp.start_send();
            requests.for_each(|request, list| match list {
                None => hardware::SendBatch::add(&mut batch, request),
                Some(list) => hardware::SendBatch::add_list(&mut batch, request, list),
            });
            hardware::SendBatch::commit(batch)
        })
    }
}

/// A batch of receives for a queue pair's own or a shared receive queue.
#[derive(Debug)]
pub struct RecvBatch<'q, R> {
    queue: &'q mut R,
    faults: &'q Faults,
    staged: Staged<'q, RecvRequest>,
}

impl<'q, R> RecvBatch<'q, R> {
    pub(crate) fn new(
        queue: &'q mut R,
        faults: &'q Faults,
        memory: &'q mut Memory<RecvRequest>,
    ) -> Self {
        Self { queue, faults, staged: Staged::new(memory) }
    }
}

impl<R: ReceiveQueue> hardware::RecvBatch for RecvBatch<'_, R> {
    fn add(&mut self, request: &RecvRequest) {
        self.staged.add(*request, None);
    }

    fn add_list(&mut self, wr_id: u64, buffers: &[Sge]) {
        self.staged.add(RecvRequest { wr_id, sge: Sge::EMPTY }, Some(buffers));
    }

    fn commit(self) -> Result<(), CommitError> {
        self.staged.commit(self.faults.on_commit(WorkQueue::Recv), |requests| {
            let mut batch = self.queue.start_recv();
            requests.for_each(|request, list| match list {
                None => hardware::RecvBatch::add(&mut batch, request),
                Some(list) => hardware::RecvBatch::add_list(&mut batch, request.wr_id, list),
            });
            hardware::RecvBatch::commit(batch)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EIO: Refusal = Refusal::Driver(5);

    /// Commits a batch of `requests` to a queue of four. Returns the requests that reached the
    /// driver, and the result.
    fn commit(
        requests: u64,
        cut: Option<(u32, Refusal)>,
        answer: Result<(), CommitError>,
    ) -> (Option<usize>, Result<(), CommitError>) {
        let mut memory = Memory::new(4, 1);
        let mut staged = Staged::new(&mut memory);
        (0..requests).for_each(|request| staged.add(request, None));
        let cut = cut.map(|(requests, refusal)| Cut { requests, refusal });
        let mut got = None;
        let result = staged.commit(cut, |requests| {
            got = Some(requests.requests.len());
            answer
        });
        (got, result)
    }

    fn refused(accepted: u32, refusal: Refusal) -> Result<(), CommitError> {
        Err(CommitError { accepted, refusal })
    }

    #[test]
    fn a_batch_without_a_fault_is_passed_on() {
        assert_eq!(commit(3, None, Ok(())), (Some(3), Ok(())));
        assert_eq!(commit(0, None, Ok(())), (Some(0), Ok(())));
        assert_eq!(commit(0, None, refused(0, EIO)), (Some(0), refused(0, EIO)));
        assert_eq!(commit(3, None, refused(1, EIO)), (Some(3), refused(1, EIO)));
    }

    #[test]
    fn a_cut_batch_ends_before_the_request_that_is_refused() {
        assert_eq!(commit(3, Some((0, EIO)), Ok(())), (None, refused(0, EIO)));
        assert_eq!(commit(3, Some((2, EIO)), Ok(())), (Some(2), refused(2, EIO)));
        assert_eq!(commit(3, Some((3, EIO)), Ok(())), (Some(3), Ok(())));
    }

    #[test]
    fn a_driver_that_takes_less_is_believed() {
        let full = refused(1, Refusal::QueueFull);
        assert_eq!(commit(3, Some((2, EIO)), full), (Some(2), full));
        assert_eq!(commit(3, Some((2, EIO)), refused(7, EIO)), (Some(2), refused(2, EIO)));
    }

    #[test]
    fn what_a_queue_was_not_granted_finds_it_full() {
        let full = refused(4, Refusal::QueueFull);
        assert_eq!(commit(6, None, Ok(())), (Some(4), full));
        assert_eq!(commit(6, Some((4, EIO)), Ok(())), (Some(4), full));
        assert_eq!(commit(6, Some((1, EIO)), Ok(())), (Some(1), refused(1, EIO)));
    }
}
