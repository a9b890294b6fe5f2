//! The callers' names of receives with buffers, which pass through to rail 0.

/// Which data receives are posted on rail 0.
#[derive(Clone, Copy, Debug)]
pub(super) struct DataReceives<const DEPTH: usize> {
    /// One was posted: from then on rail 0's receive queue is for data.
    used: bool,
    /// The callers' `wr_id`s, by sequence number.
    wr_ids: [u64; DEPTH],
}

impl<const DEPTH: usize> DataReceives<DEPTH> {
    pub(super) const NONE: Self = Self { used: false, wr_ids: [0; DEPTH] };

    /// Whether rail 0's receive queue is for data.
    pub(super) const fn used(&self) -> bool {
        self.used
    }

    /// The receive with this number on rail 0 was posted.
    pub(super) fn posted(&mut self, sequence: u64, wr_id: u64) {
        self.used = true;
        self.wr_ids[sequence as usize & (DEPTH - 1)] = wr_id;
    }

    /// What its caller calls the receive with this number.
    pub(super) const fn wr_id(&self, sequence: u64) -> u64 {
        self.wr_ids[sequence as usize & (DEPTH - 1)]
    }
}
