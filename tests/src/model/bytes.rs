//! Decisions out of bytes.

/// A source of decisions. When the bytes are used up every answer is 0, and
/// [`is_empty`](Self::is_empty) tells the model to stop.
#[derive(Clone, Copy, Debug)]
pub struct Bytes<'b>(&'b [u8]);

impl<'b> Bytes<'b> {
    /// Decisions out of these bytes.
    pub fn new(bytes: &'b [u8]) -> Self {
        Self(bytes)
    }

    /// Whether they are used up.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// A number below `bound`, which is at most 65,536 and not 0.
    pub fn below(&mut self, bound: u32) -> u32 {
        let mut number = u32::from(self.byte());
        if bound > 256 {
            number = number << 8 | u32::from(self.byte());
        }
        number % bound
    }

    /// Yes with probability 1 in `odds`.
    pub fn one_in(&mut self, odds: u32) -> bool {
        self.below(odds) == 0
    }
}
