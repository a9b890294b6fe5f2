//! What two processes tell each other beside the rails: over TCP, before the rails are connected,
//! and the news that must arrive though rails have failed.
//!
//! # Order
//!
//! | | one side | the other |
//! |---|---|---|
//! | 1 | `hello`: endpoint, buffer, purpose: [`Hello`] | |
//! | 2 | | `hello`: endpoint, buffer |
//! | 3 | both check that they agree, post receives (INIT), connect (RTR, RTS): [`bring_up`] | |
//! | 4 | `ready` | `ready` |
//! | 5 | data moves over the rails only; `alive` now and then, where the other side could not tell that this one is busy; `heal`, when rails fail; `note`, what the programs have to tell each other | |
//! | 6 | `done`: what it saw of the data | `done` |
//!
//! Each side sends each of these once and in this order (`alive` and `note` as often as it likes, `heal` also after
//! `done`); which of the
//! two is first does not matter. At any time a side may send `failed`, with the reason, and then
//! nothing more. [`bring_up`] is the way to `ready`, so receives are posted before RTR. Neither side
//! posts requests before the other side's `ready`, so no request meets a queue pair that is not
//! connected yet.
//!
//! # A link that breaks
//!
//! If both hellos name the same [`Session`], the connection outlives its link. When the system of the side that
//! connected gives the link up (nothing was answered for 9 s, no way to the host, or a reset), it connects again, to the
//! same address, for up to [`Timeouts::anew`], and sends `resume` with the session in place of a hello. The other side,
//! which may or may not have noticed, answers `resumed` over the new link and drops the old one. Then both
//! say again `ready`, `done` and `failed`, as far as they had said them; of what else was lost, `alive` does not matter, a `note` is the programs' affair, and
//! the links of endpoints tell everything again ([`HealingLink::restored`](crate::endpoint::HealingLink::restored)).
//!
//! A link that is closed is the end, as ever: a process that ends, however it does, is noticed at once. A
//! connection that its other side ended in the meantime is not resumed: `failed` is the answer.
//!
//! # Who may ask
//!
//! A side that listens with a [`Token`] tells nothing to those that do not know it, and one that connects with a
//! token tells nothing before the other side has proved that it does:
//!
//! | | the side that connected | the side that listened |
//! |---|---|---|
//! | 1 | `knock`: a nonce | |
//! | 2 | | `challenge`: a nonce of its own |
//! | 3 | `proof`: HMAC-SHA-256 of both | |
//! | 4 | | `proof`, likewise |
//!
//! The same comes before `resume`. The token never travels, and no proof is good for another connection, or for the
//! other side. That keeps out those that can reach the port; those that can read or change the packets on the way still
//! can: neither this connection nor the rails are encrypted.
//!
//! # A message
//!
//! | bytes | |
//! |---|---|
//! | 4 | `PLYR`, so that a program that connected by mistake is recognized at once |
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
//!   "purpose":...,
//!   "session":"8d0c3a52f1e94b67a0f5d2c4b3e6918f"}}
//! {"hello":{"p2p":{...},"buffer":{...},"purpose":...,"session":...}}
//! {"knock":{"nonce":"0f1e2d3c4b5a69788796a5b4c3d2e1f0"}}
//! {"challenge":{"nonce":"00112233445566778899aabbccddeeff"}}
//! {"proof":{"proof":"..."}}
//! {"ready":{}}
//! {"alive":{}}
//! {"heal":{"control":"50520102010000000000002a00000000"}}
//! {"note":{"bytes":"68656c6c6f"}}
//! {"done":...}
//! {"resume":{"session":"8d0c3a52f1e94b67a0f5d2c4b3e6918f"}}
//! {"resumed":{}}
//! {"failed":{"reason":"no space left on device"}}
//! ```
//!
//! A [`Purpose`] defines the values of `purpose` and `done`; without one ([`NoPurpose`]) `purpose` is
//! absent, and `done` is `{}`. Without a `session` the connection ends with its link.
//!
//! A side whose endpoint is for messages has `p2p` in place of `endpoint`, a [`P2pAddress`](crate::p2p::P2pAddress).
//! That of an endpoint that goes [one way](crate::p2p::P2pBuilder::only) lacks the fields of the other end: programs of
//! this version that know no such endpoints miss them, and say so. No endpoint of theirs would go with it either.
//!
//! Of `heal`, [`HealingMessage`](crate::endpoint::HealingMessage) has all forms. The two sides carry what their
//! endpoints' [links](crate::endpoint::HealingLink) give them.
//!
//! The card is in its own form ([`crate::card`]), which lets others add fields. Apart from it, a field
//! that is unknown, missing or repeated, and a number out of range are errors that name the place and
//! the value ([`HandshakeError`]). A new field is a new version.
//!
//! # Limits
//!
//! | limit | reason |
//! |---|---|
//! | [`MAX_MESSAGE_BYTES`] a message | a peer decides how much of it we keep; ours have less than half |
//! | [`MAX_NOTE_BYTES`] a note | as hexadecimal digits it fits into a message |
//! | [`MAX_REASON_BYTES`] a reason | it is for one line on a terminal |
//! | [`MESSAGE_TIMEOUT`] a message, whole | a timeout for each read would let a peer go on forever, byte by byte |
//! | [`Timeouts`] to connect and to accept | nothing waits forever unless asked to |
//! | 20 s without a sign of life (TCP), 9 s where the link is made anew | a host without power does not close its connections |
//!
//! Without a token the control connection is not authenticated, as verbs themselves never are: anyone who can reach
//! the port, or the rails, can write what the keys open. Use it only in networks where that is acceptable.
//!
//! # Files
//!
//! `message` has the messages and their bytes, with `hello` (and `address`), `purpose` and `reason` in it, framed as in
//! `wire`; `field` walks through JSON; `incoming` finds messages in a stream and checks whose turn it
//! is; none of these do I/O. `stream` is what bytes go through, and `control` messages, with `timeouts`, those that wait in `unsent`; `gate` keeps those out that do not prove that they know a
//! `token`; `tcp` makes one between processes, and `anew`
//! another one for the same connection, which `session` names;
//! `bring_up` connects an endpoint.

mod blocking;
mod bring_up;
mod channel;
mod end;
mod error;
mod field;
mod gate;
mod hello;
mod incoming;
mod listener;
mod message;
mod purpose;
mod resume;
mod stream;
mod tcp;
#[cfg(test)]
mod tests;
mod timeouts;
mod token;
mod wire;

pub use bring_up::{bring_up, bring_up_p2p, get_p2p_ready, get_ready};
pub use end::Link;
pub use error::{HandshakeError, LinkError, Reason};
pub use field::{Hex, HexBytes, Object, Place};
pub use hello::{Hello, Reach, Session, address_from_json, address_to_json};
pub use incoming::Incoming;
pub use listener::{Arrival, Arrivals, Listener};
pub use message::{DONE, HELLO, Message, READY};
pub use purpose::{NoOutcome, NoPurpose, Purpose};
pub use timeouts::{MESSAGE_TIMEOUT, Timeouts};
pub use token::{Nonce, Proof, Token, TokenError};
pub use wire::{HEADER_BYTES, MAGIC, MAX_MESSAGE_BYTES, MAX_NOTE_BYTES, MAX_REASON_BYTES, VERSION};
