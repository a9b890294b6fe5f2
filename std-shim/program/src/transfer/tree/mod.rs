//! Copying directories and several files.
//!
//! The rings, chunks and credits are those of a copy of one file, but a chunk holds
//! [records](record), as many as fit. So one chunk carries many small files, and a window of chunks
//! carries parts of many files at the same time.
//!
//! 1. The sender walks its sources, and *offers* each file with its size and time, ahead of the
//!    data: up to 1024 files in a chunk.
//! 2. The receiver's credit for a chunk answers its offers, one bit each: whether the file is
//!    missing, or differs in size or time. So a second copy sends only the files that the first
//!    did not complete.
//! 3. The sender sends the data of the files that the receiver requires, one after the other and
//!    without holes, and a checksum after each.
//! 4. The receiver writes a file that has no name, and gives it its time, permissions and name when
//!    the checksum is correct. Complete files stay, even if the copy fails afterwards.
//! 5. At the end both compare counts of files and bytes over the control channel.
//!
//! Either side may ask for the copy: a sender that copies to a server, or a receiver that pulls
//! from it. The receiver keeps nothing of an offer, and each side has one file open at a time, so
//! memory and descriptors do not grow with the number of files. The sender lists one directory at
//! each level at a time, and at most 4096 files ahead.
//!
//! # Files
//!
//! `walk` finds the files, `send` sends them; `receive` receives them, `target` writes them
//! below one directory; `stream` has what both share, `record` the bytes. `local` copies within a
//! process, `remote` to and from a server, `visit` at the server.

mod local;
mod receive;
mod record;
mod remote;
#[cfg(test)]
mod rt_tests;
mod send;
mod stream;
mod target;
mod visit;
mod walk;

pub use local::{TreeReport, copy_tree};
pub use remote::{pull_tree, send_tree_to};
pub use target::provide_destination;
pub use visit::{GivenTree, ReceivedTree};

pub(crate) use visit::{give_tree, receive_tree};
