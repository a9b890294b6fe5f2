//! The copy path: a file moves from one end's memory to the other's through a virtual queue pair.
//!
//! # The protocol
//!
//! Two threads or processes, a *sender* and a *receiver*, each with an [`Endpoint`] and a ring of
//! `window` slots of `chunk` bytes in registered memory.
//!
//! 1. Over a [`Control`](crate::job::Control), out of band, each sends
//!    [`Hello`](crate::job::Hello): address of its endpoint, address and keys of its buffer, and the
//!    sender also its [`CopyPlan`]. Both post their notification receives, connect, and report that they
//!    are ready.
//! 2. The sender reads chunk `i` from the file straight into slot `i % window` and posts it as
//!    WRITE_WITH_IMM to the receiver's slot of the same place. SPRAY carries `i` as immediate; with
//!    DQPLB notifications come in posting order, so counting identifies the chunk.
//! 3. The receiver is notified, writes the chunk from its slot to the file, and returns a credit: a
//!    small WRITE_WITH_IMM of its own into the sender's buffer. A slot is used again when its
//!    request was reported and its credit has come.
//! 4. After the last chunk both compare checksums, over the control channel: the sender's covers the bytes it
//!    read from the file, the receiver's those that arrived in its memory. The sender sends its own first;
//!    the receiver's also means that the file is complete.
//!
//! While reading or writing a long chunk, a side polls the control channel after each piece, and sends
//! `alive` now and then, so that the other one waits as long as there is progress, and not forever.
//!
//! Data and flow control use only the rails. The control channel carries what must arrive even if rails
//! fail: which side failed, and why. So an error on either side ends both.
//!
//! # Files
//!
//! `sender` and `receiver` are one side each, `side` is what both share; `source` is the file that must not
//! change meanwhile, `destination` the one that appears only when complete, and `part` the one until then.
//! `copy` puts them together within one process, `send_to` and `serve` between two, where the receiver, a
//! [server](crate::serve), adopts the sender's choices.

mod copy;
mod destination;
mod error;
mod part;
mod receiver;
mod send_to;
mod sender;
mod serve;
mod side;
mod source;
#[cfg(test)]
mod tests;

pub use crate::job::{CopyPlan, CopyPlanError, MAX_CHUNK, MAX_WINDOW};
pub use copy::{CopyOptions, CopyProgress, CopyReport, SideReport, copy_file};
pub use destination::{check_replaceable, replace_file};
pub use error::{CopyError, CopyRole, TransferError};
pub use send_to::send_to;
pub use serve::Received;

pub(crate) use serve::receive;

#[cfg(doc)]
use polyrail::endpoint::Endpoint;
