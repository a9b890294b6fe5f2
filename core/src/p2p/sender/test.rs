//! Callers are told.

use super::end::Sender;
use super::handle::SendHandle;
use super::slot::State;
use crate::hardware::QueuePair;
use crate::p2p::error::CallError;
use crate::p2p::memory::Words;

impl<Q: QueuePair, M: Words, const QPS: usize, const DEPTH: usize, const SLOTS: usize>
    Sender<Q, M, QPS, DEPTH, SLOTS>
{
    /// Whether a message has arrived. Once it said so, the buffer is the caller's again, and the handle is
    /// of no use any more.
    ///
    /// # Errors
    ///
    /// [`Failed`](CallError::Failed): the connection failed before the message had arrived, as far as this
    /// end knows, and the buffer is the caller's again; until all queue pairs are drained, `Ok(false)`.
    /// [`NoRequest`](CallError::NoRequest): the caller was told before.
    pub fn test(&mut self, handle: SendHandle) -> Result<bool, CallError> {
        let SendHandle { number, buffer } = handle;
        let slot = &mut self.slots[Self::slot_at(number)];
        let bit = 1 << buffer;
        if slot.number != number || slot.awaited & bit == 0 {
            return Err(CallError::NoRequest { number });
        }
        if slot.state == State::Done {
            slot.tell(bit);
            return Ok(true);
        }
        match self.lanes.failure {
            Some(failure) if self.is_drained() => {
                self.slots[Self::slot_at(number)].tell(bit);
                Err(CallError::Failed(failure))
            }
            _ => Ok(false),
        }
    }
}
