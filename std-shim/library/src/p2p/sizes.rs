//! The sizes of endpoints for messages. Programs that need other sizes use the engine itself, whose types have
//! them as parameters.

use super::words::PageWords;
use crate::endpoint::DEPTH;
use polyrail_core::p2p::{Receiver, Sender};

/// Messages of one direction that may be under way.
pub const SLOTS: usize = 64;

/// Queue pairs of one direction: two for each of 8 rails, or more of fewer.
pub const QUEUE_PAIRS: usize = 16;

/// Places in the routing table: three quarters hold the queue pairs of both directions and those for flushes.
pub const P2P_ROUTES: usize = 64;

/// The engine's sender, in the sizes of an endpoint.
pub type EngineSender<Q> = Sender<Q, PageWords, QUEUE_PAIRS, DEPTH, SLOTS>;

/// The engine's receiver, in the sizes of an endpoint.
pub type EngineReceiver<Q, S> = Receiver<Q, S, PageWords, QUEUE_PAIRS, DEPTH, SLOTS>;

/// What the sender of a member is attached as.
pub(super) const fn sender_index(number: u16) -> u16 {
    2 * number
}

/// What the receiver of a member is attached as.
pub(super) const fn receiver_index(number: u16) -> u16 {
    2 * number + 1
}
