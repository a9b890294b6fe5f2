//! Callers are told.

use super::slot::{Slot, State};
use super::{Receiver, RecvHandle};
use crate::hardware::{QueuePair, ReceiveQueue};
use crate::p2p::entry::{ENTRY_KEYS, MAX_BUFFERS};
use crate::p2p::error::CallError;
use crate::p2p::memory::Words;

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
    fn new(slot: &Slot) -> Self {
        let mut all = slot.entries().iter().zip(&slot.sizes);
        let last = all.rfind(|(_, size)| **size > 0).map(|(entry, _)| (entry.addr, entry.rkeys));
        let Slot { number, count, sizes, carriers, .. } = *slot;
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

impl<
    Q: QueuePair,
    S: ReceiveQueue,
    M: Words,
    const QPS: usize,
    const DEPTH: usize,
    const SLOTS: usize,
> Receiver<Q, S, M, QPS, DEPTH, SLOTS>
{
    /// The message, if it has arrived. Once it said so, the buffers are the caller's again, and the handle
    /// is of no use any more.
    ///
    /// # Errors
    ///
    /// [`Failed`](CallError::Failed): the connection failed before the message had arrived, and the buffers
    /// are the caller's again, with whatever is in them; until all queue pairs are drained, `Ok(None)`.
    /// [`NoRequest`](CallError::NoRequest): the caller was told before.
    pub fn test(&mut self, handle: RecvHandle) -> Result<Option<Received>, CallError> {
        let RecvHandle { number } = handle;
        let is_drained = self.is_drained();
        let slot = &mut self.slots[Self::slot_at(number)];
        if slot.number != number || slot.state == State::Free {
            return Err(CallError::NoRequest { number });
        }
        if slot.state == State::Done {
            slot.state = State::Free;
            return Ok(Some(Received::new(slot)));
        }
        match self.failure {
            Some(failure) if is_drained => {
                slot.state = State::Free;
                self.waiting -= 1;
                Err(CallError::Failed(failure))
            }
            _ => Ok(None),
        }
    }
}
