//! The copy path: a file moves from one end's memory to the other's through a virtual queue pair.
//!
//! # The protocol
//!
//! Two threads or processes, a *sender* and a *receiver*, each with an [`Endpoint`] and a ring of
//! `window` slots of `chunk` bytes in registered memory.
//!
//! 1. Over a [`Control`](crate::job::Control), out of band, each says
//!    [`Hello`](crate::job::Hello): address of its endpoint, address and keys of its buffer,
//!    the sender also its [`CopyPlan`]. Both post their notification receives, connect, and say that
//!    they are ready.
//! 2. The sender reads chunk `i` from the file straight into slot `i % window` and posts it as
//!    WRITE_WITH_IMM to the receiver's slot of the same place. SPRAY carries `i` as immediate; with
//!    DQPLB notifications come in posting order, so counting says which chunk it is.
//! 3. The receiver is notified, writes the chunk from its slot to the file, and returns a credit: a
//!    small WRITE_WITH_IMM of its own into the sender's buffer. A slot is used again when its
//!    request was reported and its credit has come.
//! 4. After the last chunk both compare checksums, over the link: the sender's covers the bytes it
//!    read from the file, the receiver's those that arrived in its memory. The sender says its own
//!    first; the receiver's says that the file is complete, too.
//!
//! Reading or writing a long chunk, a side looks at the link after each piece of it, and says `alive`
//! now and then, so that the other one waits for as long as something is done, and not for ever.
//!
//! Data and flow control use the rails only. The link carries what must arrive when rails fail too:
//! who failed, and why. So an error on either side ends both.
//!
//! # Files
//!
//! `sender` and `receiver` one side each; `side` what both share; `source`
//! is the file that must not change meanwhile, `destination` the one that appears only when complete,
//! and `part` what it is until then. `copy` puts it together within one process; `send_to` and `serve` do between two processes, where
//! the receiver, a [server](crate::serve), adopts what the sender wants.

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
mod watched;

pub use crate::hosts::LinkFault;
pub use crate::job::{CopyPlan, CopyPlanError, MAX_CHUNK, MAX_WINDOW};
pub use copy::{CopyOptions, CopyProgress, CopyReport, SideReport, copy_file};
pub use destination::{check_replaceable, replace_file};
pub use error::{CopyError, CopyRole, TransferError};
pub use send_to::send_to;
pub use serve::Received;

pub(crate) use serve::receive;

#[cfg(doc)]
use polyrail::endpoint::Endpoint;
