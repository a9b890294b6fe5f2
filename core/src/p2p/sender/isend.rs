//! A buffer is given to the connection.

use super::config::SenderConfig;
use super::end::Sender;
use super::handle::SendHandle;
use super::slot::{Slot, State};
use crate::hardware::QueuePair;
use crate::p2p::entry::{ENTRY_WORDS, EntryError, MAX_BUFFERS};
use crate::p2p::error::{CallError, Failure, NotNow, ProtocolError};
use crate::p2p::immediate::{SIZE_UNIT, Told};
use crate::p2p::lane::Devices;
use crate::p2p::mask::Mask;
use crate::p2p::memory::Words;
use crate::rail::MAX_RAILS;
use crate::verbs::{DeviceKeys, LocalBuffer};

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
        self.working()?;
        let number = self.next;
        self.open_front(number)?;
        let Self { slots, devices, .. } = self;
        let slot = &mut slots[Self::slot_at(number)];
        let at = slot.find(tag).ok_or(NotNow::NoSuchTag)?;
        let place = &mut slot.buffers[at];
        let (length, capacity) = (buffer.length(), place.remote.length);
        if length > capacity {
            return Err(CallError::TooLong { length, capacity });
        }
        if length > 0 {
            find_keys(&mut place.lkeys, devices, keys)?;
        }
        place.local = buffer;
        slot.matched |= 1 << at;
        if slot.matched == slot.all()
            && let Err(not_now) = self.launch(number)
        {
            self.slots[Self::slot_at(number)].matched &= !(1 << at);
            return Err(not_now.into());
        }
        Ok(SendHandle { number, buffer: at as u8 })
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

    /// Splits a message, each of whose buffers has found its send, and gives it to the rails. If none takes
    /// anything of it, nothing changed.
    #[inline]
    fn launch(&mut self, number: u64) -> Result<(), NotNow> {
        let at = Self::slot_at(number);
        let (available, chosen) = self.available(u32::from(self.slots[at].count));
        if available.is_empty() {
            return Err(NotNow::NoCredits);
        }
        self.divide(at, available);
        let slot = &mut self.slots[at];
        let fits = |rail: u8| {
            let lane = &self.lanes[usize::from(chosen[usize::from(rail)])];
            slot.buffers[0].parts.part(rail).1 <= lane.max_message
        };
        let fits = { slot.mask }.all(fits);
        slot.choose_form(self.layout.told(slot.buffers[0].local.length()), fits, &self.config);
        slot.state = State::Sending;
        slot.arrived = Mask::EMPTY;
        self.post_message(number, &chosen)?;
        self.next = number + 1;
        Ok(())
    }

    /// The rails that can be given something now, and the queue pair of each whose turn it is. `requests`
    /// is what it should have room for.
    #[inline]
    pub(super) fn available(&self, requests: u32) -> (Mask, [u8; MAX_RAILS]) {
        if self.each > 1 || self.owes {
            return self.choose_lanes(requests);
        }
        let mut available = Mask::EMPTY;
        for (rail, lane) in (0..).zip(self.lanes.iter()) {
            if lane.has_room(requests.min(lane.queue.limit())) {
                available |= Mask::of(rail);
            }
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
    #[inline]
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
    }
}

/// Puts the lkeys of a buffer into the order of this end's devices.
#[inline]
fn find_keys(
    lkeys: &mut [u32; MAX_RAILS],
    devices: &Devices,
    keys: &[DeviceKeys],
) -> Result<(), CallError> {
    for (lkey, device) in lkeys.iter_mut().zip(devices) {
        let found = keys.iter().find(|keys| keys.device == *device);
        *lkey = found.ok_or(CallError::MissingKeys { device: *device })?.lkey;
    }
    Ok(())
}

impl Slot {
    /// The first buffer with this tag that has not found its send.
    #[inline]
    fn find(&self, tag: u32) -> Option<usize> {
        let mut buffers = self.buffers().iter().enumerate();
        let found =
            buffers.find(|(at, buffer)| buffer.remote.tag == tag && self.matched >> at & 1 == 0);
        found.map(|(at, _)| at)
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
        let is_told = self.is_fast || (is_alone && bytes.is_multiple_of(SIZE_UNIT));
        self.told = if is_told { told } else { Told::Record };
    }
}
