//! Chains of work requests, in memory that is allocated when their queue is created.

use polyrail_core::hardware::{CommitError, Refusal};
use polyrail_core::verbs::Sge;
use rdma_sys::{ibv_recv_wr, ibv_send_wr, ibv_sge};
use std::fmt;
use std::ptr::{self, NonNull};

/// A C work request: an element of a linked list, with a scatter/gather list.
pub(crate) trait WorkRequest {
    fn set_next(&mut self, next: *mut Self);
    fn set_sges(&mut self, sges: *mut ibv_sge, count: libc::c_int);
}

macro_rules! work_request {
    ($($request:ident),*) => {$(
        impl WorkRequest for $request {
            fn set_next(&mut self, next: *mut Self) {
                self.next = next;
            }

            fn set_sges(&mut self, sges: *mut ibv_sge, count: libc::c_int) {
                self.sg_list = sges;
                self.num_sge = count;
            }
        }
    )*};
}

work_request!(ibv_send_wr, ibv_recv_wr);

/// Translates a driver's errno. A full queue is ENOMEM, or ENOSPC from rxe's `ibv_wr_*`.
pub(crate) fn refusal(errno: i32) -> Refusal {
    match errno {
        libc::ENOMEM | libc::ENOSPC => Refusal::QueueFull,
        errno => Refusal::Driver(errno),
    }
}

/// A linked list of work requests that is built and posted repeatedly.
///
/// Requests point at each other and at their scatter/gather lists, so they are accessed through
/// pointers only, never through references to the whole.
pub(crate) struct Chain<W> {
    requests: NonNull<W>,
    sges: NonNull<ibv_sge>,
    capacity: usize,
    max_sge: usize,
    length: usize,
    stopped: Option<Refusal>,
}

// SAFETY: the memory is owned, and the pointers in it lead nowhere else.
unsafe impl<W: WorkRequest> Send for Chain<W> {}
// SAFETY: a shared reference gives access to nothing.
unsafe impl<W: WorkRequest> Sync for Chain<W> {}

impl<W> fmt::Debug for Chain<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { capacity, length, stopped, .. } = self;
        write!(f, "Chain({length} of {capacity}, {stopped:?})")
    }
}

impl<W: WorkRequest> Chain<W> {
    /// Allocates `capacity` requests of `max_sge` scatter/gather entries each.
    pub(crate) fn new(capacity: u32, max_sge: u32) -> Self {
        let capacity = capacity as usize;
        let max_sge = max_sge as usize;
        // SAFETY: C structs of numbers and pointers, so zeros are valid.
        let blank = |_| unsafe { std::mem::zeroed() };
        let requests: Box<[W]> = (0..capacity).map(blank).collect();
        let empty = ibv_sge { addr: 0, length: 0, lkey: 0 };
        let sges = vec![empty; capacity * max_sge].into_boxed_slice();
        Self {
            requests: NonNull::from(Box::leak(requests)).cast(),
            sges: NonNull::from(Box::leak(sges)).cast(),
            capacity,
            max_sge,
            length: 0,
            stopped: None,
        }
    }

    /// Removes all requests.
    pub(crate) fn clear(&mut self) {
        self.length = 0;
        self.stopped = None;
    }

    /// Refuses all further requests with this error, which `post` returns.
    pub(crate) fn stop(&mut self, refusal: Refusal) {
        self.stopped.get_or_insert(refusal);
    }

