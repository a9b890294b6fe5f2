//! Links: the messages of two processes over TCP. They connect endpoints, and they carry what must
//! arrive although rails have failed. Two complete programs are the examples `two_hosts` (requests,
//! polled) and `async_messages` (messages, by futures).
//!
//! # Order
//!
//! | | one side | the other side |
//! |---|---|---|
//! | 0 | `ask`, if this side chooses its devices by those of the other side | `offer`: the devices that it has, [`Offer`] |
//! | 1 | `hello`: endpoint, buffer, purpose: [`Hello`] | |
//! | 2 | | `hello`: endpoint, buffer |
//! | 3 | both check that the endpoints match, post receives (INIT), connect (RTR, RTS): [`bring_up`] | |
//! | 4 | `ready` | `ready` |
//! | 5 | data moves over the rails only; `alive` while a side is busy for long; `heal`, when rails fail; `note`, for the programs | |
//! | 6 | `done`: what it saw of the data | `done` |
//!
//! `ask` comes at most once, from the side that connected, which may leave after the offer. Each
//! side sends each of the others once and in this order (`alive` and `note` any number of times,
//! `heal` also after `done`). The side that connected sends its hello first: [`Arrivals`] accept a
//! link once its hello has come. Over other links, such as a [pair](Link::pair), which of the two
//! sides is first does not matter. At any time a side may send `failed`, with the reason, and then
//! nothing more. [`bring_up`] is the way to `ready`, so receives are posted before RTR. Neither
//! side posts requests before the other side's `ready`, so no request meets a queue pair that is
//! not connected yet.
//!
//! # A link that breaks
//!
//! If both hellos name the same [`Session`], the link outlives its stream. The stream breaks when
//! the system gives it up: after 9 s without an answer ([`Timeouts::silence`]), without a route to
//! the host, or after a reset. The side that connected then connects again, for up to
//! [`Timeouts::resume`], and sends `resume` with the session in place of a hello: to the address
//! that answered, or to another one of its peer, because the link of an address may fail for good.
//! These are the other addresses that it was given, and those of the queue pairs in the peer's
//! hello, at the same port; attempts begin in the order of [`begin`](Link::begin). The first and
//! every second attempt is at the address that answered alone: only its refusals mean that the peer
//! has ended, since another process may listen at another address. It may also be a relay that has
//! ended, so each other address is tried alone before the link is given up. The other side, which
//! may or may not have noticed, answers `resumed` over the new stream and drops the old one. Then
//! both sides repeat `ready`, `done` and `failed`, as far as they had sent them, and each side
//! takes them once. `alive` and `note` may be lost; the links of endpoints repeat repair messages
//! ([`HealingLink::restored`](crate::endpoint::HealingLink::restored)).
//!
//! A stream that is closed is the end of its link: a process that ends, in whatever way, is noticed
//! at once. An attempt to resume that comes to nothing is reset, not closed, since the other side
//! may have taken it. A link whose other end has ended in the meantime is not resumed: `failed` is
//! the answer.
//!
//! # Tokens
//!
//! A side that listens with a [`Token`] sends nothing to peers that do not have it, and a side that
//! connects with a token sends nothing before the other side has proved that it has the token, too:
//!
//! | | the side that connected | the side that listened |
//! |---|---|---|
//! | 1 | `knock`: a nonce | |
//! | 2 | | `challenge`: another nonce |
//! | 3 | `proof`: HMAC-SHA-256 of both | |
//! | 4 | | `proof`, likewise |
//!
//! The same comes before `resume`. The token never travels, and a proof that was recorded is worth
//! nothing later, or for the other side: nonces come from the system, each time. A side that has
//! another token, or none, or one that the listener does not have, gets `refused`, with the reason,
//! in place of the next message, and both sides return an error that [is about the
//! token](LinkError::is_about_token). That keeps out
//! processes that can reach the port. A process that can read or change the packets on the way is
//! not kept out: neither the link nor the rails are encrypted. A process to which a side with the
//! token connects is not kept out either: it can pass the messages of the proof on to a listener
//! and back, since a proof contains no addresses, which network address translation would change.
//! [Trust](crate::trust) lists what others can do to a listener.
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
//! {"ask":{}}
//! {"offer":{"verbs":false,"tcp":[["10.0.0.2/24","fd00::2/64"],["10.0.1.2/24"]]}}
//! {"ready":{}}
//! {"alive":{}}
//! {"heal":{"control":"50520102010000000000002a00000000"}}
//! {"note":{"bytes":"68656c6c6f"}}
//! {"done":...}
//! {"resume":{"session":"8d0c3a52f1e94b67a0f5d2c4b3e6918f"}}
//! {"resumed":{}}
//! {"refused":{"reason":"the peer has another token than this side"}}
//! {"failed":{"reason":"no space left on device"}}
//! ```
//!
//! A [`Purpose`] defines the values of `purpose` and `done`; without one ([`NoPurpose`]) `purpose`
//! is absent, and `done` is `{}`. Without a `session` the link ends with its stream.
//!
//! A side whose endpoint is for messages has `p2p` in place of `endpoint`, a
//! [`P2pAddress`](crate::p2p::P2pAddress). The address of an endpoint that goes
//! [one way](crate::p2p::P2pBuilder::only) lacks the fields of the other end.
//!
//! The forms of `heal` are those of [`HealingMessage`](crate::endpoint::HealingMessage). The two
//! sides carry what their endpoints' [links](crate::endpoint::HealingLink) give them.
//!
//! The card is in its own form ([`crate::card`]), which lets others add fields. Apart from it, a
//! field that is unknown, missing or repeated, and a number out of range are errors that name the
//! place and the value ([`HandshakeError`]). A new field is a new version. A peer of another
//! version is refused, and both sides name both versions.
//!
//! # Limits
//!
//! | limit | reason |
//! |---|---|
//! | [`MAX_MESSAGE_BYTES`] a message | a peer decides how much of it is kept; the longest message has less than half |
//! | [`MAX_OFFERED_INTERFACES`] interfaces in an offer, with [`MAX_OFFERED_ADDRESSES`] addresses each | it fits into a message |
//! | [`MAX_NOTE_BYTES`] a note | as hexadecimal digits it fits into a message |
//! | [`MAX_REASON_BYTES`] a reason | it is for one line on a terminal |
//! | [`MESSAGE_TIMEOUT`] a message, whole | a timeout for each read would let a peer go on without end, byte by byte |
//! | [`Timeouts`] to connect, for all addresses together, and to accept | nothing waits without end unless asked to |
//! | 64 links without a hello ([`Arrivals`]) | the peer that has been silent longest makes room |
//! | 20 s without an answer from the peer's host, 9 s where the link is resumed | a host without power does not close its streams |
//!
//! Without a token the link is not authenticated, as verbs themselves never are: any process that
//! can reach the port, or the rails, can write what the keys open. Use it only in networks where
//! that is acceptable.

