//! Sends buffers, and returns them to the caller.

use super::end::{Sender, SenderConfig};
use super::slot::{Buffer, Slot, State};
use crate::hardware::QueuePair;
use crate::p2p::entry::{ENTRY_WORDS, EntryError, MAX_BUFFERS, entry_word};
use crate::p2p::error::{CallError, Failure, NotNow, ProtocolError};
use crate::p2p::immediate::{SIZE_UNIT, Told};
use crate::p2p::lane::find_keys;
use crate::p2p::lanes::Devices;
use crate::p2p::mask::Mask;
use crate::p2p::memory::Words;
use crate::rail::MAX_RAILS;
use crate::verbs::{DeviceKeys, Imm, LocalBuffer};

/// One buffer of a message, from [`isend`](super::Sender::isend) until
/// [`test`](super::Sender::test) returns its result.
///
/// Numbers are never reused, so a stale handle is detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "the buffer is the connection's until the request was tested"]
pub struct SendHandle {
    pub(super) number: u64,
    pub(super) buffer: u8,
}

impl SendHandle {
    /// Returns the number of the message: 1 for the first one of a connection.
    pub const fn number(&self) -> u64 {
        self.number
    }
}

/// The buffer of a send.
#[derive(Clone, Copy, Debug)]
struct Source {
    buffer: LocalBuffer,
    /// Requests may carry its bytes inline.
    may_inline: bool,
}

