//! A ring between two threads: one pushes, one pops, neither ever waits for the other.
//!
//! It carries requests to the thread that owns a virtual queue pair, and completions back. `ring`
//! is the memory, `producer` and `consumer` are its two ends, `doorbell` is how a consumer that
//! sleeps is woken.
//!
//! # States
//!
//! Each end owns one word, which the other end only reads: a position, counted on with every
//! value, and whether the end is gone. So each end is in one of two states,
//!
//! ```text
//!            push, pop                              dropped
//!          ┌───────────┐
//!          ▼           │ position + 1
//!        open ─────────┘                open ───────────────────► closed
//!          ▲                                                         │
//!          └─────────────────────────────────────────────────────────┘
//!                       Ring::split, when both ends are gone
//! ```
//!
//! and a slot is whose the two positions, `head <= tail <= head + N`, say:
//!
//! ```text
//!                 head                   tail                  head + N
//!     ──────────────┬──────────────────────┬──────────────────────┬──────────
//!      of the last  │  values; the         │  free; the           │ of the next
//!      round        │  consumer's to take  │  producer's to fill  │ round
//! ```
//!
//! A word is stored with release and loaded with acquire. Whoever sees a position sees what was
//! done to the slots below it, and whoever sees an end closed sees its last position too: what a
//! producer pushed before it was dropped can still be popped.
//!
//! Each end remembers the other's word as it last saw it, and looks again only when that leaves it
//! without room or without values. On a ring that is neither full nor empty, the cache line of a
//! word is therefore fetched once for many values.

mod consumer;
mod doorbell;
mod producer;
mod ring;
mod split;
#[cfg(all(test, not(polyrail_loom)))]
mod tests;
#[cfg(test)]
mod wrap;

pub use consumer::{Consumer, PopError};
pub use doorbell::Doorbell;
pub use producer::{Producer, PushError};
pub use ring::Ring;
pub use split::AlreadySplit;
