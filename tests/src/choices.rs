//! Where a model's decisions come from: bytes, so that quickcheck and fuzzers can shrink and breed
//! them, or a seed.

/// A source of decisions.
pub trait Choices {
    /// A number below `bound`, which is at most 65,536 and not 0.
    fn below(&mut self, bound: u32) -> u32;

    /// Whether the source is used up: time for the model to end.
    fn is_empty(&self) -> bool;

    /// Yes with probability 1 in `odds`.
    fn one_in(&mut self, odds: u32) -> bool {
        self.below(odds) == 0
    }

    /// A coin.
    fn coin(&mut self) -> bool {
        self.one_in(2)
    }
}

/// One of these.
pub fn pick<T: Copy>(choices: &mut dyn Choices, from: &[T]) -> T {
    from[choices.below(from.len() as u32) as usize]
}

/// Decisions out of bytes. When they are used up every answer is 0.
#[derive(Clone, Copy, Debug)]
pub struct Bytes<'b>(&'b [u8]);

impl<'b> Bytes<'b> {
    /// Decisions out of these bytes.
    pub fn new(bytes: &'b [u8]) -> Self {
        Self(bytes)
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }
}

impl Choices for Bytes<'_> {
    fn below(&mut self, bound: u32) -> u32 {
        let mut number = u32::from(self.byte());
        if bound > 256 {
            number = number << 8 | u32::from(self.byte());
        }
        number % bound
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Decisions out of a seed: they never end.
#[derive(Clone, Debug)]
pub struct Seeded(fastrand::Rng);

impl Seeded {
    /// The decisions that this seed stands for.
    pub fn new(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }
}

impl Choices for Seeded {
    fn below(&mut self, bound: u32) -> u32 {
        self.0.u32(..bound)
    }

    fn is_empty(&self) -> bool {
        false
    }
}
