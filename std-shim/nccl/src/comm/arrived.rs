//! Messages that arrived, so that what NCCL wants to flush is known by its buffers.

use polyrail::p2p::Received;
use std::collections::VecDeque;

/// Messages that are remembered: more than NCCL has under way.
const MOST: usize = 64;

/// The last messages that arrived, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Arrived(VecDeque<([u64; 8], u8, Received)>);

impl Arrived {
    pub(super) fn note(&mut self, addrs: [u64; 8], count: u8, received: Received) {
        if self.0.len() == MOST {
            self.0.pop_front();
        }
        self.0.push_back((addrs, count, received));
    }

    /// The last one that came into a buffer that begins here.
    pub(super) fn find(&self, addr: u64) -> Option<Received> {
        let came_into = |(addrs, count, _): &&([u64; 8], u8, Received)| {
            addrs[..usize::from(*count)].contains(&addr)
        };
        self.0.iter().rev().find(came_into).map(|(.., received)| *received)
    }
}
