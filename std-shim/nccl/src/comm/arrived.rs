//! Messages that arrived and may be flushed: which one NCCL means is known by its buffers.

use arrayvec::ArrayVec;
use polyrail::p2p::{MAX_BUFFERS, Received};
use std::collections::VecDeque;

/// Messages that are remembered: more than NCCL has under way.
const MOST: usize = 64;

/// Where the buffers of a receive begin.
pub(super) type Addrs = ArrayVec<u64, MAX_BUFFERS>;

/// The last messages that arrived, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Arrived(VecDeque<(Addrs, Received)>);

impl Arrived {
    pub(super) fn note(&mut self, addrs: &Addrs, received: &Received) {
        if self.0.len() == MOST {
            self.0.pop_front();
        }
        self.0.push_back((addrs.clone(), *received));
    }

    /// The last one that came into a buffer that begins here.
    pub(super) fn find(&self, addr: u64) -> Option<Received> {
        let came_into = |(addrs, _): &&(Addrs, Received)| addrs.contains(&addr);
        self.0.iter().rev().find(came_into).map(|(_, received)| *received)
    }
}
