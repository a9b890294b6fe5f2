//! Random numbers, the same in every run.

/// Marsaglia's xorshift64, from a fixed seed.
#[derive(Clone, Debug)]
pub struct XorShift(u64);

impl XorShift {
    /// The generator at its seed.
    pub const fn new() -> Self {
        Self(0x9E37_79B9_7F4A_7C15)
    }

    /// A number below `bound`, which is far below 2^32.
    pub const fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (((self.0 >> 32) * bound as u64) >> 32) as usize
    }
}

impl Default for XorShift {
    fn default() -> Self {
        Self::new()
    }
}
