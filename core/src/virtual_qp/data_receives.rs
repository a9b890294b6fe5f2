//! The callers' receives with buffers, which pass through to rail 0.

use crate::verbs::LocalBuffer;

/// A receive with a buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct DataReceive<const RAILS: usize> {
    /// What its caller calls it.
    pub(super) wr_id: u64,
    pub(super) local: LocalBuffer,
    /// Its keys on every device.
    pub(super) lkeys: [u32; RAILS],
}

/// The data receives that are not complete. Without re-routing, only the names of those that are posted.
#[derive(Clone, Copy, Debug)]
pub(super) struct DataReceives<const RAILS: usize, const DEPTH: usize> {
    /// One was posted: from then on rail 0's receive queue is for data.
    used: bool,
    /// The number of the oldest one that is not reported, if they are remembered whole.
    front: u64,
    /// The number of the next one.
    next: u64,
    /// Each in the place of its number.
    receives: [DataReceive<RAILS>; DEPTH],
}

impl<const RAILS: usize, const DEPTH: usize> DataReceives<RAILS, DEPTH> {
    pub(super) const NONE: Self = Self {
        used: false,
        front: 0,
        next: 0,
        receives: [DataReceive { wr_id: 0, local: LocalBuffer::EMPTY, lkeys: [0; RAILS] }; DEPTH],
    };

    const fn index(number: u64) -> usize {
        number as usize & (DEPTH - 1)
    }

    /// Whether rail 0's receive queue is for data.
    pub(super) const fn used(&self) -> bool {
        self.used
    }

    /// The receive with this number on rail 0 was posted.
    pub(super) fn posted(&mut self, sequence: u64, wr_id: u64) {
        self.used = true;
        self.receives[Self::index(sequence)].wr_id = wr_id;
    }

    /// What its caller calls the receive with this number.
    pub(super) const fn wr_id(&self, sequence: u64) -> u64 {
        self.receives[Self::index(sequence)].wr_id
    }

    /// Receives that are remembered whole.
    pub(super) const fn unreported(&self) -> u32 {
        (self.next - self.front) as u32
    }

    /// Remembers a receive.
    pub(super) fn add(&mut self, receive: DataReceive<RAILS>) {
        debug_assert!((self.unreported() as usize) < DEPTH);
        self.used = true;
        self.receives[Self::index(self.next)] = receive;
        self.next += 1;
    }

    /// Forgets the newest one.
    pub(super) fn take_back(&mut self) {
        debug_assert!(self.front < self.next);
        self.next -= 1;
    }

    /// The oldest receive that is not posted, if `posted` are.
    pub(super) fn first_unposted(&self, posted: u32) -> Option<DataReceive<RAILS>> {
        let number = self.front + u64::from(posted);
        (number < self.next).then(|| self.receives[Self::index(number)])
    }

    /// The oldest one is reported. Returns its name.
    pub(super) fn pop(&mut self) -> Option<u64> {
        if self.front == self.next {
            return None;
        }
        self.front += 1;
        Some(self.wr_id(self.front - 1))
    }
}
