//! What is in flight on one queue pair.
//!
//! Requests are posted in chains, each with one doorbell. A reliable connection completes requests in
//! posting order, so a completion ends every chain up to its request: a chain needs no completion of its
//! own, and of one that the driver took in part, the next one's completion ends what was taken.

use crate::rail::tag::{Tag, TagKind};

/// What a chain is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Some requests of the share that one rail has of a message.
    Share {
        /// Number of the message.
        number: u64,
        /// Whose share it is: the rail that the message was split for.
        rail: u8,
        /// Its immediate is among them, and so all of the share.
        ends: bool,
    },
    /// The entries of a receive.
    Entries {
        /// Its number.
        number: u64,
        /// They were written before, by a queue pair that failed.
        again: bool,
    },
    /// A READ that makes what arrived visible.
    Flush,
    /// Nothing: it has a completion, so that those before it end.
    Marker,
}

#[derive(Clone, Copy, Debug)]
struct Chain {
    /// Number of the request behind the last one.
    end: u64,
    purpose: Purpose,
}

/// The chains in flight on one send queue, and its credits: free slots of it.
#[derive(Debug)]
pub(super) struct SendQueue<const DEPTH: usize> {
    /// Tag of request 0.
    first: Tag,
    posted: u64,
    /// Requests that have ended.
    ended: u64,
    /// Number of the request behind the last signaled one.
    signaled: u64,
    limit: u32,
    /// Chains pushed and taken off so far: those between are in flight, chain i at place i modulo `DEPTH`.
    pushed: u64,
    taken: u64,
    chains: [Chain; DEPTH],
}

impl<const DEPTH: usize> SendQueue<DEPTH> {
    /// An empty queue of `limit` slots, or `DEPTH`, if that is less.
    pub(super) const fn new(rail: u8, limit: u32) -> Self {
        let limit = if limit < DEPTH as u32 { limit } else { DEPTH as u32 };
        Self {
            first: Tag::new(TagKind::Send, rail, 0),
            posted: 0,
            ended: 0,
            signaled: 0,
            limit,
            pushed: 0,
            taken: 0,
            chains: [Chain { end: 0, purpose: Purpose::Marker }; DEPTH],
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

    /// Whether a completion of what is in flight was asked for.
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

    /// A chain of `count` requests was posted, the last of them `signaled` or not.
    #[inline]
    pub(super) fn push(&mut self, count: u32, signaled: bool, purpose: Purpose) {
        debug_assert!(count > 0 && count <= self.credits());
        self.posted += u64::from(count);
        if signaled {
            self.signaled = self.posted;
        }
        // No more chains than requests, and no more of these than slots.
        self.chains[place::<DEPTH>(self.pushed)] = Chain { end: self.posted, purpose };
        self.pushed += 1;
    }

    /// Number of the request in flight that has this `wr_id`.
    #[inline]
    pub(super) fn find(&self, wr_id: u64) -> Option<u64> {
        let since = Tag::from_wr_id(wr_id).requests_since(self.first, self.ended)?;
        (since < self.posted - self.ended).then_some(self.ended + since)
    }

    /// Takes the oldest chain off, if the completion of request `number` ends it.
    #[inline]
    pub(super) fn end(&mut self, number: u64) -> Option<Purpose> {
        if self.ended > number {
            return None;
        }
        let Chain { end, purpose } = self.chains[place::<DEPTH>(self.taken)];
        // With the last chain in flight, the last request in flight has ended.
        if end > number + 1 {
            return None;
        }
        self.taken += 1;
        self.ended = end;
        Some(purpose)
    }

    /// Takes the oldest chain off, whatever became of it.
    pub(super) fn end_any(&mut self) -> Option<Purpose> {
        if self.is_empty() { None } else { self.end(self.posted) }
    }

    /// Another queue pair takes the place of this one, whose requests have all ended.
    pub(super) fn start_over(&mut self, generation: u16) {
        debug_assert!(self.is_empty());
        let first = Tag::new(TagKind::Send, self.first.rail(), generation);
        *self = Self { first, ..Self::new(first.rail(), self.limit) };
    }

    /// What must hold between any two calls.
    pub(super) fn invariants(&self) {
        assert!(self.ended <= self.posted && self.signaled <= self.posted);
        assert!(self.posted - self.ended <= u64::from(self.limit), "credits");
        assert!(self.pushed - self.taken <= DEPTH as u64);
        let chains = (self.taken..self.pushed).map(|at| self.chains[place::<DEPTH>(at)]);
        let mut in_flight = chains.map(|chain| chain.end);
        assert!(in_flight.clone().is_sorted());
        let last = in_flight.next_back().unwrap_or(self.ended);
        assert_eq!(last, self.posted, "the last chain ends with the last request");
    }
}

/// The place of a chain.
#[inline]
const fn place<const DEPTH: usize>(at: u64) -> usize {
    (at % DEPTH as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKER: Purpose = Purpose::Marker;

    fn entries(number: u64) -> Purpose {
        Purpose::Entries { number, again: false }
    }

    #[test]
    fn a_completion_ends_every_chain_up_to_its_request() {
        let mut queue = SendQueue::<8>::new(2, 100);
        assert_eq!(queue.credits(), 8);
        queue.push(1, false, entries(1));
        queue.push(3, false, entries(2));
        let last = queue.next_tag();
        queue.push(1, true, entries(3));
        queue.push(1, false, MARKER);
        assert_eq!((queue.credits(), queue.unsignaled()), (2, 1));
        let number = queue.find(last.wr_id()).unwrap();
        let ended = [0; 4].map(|_| queue.end(number));
        assert_eq!(ended, [Some(entries(1)), Some(entries(2)), Some(entries(3)), None]);
        assert_eq!(queue.credits(), 7);
        assert_eq!(queue.find(last.wr_id()), None, "none ends twice");
        assert_eq!(queue.end_any(), Some(MARKER));
        assert!(queue.is_empty());
        queue.invariants();
    }

    #[test]
    fn a_completion_within_a_chain_ends_only_those_before() {
        let mut queue = SendQueue::<8>::new(0, 8);
        queue.push(2, true, entries(1));
        let within = queue.next_tag().plus(1);
        queue.push(3, true, entries(2));
        let number = queue.find(within.wr_id()).unwrap();
        assert_eq!([0; 2].map(|_| queue.end(number)), [Some(entries(1)), None]);
        assert_eq!(queue.credits(), 5);
        queue.invariants();
    }

    #[test]
    fn foreign_numbers_are_not_found() {
        let mut queue = SendQueue::<4>::new(1, 4);
        let first = queue.next_tag();
        assert_eq!(queue.find(first.wr_id()), None, "nothing is in flight");
        queue.push(1, true, MARKER);
        assert_eq!(queue.find(first.wr_id()), Some(0));
        assert_eq!(queue.find(first.plus(1).wr_id()), None, "not posted yet");
        for other in [0, first.last().wr_id(), Tag::new(TagKind::Send, 2, 0).wr_id()] {
            assert_eq!(queue.find(other), None, "{other:#x}");
        }
        assert_eq!(queue.find(Tag::new(TagKind::Send, 1, 1).wr_id()), None, "a later queue pair's");
    }
}
