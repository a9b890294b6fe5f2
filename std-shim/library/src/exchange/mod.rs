//! What two processes tell each other beside the rails: over TCP, before the rails are connected,
//! and the news that must arrive though rails have failed.
//!
//! # Order
//!
//! | | one side | the other |
//! |---|---|---|
//! | 1 | `hello`: endpoint, buffer, purpose | |
//! | 2 | | `hello`: endpoint, buffer |
//! | 3 | both check that they agree, post receives (INIT), connect (RTR, RTS): [`bring_up`] | |
//! | 4 | `ready` | `ready` |
//! | 5 | data moves over the rails only; `alive` now and then, where the other side could not tell that this one is busy | |
//! | 6 | `done`: what it saw of the data | `done` |
//!
//! Each side says each of these once and in this order (`alive` as often as it likes); which of the two
//! is first does not matter.
//! At any time a side may say `failed`, with the reason, and then nothing more. Receives are posted
//! before RTR because [`bring_up`] is the way to `ready`, and because nobody posts requests before
//! the other side's `ready`, no request meets a queue pair that is not there yet.
//!
//! # A message
//!
//! | bytes | |
//! |---|---|
//! | 4 | `PLYR`, so that whoever connected by mistake is told apart at once |
//! | 4 | the version of the protocol, [`VERSION`], big endian |
//! | 4 | bytes that follow, big endian; at most [`MAX_MESSAGE_BYTES`] |
//! | ... | a JSON object with one field, which names the message |
//!
//! ```json
//! {"hello":{
//!   "endpoint":{
//!     "card":{"notifyQpNum":"0000000021","qpNums":["0000000017","0000000018"],"immOrder":"big"},
//!     "scheme":"spray","maxMsgSize":65536,
//!     "rails":[{"device":0,"gid":"fe80::1","lid":0,"mtu":4096,"psn":7,"rdAtomic":16},
//!              {"device":1,"gid":"fe80::2","lid":0,"mtu":4096,"psn":7,"rdAtomic":16}],
//!     "notify":{"device":0,"gid":"fe80::1","lid":0,"mtu":4096,"psn":7,"rdAtomic":16}},
//!   "buffer":{"addr":140000000000000,"length":8388608,"rkeys":[512,768]},
//!   "purpose":...}}
//! {"ready":{}}
//! {"alive":{}}
//! {"done":...}
//! {"failed":{"reason":"no space left on device"}}
//! ```
//!
//! What can stand for `purpose`, and behind `done`, is for a [`Purpose`] to say; without one
//! ([`NoPurpose`]) the one is not there, and the other `{}`.
//!
//! The card is in its own form ([`crate::card`]), which lets others add fields. Apart from it, a
//! field that is not known, not there or there twice, and a number out of range are errors that say
//! where, and what stands there ([`HandshakeError`]). A new field is a new version.
//!
//! # Limits
//!
//! | limit | reason |
//! |---|---|
//! | [`MAX_MESSAGE_BYTES`] a message | a peer decides how much of it we keep; ours have less than half |
//! | [`MAX_REASON_BYTES`] a reason | it is for one line on a terminal |
//! | [`MESSAGE_TIMEOUT`] a message, whole | each read on its own could be made to last for ever, byte by byte |
//! | [`Timeouts`] to connect and to accept | nothing waits for ever unasked |
//! | 20 s without a sign of life (TCP) | a host without power says no goodbye |
//!
//! The control connection is not authenticated, as verbs themselves are not: whoever can reach the port, or the rails,
//! can write what the keys open. Use it in networks where that is so anyway.
//!
//! # Files
//!
//! `message` is what is said and its bytes, with `hello`, `purpose` and `reason` in it, framed as
//! `wire` has it; `field` walks through JSON; `incoming` finds messages in a stream and knows whose
//! turn it is; none of these do I/O. `control` is a stream with timeouts; `tcp` makes one between
//! processes; `bring_up` connects an endpoint.

mod bring_up;
mod control;
mod error;
mod field;
mod hello;
mod incoming;
mod message;
mod purpose;
mod reason;
mod tcp;
#[cfg(test)]
mod tests;
mod wire;

pub use bring_up::{bring_up, get_ready};
pub use control::{Control, DONE, HELLO, MESSAGE_TIMEOUT, READY};
pub use error::{ControlError, HandshakeError};
pub use field::{Object, Place};
pub use hello::Hello;
pub use incoming::Incoming;
pub use message::Message;
pub use purpose::{NoOutcome, NoPurpose, Purpose};
pub use reason::Reason;
pub use tcp::{Listener, Timeouts};
pub use wire::{HEADER_BYTES, MAGIC, MAX_MESSAGE_BYTES, MAX_REASON_BYTES, VERSION};
