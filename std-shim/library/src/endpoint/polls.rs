//! Which polls heal.

/// Polls from one that heals to the next: a look at the clock costs a few times what is tolerable for each.
const EVERY: usize = 8;

/// Counts polls.
#[derive(Debug, Default)]
pub(super) struct Polls {
    left: usize,
}

impl Polls {
    /// Whether this poll of a single endpoint heals.
    #[inline]
    pub(super) fn heals(&mut self) -> bool {
        self.heals_of(0)
    }

    /// Whether this poll of a set of so many heals: looking at each of them costs, too.
    #[inline]
    pub(super) fn heals_of(&mut self, members: usize) -> bool {
        if self.left == 0 {
            self.left = EVERY + members;
        }
        self.left -= 1;
        self.left == 0
    }
}
