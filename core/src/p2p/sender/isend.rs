//! Buffers are given to the connection, and come back.

use super::end::{Sender, SenderConfig};
use super::slot::{Buffer, Slot, State};
use crate::hardware::QueuePair;
use crate::p2p::entry::{ENTRY_WORDS, EntryError, MAX_BUFFERS};
use crate::p2p::error::{CallError, Failure, NotNow, ProtocolError};
use crate::p2p::immediate::{SIZE_UNIT, Told};
use crate::p2p::lane::{Devices, find_keys};
use crate::p2p::mask::Mask;
use crate::p2p::memory::Words;
use crate::rail::MAX_RAILS;
use crate::verbs::{DeviceKeys, Imm, LocalBuffer};

/// One buffer of a message that was given to [`isend`](super::Sender::isend), until
/// [`test`](super::Sender::test) says that it is done.
///
/// Numbers of messages are never used again, so a handle that is kept too long is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "the buffer is the connection's until the request was tested"]
pub struct SendHandle {
    number: u64,
    buffer: u8,
}

impl SendHandle {
    /// Number of the message: 1 for a connection's first.
    pub const fn number(&self) -> u64 {
        self.number
    }
}

/// What is sent.
#[derive(Clone, Copy, Debug)]
struct Source {
    buffer: LocalBuffer,
    /// Requests may bring its bytes along.
    may_inline: bool,
}

