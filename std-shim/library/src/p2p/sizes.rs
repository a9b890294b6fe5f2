//! Sizes of message endpoints. Programs that need other sizes use the engine, whose types have them
//! as parameters.

use crate::endpoint::DEPTH;
use crate::memory::Pages;
use polyrail_core::p2p::{Receiver, Sender};
use stable_deref_trait::StableDeref;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Maximum incomplete messages per direction.
pub const SLOTS: usize = 64;

/// Maximum queue pairs per direction: two for each of 8 rails, or more for fewer rails.
pub const QUEUE_PAIRS: usize = 16;

/// Queue pairs of both directions.
pub(super) const RAILS: usize = 2 * QUEUE_PAIRS;

/// Size of the routing table: three quarters hold the queue pairs of both directions and those for
/// flushes.
pub const P2P_ROUTES: usize = 64;

/// The engine's sender with the sizes of an endpoint.
pub type EngineSender<Q> = Sender<Q, PageWords, QUEUE_PAIRS, DEPTH, SLOTS>;

/// The engine's receiver with the sizes of an endpoint.
pub type EngineReceiver<Q, S> = Receiver<Q, S, PageWords, QUEUE_PAIRS, DEPTH, SLOTS>;

/// What the sender of a member is attached as.
pub(super) const fn sender_index(number: u16) -> u16 {
    2 * number
}

/// What the receiver of a member is attached as.
pub(super) const fn receiver_index(number: u16) -> u16 {
    2 * number + 1
}

/// Pages as words, which the peer's NIC writes while this process reads them.
#[derive(Clone, Debug)]
pub struct PageWords(pub(super) Arc<Pages>);

impl Deref for PageWords {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        self.0.words()
    }
}

// SAFETY: the pages are where they are for as long as anybody holds them, wherever the handle is
// moved.
unsafe impl StableDeref for PageWords {}
