//! Where a model's decisions come from: bytes, so that quickcheck and fuzzers can shrink and breed
//! them, a seed, or every possibility in turn.

/// A source of decisions.
pub trait Choices {
    /// A number below `bound`, which is at most 65,536 and not 0.
    fn below(&mut self, bound: u32) -> u32;

    /// Whether the source is used up: then the model ends.
    fn is_empty(&self) -> bool;

    /// True with probability 1 in `odds`.
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

/// The seed of what quickcheck draws: that of `QUICKCHECK_SEED` in the environment, or always the
/// same, so that a test has the same result each time.
pub fn quickcheck_seed() -> u64 {
    std::env::var("QUICKCHECK_SEED").map_or(1, |seed| seed.parse().expect("a number"))
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

/// Every sequence of decisions, one after the other: the last decision that has another answer gets
/// it, those before it are repeated.
///
/// ```
/// use polyrail_tests::choices::{Choices, Every};
///
/// let mut every = Every::default();
/// let mut seen = Vec::new();
/// loop {
///     // The second question depends on the first answer.
///     let first = every.below(2);
///     seen.push((first, every.below(1 + first)));
///     if !every.advance() {
///         break;
///     }
/// }
/// assert_eq!(seen, [(0, 0), (1, 0), (1, 1)]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Every {
    /// Each answer, and how many there are to its question.
    path: Vec<(u32, u32)>,
    at: usize,
}

impl Every {
    /// Moves to the next sequence. Returns false if there is none.
    pub fn advance(&mut self) -> bool {
        self.at = 0;
        while let Some((answer, answers)) = self.path.pop() {
            if answer + 1 < answers {
                self.path.push((answer + 1, answers));
                return true;
            }
        }
        false
    }
}

impl Choices for Every {
    fn below(&mut self, bound: u32) -> u32 {
        if self.at == self.path.len() {
            self.path.push((0, bound));
        }
        let (answer, answers) = self.path[self.at];
        assert_eq!(answers, bound, "the same answers lead to the same question");
        self.at += 1;
        answer
    }

    fn is_empty(&self) -> bool {
        false
    }
}
