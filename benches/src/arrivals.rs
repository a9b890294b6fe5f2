//! What a DQPLB receiver's row delivers: large requests whose fragments overtake each other.

use crate::null::{Inbox, Wire};
use crate::random::XorShift;
use crate::workload::{FRAGMENTS, RAILS};
use polyrail_core::internals::{SequenceImm, SequenceNumber};
use std::collections::VecDeque;
use std::rc::Rc;

/// Requests that arrive in one burst: half of the posted receives, so that consumed receives are
/// posted again before the queue is empty.
pub const REQUESTS: usize = 16;

/// Fragments of those requests.
pub const ARRIVALS: usize = REQUESTS * FRAGMENTS as usize;

/// A sender that spreads requests over the rails as ours does, in contiguous shares, and a network
/// that merges the rails at random. Each rail stays in order.
#[derive(Debug)]
pub struct Arrivals {
    inboxes: Vec<Rc<Inbox>>,
    wire: Wire,
    number: SequenceNumber,
    random: XorShift,
    rails: [VecDeque<SequenceImm>; RAILS],
}

impl Arrivals {
    /// Messages for `inboxes`, one for each rail. Each contender sees the same ones.
    pub fn new(wire: Wire, inboxes: Vec<Rc<Inbox>>) -> Self {
        let rails = std::array::from_fn(|_| VecDeque::with_capacity(ARRIVALS));
        Self { inboxes, wire, number: SequenceNumber::ZERO, random: XorShift::new(), rails }
    }

    /// Delivers `REQUESTS` requests.
    pub fn deliver(&mut self) {
        for _ in 0..REQUESTS {
            for fragment in 0..FRAGMENTS {
                let number = self.number;
                let last = fragment + 1 == FRAGMENTS;
                let rail = fragment as usize * RAILS / FRAGMENTS as usize;
                self.rails[rail].push_back(SequenceImm { number, last });
                self.number = number.next();
            }
        }
        for _ in 0..ARRIVALS {
            let (rail, fragment) = loop {
                let rail = self.random.below(RAILS);
                if let Some(fragment) = self.rails[rail].pop_front() {
                    break (rail, fragment);
                }
            };
            self.wire.deliver(&self.inboxes[rail], fragment.encode());
        }
    }
}
