//! The polyrail engine: one virtual RDMA queue pair made of many physical ones.
//!
//! `no_std`, no allocation, no operating system. From the bottom up, each layer knowing only those
//! before it:
//!
//! 1. [`verbs`]: requests, completions, opcodes, statuses, flags, as plain data;
//! 2. [`hardware`]: what the engine asks of queue pairs and completion queues;
//! 3. [`virtual_cq`]: where completions go, and polling;
//! 4. [`virtual_qp`]: the virtual queue pair;
//! 5. [`p2p`]: messages that their receiver drives, beside virtual queue pairs, over the same rails;
//!    on processors with 64-bit atomics, with which peers write into memory;
//! 6. [`spsc`]: the ring that carries requests and completions between threads; it stands alone, and
//!    needs atomics of a pointer's size.
//!
//! [`docs`] explains the design: its [architecture](docs::architecture), [rails that
//! fail](docs::rails_that_fail), [messages](docs::messages), and [the formats on the
//! wire](docs::wire).
// Two private modules are between these layers: `completion`, before `virtual_cq`, is what comes
// out of a poll, and what a target of completions must offer. `rail`, before `virtual_qp`, is one
// physical queue pair: its credits, what is in flight on it, its receives, and the tags by which
// completions are matched with what was posted; and the set of them, as far as they fail and
// return.

#![no_std]
#![deny(unsafe_code)]
#![cfg_attr(
    not(feature = "internals"),
    allow(unreachable_pub, reason = "what `internals` shows is public")
)]

mod completion;
mod debug;
/// How the engine works and why: pages of text, without code.
pub mod docs {
    #[doc = include_str!("../docs/architecture.md")]
    pub mod architecture {}
    #[doc = include_str!("../docs/messages.md")]
    pub mod messages {}
    #[doc = include_str!("../docs/rails-that-fail.md")]
    pub mod rails_that_fail {}
    #[doc = include_str!("../docs/reference.md")]
    pub mod reference {}
    #[doc = include_str!("../docs/wire.md")]
    pub mod wire {}
}
pub mod hardware;
#[cfg(feature = "internals")]
pub mod internals;
#[cfg(target_has_atomic = "64")]
pub mod p2p;
mod rail;
#[cfg(target_has_atomic = "ptr")]
pub mod spsc;
#[cfg(target_has_atomic = "ptr")]
mod sync;
pub mod verbs;
pub mod virtual_cq;
pub mod virtual_qp;