impl<Q: QueuePair, M: Words, const QPS: usize, const DEPTH: usize, const SLOTS: usize>
    Sender<Q, M, QPS, DEPTH, SLOTS>
{
    /// Sends `buffer` to the buffer with this tag in the receive that is next. Of a receive with several
    /// buffers, all go out when each has found its send.
    ///
    /// `keys` has the buffer's lkey for every device that this end has rails on; a buffer without bytes
    /// needs none.
    ///
    /// # Errors
    ///
    /// Nothing changed. [Not now](CallError::NotNow): there is no such buffer yet, or no room; poll, and try
    /// again. A message that is too long is refused.
    pub fn isend(
        &mut self,
        buffer: LocalBuffer,
        tag: u32,
        keys: &[DeviceKeys],
    ) -> Result<SendHandle, CallError> {
        self.isend_with(Source { buffer, may_inline: false }, tag, keys)
    }

    /// [`isend`](Self::isend) of memory that this process can read at its address, which that of a GPU is not:
    /// requests whose part of it is short enough for their queue pair (`max_inline_data`) bring the bytes
    /// along, so that the device need not fetch them. That is faster for short messages. The buffer is the
    /// caller's again when [`test`](Self::test) says so, as always: it may be sent again.
    ///
    /// # Errors
    ///
    /// As [`isend`](Self::isend).
    pub fn isend_inline(
        &mut self,
        buffer: LocalBuffer,
        tag: u32,
        keys: &[DeviceKeys],
    ) -> Result<SendHandle, CallError> {
        self.isend_with(Source { buffer, may_inline: buffer.length() > 0 }, tag, keys)
    }

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

    #[inline(always)]
    fn isend_with(
        &mut self,
        source: Source,
        tag: u32,
        keys: &[DeviceKeys],
    ) -> Result<SendHandle, CallError> {
        self.working()?;
        let number = self.next;
        self.open_front(number)?;
        let Self { slots, devices, .. } = self;
        let slot = &mut slots[Self::slot_at(number)];
        if slot.count > 1 {
            return self.isend_one_of(number, source, tag, keys);
        }
        let place = &mut slot.buffers[0];
        if place.remote.tag != tag {
            return Err(NotNow::NoSuchTag.into());
        }
        place.fill(source, devices, keys)?;
        slot.awaited = 1;
        if let Err(not_now) = self.launch(number) {
            self.slots[Self::slot_at(number)].awaited = 0;
            return Err(not_now.into());
        }
        Ok(SendHandle { number, buffer: 0 })
    }

    /// The same for a receive with several buffers.
    #[inline(never)]
    fn isend_one_of(
        &mut self,
        number: u64,
        source: Source,
        tag: u32,
        keys: &[DeviceKeys],
    ) -> Result<SendHandle, CallError> {
        let Self { slots, devices, .. } = self;
        let slot = &mut slots[Self::slot_at(number)];
        let at = slot.find(tag).ok_or(NotNow::NoSuchTag)?;
        slot.buffers[at].fill(source, devices, keys)?;
        slot.awaited |= 1 << at;
        if slot.awaited == slot.all()
            && let Err(not_now) = self.launch_parts(number)
        {
            self.slots[Self::slot_at(number)].awaited &= !(1 << at);
            return Err(not_now.into());
        }
        Ok(SendHandle { number, buffer: at as u8 })
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

    /// Copies the entries of the message that is next into its slot, unless they are there.
    #[inline]
    fn open_front(&mut self, number: u64) -> Result<(), CallError> {
        let at = Self::slot_at(number);
        let slot = &self.slots[at];
        if slot.state == State::Matching && slot.number == number {
            return Ok(());
        }
        if slot.state != State::Free {
            return Err(NotNow::SlotTaken { number: slot.number }.into());
        }
        match self.load_entries(at, number) {
            Some(Ok(count)) => {
                self.slots[at].open(number, count);
                Ok(())
            }
            None => Err(NotNow::NoEntry.into()),
            Some(Err(source)) => Err(self.lied(number, source)),
        }
    }

    /// The peer wrote an entry that no correct one writes.
    #[cold]
    fn lied(&mut self, number: u64, source: EntryError) -> CallError {
        let failure = Failure::Protocol(ProtocolError::Entry { number, source });
        self.give_up(failure);
        CallError::Failed(failure)
    }

    /// Copies entries out of the ring, each once, and returns how many there are; `None` if they are not
    /// all there yet.
    #[inline]
    fn load_entries(&mut self, at: usize, number: u64) -> Option<Result<u8, EntryError>> {
        let form = self.config.entry_form;
        let first = at * MAX_BUFFERS * ENTRY_WORDS;
        let mut count = 1;
        let mut index = 0;
        while index < count {
            let word = first + usize::from(index) * ENTRY_WORDS;
            let words = self.region.words(word..word + ENTRY_WORDS);
            let entry = &mut self.slots[at].buffers[usize::from(index)].remote;
            if let Err(error) = entry.read(words, form, number, index)? {
                return Some(Err(error));
            }
            if index == 0 {
                count = entry.count;
            } else if entry.count != count {
                return Some(Err(EntryError::Count { index, count: entry.count }));
            }
            index += 1;
        }
        Some(Ok(count))
    }

    /// Gives a message of one buffer, which has found its send, to the rails. If none takes anything of it,
    /// nothing changed.
    #[inline]
    fn launch(&mut self, number: u64) -> Result<(), NotNow> {
        let at = Self::slot_at(number);
        let bytes = self.slots[at].buffers[0].local.length();
        if bytes > self.longest_short {
            return self.launch_parts(number);
        }
        let (rail, place) = self.one_lane().ok_or(NotNow::NoCredits)?;
        let mask = Mask::of(rail);
        let imm = self.send_fast(at, mask, bytes);
        let taken = self.post_fast(at, rail, place, (0, bytes), imm);
        self.given((at, rail, place), u64::from(bytes), taken, true)?;
        self.note_turns(mask, |_| place as u8);
        self.next = number + 1;
        Ok(())
    }

    /// The rail for a message that goes over one, and its queue pair whose turn it is.
    #[inline]
    fn one_lane(&mut self) -> Option<(u8, usize)> {
        if let [only] = &*self.lanes.all
            && !self.owes
        {
            return only.has_room(1).then_some((0, 0));
        }
        let (available, chosen) = self.available(1);
        if available.is_empty() {
            return None;
        }
        let rail = self.split.one(available, &self.outstanding);
        Some((rail, usize::from(chosen[usize::from(rail)])))
    }

    /// Splits a message, each of whose buffers has found its send, and gives it to the rails. If none takes
    /// anything of it, nothing changed.
    #[inline(never)]
    fn launch_parts(&mut self, number: u64) -> Result<(), NotNow> {
        let at = Self::slot_at(number);
        let Slot { count, buffers: [Buffer { local, .. }, ..], .. } = &self.slots[at];
        let (count, bytes) = (*count, local.length());
        let (available, chosen) = self.available(u32::from(count));
        if available.is_empty() {
            return Err(NotNow::NoCredits);
        }
        if count == 1
            && bytes <= self.longest_fast
            && let Some((mut parts, mask)) = self.split.evenly(bytes, available)
        {
            let imm = self.send_fast(at, mask, bytes);
            self.post_shares(at, (mask, &chosen), imm, |_, _| parts.next())?;
            self.next = number + 1;
            return Ok(());
        }
        self.divide(at, available);
        let slot = &mut self.slots[at];
        let fits = |rail: u8| {
            let lane = &self.lanes[usize::from(chosen[usize::from(rail)])];
            slot.first_part(rail).1 <= lane.max_message
        };
        let fits = { slot.mask }.all(fits);
        slot.choose_form(self.layout.told(bytes), fits, &self.config);
        slot.send_over(slot.mask);
        self.post_message(number, &chosen)?;
        self.next = number + 1;
        Ok(())
    }

    /// A message of one buffer of so many bytes is given to these rails, evenly, as one request on each. Returns
    /// their immediate.
    #[inline]
    fn send_fast(&mut self, at: usize, mask: Mask, bytes: u32) -> Imm {
        let units = bytes.div_ceil(SIZE_UNIT);
        let slot = &mut self.slots[at];
        slot.told = Told::Units(units);
        slot.is_fast = true;
        slot.is_even = true;
        slot.send_over(mask);
        self.layout.encode_units(at as u8, mask, units)
    }

    /// The rails that can be given something now, and the queue pair of each whose turn it is. `requests`
    /// is what it should have room for.
    #[inline]
    pub(super) fn available(&self, requests: u32) -> (Mask, [u8; MAX_RAILS]) {
        if self.each > 1 || self.owes {
            return self.choose_lanes(requests);
        }
        let mut available = Mask::EMPTY;
        for (rail, lane) in (0..MAX_RAILS).zip(self.lanes.iter()) {
            // Every queue has room for one.
            let has_room = match requests {
                1 => lane.has_room(1),
                _ => lane.has_room(requests.min(lane.queue.limit())),
            };
            available |= Mask::from_bits(u8::from(has_room) << rail);
        }
        (available, [0, 1, 2, 3, 4, 5, 6, 7])
    }

    /// The same where rails have several queue pairs, or some of them wait for credits.
    #[inline(never)]
    fn choose_lanes(&self, requests: u32) -> (Mask, [u8; MAX_RAILS]) {
        let mut available = Mask::EMPTY;
        let mut chosen = [0; MAX_RAILS];
        let rails = usize::from(self.config.rails);
        for (rail, chosen) in chosen.iter_mut().enumerate().take(rails) {
            if let Some(place) = self.choose_lane(rail, requests) {
                available |= Mask::of(rail as u8);
                *chosen = place as u8;
            }
        }
        (available, chosen)
    }

    /// The queue pair of a rail whose turn it is, of those that can be given something.
    fn choose_lane(&self, rail: usize, requests: u32) -> Option<usize> {
        let turn = usize::from(self.turns[rail]);
        let in_turn = (1..=self.each).map(|step| (turn + step) % self.each);
        let mut places = in_turn.map(|at| rail + at * usize::from(self.config.rails));
        places.find(|place| self.has_room(*place, requests))
    }

    /// Whether a queue pair can be given something now.
    fn has_room(&self, place: usize, requests: u32) -> bool {
        let lane = &self.lanes[place];
        self.owed[place].is_none() && lane.has_room(requests.min(lane.queue.limit()))
    }

    /// Gives every available rail its parts of the buffers. A message without bytes goes over one rail.
    fn divide(&mut self, at: usize, available: Mask) {
        let Self { split, outstanding, slots, .. } = self;
        let slot = &mut slots[at];
        let mut mask = Mask::EMPTY;
        for buffer in &mut slot.buffers[..usize::from(slot.count)] {
            let (parts, carriers) = split.split(buffer.local.length(), available, outstanding);
            buffer.parts = parts;
            mask |= carriers;
        }
        if mask.is_empty() {
            mask = Mask::of(split.one(available, outstanding));
        }
        slot.mask = mask;
        slot.is_even = false;
    }
}

impl Buffer {
    /// It has found its send: of this buffer, with an lkey for each of this end's devices.
    #[inline]
    fn fill(
        &mut self,
        source: Source,
        devices: &Devices,
        keys: &[DeviceKeys],
    ) -> Result<(), CallError> {
        let Source { buffer, may_inline } = source;
        let (length, capacity) = (buffer.length(), self.remote.length);
        if length > capacity {
            return Err(CallError::TooLong { length, capacity });
        }
        if length > 0 {
            for ((at, device), lkey) in devices.iter().enumerate().zip(&mut self.lkeys) {
                *lkey = find_keys(keys, at, *device)?.lkey;
            }
        }
        self.local = buffer;
        self.may_inline = may_inline;
        Ok(())
    }
}

impl Slot {
    /// Begins a message of this number with `count` buffers.
    #[inline]
    fn open(&mut self, number: u64, count: u8) {
        self.number = number;
        self.state = State::Matching;
        self.count = count;
        self.awaited = 0;
        self.failures = 0;
        // The receiver is done with the message before: nothing of it is to be sent again.
        self.mask = Mask::EMPTY;
    }

    /// A buffer's caller was told.
    #[inline]
    const fn tell(&mut self, bit: u8) {
        self.awaited &= !bit;
        if self.awaited == 0 {
            self.state = State::Free;
        }
    }

    /// It is given to these rails.
    #[inline]
    const fn send_over(&mut self, mask: Mask) {
        self.state = State::Sending;
        self.mask = mask;
        self.arrived = Mask::EMPTY;
    }

    /// The first buffer with this tag that has not found its send.
    #[inline]
    fn find(&self, tag: u32) -> Option<usize> {
        let has_no_send = |at: &usize| self.awaited >> at & 1 == 0;
        let mut fitting = (0..usize::from(self.count)).filter(has_no_send);
        fitting.find(|at| self.buffers[*at].remote.tag == tag)
    }

    /// Chooses what the requests look like. `told` is what an immediate says of the first buffer's length;
    /// its shares `fit` one request each, or not.
    #[inline]
    fn choose_form(&mut self, told: Told, fit: bool, config: &SenderConfig) {
        let bytes = self.buffers[0].local.length();
        let is_separate = config.separate_signal.is_some_and(|least| bytes >= least && bytes > 0);
        let is_alone = self.count == 1 && told != Told::Record;
        self.is_fast = is_alone && fit && !is_separate;
        // Without payload, an immediate tells multiples of 128 bytes only.
        let is_told = self.is_fast || bytes.is_multiple_of(SIZE_UNIT);
        self.told = if is_alone && is_told { told } else { Told::Record };
    }
}
