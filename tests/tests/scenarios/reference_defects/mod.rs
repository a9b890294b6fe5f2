//! Tests for each defect of the public C++ implementation, by the numbers of the table in
//! `core/docs/reference.md`. Defects that the type system forbids have a compile-fail test in
//! `core/tests/ui` too.
//!
//! - `errors`: defects 1 to 3, 6, 7, 16, 18, 23;
//! - `flow`: defects 4, 10, 13 to 15, 19, 21, 22, 24;
//! - `dqplb`: defects 5, 8, 9, 11, 12, 17, 25;
//! - `card`: defect 20.

mod card;
mod dqplb;
mod errors;
mod flow;
