//! Words that come with an object: what the data path needs of registered memory.

/// How many.
pub(crate) const WORDS: usize = 15;

/// The words of an object.
pub(crate) type Words = [u64; WORDS];
