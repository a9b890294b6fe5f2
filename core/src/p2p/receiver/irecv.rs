//! Offers buffers to the sender, by entries that are written into its memory, and returns them with
//! a message.

use super::end::{DevicePool, Receiver};
use super::slot::{Slot, State};
use crate::hardware::{QueuePair, ReceiveQueue};
use crate::p2p::entry::{ENTRY_BYTES, ENTRY_KEYS, ENTRY_WORDS, Entry, MAX_BUFFERS, entry_word};
use crate::p2p::error::{CallError, NotNow};
use crate::p2p::lane::{Lane, Purpose, blank, find_keys, key};
use crate::p2p::lanes::Devices;
use crate::p2p::memory::Words;
use crate::p2p::record::{self, RECORD_WORDS};
use crate::rail::MAX_RAILS;
use crate::verbs::{DeviceKeys, LocalBuffer, Opcode, SendFlags, SendRequest};
use core::ops::Range;
use core::sync::atomic::AtomicU64;

/// A buffer for a message.
#[derive(Clone, Copy, Debug)]
pub struct RecvBuffer<'k> {
    /// The memory of the buffer.
    pub local: LocalBuffer,
    /// Tag by which the sender finds the buffer within the receive.
    pub tag: u32,
    /// The keys of this buffer for the device of every rail of this end, of which the rkeys are
    /// used. An empty buffer needs none. The memory must be registered with LOCAL_WRITE and
    /// REMOTE_WRITE: the sender's device writes to it.
    pub keys: &'k [DeviceKeys],
}

