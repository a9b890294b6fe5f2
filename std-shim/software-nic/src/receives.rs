//! The state of the receiving end: the responder side of a queue pair, and the contents of a shared
//! receive queue.

use crate::posts::Posts;
use polyrail_core::verbs::{AccessFlags, RecvRequest, Sge};
use polyrail_nic_parts::address::{Gid, Mtu};
use polyrail_nic_parts::completions::Entry;
use polyrail_nic_parts::lists::Listed;
use polyrail_nic_parts::sync::lock;
use std::sync::Mutex;

/// Number of receives that a responder takes from its queue at a time.
const AT_HAND: usize = 16;

/// Receives that the responder took from its queue and has not used. It takes several at a time, so
/// that it and the thread that posts rarely contend for the queue.
#[derive(Debug)]
struct AtHand {
    slots: [Listed<RecvRequest>; AT_HAND],
    /// Their lists, concatenated, as many as fit; a single list always fits.
    sges: Vec<Sge>,
    /// Begin and end of the list of the receive that was taken last.
    list: (usize, usize),
    /// Number of taken receives, as a position in the queue.
    taken: u64,
    end: u64,
}

impl AtHand {
    fn new(max_sge: u32) -> Self {
        let sges = if max_sge > 1 { AT_HAND.max(max_sge as usize) } else { 0 };
        let empty = Listed::recv(RecvRequest { wr_id: 0, sge: Sge::EMPTY });
        Self {
            slots: [empty; AT_HAND],
            sges: Vec::with_capacity(sges),
            list: (0, 0),
            taken: 0,
            end: 0,
        }
    }

    fn is_empty(&self) -> bool {
        self.taken == self.end
    }

    /// Takes receives from the queue. If it is empty, the queue records that a receive was needed.
    fn fill(&mut self, ring: &mut Posts) {
        (self.taken, self.end) = (ring.taken(), ring.taken());
        self.sges.clear();
        self.list = (0, 0);
        while let Some((request, taken)) = ring.pop() {
            self.slots[self.end as usize % AT_HAND] = request;
            self.sges.extend_from_slice(ring.list_of_taken());
            self.end = taken;
            let has_room = |next: &Listed<RecvRequest>| {
                self.sges.len() + next.buffers as usize <= self.sges.capacity()
            };
            if self.end - self.taken == AT_HAND as u64 || !ring.first().is_some_and(has_room) {
                return;
            }
        }
    }

    fn pop(&mut self) -> Option<(Listed<RecvRequest>, u64)> {
        if self.is_empty() {
            return None;
        }
        let request = self.slots[self.taken as usize % AT_HAND];
        self.taken += 1;
        self.list = (self.list.1, self.list.1 + request.buffers as usize);
        Some((request, self.taken))
    }

    fn list_of_taken(&self) -> &[Sge] {
        &self.sges[self.list.0..self.list.1]
    }
}

/// The contents of a shared receive queue.
#[derive(Debug)]
pub(crate) struct SrqInner {
    pub(crate) ring: Posts,
    /// Falling below it raises the event; 0 is disarmed.
    pub(crate) limit: u32,
    pub(crate) limit_reached: bool,
}

/// The end of the receives of a queue pair with a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The queue pair is not in ERR, or the transition was not noticed yet.
    NotBegun,
    /// In ERR, it still takes one receive until that time.
    OneMore { until: u64 },
    /// It takes no more receives.
    LastWqeReached,
}

/// Number of completions that are collected and added to their queue together.
const DONE: usize = 16;

/// The responder side of a queue pair.
#[derive(Debug)]
pub(crate) struct Responder {
    at_hand: AtHand,
    /// Completions of receives that are not in their queue yet.
    pub(crate) done: Vec<Entry>,
    /// The peer that requests may come from.
    pub(crate) gid: Gid,
    pub(crate) dest_qp_num: u32,
    pub(crate) mtu: Mtu,
    pub(crate) expected_psn: u32,
    pub(crate) access: AccessFlags,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    /// With a shared receive queue only.
    pub(crate) ending: Ending,
}

impl Responder {
    pub(crate) fn new(max_recv_sge: u32) -> Self {
        Self {
            at_hand: AtHand::new(max_recv_sge),
            done: Vec::new(),
            gid: Gid::default(),
            dest_qp_num: 0,
            mtu: Mtu::default(),
            expected_psn: 0,
            access: AccessFlags::empty(),
            max_dest_rd_atomic: 0,
            min_rnr_timer: 0,
            ending: Ending::NotBegun,
        }
    }

    /// Takes the oldest receive, and returns it with the number of receives taken since the
    /// beginning. Takes more from the queue if none is at hand.
    pub(crate) fn pop(&mut self, posts: &Mutex<Posts>) -> Option<(Listed<RecvRequest>, u64)> {
        if self.at_hand.is_empty() {
            self.at_hand.fill(&mut lock(posts));
        }
        self.at_hand.pop()
    }

    /// Returns the list of the receive that was taken last, if it has one.
    pub(crate) fn list_of_taken(&self) -> &[Sge] {
        self.at_hand.list_of_taken()
    }

    /// Returns whether a receive is posted.
    pub(crate) fn has_receives(&self, posts: &Mutex<Posts>) -> bool {
        !self.at_hand.is_empty() || !lock(posts).is_empty()
    }

    /// Drops the receives at hand.
    pub(crate) fn clear(&mut self) {
        self.at_hand.taken = self.at_hand.end;
    }

    /// Adds a completion to [`done`](Self::done), which has room for it.
    pub(crate) fn complete(&mut self, entry: Entry) {
        // All of its memory at once, with the first receive: a queue pair that only sends needs
        // none.
        if self.done.capacity() == 0 {
            self.reserve();
        }
        self.done.push(entry);
    }

    /// Gets memory for all completions that are collected.
    pub(crate) fn reserve(&mut self) {
        self.done.reserve_exact(DONE);
    }

    /// Returns whether [`done`](Self::done) is full.
    pub(crate) fn is_full(&self) -> bool {
        self.done.len() == DONE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyrail_nic_parts::pages::Pages;
    use polyrail_nic_parts::recv_ring::RecvRing;

    #[test]
    fn lists_stay_with_their_receives_however_many_are_at_hand() {
        const MOST: u32 = 24;
        let pages = Pages::new(4096).unwrap();
        let ring = Mutex::new(Posts::new(RecvRing::new(64, MOST)));
        let list = |at: usize| -> Vec<_> {
            let sge = |i| pages.local(at * 50 + i, 1).unwrap().sge(1);
            // A single buffer is not a list.
            (0..2 * (at * 7 % (MOST as usize / 2 + 1))).map(sge).collect()
        };
        for at in 0..64 {
            let receive = RecvRequest { wr_id: at as u64, sge: Sge::EMPTY };
            let buffers = list(at);
            let (listed, filled) = Listed::with(receive, &buffers, MOST as usize).unwrap();
            let filled: Vec<_> = filled.collect();
            assert!(lock(&ring).push(&listed, &filled, 0));
        }
        let mut responder = Responder::new(MOST);
        let addresses = |list: &[Sge]| list.iter().map(|sge| sge.addr()).collect::<Vec<_>>();
        for at in 0..64 {
            let (request, taken) = responder.pop(&ring).unwrap();
            assert_eq!((request.wr_id, taken), (at as u64, at as u64 + 1));
            assert_eq!(addresses(responder.list_of_taken()), addresses(&list(at)));
        }
        assert!(responder.pop(&ring).is_none() && lock(&ring).take_missed());
    }
}
