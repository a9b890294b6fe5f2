//! What the program `polyrail` does, as a library: a file is copied, or requests are measured, over
//! the rails of a virtual queue pair, within a process or between two. The rails, and all that a
//! program of one's own needs, are the crate [`polyrail`].
//!
//! # Reading order
//!
//! 1. [`job`]: what two sides meet for, as plain data; [`size`] is how people write sizes;
//! 2. [`session`]: what two sides have in common once they have met;
//! 3. `hosts`: two hosts made of software NICs, for a copy or a measurement within a process; `visit`:
//!    a peer that has asked for something, and what it may have;
//! 4. [`transfer`]: the copy path, with its protocol in the module's documentation;
//! 5. [`perf`] measures, within a process and between two;
//! 6. [`serve`]: the side that waits, for files and measurements;
//! 7. `main.rs` and `cli/`: the program, a thin layer over `transfer`, `perf` and `serve`.

mod hosts;
pub mod job;
pub mod perf;
/// The library's, which its tests have in a folder of their own.
#[cfg(test)]
#[path = "../../library/tests/recorded/mod.rs"]
mod recorded;
pub mod serve;
pub mod session;
pub mod size;
pub mod transfer;
mod visit;
