//! Buffers are offered to the sender.

use super::end::Receiver;
use super::handle::{RecvBuffer, RecvHandle};
use super::slot::State;
use crate::hardware::{QueuePair, ReceiveQueue};
use crate::p2p::entry::{ENTRY_KEYS, Entry};
use crate::p2p::error::{CallError, NotNow};
use crate::p2p::lane::find_keys;
use crate::p2p::memory::Words;
use crate::p2p::record;

impl<
    Q: QueuePair,
    S: ReceiveQueue,
    M: Words,
    const QPS: usize,
    const DEPTH: usize,
    const SLOTS: usize,
> Receiver<Q, S, M, QPS, DEPTH, SLOTS>
{
    /// Offers 1 to 8 buffers to the sender, whose next message, or the parts of it, will land in them.
    ///
    /// # Errors
    ///
    /// Nothing changed, and nothing was offered. [Not now](CallError::NotNow): there is no room; poll, and
    /// try again.
    pub fn irecv(&mut self, buffers: &[RecvBuffer<'_>]) -> Result<RecvHandle, CallError> {
        self.working()?;
        if buffers.is_empty() || buffers.len() > usize::from(self.max_buffers) {
            return Err(CallError::Buffers { buffers: buffers.len() });
        }
        let number = self.next;
        let at = Self::slot_at(number);
        let slot = &self.slots[at];
        if slot.state != State::Free {
            return Err(NotNow::SlotTaken { number: slot.number }.into());
        }
        if slot.rewriting.is_some() {
            // An old copy of its entries must not land over newer ones.
            return Err(NotNow::SlotTaken { number: slot.number }.into());
        }
        let lane = self.entry_lane(at).ok_or(NotNow::NoCredits)?;
        self.fill_entries(at, number, buffers)?;
        self.promise()?;
        record::poison(&self.record(at)[..buffers.len()]);
        let posted = self.post_entries(at, lane, number, buffers.len() as u8, false);
        if let Err(refused) = posted {
            self.entries_refused(lane, refused);
            return Err(refused.into());
        }
        self.slots[at].wait(number, buffers.len() as u8, lane as u8);
        self.waiting += 1;
        self.next = number + 1;
        Ok(RecvHandle { number })
    }

    /// Makes the entries of a receive, of a slot that nobody else uses.
    #[inline]
    fn fill_entries(
        &mut self,
        at: usize,
        number: u64,
        buffers: &[RecvBuffer<'_>],
    ) -> Result<(), CallError> {
        let count = buffers.len() as u8;
        for (index, buffer) in (0..).zip(buffers) {
            let RecvBuffer { local, tag, keys } = *buffer;
            let (addr, length) = (local.addr(), local.length());
            let mut rkeys = [0; ENTRY_KEYS];
            for ((at, device), rkey) in self.devices.iter().enumerate().zip(&mut rkeys) {
                match find_keys(keys, at, *device) {
                    Ok(keys) => *rkey = keys.rkey,
                    Err(error) if length > 0 => return Err(error),
                    Err(_) => {}
                }
            }
            let entry = Entry { number, addr, length, tag, rkeys, count, index };
            self.stage(at, usize::from(index), &entry);
            self.slots[at].entries[usize::from(index)] = entry;
        }
        Ok(())
    }

    /// Sees to it that there are receives for one more slot, on each device on which one may be taken.
    #[inline]
    fn promise(&mut self) -> Result<(), NotNow> {
        let waiting = self.waiting + 1;
        for pool in self.pools.iter_mut().filter(|pool| pool.each > 0) {
            let device = pool.account.device();
            let promised = waiting * pool.each;
            if !pool.account.may_promise(waiting * pool.most) {
                return Err(NotNow::PoolFull { device });
            }
            // A driver that does not take a batch whole may have taken what is needed.
            if let Err(refusal) = pool.account.refill(promised)
                && !pool.account.covers(promised)
            {
                return Err(NotNow::PoolRefused { device, refusal });
            }
        }
        Ok(())
    }
}
