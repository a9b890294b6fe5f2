//! Words that come with an object: the description of registered memory that the data path needs.

/// How many.
pub(crate) const WORDS: usize = 15;

/// The words of an object.
pub(crate) type Words = [u64; WORDS];
