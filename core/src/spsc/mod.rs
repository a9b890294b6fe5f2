//! A wait-free ring between two threads: one pushes, one pops.
//!
//! It carries requests to the thread that owns a virtual queue pair, and completions back. A
//! [`Ring`] is the memory, [`Producer`] and [`Consumer`] are its two ends, and a [`Doorbell`] wakes
//! a sleeping consumer.
//!
//! # States
//!
//! Each end owns one word, which the other end only reads: a position, which grows with every
//! value, and whether the end was dropped. Each end is in one of two states,
//!
//! ```text
//!            push, pop                              dropped
//!          ┌───────────┐
//!          ▼           │ position + 1
//!        open ─────────┘                open ───────────────────► closed
//!          ▲                                                         │
//!          └─────────────────────────────────────────────────────────┘
//!                       Ring::split, after both ends were dropped
//! ```
//!
//! and the two positions, `head <= tail <= head + N`, determine the owner of a slot:
//!
//! ```text
//!                 head                   tail                  head + N
//!     ──────────────┬──────────────────────┬──────────────────────┬──────────
//!      of the last  │  values; the         │  free; the           │ of the next
//!      round        │  consumer's to take  │  producer's to fill  │ round
//! ```
//!
//! A word is stored with release and loaded with acquire. A thread that loads a position also sees
//! what was done to the slots below it. A thread that sees an end closed sees its last position,
//! too, so values that a producer pushed before it was dropped can still be popped.
//!
//! Each end caches the other's word, and reloads it only if the cached value leaves no room or no
//! values. On a ring that is neither full nor empty, the cache line of a word is therefore fetched
//! once for many values.

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
