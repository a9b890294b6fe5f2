//! Copying: moves a file from the memory of one side to the memory of the other over a virtual
//! queue pair.
//!
//! # The protocol
//!
//! Two threads or processes, a *sender* and a *receiver*, each with an [`Endpoint`] and a ring of
//! `window` slots of `chunk` bytes in registered memory.
//!
//! 1. Over a [`Link`](crate::job::Link) channel, out of band, each side sends a
//!    [`Hello`](crate::job::Hello) with the address of its endpoint, and the address and keys of
//!    its buffer; the sender adds its [`CopyPlan`]. Both post their notification receives, connect,
//!    and send that they are ready.
//! 2. The sender reads chunk `i` from the file directly into slot `i % window` and posts it as
//!    WRITE_WITH_IMM to the same slot of the receiver. With SPRAY, `i` is the immediate; with
//!    DQPLB, notifications arrive in posting order, so counting identifies the chunk.
//! 3. The receiver is notified, writes the chunk from its slot to the file, and returns a credit: a
//!    small WRITE_WITH_IMM into the sender's buffer. The sender reuses a slot once its request is
//!    complete and its credit has arrived.
//! 4. After the last chunk, both compare checksums over the control channel: of the bytes that the
//!    sender read from the file, and of the bytes that arrived in the receiver's memory. The sender
//!    sends its checksum first; the receiver's also confirms that the file is complete.
//!
//! While a side reads or writes a long chunk, it polls the control channel after each piece, and
//! sends `alive` every second, so that the other side waits while there is progress, but not
//! forever.
//!
//! Data and flow control use only the rails. The control channel carries the messages that must
//! arrive even if rails fail: which side failed, and why. So an error on one side ends both.
//!
//! # Files
//!
//! `sender` and `receiver` are the two sides, `side` is the code that both share. `source` is the
//! file to read, which must not change during the copy; `destination` the file to write, which
//! appears only when complete; `part` that file until then. `copy` runs both sides within one
//! process. `send_to` and `serve` run them in two, where the receiver, a [server](crate::serve),
//! follows the sender's options. `tree` copies directories and several files, with other chunks in
//! the same ring.

mod copy;
mod destination;
mod error;
mod part;
mod receiver;
#[cfg(test)]
mod rt_tests;
mod send_to;
mod sender;
mod serve;
mod side;
mod source;
mod tree;

pub use crate::job::{CopyPlan, CopyPlanError, MAX_CHUNK, MAX_WINDOW};
pub use copy::{CopyOptions, CopyProgress, CopyReport, SideReport, copy_file};
pub use destination::{check_replaceable, is_of_directory, replace_file};
pub use error::{CopyError, CopyRole, TransferError};
pub use send_to::send_to;
pub use serve::Received;

pub use tree::{
    GivenTree, ReceivedTree, TreeReport, copy_tree, provide_destination, pull_tree, send_tree_to,
};

pub(crate) use serve::receive;
pub(crate) use tree::{give_tree, receive_tree};

#[cfg(doc)]
use polyrail::endpoint::Endpoint;
