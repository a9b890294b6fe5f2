//! Offers buffers to the sender, by entries that are written into its memory, and returns them with
//! a message.

use super::end::{DevicePool, Receiver};
use super::slot::{Slot, State};
use crate::hardware::{QueuePair, ReceiveQueue};
use crate::p2p::entry::{ENTRY_BYTES, ENTRY_KEYS, ENTRY_WORDS, Entry, MAX_BUFFERS};
use crate::p2p::error::{CallError, NotNow};
use crate::p2p::lane::{Lane, Purpose, blank, find_keys, key};
use crate::p2p::lanes::Devices;
use crate::p2p::memory::{Region, Words};
use crate::p2p::record::{self, RECORD_WORDS};
use crate::rail::MAX_RAILS;
use crate::verbs::{DeviceKeys, LocalBuffer, Opcode, SendFlags, SendRequest};
use core::sync::atomic::AtomicU64;

/// A buffer for a message.
#[derive(Clone, Copy, Debug)]
pub struct RecvBuffer<'k> {
    /// The memory of the buffer.
    pub local: LocalBuffer,
    /// Tag by which the sender finds the buffer within the receive.
    pub tag: u32,
    /// The keys of this buffer for the device of every rail of this end, of which the rkeys are
    /// used. An empty buffer needs none.
    pub keys: &'k [DeviceKeys],
}

/// A receive that was given to [`irecv`](super::Receiver::irecv), until
/// [`test`](super::Receiver::test) says that it is done.
///
/// Numbers are never reused, so a stale handle is detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "the buffers are the connection's until the request was tested"]
pub struct RecvHandle {
    number: u64,
}

impl RecvHandle {
    /// Returns the number of the receive: 1 for the first one of a connection.
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
    /// The devices that delivered it, one bit for each place in the list.
    pub(super) carriers: u8,
    /// Address of the last buffer with bytes, and its rkeys for the devices.
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

