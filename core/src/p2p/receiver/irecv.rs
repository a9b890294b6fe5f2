//! Buffers are offered to the sender, by entries that are written into its memory, and come back with a
//! message.

use super::end::{DevicePool, Receiver};
use super::slot::{Slot, State};
use crate::hardware::{QueuePair, ReceiveQueue};
use crate::p2p::entry::{ENTRY_BYTES, ENTRY_KEYS, ENTRY_WORDS, Entry, MAX_BUFFERS};
use crate::p2p::error::{CallError, NotNow};
use crate::p2p::lane::{Devices, blank, find_keys, key};
use crate::p2p::memory::{Region, Words};
use crate::p2p::queue::Purpose;
use crate::p2p::record::{self, RECORD_WORDS};
use crate::rail::MAX_RAILS;
use crate::verbs::{DeviceKeys, LocalBuffer, Opcode, SendFlags, SendRequest};
use core::sync::atomic::AtomicU64;

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

/// A receive that was given to [`irecv`](super::Receiver::irecv), until
/// [`test`](super::Receiver::test) says that it is done.
///
/// Numbers of receives are never used again, so a handle that is kept too long is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "the buffers are the connection's until the request was tested"]
pub struct RecvHandle {
    number: u64,
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
    fn new(slot: &Slot) -> Self {
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

    /// Whether the connection works.
    #[inline]
    const fn working(&self) -> Result<(), CallError> {
        match self.lanes.failure {
            Some(failure) => Err(CallError::Failed(failure)),
            None if self.is_connected => Ok(()),
            None => Err(CallError::NotConnected),
        }
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

    /// The words of a slot's record.
    #[inline]
    fn record(&self, at: usize) -> &[AtomicU64] {
        self.region.words(at * RECORD_WORDS..(at + 1) * RECORD_WORDS)
    }

    /// The queue pair for the entries of a slot: the first one of each device, devices in turn, so that the
    /// entries of one slot follow each other on one connection as long as it works. `None` without a credit:
    /// full is back-pressure.
    #[inline(always)]
    pub(super) fn entry_lane(&self, at: usize) -> Option<usize> {
        let devices = self.devices.len();
        let device = if devices == 1 { 0 } else { at % devices };
        let place = usize::from(self.first_lanes[device]);
        let lane = &self.lanes[place];
        let works = usize::from(lane.device_at) == device && lane.lifecycle.is_in_service();
        if works { lane.has_room(1).then_some(place) } else { self.find_entry_lane(at) }
    }

    /// The same where queue pairs have failed.
    #[cold]
    fn find_entry_lane(&self, at: usize) -> Option<usize> {
        let devices = self.devices.len();
        let mut in_turn = (0..devices).map(|step| (at + step) % devices);
        let place = in_turn.find_map(|device| {
            self.lanes.iter().position(|lane| {
                usize::from(lane.device_at) == device && lane.lifecycle.is_in_service()
            })
        });
        place.filter(|place| self.lanes[*place].has_room(1))
    }

    /// Writes the entries of a slot, which are staged here, all with one request. If the driver does not take
    /// it, nothing changed.
    #[inline(always)]
    pub(super) fn post_entries(
        &mut self,
        at: usize,
        place: usize,
        staged: LocalBuffer,
        purpose: Purpose,
    ) -> Result<(), NotNow> {
        let Self { lanes, ring, lkeys, .. } = self;
        let lane = &mut lanes[place];
        let lkey = lkeys[usize::from(lane.device_at) % MAX_RAILS];
        let is_inline = staged.length() <= lane.max_inline;
        let request = SendRequest {
            flags: if is_inline { SendFlags::INLINE } else { SendFlags::empty() },
            sge: staged.sge(lkey),
            remote_addr: ring.addr + (at * MAX_BUFFERS * ENTRY_BYTES) as u64,
            rkey: key(&ring.rkeys, lane.peer_at),
            ..blank(Opcode::RdmaWrite)
        };
        // Counted, not by slot: whatever the number of devices, and whichever of them is gone, no more than a
        // quarter of the queue waits for a completion that was not asked for.
        let is_due = lane.queue.is_signal_due();
        let rail = lane.rail;
        let taken = lane.post_one(request, is_due || purpose != Purpose::Entries, purpose);
        match taken.refusal {
            Some(refusal) if taken.count == 0 => Err(NotNow::Refused { rail, refusal }),
            _ => Ok(()),
        }
    }

    /// Puts the entries of a slot where the request takes them from: there they are.
    pub(super) fn stage(&self, at: usize, entries: &[Entry]) -> LocalBuffer {
        let (words, staged) = Self::staging(&self.region, at, entries.len());
        for (words, entry) in words.chunks_exact(ENTRY_WORDS).zip(entries) {
            entry.store(self.form, words);
        }
        staged
    }

    /// Where the request takes the entries of a slot from, which nobody touches until the slot is taken anew;
    /// as words, and so many of them for the request.
    #[inline]
    fn staging(region: &Region<M>, at: usize, count: usize) -> (&[AtomicU64], LocalBuffer) {
        const SLOT: usize = MAX_BUFFERS * ENTRY_WORDS;
        let first = Self::RECORDS_WORDS + at * SLOT;
        region.part(first..first + SLOT, count * ENTRY_BYTES)
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