    /// Appends a request with the nonempty buffers of `buffers`, since some devices take a length
    /// of 0 for 2^31 bytes; `fill` writes all other fields. Refuses a list that is too long.
    #[inline]
    pub(crate) fn push(&mut self, buffers: &[Sge], fill: impl FnOnce(&mut W)) {
        if self.stopped.is_some() {
            return;
        }
        if self.length == self.capacity {
            return self.stop(Refusal::QueueFull);
        }
        let at = self.length;
        let mut count = 0;
        for sge in filled(buffers) {
            if count == self.max_sge {
                return self.stop(Refusal::Driver(libc::EINVAL));
            }
            // SAFETY: `at` is below the capacity, and every request has `max_sge` entries.
            unsafe { self.sges.add(at * self.max_sge + count).write(sge) };
            count += 1;
        }
        // SAFETY: `at` and its neighbours are below the capacity. Each reference is to one request
        // and ends with its statement.
        unsafe {
            let request = self.requests.add(at);
            fill(&mut *request.as_ptr());
            let list = self.sges.add(at * self.max_sge);
            (*request.as_ptr()).set_sges(list.as_ptr(), count as libc::c_int);
            (*request.as_ptr()).set_next(ptr::null_mut());
            if at > 0 {
                (*request.as_ptr().sub(1)).set_next(request.as_ptr());
            }
        }
        self.length += 1;
    }

    /// Posts the chain with `call`, which receives the first request and a pointer for `bad_wr`.
    ///
    /// `bad_wr` is the first request that was not accepted. If a driver fails without setting it,
    /// it accepted none.
    pub(crate) fn post(
        &mut self,
        call: impl FnOnce(*mut W, *mut *mut W) -> libc::c_int,
    ) -> Result<(), CommitError> {
        let length = self.length;
        if length > 0 {
            let mut bad = ptr::null_mut();
            let returned = call(self.requests.as_ptr(), &raw mut bad);
            if returned != 0 {
                let refusal = refusal(crate::sys::errno_of(returned));
                return Err(CommitError { accepted: self.position(bad), refusal });
            }
        }
        match self.stopped {
            None => Ok(()),
            Some(refusal) => Err(CommitError { accepted: length as u32, refusal }),
        }
    }

    /// Returns the index of `bad` in the chain; 0 if it is not in the chain.
    fn position(&self, bad: *mut W) -> u32 {
        let offset = bad.addr().wrapping_sub(self.requests.addr().get());
        let at = offset / size_of::<W>();
        if at < self.length { at as u32 } else { 0 }
    }
}

/// Returns the nonempty buffers as C structs.
#[inline]
pub(crate) fn filled(buffers: &[Sge]) -> impl Iterator<Item = ibv_sge> {
    buffers.iter().filter(|sge| sge.length() != 0).map(|sge| ibv_sge {
        addr: sge.addr(),
        length: sge.length(),
        lkey: sge.lkey(),
    })
}