    /// Returns the number of the receive.
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// Returns the bytes that arrived in each buffer.
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
    /// Offers 1 to 8 buffers to the sender. Its next send, or one send for each buffer, fills them.
    ///
    /// # Errors
    ///
    /// Nothing changed, and nothing was offered. [Not now](CallError::NotNow): there is no room;
    /// poll, then try again.
    pub fn irecv(&mut self, buffers: &[RecvBuffer<'_>]) -> Result<RecvHandle, CallError> {
        self.working()?;
        if buffers.is_empty() || buffers.len() > usize::from(self.max_buffers) {
            return Err(CallError::Buffers { buffers: buffers.len() });
        }
        let number = self.next;
        let at = Self::slot_at(number);
        let slot = &self.slots[at];
        // While its entries are being written again, the old copy could overwrite newer entries
        // (messages.md, "Why an 8-bit slot is safe").
        if slot.state != State::Free || slot.rewriting.is_some() {
            return Err(NotNow::SlotTaken { number: slot.number }.into());
        }
        // First the checks that can end the call, since the steps below write memory and post
        // receives.
        let lane = self.entry_lane(at).ok_or(NotNow::NoCredits)?;
        let entries = self.fill_entries(at, number, buffers)?;
        self.promise()?;
        // Before the entries go out, since the sender may use the slot at once: a record that is
        // not written must be detected, and each immediate must find a receive.
        record::poison(&self.record(at)[..buffers.len()]);
        let posted = self.post_entries(at, lane, entries, Purpose::Entries);
        if let Err(refused) = posted {
            self.entries_refused(lane, refused);
            return Err(refused.into());
        }
        self.slots[at].wait(number, buffers.len() as u8, lane as u8);
        self.waiting += 1;
        // Last, so that a call that failed has used no number: the sender expects each of them.
        self.next = number + 1;
        Ok(RecvHandle { number })
    }

    /// Returns the message if it has arrived. The buffers then belong to the caller again, and the
    /// handle becomes invalid.
    ///
    /// # Errors
    ///
    /// [`Failed`](CallError::Failed): the connection failed before the message arrived. The buffers
    /// belong to the caller again, with undefined contents. Until all queue pairs are drained the
    /// result is `Ok(None)`. [`NoRequest`](CallError::NoRequest): an earlier call returned the
    /// result.
    pub fn test(&mut self, handle: RecvHandle) -> Result<Option<Received>, CallError> {
        let RecvHandle { number } = handle;
        let slot = &mut self.slots[Self::slot_at(number)];
        // Numbers are never reused, so a handle of an earlier receive of the slot does not match.
        if slot.number != number || slot.state == State::Free {
            return Err(CallError::NoRequest { number });
        }
        if slot.state == State::Done {
            slot.state = State::Free;
            return Ok(Some(Received::new(slot)));
        }
        match self.lanes.failure {
            // Until then a NIC may still write to the buffers.
            Some(failure) if self.is_drained() => {
                self.slots[Self::slot_at(number)].state = State::Free;
                self.waiting -= 1;
                Err(CallError::Failed(failure))
            }
            _ => Ok(None),
        }
    }

    /// Refuses a call on a connection that failed or is not connected.
    #[inline]
    const fn working(&self) -> Result<(), CallError> {
        match self.lanes.failure {
            Some(failure) => Err(CallError::Failed(failure)),
            None if self.is_connected => Ok(()),
            None => Err(CallError::NotConnected),
        }
    }

    /// Builds the entries of a receive in the staging copy of its free slot, and returns that copy.
    #[inline]
    fn fill_entries(
        &mut self,
        at: usize,
        number: u64,
        buffers: &[RecvBuffer<'_>],
    ) -> Result<LocalBuffer, CallError> {
        // One buffer is the usual case, and its entry is made and staged in one pass.
        let [only] = buffers else { return self.fill_several(at, number, buffers) };
        let Self { slots, devices, region, form, .. } = self;
        let entry = &mut slots[at].entries[0];
        *entry = only.entry(number, (1, 0), devices)?;
        let (words, staged) = Self::staging(region, at, 1);
        entry.store(*form, words);
        Ok(staged)
    }

    /// Builds the entries of several buffers.
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

    /// Reserves receives for one more slot on each device that may deliver an immediate.
    #[inline]
    fn promise(&mut self) -> Result<(), NotNow> {
        let waiting = self.waiting + 1;
        for pool in &mut self.pools {
            // `most` counts the receives that any failure of rails may require, so it covers the
            // receives needed now, and the usual case ends here.
            if !pool.account.has_enough(waiting * pool.most) {
                pool.promise(waiting)?;
            }
        }
        Ok(())
    }

    /// Returns the words of a slot's record.
    #[inline]
    fn record(&self, at: usize) -> &[AtomicU64] {
        self.region.words(at * RECORD_WORDS..(at + 1) * RECORD_WORDS)
    }

    /// Returns the queue pair for the entries of a slot: the first one of a device, with devices in
    /// turn, so that successive entries of one slot use the same connection while it works. `None`
    /// if it has no credit, which is back-pressure.
    #[inline(always)]
    pub(super) fn entry_lane(&self, at: usize) -> Option<usize> {
        let devices = self.devices.len();
        // A division is slow, and one device is common.
        let device = if devices == 1 { 0 } else { at % devices };
        let place = usize::from(self.first_lanes[device]);
        let lane = &self.lanes[place];
        let works = usize::from(lane.device_at) == device && self.writes_entries(lane);
        if works { lane.has_room(1).then_some(place) } else { self.find_entry_lane(at) }
    }

    /// Whether a queue pair may be given entries, credits aside.
    #[inline]
    fn writes_entries(&self, lane: &Lane<Q, DEPTH>) -> bool {
        lane.health.lifecycle.is_in_service() && self.lanes.is_open(lane)
    }

    /// Finds the queue pair for the entries of a slot if the usual one has failed or stands by.
    #[cold]
    fn find_entry_lane(&self, at: usize) -> Option<usize> {
        let devices = self.devices.len();
        let mut in_turn = (0..devices).map(|step| (at + step) % devices);
        let place = in_turn.find_map(|device| {
            self.lanes
                .iter()
                .position(|lane| usize::from(lane.device_at) == device && self.writes_entries(lane))
        });
        place.filter(|place| self.lanes[*place].has_room(1))
    }

    /// Writes the staged entries of a slot with one request. If the driver refuses it, nothing
    /// changed.
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
        // Inline saves the NIC a read of the staging copy.
        let is_inline = staged.length() <= lane.max_inline;
        let request = SendRequest {
            flags: if is_inline { SendFlags::INLINE } else { SendFlags::empty() },
            sge: staged.sge(lkey),
            remote_addr: ring.addr + (at * MAX_BUFFERS * ENTRY_BYTES) as u64,
            rkey: key(&ring.rkeys, lane.peer_at),
            ..blank(Opcode::RdmaWrite)
        };
        // Signaled by count and not by slot: if one device is gone, the signaled slot might never
        // be written through the remaining one (messages.md, "Offers: entries").
        let is_due = lane.queue.is_signal_due();
        let rail = lane.rail;
        // An entry that is written again holds its slot until the write has ended, so that write is
        // signaled.
        let taken = lane.post_one(request, is_due || purpose != Purpose::Entries, purpose);
        match taken.refusal {
            // A driver that took the request and complained has it all the same.
            Some(refusal) if taken.count == 0 => Err(NotNow::Refused { rail, refusal }),
            _ => Ok(()),
        }
    }

    /// Stores the entries of a slot in its staging copy, and returns that copy.
    pub(super) fn stage(&self, at: usize, entries: &[Entry]) -> LocalBuffer {
        let (words, staged) = Self::staging(&self.region, at, entries.len());
        for (words, entry) in words.chunks_exact(ENTRY_WORDS).zip(entries) {
            entry.store(self.form, words);
        }
        staged
    }

    /// Returns the staging copy of the entries of a slot, as words and as a buffer of `count`
    /// entries. It does not change until the slot is reused, because the NIC may read it at any
    /// time before.
    #[inline]
    fn staging(region: &Region<M>, at: usize, count: usize) -> (&[AtomicU64], LocalBuffer) {
        const SLOT: usize = MAX_BUFFERS * ENTRY_WORDS;
        let first = Self::RECORDS_WORDS + at * SLOT;
        region.part(first..first + SLOT, count * ENTRY_BYTES)
    }
}

impl RecvBuffer<'_> {
    /// Returns the entry of this buffer, number `index` of `count`, with its rkeys for these
    /// devices.
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
        for ((at, &device), rkey) in devices.iter().enumerate().zip(&mut rkeys) {
            match find_keys(keys, at, device) {
                Some(keys) => *rkey = keys.rkey,
                // The sender writes nothing to an empty buffer, so it needs no key.
                None if length > 0 => return Err(CallError::MissingKeys { device }),
                None => {}
            }
        }
        Ok(Entry { number, addr, length, tag, rkeys, count, index })
    }
}

impl<S: ReceiveQueue> DevicePool<S> {
    /// Reserves receives for this many slots, and checks that the limit also covers failures of
    /// rails.
    fn promise(&mut self, waiting: u32) -> Result<(), NotNow> {
        let Self { account, each, most } = self;
        if *each == 0 {
            return Ok(());
        }
        let device = account.device();
        let promised = waiting * *each;
        // Also what failures of rails may need later: the shares that are moved then must find
        // receives at once, and the limit does not grow.
        if !account.may_promise(waiting * *most) {
            return Err(NotNow::PoolFull { device });
        }
        // A refusal is no error if the driver took enough receives of the batch.
        match account.refill(promised) {
            Err(refusal) if !account.covers(promised) => {
                Err(NotNow::PoolRefused { device, refusal })
            }
            _ => Ok(()),
        }
    }
}
