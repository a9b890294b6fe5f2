//! Callers are told.

use super::end::Receiver;
use super::handle::{Received, RecvHandle};
use super::slot::State;
use crate::hardware::{QueuePair, ReceiveQueue};
use crate::p2p::error::CallError;
use crate::p2p::memory::Words;

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
        let slot = &mut self.slots[Self::slot_at(number)];
        if slot.number != number || slot.state == State::Free {
            return Err(CallError::NoRequest { number });
        }
        if slot.state == State::Done {
            slot.state = State::Free;
            return Ok(Some(Received::new(slot)));
        }
        match self.lanes.failure {
            Some(failure) if self.is_drained() => {
                self.slots[Self::slot_at(number)].state = State::Free;
                self.waiting -= 1;
                Err(CallError::Failed(failure))
            }
            _ => Ok(None),
        }
    }
}