impl<W> Drop for Chain<W> {
    fn drop(&mut self) {
        let requests = ptr::slice_from_raw_parts_mut(self.requests.as_ptr(), self.capacity);
        let places = self.capacity * self.max_sge;
        let sges = ptr::slice_from_raw_parts_mut(self.sges.as_ptr(), places);
        // SAFETY: both were leaked boxes of these lengths, and are freed only here.
        unsafe {
            drop(Box::from_raw(requests));
            drop(Box::from_raw(sges));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyrail_core::verbs::LocalBuffer;

    fn chain(capacity: u32, wr_ids: impl IntoIterator<Item = u64>) -> Chain<ibv_recv_wr> {
        let mut chain = Chain::new(capacity, 1);
        for wr_id in wr_ids {
            // SAFETY: the address is never dereferenced.
            let buffer = unsafe { LocalBuffer::new(wr_id << 12, wr_id as u32) };
            chain.push(&[buffer.sge(9)], |request: &mut ibv_recv_wr| request.wr_id = wr_id);
        }
        chain
    }

    /// Reads a chain as a driver does: ids, number of buffers, length of the first.
    fn walk(mut at: *mut ibv_recv_wr) -> Vec<(u64, i32, u32)> {
        let mut seen = Vec::new();
        while !at.is_null() {
            // SAFETY: a chain that is being posted.
            let request = unsafe { &*at };
            // SAFETY: as above; the list has at least one entry.
            let length = if request.num_sge > 0 { unsafe { (*request.sg_list).length } } else { 0 };
            seen.push((request.wr_id, request.num_sge, length));
            at = request.next;
        }
        seen
    }

    #[test]
    fn a_driver_sees_the_requests_in_order_and_no_buffer_where_there_is_none() {
        let mut chain = chain(4, [7, 0, 9]);
        let mut seen = Vec::new();
        let post = |first, _| {
            seen = walk(first);
            0
        };
        assert_eq!(chain.post(post), Ok(()));
        assert_eq!(seen, [(7, 1, 7), (0, 0, 0), (9, 1, 9)]);
    }

    #[test]
    fn a_shorter_chain_after_a_longer_one_ends_where_it_ends() {
        let mut chain = chain(4, [1, 2, 3]);
        chain.clear();
        chain.push(&[Sge::EMPTY], |request| request.wr_id = 8);
        let mut seen = Vec::new();
        let post = |first, _| {
            seen = walk(first);
            0
        };
        assert_eq!(chain.post(post), Ok(()));
        assert_eq!(seen, [(8, 0, 0)]);
    }

    #[test]
    fn a_list_keeps_its_order_and_its_place_and_one_that_is_too_long_is_refused() {
        let mut chain = Chain::<ibv_recv_wr>::new(4, 3);
        let sge = |length| {
            // SAFETY: the address is never dereferenced.
            unsafe { LocalBuffer::new(4096, length) }.sge(length + 1)
        };
        chain.push(&[sge(1), Sge::EMPTY, sge(2), sge(3)], |request| request.wr_id = 1);
        chain.push(&[], |request| request.wr_id = 2);
        chain.push(&[sge(4)], |request| request.wr_id = 3);
        chain.push(&[sge(1), sge(2), sge(3), sge(4)], |request| request.wr_id = 4);
        let mut seen = Vec::new();
        let refused = chain.post(|mut at, _| {
            while !at.is_null() {
                // SAFETY: a chain that is being posted.
                let request = unsafe { &*at };
                let count = request.num_sge as usize;
                // SAFETY: as above; the list has `num_sge` buffers.
                let list = unsafe { std::slice::from_raw_parts(request.sg_list, count) };
                seen.push(list.iter().map(|sge| (sge.length, sge.lkey)).collect::<Vec<_>>());
                at = request.next;
            }
            0
        });
        assert_eq!(seen, [vec![(1, 2), (2, 3), (3, 4)], vec![], vec![(4, 5)]]);
        let refusal = Refusal::Driver(libc::EINVAL);
        assert_eq!(refused, Err(CommitError { accepted: 3, refusal }));
    }

    #[test]
    fn bad_wr_says_how_many_were_taken() {
        for taken in 0..3 {
            let mut chain = chain(4, [1, 2, 3]);
            let result = chain.post(|first, bad| {
                // SAFETY: the chain has three requests, and `bad` is a place to write to.
                unsafe { *bad = first.add(taken) };
                libc::ENOMEM
            });
            let refusal = Refusal::QueueFull;
            assert_eq!(result, Err(CommitError { accepted: taken as u32, refusal }));
        }
    }

    #[test]
    fn a_driver_that_does_not_say_which_request_failed_took_none() {
        let mut chain = chain(4, [1, 2, 3]);
        let refusal = Refusal::Driver(libc::EINVAL);
        let none = Err(CommitError { accepted: 0, refusal });
        assert_eq!(chain.post(|_, _| libc::EINVAL), none);
        let stray = |first: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr| {
            // SAFETY: a place to write to; the pointer written is never dereferenced.
            unsafe { *bad = first.wrapping_add(3) };
            -libc::EINVAL
        };
        assert_eq!(chain.post(stray), none, "a pointer past the end");
    }

    #[test]
    fn requests_over_the_capacity_are_refused_and_those_before_are_posted() {
        let mut chain = chain(2, [1, 2, 3]);
        let mut seen = Vec::new();
        let post = |first, _| {
            seen = walk(first);
            0
        };
        let refusal = Refusal::QueueFull;
        assert_eq!(chain.post(post), Err(CommitError { accepted: 2, refusal }));
        assert_eq!(seen.len(), 2);
    }

    #[test]
    fn an_empty_chain_is_not_posted_at_all() {
        let mut chain = chain(0, []);
        assert_eq!(chain.post(|_, _| unreachable!("nothing to post")), Ok(()));
    }
}
