//! What callers give, and keep, of receives and flushes.

use super::slot::Slot;
use crate::p2p::entry::{ENTRY_KEYS, Entry, MAX_BUFFERS};
use crate::rail::MAX_RAILS;
use crate::verbs::{DeviceKeys, LocalBuffer};

/// A buffer that a message may land in.
#[derive(Clone, Copy, Debug)]
pub struct RecvBuffer<'k> {
    /// Where it lands.
    pub local: LocalBuffer,
    /// By which the sender finds it among the buffers of the receive.
    pub tag: u32,
    /// Its **own** rkey on every device that this end has rails on; a buffer without bytes needs none.
    pub keys: &'k [DeviceKeys],
}

/// A receive that was given to [`irecv`](super::Receiver::irecv), until [`test`](super::Receiver::test) says that it is done.
///
/// Numbers of receives are never used again, so a handle that is kept too long is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "the buffers are the connection's until the request was tested"]
pub struct RecvHandle {
    pub(super) number: u64,
}

impl RecvHandle {
    /// Number of the receive: 1 for a connection's first.
    pub const fn number(&self) -> u64 {
        self.number
    }
}

/// A message that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    number: u64,
    count: u8,
    sizes: [u32; MAX_BUFFERS],
    /// The devices over which it came, a bit for each place in the list.
    pub(super) carriers: u8,
    /// Where the last of its buffers that got bytes begins, and its keys on the devices.
    pub(super) last: Option<(u64, [u32; ENTRY_KEYS])>,
}

impl Received {
    pub(super) fn new(slot: &Slot) -> Self {
        let Slot { number, count, sizes, carriers, .. } = *slot;
        let last = match &sizes[..usize::from(count)] {
            [_] => 0,
            all => all.iter().rposition(|size| *size > 0).unwrap_or_default(),
        };
        let Entry { addr, rkeys, .. } = slot.entries[last];
        let last = (sizes[last] > 0).then_some((addr, rkeys));
        Self { number, count, sizes, carriers, last }
    }

    /// Number of the receive.
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// Bytes that came for each of its buffers.
    pub fn sizes(&self) -> &[u32] {
        &self.sizes[..usize::from(self.count)]
    }
}

/// A flush that was started, until [`test_flush`](super::Receiver::test_flush) says that it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "what arrived is visible when the flush is done"]
pub struct FlushHandle {
    /// The devices that read, a bit for each place in the list.
    pub(super) carriers: u8,
    /// How many READs of each must have succeeded.
    pub(super) until: [u64; MAX_RAILS],
}
