//! One test for each row of reference-defects.md: what the public C++ implementation gets wrong and
//! polyrail must not. Rows that the type system forbids have a compile-fail test in `tests/ui` too.
//!
//! - `errors`: rows 1 to 3, 6, 7, 16, 18, 23;
//! - `flow`: rows 4, 10, 13 to 15, 19, 21, 22, 24;
//! - `dqplb`: rows 5, 8, 9, 11, 12, 17, 25;
//! - `card`: row 20.

mod card;
mod dqplb;
mod errors;
mod flow;
