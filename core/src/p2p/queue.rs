//! The requests in flight on one queue pair.
//!
//! Requests are posted in chains, each with one doorbell. A reliable connection completes requests
//! in posting order, so a completion ends all requests up to its own. A chain may therefore be
//! unsignaled, and the accepted front of a chain that the driver took in part ends with the
//! completion of the next chain.

use crate::rail::tag::{Tag, TagKind};

/// The purpose of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The last request of a rail's share of a message, with the immediate.
    Share {
        /// Number of the message.
        number: u64,
        /// The rail of the share, for which the message was split.
        rail: u8,
    },
    /// Another request of a share.
    Part,
    /// The entries of a receive.
    Entries,
    /// The entries of a receive that a failed queue pair has written before.
    EntriesAgain {
        /// Number of the receive.
        number: u64,
    },
    /// A READ that makes what arrived visible.
    Flush,
    /// No payload: a signaled request whose completion ends the requests before it.
    Marker,
}

/// The requests in flight on one send queue, and its credits: free slots of it.
#[derive(Debug)]
pub(super) struct SendQueue<const DEPTH: usize> {
    /// Tag of request 0.
    // The tag of a request follows from this one and its number, so no tags are stored.
    first: Tag,
    posted: u64,
    /// Requests that have ended.
    ended: u64,
    /// Number of the request after the last signaled one.
    signaled: u64,
    limit: u32,
    /// Limit of consecutive unsignaled requests, the next signaled one included.
    quarter: u32,
    /// Chains posted.
    chains: u64,
    /// The purpose of request i is at index i modulo `DEPTH`.
    // A ring of requests and not of chains, so that a request is found by its number, without a
    // search.
    purposes: [Purpose; DEPTH],
}

impl<const DEPTH: usize> SendQueue<DEPTH> {
    /// Creates an empty queue of `limit` slots, at most `DEPTH`.
    pub(super) const fn new(rail: u8, limit: u32) -> Self {
        let limit = if limit < DEPTH as u32 { limit } else { DEPTH as u32 };
        Self {
            first: Tag::new(TagKind::Send, rail, 0),
            posted: 0,
            ended: 0,
            signaled: 0,
            limit,
            // Unsignaled requests keep their slots until a later completion, so at most a quarter
            // of the queue waits for one (messages.md, "Offers: entries").
            quarter: limit.div_ceil(4),
            chains: 0,
            purposes: [Purpose::Marker; DEPTH],
        }
    }

    /// Slots in all.
    pub(super) const fn limit(&self) -> u32 {
        self.limit
    }

    /// Free slots.
    #[inline]
    pub(super) const fn credits(&self) -> u32 {
        self.limit - (self.posted - self.ended) as u32
    }

    /// Whether nothing is in flight.
    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.posted == self.ended
    }

    /// Requests posted since the last one that will have a completion.
    #[inline]
    pub(super) const fn unsignaled(&self) -> u32 {
        (self.posted - self.signaled) as u32
    }

    /// Returns whether the next request must be signaled: with it, a quarter of the queue has been
    /// posted since the last signaled one.
    #[inline]
    pub(super) const fn is_signal_due(&self) -> bool {
        self.unsignaled() + 1 >= self.quarter
    }

    /// Requests posted so far.
    pub(super) const fn posted(&self) -> u64 {
        self.posted
    }

    /// Chains posted so far.
    pub(super) const fn chains(&self) -> u64 {
        self.chains
    }

    /// Returns whether a request in flight is signaled.
    pub(super) const fn expects_completion(&self) -> bool {
        self.signaled > self.ended
    }

    /// Number of the oldest request in flight.
    pub(super) const fn oldest(&self) -> u64 {
        self.ended
    }

    /// The tag of the next request.
    #[inline]
    pub(super) const fn next_tag(&self) -> Tag {
        self.first.plus(self.posted)
    }

    /// Records a chain of `count` requests, of which the last has this `purpose` and may be
    /// `signaled`.
    pub(super) fn push_chain(&mut self, count: u32, signaled: bool, purpose: Purpose) {
        debug_assert!(count > 0 && count <= self.credits());
        // Parts have places of their own, because a completion can also end in the middle of a
        // chain that failed.
        for _ in 1..count {
            self.purposes[place::<DEPTH>(self.posted)] = Purpose::Part;
            self.posted += 1;
        }
        self.push(signaled, purpose);
    }

    /// Records a chain of one request.
    #[inline]
    pub(super) fn push(&mut self, signaled: bool, purpose: Purpose) {
        debug_assert!(self.credits() > 0);
        self.purposes[place::<DEPTH>(self.posted)] = purpose;
        self.posted += 1;
        // Only a signaled request surely completes; the requests before it end with it.
        if signaled {
            self.signaled = self.posted;
        }
        self.chains += 1;
    }

    /// Number of the request in flight that has this `wr_id`.
    #[inline]
    pub(super) fn find(&self, wr_id: u64) -> Option<u64> {
        // The tag contains the generation, so a completion of a replaced queue pair is not found.
        let since = Tag::from_wr_id(wr_id).requests_since(self.first, self.ended)?;
        // A number that was never posted, or has ended, is not in flight: a driver may repeat a
        // completion.
        (since < self.posted - self.ended).then_some(self.ended + since)
    }

    /// Ends request `number`, which is in flight, and all requests before it. Calls `each` for
    /// each.
    #[inline]
    pub(super) fn end(&mut self, number: u64, mut each: impl FnMut(Purpose)) {
        // A reliable connection completes requests in order, so what is before has ended as well.
        for ended in self.ended..=number {
            each(self.purposes[place::<DEPTH>(ended)]);
        }
        self.ended = number + 1;
    }

    /// Ends all requests, without regard to their results.
    pub(super) const fn end_all(&mut self) {
        self.ended = self.posted;
    }

    /// Starts again for the queue pair of another `generation`. All requests must have ended.
    pub(super) fn start_over(&mut self, generation: u16) {
        debug_assert!(self.is_empty());
        let first = self.first.of_generation(generation);
        // Another generation gives other tags, so late completions of the old queue pair are not
        // found.
        *self = Self { first, ..Self::new(first.rail(), self.limit) };
    }

    /// What must hold between any two calls.
    pub(super) fn invariants(&self) {
        assert!(self.ended <= self.posted && self.signaled <= self.posted);
        assert!(self.posted - self.ended <= u64::from(self.limit), "credits");
        assert!(self.chains <= self.posted);
    }
}

