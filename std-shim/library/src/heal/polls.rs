//! Which polls run a repair step.

/// Polls from one repair step to the next: reading the clock costs several times what is tolerable
/// for each poll. A set adds its number of members, because each of them is checked.
pub(crate) const HEAL_EVERY: usize = 8;

/// Counts polls from one repair step to the next.
#[derive(Debug, Default)]
pub(crate) struct Polls {
    left: usize,
}

impl Polls {
    /// Returns whether this poll is the last of `every` since the last repair step.
    #[inline]
    pub(crate) const fn is_turn(&mut self, every: usize) -> bool {
        if self.left == 0 {
            self.left = every;
        }
        self.left -= 1;
        self.left == 0
    }
}
