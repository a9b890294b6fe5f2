//! Collects the requests of a batch before they are posted.

use crate::error::errno::EINVAL;
use crate::growth::{first_slots, next_slots};
use crate::lists::{Listed, NamesBuffer};
use polyrail_core::hardware::{CommitError, Refusal};
use polyrail_core::verbs::Sge;

/// The memory in which a queue's handle collects requests. It grows with the longest batch.
#[derive(Debug)]
pub struct StagingMemory<R> {
    requests: Vec<Staged<R>>,
    /// The lists of requests that have one, concatenated.
    sges: Vec<Sge>,
    /// Maximum number of requests in a batch.
    capacity: u32,
    /// Maximum number of buffers in a list.
    most: u32,
}

impl<R> StagingMemory<R> {
    /// Makes memory that grows up to `capacity` requests of up to `max_sge` buffers.
    pub fn new(capacity: u32, max_sge: u32) -> Self {
        let most = max_sge.max(1);
        let mut memory = Self { requests: Vec::new(), sges: Vec::new(), capacity, most };
        memory.reserve(first_slots(capacity as usize));
        memory
    }

    /// Gets memory for the longest batch.
    pub fn reserve_all(&mut self) {
        self.reserve(self.capacity as usize);
        if self.most > 1 {
            self.reserve_lists();
        }
    }

    /// Gets memory for batches of `slots` requests.
    #[cold]
    fn reserve(&mut self, slots: usize) {
        self.requests.reserve_exact(slots - self.requests.len());
        if self.sges.capacity() > 0 {
            self.reserve_lists();
        }
    }

    /// Gets memory for the lists of as many requests as there is memory for.
    #[cold]
    fn reserve_lists(&mut self) {
        let sges = self.requests.capacity() * self.most as usize;
        self.sges.reserve_exact(sges - self.sges.len());
    }
}

#[derive(Clone, Copy, Debug)]
enum Staged<R> {
    Request(Listed<R>),
    /// The list is longer than the queue permits.
    TooLong,
}

/// The collected requests. Requests beyond the queue's size are only counted as too many.
#[derive(Debug)]
pub struct Staging<'q, R> {
    memory: &'q mut StagingMemory<R>,
    too_many: bool,
}

impl<'q, R: Copy + NamesBuffer> Staging<'q, R> {
    /// Empties the memory, for a new batch.
    #[inline]
    pub fn new(memory: &'q mut StagingMemory<R>) -> Self {
        memory.requests.clear();
        memory.sges.clear();
        Self { memory, too_many: false }
    }

    /// Returns whether no request was added.
    #[inline]
    pub fn is_empty(&self) -> bool {
        !self.too_many && self.memory.requests.is_empty()
    }

    /// Returns whether there is room for another request.
    #[inline]
    fn has_room(&mut self) -> bool {
        let StagingMemory { capacity, requests, .. } = &*self.memory;
        let staged = requests.len();
        if staged < requests.capacity() && staged < *capacity as usize {
            return true;
        }
        let Some(slots) = next_slots(staged, *capacity as usize) else {
            self.too_many = true;
            return false;
        };
        self.memory.reserve(slots);
        true
    }

    /// Adds a request with at most one buffer.
    #[inline]
    pub fn add(&mut self, request: Listed<R>) {
        if self.has_room() {
            self.memory.requests.push(Staged::Request(request));
        }
    }

    /// Adds a request with these buffers instead of its own. Empty buffers are left out.
    #[inline]
    pub fn add_list(&mut self, request: R, buffers: &[Sge]) {
        if !self.has_room() {
            return;
        }
        if self.memory.sges.capacity() == 0 {
            self.memory.reserve_lists();
        }
        let StagingMemory { requests, sges, most, .. } = &mut *self.memory;
        requests.push(match Listed::with(request, buffers, *most as usize) {
            Some((listed, filled)) => {
                sges.extend(filled);
                Staged::Request(listed)
            }
            None => Staged::TooLong,
        });
    }

    /// Passes the requests with their lists to the queue until one is refused. Returns the number
    /// of accepted requests, and the result.
    #[inline]
    pub fn commit(
        &self,
        mut take: impl FnMut(&Listed<R>, &[Sge]) -> Result<(), Refusal>,
    ) -> (u32, Result<(), CommitError>) {
        let mut accepted = 0;
        let mut sges = &self.memory.sges[..];
        let stop = |accepted, refusal| (accepted, Err(CommitError { accepted, refusal }));
        for request in &self.memory.requests {
            let Staged::Request(request) = request else {
                return stop(accepted, Refusal::Driver(EINVAL));
            };
            let (list, behind) = sges.split_at(request.buffers as usize);
            sges = behind;
            if let Err(refusal) = take(request, list) {
                return stop(accepted, refusal);
            }
            accepted += 1;
        }
        if self.too_many { stop(accepted, Refusal::QueueFull) } else { (accepted, Ok(())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::Pages;
    use polyrail_core::verbs::RecvRequest;

    fn receive(wr_id: u64) -> RecvRequest {
        RecvRequest { wr_id, sge: Sge::EMPTY }
    }

    #[test]
    fn requests_come_with_their_lists_until_one_is_too_long() {
        let pages = Pages::new(64).unwrap();
        let buffers = [0, 1, 2].map(|at| pages.local(at, 1).unwrap().sge(1));
        let mut memory = StagingMemory::new(8, 2);
        let mut staging = Staging::new(&mut memory);
        assert!(staging.is_empty());
        staging.add_list(receive(0), &buffers[..2]);
        staging.add(Listed::recv(receive(1)));
        staging.add_list(receive(2), &buffers[1..]);
        staging.add_list(receive(3), &buffers);
        staging.add(Listed::recv(receive(4)));
        let mut taken = Vec::new();
        let result = staging.commit(|request, list| {
            taken.push((request.wr_id, list.to_vec()));
            Ok(())
        });
        let refused = CommitError { accepted: 3, refusal: Refusal::Driver(EINVAL) };
        assert_eq!(result, (3, Err(refused)));
        let expected = [(0, buffers[..2].to_vec()), (1, Vec::new()), (2, buffers[1..].to_vec())];
        assert_eq!(taken, expected);
    }

    #[test]
    fn requests_beyond_the_size_of_the_queue_are_refused_after_the_others() {
        let mut memory = StagingMemory::new(2, 1);
        let mut staging = Staging::new(&mut memory);
        (0..3).for_each(|wr_id| staging.add(Listed::recv(receive(wr_id))));
        let refused = CommitError { accepted: 2, refusal: Refusal::QueueFull };
        assert_eq!(staging.commit(|_, _| Ok(())), (2, Err(refused)));
        assert!(Staging::new(&mut memory).is_empty(), "the next batch starts empty");
    }
}