/// The place of a request.
#[inline]
const fn place<const DEPTH: usize>(at: u64) -> usize {
    (at % DEPTH as u64) as usize
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::vec::Vec;

    const MARKER: Purpose = Purpose::Marker;

    fn entries(number: u64) -> Purpose {
        Purpose::EntriesAgain { number }
    }

    /// What the completion of a request takes off.
    fn ended(queue: &mut SendQueue<8>, number: u64) -> Vec<Purpose> {
        let mut ended = Vec::new();
        queue.end(number, |purpose| ended.push(purpose));
        ended
    }

    #[test]
    fn a_completion_ends_every_request_up_to_its_own() {
        let mut queue = SendQueue::<8>::new(2, 100);
        assert_eq!(queue.credits(), 8);
        queue.push(false, entries(1));
        queue.push_chain(3, false, entries(2));
        let last = queue.next_tag();
        queue.push(true, entries(3));
        queue.push(false, MARKER);
        assert_eq!((queue.posted(), queue.chains()), (6, 4));
        assert_eq!((queue.credits(), queue.unsignaled()), (2, 1));
        let number = queue.find(last.wr_id()).unwrap();
        let part = Purpose::Part;
        let all = [entries(1), part, part, entries(2), entries(3)];
        assert_eq!(ended(&mut queue, number), all);
        assert_eq!(queue.credits(), 7);
        assert_eq!(queue.find(last.wr_id()), None, "none ends twice");
        queue.end_all();
        assert!(queue.is_empty());
        queue.invariants();
    }

    #[test]
    fn a_completion_within_a_chain_does_not_end_the_chain() {
        let mut queue = SendQueue::<8>::new(0, 8);
        queue.push(true, entries(1));
        let within = queue.next_tag().plus(1);
        queue.push_chain(3, true, entries(2));
        let number = queue.find(within.wr_id()).unwrap();
        assert_eq!(ended(&mut queue, number), [entries(1), Purpose::Part, Purpose::Part]);
        assert_eq!(queue.credits(), 7);
        queue.invariants();
    }

    #[test]
    fn foreign_numbers_are_not_found() {
        let mut queue = SendQueue::<4>::new(1, 4);
        let first = queue.next_tag();
        assert_eq!(queue.find(first.wr_id()), None, "nothing is in flight");
        queue.push(true, MARKER);
        assert_eq!(queue.find(first.wr_id()), Some(0));
        assert_eq!(queue.find(first.plus(1).wr_id()), None, "not posted yet");
        for other in [0, first.last().wr_id(), Tag::new(TagKind::Send, 2, 0).wr_id()] {
            assert_eq!(queue.find(other), None, "{other:#x}");
        }
        assert_eq!(queue.find(Tag::new(TagKind::Send, 1, 1).wr_id()), None, "a later queue pair's");
    }
}
