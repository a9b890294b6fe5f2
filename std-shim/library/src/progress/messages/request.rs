//! What crosses from a handle to the thread. Keys are named by their place among the handle's.

use crate::p2p::Received;
use arrayvec::ArrayVec;
use polyrail_core::p2p::MAX_BUFFERS;
use polyrail_core::verbs::LocalBuffer;

/// A buffer to be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendRequest {
    pub(super) slot: u16,
    pub(super) buffer: KeyedBuffer,
}

/// Buffers to be offered.
#[derive(Debug)]
pub(super) struct RecvRequest {
    pub(super) slot: u16,
    pub(super) buffers: ArrayVec<KeyedBuffer, MAX_BUFFERS>,
}

/// What is to be made visible.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlushRequest {
    pub(super) slot: u16,
    pub(super) received: Received,
}

/// A buffer of a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyedBuffer {
    pub(super) local: LocalBuffer,
    pub(super) tag: u32,
    pub(super) keys: u8,
}