// Files:
//
// `message` has the messages and their bytes, with `offer`, `hello` and `purpose` in it, framed as
// in `wire`; `field` walks through JSON; `incoming` finds messages in a stream and checks whose
// turn it is; `gate` is the proofs of a `token`. These do no I/O. A `stream` carries bytes, over
// `tcp`; `dial` connects to the first of several addresses that answers; a `channel` carries
// messages over one stream, from the first attempt to connect; `end` is a `Link`, which outlives
// its streams by what is in `resume`; `pace` is the clock of limits that depend on the owner's
// calls. Nothing up to here waits. `blocking` has the methods that do, `listener` listens,
// `arrivals` are links whose first message has not come, and `bring_up` connects an endpoint.

mod arrivals;
mod blocking;
mod bring_up;
mod channel;
pub(crate) mod counts;
mod dial;
mod end;
mod error;
mod field;
mod gate;
mod hello;
mod incoming;
mod listener;
mod message;
mod offer;
mod pace;
mod purpose;
mod redial;
mod resume;
mod stream;
mod tcp;
#[cfg(test)]
mod tests;
mod timeouts;
mod token;
mod wire;

pub use crate::hex::Hex;
pub use crate::queue_pair::{Attempts, GaveUp, StillSearching, next_attempt};
pub use arrivals::{Arrival, Arrivals};
pub use bring_up::{bring_up, bring_up_p2p, get_p2p_ready, get_ready};
pub use dial::resolve;
pub use end::Link;
pub use error::{HandshakeError, LinkError, Reason};
pub use field::{HexBytes, Object, Place};
pub use hello::{Hello, Reach, Session, address_from_json, address_to_json};
pub use incoming::Incoming;
pub use listener::Listener;
pub use message::{DONE, HELLO, Message, READY};
pub use offer::{MAX_OFFERED_ADDRESSES, MAX_OFFERED_INTERFACES, Offer};
pub use purpose::{NoOutcome, NoPurpose, Purpose};
pub use timeouts::{MESSAGE_TIMEOUT, Timeouts};
pub use token::{Nonce, Proof, Token, TokenError};
pub use wire::{HEADER_BYTES, MAGIC, MAX_MESSAGE_BYTES, MAX_NOTE_BYTES, MAX_REASON_BYTES, VERSION};