/// A receive that was given to [`irecv`](super::Receiver::irecv), until
/// [`test`](super::Receiver::test) says that it is done.
///
/// Numbers are never reused, so a stale handle is detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "the buffers are the connection's until the request was tested"]
pub struct RecvHandle {
    pub(super) number: u64,
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
    /// The offer is sent at once if the sender has no other one. Otherwise one of the next
    /// [`polls_before_waiting`](crate::virtual_cq::VirtualCq::polls_before_waiting) polls sends it,
    /// together with the offers of the calls since then: receives of one buffer share a request.
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
        // A sender that has another offer can wait for this one until the next poll, which writes
        // the entries of several receives with one request.
        let at_once = self.waiting == 0;
        // First the checks that can end the call, since the steps below write memory and post
        // receives. Without a rail, a receive is not held either: no device would promise receives
        // for it.
        let lane = self.entry_lane(at).ok_or(NotNow::NoCredits)?;
        self.fill_entries(at, number, buffers)?;
        self.promise()?;
        // Before the entries go out, since the sender may use the slot at once: a record that is
        // not written must be detected, and each immediate must find a receive.
        record::poison(&self.record(at)[..buffers.len()]);
        if at_once {
            let first = entry_word(SLOTS, at, buffers.len());
            let posted = self.post_entries(first, lane, buffers.len(), Purpose::Entries);
            if let Err(refused) = posted {
                self.entries_refused(lane, refused);
                return Err(refused.into());
            }
        }
        let slot = &mut self.slots[at];
        slot.hold(number, buffers.len() as u8);
        if at_once {
            slot.wait(lane as u8);
            self.unwritten = number + 1;
        }
        self.waiting += 1;
        // Last, so that a call that failed has used no number: the sender expects each of them.
        self.next = number + 1;
        Ok(RecvHandle { number })
    }

    /// Writes the entries of the receives that are held, as far as there are credits. Successive
    /// receives of one buffer share a request.
    #[inline(never)]
    pub(super) fn write_held(&mut self) {
        while self.unwritten < self.next {
            let at = Self::slot_at(self.unwritten);
            // Without a credit they stay held, and the next poll tries again: the completions of
            // earlier entries return credits.
            let Some(lane) = self.entry_lane(at) else { return };
            let (receives, entries) = self.held_together(at, &self.lanes[lane]);
            let first = entry_word(SLOTS, at, usize::from(self.slots[at].count));
            if let Err(refused) = self.post_entries(first, lane, entries, Purpose::Entries) {
                return self.held_refused(lane, refused);
            }
            for slot in &mut self.slots[at..at + receives] {
                slot.wait(lane as u8);
            }
            self.unwritten += receives as u64;
        }
    }

    /// Returns how many receives, the held one in slot `at` first, have their entries in one
    /// request of this queue pair, and the number of their entries.
    fn held_together(&self, at: usize, lane: &Lane<Q, DEPTH>) -> (usize, usize) {
        let count = usize::from(self.slots[at].count);
        if count > 1 {
            return (1, count);
        }
        // Behind the last slot of the ring comes its first one, which is no neighbour in memory;
        // and the next group of slots may have another queue pair.
        let group = if self.devices.len() == 1 { SLOTS } else { Self::GROUP - at % Self::GROUP };
        let fitting = lane.max_message as usize / ENTRY_BYTES;
        let most = group.min(SLOTS - at).min(fitting).min((self.next - self.unwritten) as usize);
        let alone = self.slots[at..at + most].iter().take_while(|slot| slot.count == 1);
        let receives = alone.count();
        (receives, receives)
    }

    /// Returns the message if it has arrived. The buffers then belong to the caller again, and the
    /// handle becomes invalid.
    ///
    /// # Errors
    ///
    /// [`Failed`](CallError::Failed): the connection failed before the message arrived. The buffers
    /// belong to the caller again, with undefined contents. Until all queue pairs are drained the
    /// result is `Ok(None)`. [`TakenBack`](CallError::TakenBack): this end [took the receive
    /// back](Self::cancel), or the sender the message. The buffers belong to the caller again, and may
    /// have been written in part. [`NoRequest`](CallError::NoRequest): an earlier call returned the
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
        if slot.is_taken_back() {
            return Err(slot.note_taken_back());
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

    /// Builds the entries of a receive in the staging copy of its free slot.
    #[inline]
    fn fill_entries(
        &mut self,
        at: usize,
        number: u64,
        buffers: &[RecvBuffer<'_>],
    ) -> Result<(), CallError> {
        // One buffer is the usual case, and its entry is made and staged in one pass.
        let [only] = buffers else { return self.fill_several(at, number, buffers) };
        let Self { slots, devices, region, form, .. } = self;
        let entry = &mut slots[at].entries[0];
        *entry = only.entry(number, (1, 0), devices)?;
        entry.store(*form, region.words(Self::staging(at, 1)));
        Ok(())
    }

    /// Builds the entries of several buffers.
    #[inline(never)]
    fn fill_several(
        &mut self,
        at: usize,
        number: u64,
        buffers: &[RecvBuffer<'_>],
    ) -> Result<(), CallError> {
        let count = buffers.len() as u8;
        for (index, buffer) in (0..).zip(buffers) {
            let entry = buffer.entry(number, (count, index), &self.devices)?;
            self.slots[at].entries[usize::from(index)] = entry;
        }
        self.stage(at, &self.slots[at].entries[..buffers.len()]);
        Ok(())
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

    /// Slots whose entries use the same device, if there are several: neighbours, so that one
    /// request can write entries of several slots.
    const GROUP: usize = SLOTS / MAX_RAILS;

    /// Returns the queue pair for the entries of a slot: the first one of a device, with devices in
    /// turn for each group of slots, so that successive entries of one slot use the same connection
    /// while it works. `None` if it has no credit, which is back-pressure.
    #[inline(always)]
    pub(super) fn entry_lane(&self, at: usize) -> Option<usize> {
        let devices = self.devices.len();
        // A division is slow, and one device is common.
        let device = if devices == 1 { 0 } else { at / Self::GROUP % devices };
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
        let mut in_turn = (0..devices).map(|step| (at / Self::GROUP + step) % devices);
        let place = in_turn.find_map(|device| {
            self.lanes
                .iter()
                .position(|lane| usize::from(lane.device_at) == device && self.writes_entries(lane))
        });
        place.filter(|place| self.lanes[*place].has_room(1))
    }

    /// Writes staged entries with one request, those from word `first` of the ring on. If the driver
    /// refuses it, nothing changed.
    #[inline]
    pub(super) fn post_entries(
        &mut self,
        first: usize,
        place: usize,
        entries: usize,
        purpose: Purpose,
    ) -> Result<(), NotNow> {
        let Self { lanes, ring, lkeys, region, .. } = self;
        let words = Self::RECORDS_WORDS + first;
        let staged = region.part(words..words + entries * ENTRY_WORDS, entries * ENTRY_BYTES).1;
        let lane = &mut lanes[place];
        let lkey = lkeys[usize::from(lane.device_at) % MAX_RAILS];
        // Inline saves the NIC a read of the staging copy.
        let is_inline = staged.length() <= lane.max_inline;
        let request = SendRequest {
            flags: if is_inline { SendFlags::INLINE } else { SendFlags::empty() },
            sge: staged.sge(lkey),
            remote_addr: ring.addr + (first * size_of::<u64>()) as u64,
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

    /// Stores the entries of a slot in its staging copy.
    pub(super) fn stage(&self, at: usize, entries: &[Entry]) {
        let words = self.region.words(Self::staging(at, entries.len()));
        for (words, entry) in words.chunks_exact(ENTRY_WORDS).zip(entries) {
            entry.store(self.form, words);
        }
    }

    /// Returns the place of the staging copy of a slot's `count` entries, which are at the same
    /// place in the ring. It does not change until the slot is reused, because the NIC may read it
    /// at any time before.
    #[inline]
    const fn staging(at: usize, count: usize) -> Range<usize> {
        let first = Self::RECORDS_WORDS + entry_word(SLOTS, at, count);
        first..first + count * ENTRY_WORDS
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
