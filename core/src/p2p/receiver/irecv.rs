//! Buffers are offered to the sender.

use super::end::{DevicePool, Receiver};
use super::handle::{RecvBuffer, RecvHandle};
use super::slot::State;
use crate::hardware::{QueuePair, ReceiveQueue};
use crate::p2p::entry::{ENTRY_KEYS, Entry};
use crate::p2p::error::{CallError, NotNow};
use crate::p2p::lane::{Devices, find_keys};
use crate::p2p::memory::Words;
use crate::p2p::queue::Purpose;
use crate::p2p::record;
use crate::verbs::LocalBuffer;

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
        // While its entries are being written again, an old copy of them might land over newer ones.
        if slot.state != State::Free || slot.rewriting.is_some() {
            return Err(NotNow::SlotTaken { number: slot.number }.into());
        }
        let lane = self.entry_lane(at).ok_or(NotNow::NoCredits)?;
        let entries = self.fill_entries(at, number, buffers)?;
        self.promise()?;
        record::poison(&self.record(at)[..buffers.len()]);
        let posted = self.post_entries(at, lane, entries, Purpose::Entries);
        if let Err(refused) = posted {
            self.entries_refused(lane, refused);
            return Err(refused.into());
        }
        self.slots[at].wait(number, buffers.len() as u8, lane as u8);
        self.waiting += 1;
        self.next = number + 1;
        Ok(RecvHandle { number })
    }

    /// Makes the entries of a receive, of a slot that nobody else uses, and puts them where the request takes
    /// them from: there they are.
    #[inline]
    fn fill_entries(
        &mut self,
        at: usize,
        number: u64,
        buffers: &[RecvBuffer<'_>],
    ) -> Result<LocalBuffer, CallError> {
        let [only] = buffers else { return self.fill_several(at, number, buffers) };
        let Self { slots, devices, region, form, .. } = self;
        let (words, staged) = Self::staging(region, at, 1);
        let entry = &mut slots[at].entries[0];
        *entry = only.entry(number, (1, 0), devices)?;
        entry.store(*form, words);
        Ok(staged)
    }

    /// The same of several buffers.
    #[inline(never)]
    fn fill_several(
        &mut self,
        at: usize,
        number: u64,
        buffers: &[RecvBuffer<'_>],
    ) -> Result<LocalBuffer, CallError> {
        let count = buffers.len() as u8;
        for (index, buffer) in (0..).zip(buffers) {
            let entry = buffer.entry(number, (count, index), &self.devices)?;
            self.slots[at].entries[usize::from(index)] = entry;
        }
        let entries = &self.slots[at].entries[..buffers.len()];
        Ok(self.stage(at, entries))
    }

    /// Sees to it that there are receives for one more slot, on each device on which one may be taken.
    #[inline]
    fn promise(&mut self) -> Result<(), NotNow> {
        let waiting = self.waiting + 1;
        for pool in &mut self.pools {
            // If there is what is needed whatever rails fail, there is what is needed now.
            if !pool.account.has_enough(waiting * pool.most) {
                pool.promise(waiting)?;
            }
        }
        Ok(())
    }
}

impl RecvBuffer<'_> {
    /// Its entry, the `index`-th of `count`, with the keys that it has on these devices.
    #[inline]
    fn entry(
        &self,
        number: u64,
        (count, index): (u8, u8),
        devices: &Devices,
    ) -> Result<Entry, CallError> {
        let Self { local, tag, keys } = *self;
        let (addr, length) = (local.addr(), local.length());
        let mut rkeys = [0; ENTRY_KEYS];
        for ((at, device), rkey) in devices.iter().enumerate().zip(&mut rkeys) {
            match find_keys(keys, at, *device) {
                Ok(keys) => *rkey = keys.rkey,
                Err(error) if length > 0 => return Err(error),
                Err(_) => {}
            }
        }
        Ok(Entry { number, addr, length, tag, rkeys, count, index })
    }
}

impl<S: ReceiveQueue> DevicePool<S> {
    /// Sees to it that there are receives for so many slots, and may be for what failures add to them.
    fn promise(&mut self, waiting: u32) -> Result<(), NotNow> {
        let Self { account, each, most } = self;
        if *each == 0 {
            return Ok(());
        }
        let device = account.device();
        let promised = waiting * *each;
        if !account.may_promise(waiting * *most) {
            return Err(NotNow::PoolFull { device });
        }
        // A driver that does not take a batch whole may have taken what is needed.
        match account.refill(promised) {
            Err(refusal) if !account.covers(promised) => {
                Err(NotNow::PoolRefused { device, refusal })
            }
            _ => Ok(()),
        }
    }
}
