//! Messages that arrived and may be flushed. NCCL identifies a message by its buffers.

use arrayvec::ArrayVec;
use polyrail::p2p::{MAX_BUFFERS, Received};
use std::collections::VecDeque;

/// Maximum messages kept: more than NCCL has in flight.
const MOST: usize = 64;

/// The addresses of the buffers of a receive.
pub(super) type Addrs = ArrayVec<u64, MAX_BUFFERS>;

/// The latest messages that arrived, oldest first.
#[derive(Debug, Default)]
pub(super) struct Arrived(VecDeque<(Addrs, Received)>);

impl Arrived {
    pub(super) fn note(&mut self, addrs: &Addrs, received: &Received) {
        if self.0.len() == MOST {
            self.0.pop_front();
        }
        self.0.push_back((addrs.clone(), *received));
    }

    /// Returns the latest message that arrived in a buffer with this address.
    pub(super) fn find(&self, addr: u64) -> Option<Received> {
        let came_into = |(addrs, _): &&(Addrs, Received)| addrs.contains(&addr);
        self.0.iter().rev().find(came_into).map(|(_, received)| *received)
    }
}