impl<Q: QueuePair, M: Words, const QPS: usize, const DEPTH: usize, const SLOTS: usize>
    Sender<Q, M, QPS, DEPTH, SLOTS>
{
    /// Sends `buffer` to the buffer with this tag in the peer's next receive. If that receive has
    /// several buffers, the message goes out when each of them has a send.
    ///
    /// `keys` has the lkey of the buffer for the device of every rail of this end. An empty buffer
    /// needs none.
    ///
    /// # Errors
    ///
    /// Nothing changed. [Not now](CallError::NotNow): there is no such buffer yet, or no room;
    /// poll, then try again. [`TooLong`](CallError::TooLong): the message is longer than the peer's
    /// buffer.
    pub fn isend(
        &mut self,
        buffer: LocalBuffer,
        tag: u32,
        keys: &[DeviceKeys],
    ) -> Result<SendHandle, CallError> {
        self.isend_with(Source { buffer, may_inline: false }, tag, keys)
    }

    /// Sends like [`isend`](Self::isend), from memory that this process can read at its address
    /// (memory of a GPU is not). Requests whose part fits `max_inline_data` of their queue pair
    /// carry the bytes inline, so that the device need not fetch them, which is faster for short
    /// messages. The buffer still belongs to the connection until [`test`](Self::test) reports the
    /// message, because it may have to be sent again.
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

    /// Returns whether a message has arrived. The buffer then belongs to the caller again, and the
    /// handle becomes invalid.
    ///
    /// # Errors
    ///
    /// [`Failed`](CallError::Failed): the connection failed before this end received the last
    /// acknowledgement, so the message may or may not have arrived. The buffer belongs to the
    /// caller again. Until all queue pairs are drained the result is `Ok(false)`.
    /// [`TakenBack`](CallError::TakenBack): this end or the receiver [took it
    /// back](Self::cancel). The buffer belongs to the caller again.
    /// [`NoRequest`](CallError::NoRequest): an earlier call returned the result.
    pub fn test(&mut self, handle: SendHandle) -> Result<bool, CallError> {
        let SendHandle { number, buffer } = handle;
        let slot = &mut self.slots[Self::slot_at(number)];
        let bit = 1 << buffer;
        // Numbers are never reused, so a handle of an earlier message of the slot does not match.
        if slot.number != number || slot.awaited & bit == 0 {
            return Err(CallError::NoRequest { number });
        }
        if slot.state == State::Done {
            slot.note_tested(bit);
            return Ok(true);
        }
        let is_void = matches!(slot.state, State::Void | State::TakenBack);
        if is_void || slot.taken_back & bit != 0 {
            return Err(self.note_taken_back(number, bit));
        }
        match self.lanes.failure {
            // Until then a NIC may still read the buffer.
            Some(failure) if self.is_drained() => {
                self.slots[Self::slot_at(number)].note_tested(bit);
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
        let number = self.next;
        // Only the next receive is looked at: receives match sends in posting order.
        self.open_front::<false>(number)?;
        let Self { slots, devices, .. } = self;
        let slot = &mut slots[Self::slot_at(number)];
        if slot.count > 1 || !self.may_send {
            // Out of line, so that a usual message carries no code for others.
            return self.isend_slowly(source, tag, keys);
        }
        let place = &mut slot.buffers[0];
        if place.remote.tag != tag {
            return Err(NotNow::NoSuchTag.into());
        }
        place.fill(source, devices, keys)?;
        // Set before the post and taken back if nothing was posted: the call then changed nothing.
        slot.awaited = 1;
        if let Err(not_now) = self.launch(number) {
            self.slots[Self::slot_at(number)].awaited = 0;
            return Err(not_now.into());
        }
        Ok(SendHandle { number, buffer: 0 })
    }

    /// Sends one buffer of a receive with several, or behind receives that the receiver wants back.
    #[inline(never)]
    fn isend_slowly(
        &mut self,
        source: Source,
        tag: u32,
        keys: &[DeviceKeys],
    ) -> Result<SendHandle, CallError> {
        self.working()?;
        if self.withdrawn > 0 {
            self.pass_withdrawn()?;
            self.open_front::<true>(self.next)?;
        }
        let number = self.next;
        let Self { slots, devices, .. } = self;
        let slot = &mut slots[Self::slot_at(number)];
        let at = slot.find(tag).ok_or(NotNow::NoSuchTag)?;
        slot.buffers[at].fill(source, devices, keys)?;
        slot.awaited |= 1 << at;
        // All buffers go out together: the sizes of all of them are in one record.
        if slot.awaited == slot.all()
            && slot.taken_back == 0
            && let Err(not_now) = self.launch_parts(number)
        {
            self.slots[Self::slot_at(number)].awaited &= !(1 << at);
            return Err(not_now.into());
        }
        Ok(SendHandle { number, buffer: at as u8 })
    }

    /// Refuses a call on a connection that failed or is not connected.
    const fn working(&self) -> Result<(), CallError> {
        match self.lanes.failure {
            Some(failure) => Err(CallError::Failed(failure)),
            None if self.is_connected => Ok(()),
            None => Err(CallError::NotConnected),
        }
    }

    /// Copies the entries of the next message into its slot, unless they are already there. `APART`
    /// only makes the usual send's use of this function and of two below different functions, because
    /// the compiler inlines a function with one use: 486 instead of 517 instructions for a send.
    #[inline]
    pub(super) fn open_front<const APART: bool>(&mut self, number: u64) -> Result<(), CallError> {
        let at = Self::slot_at(number);
        let slot = &self.slots[at];
        if slot.state == State::Matching && slot.number == number {
            return Ok(());
        }
        // `test` has not returned the message before in this slot, and its handle must stay valid.
        if slot.state != State::Free {
            let taken = NotNow::SlotTaken { number: slot.number };
            return Err(self.refuse_next(taken));
        }
        match self.load_entries::<APART>(at, number) {
            Some(Ok(count)) => {
                self.slots[at].open(number, count);
                Ok(())
            }
            None => Err(self.refuse_next(NotNow::NoEntry)),
            Some(Err(source)) => Err(self.invalid_entry(number, source)),
        }
    }

    /// Refuses a send because the next message cannot be opened.
    // A connection that failed or does not exist has no next message either, so that a send needs
    // no check of that before.
    #[cold]
    fn refuse_next(&mut self, why: NotNow) -> CallError {
        match self.working() {
            Err(error) => error,
            // Its owner has to test it, which no rail that returns makes unnecessary.
            Ok(()) if matches!(why, NotNow::SlotTaken { .. }) => why.into(),
            Ok(()) => self.refuse(why).into(),
        }
    }

    /// Refuses a send for now, and notes whether it waits for a rail to return.
    #[cold]
    pub(super) fn refuse(&mut self, why: NotNow) -> NotNow {
        // A missing entry counts, too: without a rail the peer can write none.
        self.waits_for_rail = !self.lanes.any_in_service();
        why
    }

    /// Fails the connection, because the peer wrote an invalid entry.
    #[cold]
    fn invalid_entry(&mut self, number: u64, source: EntryError) -> CallError {
        if let Err(error) = self.working() {
            return error;
        }
        // The entry is the only place where the peer says where to write. Nothing of it can be
        // believed.
        let failure = Failure::Protocol(ProtocolError::Entry { number, source });
        self.give_up(failure);
        CallError::Failed(failure)
    }

    /// Copies the entries of a receive out of the ring, each once, and returns their number; `None`
    /// if they have not all arrived.
    #[inline]
    fn load_entries<const APART: bool>(
        &mut self,
        at: usize,
        number: u64,
    ) -> Option<Result<u8, EntryError>> {
        let first = entry_word(SLOTS, at, 1);
        let words = self.region.words(first..first + ENTRY_WORDS);
        // Read in place: the slot keeps the entry, so it is not copied twice.
        let entry = &mut self.slots[at].buffers[0].remote;
        match entry.read(words, self.config.entry_form, number, 0) {
            Some(Ok(())) if entry.count == 1 => Some(Ok(1)),
            // The entries of several buffers have another place.
            Some(Ok(())) => Some(Err(EntryError::Count { index: 0, count: entry.count })),
            Some(Err(error)) => Some(Err(error)),
            None => self.load_several(at, number),
        }
    }

    /// Copies the entries of a receive of several buffers out of the ring.
    #[inline(never)]
    fn load_several(&mut self, at: usize, number: u64) -> Option<Result<u8, EntryError>> {
        let form = self.config.entry_form;
        let first = entry_word(SLOTS, at, MAX_BUFFERS);
        let mut count = 2;
        let mut index = 0;
        while index < count {
            let word = first + usize::from(index) * ENTRY_WORDS;
            let words = self.region.words(word..word + ENTRY_WORDS);
            let entry = &mut self.slots[at].buffers[usize::from(index)].remote;
            if let Err(error) = entry.read(words, form, number, index)? {
                return Some(Err(error));
            }
            if index == 0 && entry.count > 1 {
                count = entry.count;
            } else if entry.count != count {
                // Each entry states how many the receive has. If two disagree, they are not of one
                // receive.
                return Some(Err(EntryError::Count { index, count: entry.count }));
            }
            index += 1;
        }
        Some(Ok(count))
    }

    /// Posts a message of one buffer. If no rail takes any of it, nothing changed.
    #[inline]
    fn launch(&mut self, number: u64) -> Result<(), NotNow> {
        let at = Self::slot_at(number);
        let bytes = self.slots[at].buffers[0].local.length();
        if bytes > self.longest_short {
            // A short message goes to one rail and skips the split: 1451 instead of 1656
            // instructions for a message of 8 bytes when this path was added.
            return self.launch_parts(number);
        }
        let Some((rail, place)) = self.one_lane::<false>() else {
            return Err(self.refuse(NotNow::NoCredits));
        };
        let mask = Mask::of(rail);
        let imm = self.send_fast(at, mask, bytes);
        let taken = self.post_fast(at, rail, place, (0, bytes), imm);
        self.given((at, rail, place), u64::from(bytes), taken, true)?;
        // Only once the driver took it: a message that was not sent costs its queue pair no turn.
        self.note_turns(mask, |_| place as u8);
        self.next = number + 1;
        Ok(())
    }

    /// Returns the rail for a message that is not split, and the queue pair of that rail in turn.
    #[inline]
    pub(super) fn one_lane<const APART: bool>(&mut self) -> Option<(u8, usize)> {
        // One queue pair, and nothing that waits for it: no choice to make.
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

    /// Splits a message and posts it. Each of its buffers has a send. If no rail takes any of it,
    /// nothing changed.
    #[inline(never)]
    fn launch_parts(&mut self, number: u64) -> Result<(), NotNow> {
        let at = Self::slot_at(number);
        let Slot { count, buffers: [Buffer { local, .. }, ..], .. } = &self.slots[at];
        let (count, bytes) = (*count, local.length());
        let (available, chosen) = self.available(u32::from(count));
        if available.is_empty() {
            return Err(self.refuse(NotNow::NoCredits));
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
        // A share that exceeds the port's longest message takes several requests, of which only the
        // last one has the immediate.
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

    /// Prepares a message of one buffer for these rails, divided evenly, with one request on each.
    /// Returns their immediate.
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

    /// Returns the open rails with room for `requests`, and the queue pair of each rail in turn.
    #[inline]
    pub(super) fn available(&self, requests: u32) -> (Mask, [u8; MAX_RAILS]) {
        // Neither is usual, so the loop below looks at one queue pair for each rail and at nothing
        // else.
        if self.each > 1 || self.owes {
            return self.choose_lanes(requests);
        }
        let mut available = Mask::EMPTY;
        for (rail, lane) in (0..MAX_RAILS).zip(self.lanes.iter()) {
            // A queue smaller than `requests` must not wait for ever, so an empty queue always
            // suffices. For one request that needs no comparison, since every queue has a slot.
            let has_room = match requests {
                1 => lane.has_room(1),
                _ => lane.has_room(requests.min(lane.queue.limit())),
            };
            available |= Mask::from_bits(u8::from(has_room) << rail);
        }
        (available & self.lanes.open, [0, 1, 2, 3, 4, 5, 6, 7])
    }

    /// Finds the available rails if rails have several queue pairs, or if some wait for credits.
    #[inline(never)]
    fn choose_lanes(&self, requests: u32) -> (Mask, [u8; MAX_RAILS]) {
        let mut available = Mask::EMPTY;
        let mut chosen = [0; MAX_RAILS];
        let rails = usize::from(self.config.rails);
        for (rail, chosen) in chosen.iter_mut().enumerate().take(rails) {
            if self.lanes.open.contains(rail as u8)
                && let Some(place) = self.choose_lane(rail, requests)
            {
                available |= Mask::of(rail as u8);
                *chosen = place as u8;
            }
        }
        (available, chosen)
    }

    /// Returns the next queue pair of a rail, in turn, that has room.
    fn choose_lane(&self, rail: usize, requests: u32) -> Option<usize> {
        let turn = usize::from(self.turns[rail]);
        // In turn, so that the queue pairs of one rail share its load.
        let in_turn = (1..=self.each).map(|step| (turn + step) % self.each);
        let mut places = in_turn.map(|at| rail + at * usize::from(self.config.rails));
        places.find(|place| self.has_room(*place, requests))
    }

    /// Returns whether a queue pair has room and no unfinished share.
    fn has_room(&self, place: usize, requests: u32) -> bool {
        let lane = &self.lanes[place];
        // Requests of one share follow each other on their queue pair; another message waits behind
        // it.
        self.owed[place].is_none() && lane.has_room(requests.min(lane.queue.limit()))
    }

    /// Assigns parts of the buffers to the available rails. A message without bytes uses one rail.
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
            // The receiver still waits for an immediate, so one rail sends it.
            mask = Mask::of(split.one(available, outstanding));
        }
        slot.mask = mask;
        slot.is_even = false;
    }
}

impl Buffer {
    /// Matches a send with this buffer, and looks up the lkey for each device of this end.
    #[inline]
    fn fill(
        &mut self,
        source: Source,
        devices: &Devices,
        keys: &[DeviceKeys],
    ) -> Result<(), CallError> {
        let Source { buffer, may_inline } = source;
        let (length, capacity) = (buffer.length(), self.remote.length);
        // Before anything is posted: a clipped message would be silent corruption (messages.md,
        // "Calls").
        if length > capacity {
            return Err(CallError::TooLong { length, capacity });
        }
        // No byte is read from an empty buffer, so it needs no key.
        if length > 0 {
            for ((at, &device), lkey) in devices.iter().enumerate().zip(&mut self.lkeys) {
                let found = find_keys(keys, at, device);
                *lkey = found.ok_or(CallError::MissingKeys { device })?.lkey;
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
        // A new entry in the slot means that the receiver is done with the slot's previous message,
        // so no share of it has to be sent again (messages.md, "Rails that fail").
        self.mask = Mask::EMPTY;
    }

    /// Notes that `test` has returned the result of a buffer.
    #[inline]
    pub(super) const fn note_tested(&mut self, bit: u8) {
        self.awaited &= !bit;
        if self.awaited == 0 {
            self.state = State::Free;
        }
    }

    /// Starts sending over these rails.
    #[inline]
    pub(super) const fn send_over(&mut self, mask: Mask) {
        self.state = State::Sending;
        self.mask = mask;
        self.arrived = Mask::EMPTY;
    }

    /// Chooses the form of the requests (messages.md, "The split"). `told` is the length of the
    /// first buffer as an immediate states it, and `fit` whether each share fits one request.
    #[inline]
    fn choose_form(&mut self, told: Told, fit: bool, config: &SenderConfig) {
        let bytes = self.buffers[0].local.length();
        let is_separate = config.separate_signal.is_some_and(|least| bytes >= least && bytes > 0);
        let is_alone = self.count == 1 && told != Told::Record;
        self.is_fast = is_alone && fit && !is_separate;
        // The length in an immediate is rounded up to 128 bytes. With payload the receiver takes
        // the exact length from the completions; without payload it must be a multiple.
        let is_told = self.is_fast || bytes.is_multiple_of(SIZE_UNIT);
        self.told = if is_alone && is_told { told } else { Told::Record };
    }
}
